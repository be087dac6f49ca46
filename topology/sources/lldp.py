"""Neighbours by LLDP, as lldpd tells of them: `lldpctl -f json` or `-f json0`, of one node or of many.

Format: src/client/display.c and json_writer.c of lldpd. In `json` a list of one is no list and names are keys; in
`json0` everything is a list. A text may hold several answers, one after the other. Whose they are is told by
`lldpcli -f json show chassis` (or `show interfaces`) in the same text, else by the name of the file.

A port is called by its interface's name, which is its id where that is an interface's name, else its description, if
it has one. Ends that contradict one another (several neighbours on a port; one end not heard anew since cables were
changed) are not modelled, and named in the notes.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final

from topology.model import Port
from topology.sources.cables import Cables, Source
from topology.sources.reading import domainless
from topology.sources.yamltext import TopologyError

_START: Final = re.compile(r'\s*\{\s*("lldp"|"local-chassis")\s*:')
_MAU: Final = re.compile(r"(\d{1,4})(G?)base", re.IGNORECASE)
_MAC: Final = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", re.IGNORECASE)
_FORWARDING: Final = frozenset({"Bridge", "Router"})


@dataclass(frozen=True, slots=True)
class Told:
    """A port as it tells of itself: node, names (the first is the one to use), speed, hardware address, and the IP
    addresses of its node's management."""

    node: str
    names: tuple[str, ...]
    speed_bps: int | None
    mac: str | None
    forwards: bool | None
    addresses: tuple[str, ...] = ()

    @property
    def port(self) -> Port:
        return Port(self.node, self.names[0], self.speed_bps, mac=self.mac)


@dataclass(slots=True)
class Answers:
    """What one node hears: `heard` has its interface, what is told there, and the line. `named`: by itself; `whole`: of
    all its ports."""

    node: str
    where: str
    named: bool = False
    whole: bool = True
    forwards: bool | None = None
    heard: list[tuple[str, Told, int]] = field(default_factory=list)
    own: dict[str, Told] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()


def is_output(text: str) -> bool:
    """Whether a text looks like the program's output."""
    return _START.match(text) is not None


def clean(name: str) -> str:
    """A node's name without the characters that separate names."""
    return re.sub(r"[>:]", "-", name)


def port_names(kind: str, value: str, described: str) -> tuple[str, ...]:
    """What a port is called, the name to use first. `kind` of its id: `ifname`, `mac` or another."""
    first = value if kind == "ifname" or (kind != "mac" and value and not value.isdecimal()) else described or value
    return tuple(one.replace(">", "_") for one in dict.fromkeys((first, value, described)) if one)


def read(text: str, where: str = "<text>") -> Source:
    """Of one node. Raises TopologyError, naming file, line and what was expected."""
    return joined([answers(text, where)])


def answers(text: str, where: str) -> Answers:
    """What the node of a text hears. Raises TopologyError."""
    found = Answers("", where)
    own_name = ""
    for start, document in _documents(text, where):
        reader = _Reader(text, where, start)
        if "local-chassis" in document:
            chassis = reader.one(reader.one(document["local-chassis"]).get("chassis"))
            own_name, found.forwards, found.addresses = reader.chassis(chassis)
        for interface, body in reader.interfaces(document.get("lldp")):
            told = reader.told(interface, body)
            if "status" in body and "rid" not in body:
                own_name, found.own[interface], found.addresses = told.node, told, told.addresses
            else:
                found.heard.append((interface, told, reader.line(interface)))
    found.named = bool(own_name)
    found.node = own_name or PurePath(where).name.split(".json")[0]
    if not own_name and where.startswith("<"):
        raise TopologyError(
            where, 1, "", "whose neighbours these are is not said: put `lldpcli -f json show chassis` before them"
        )
    return found


def joined(nodes: Iterable[Answers]) -> Source:
    """The fabric of what several nodes hear. Raises TopologyError."""
    every = list(nodes)
    where = every[0].where if len(every) == 1 else "<LLDP>"
    cables = Cables(where, "")
    by_name: dict[str, str] = {}
    announced = {told.node for one in every for _, told, _ in one.heard}
    longer = domainless((one.node for one in every if not one.named), announced)
    every = [replace(one, node=longer.get(one.node, one.node)) for one in every]  # lldpd announces domains
    every = _parts_joined(every)
    for one in every:
        if one.node in by_name:
            raise TopologyError(one.where, 1, "", f"{one.node} tells of its neighbours in {by_name[one.node]} already")
        by_name[one.node] = one.where
        _named(cables, one.where, one.node, 1, forwards=one.forwards)
    claims: dict[frozenset[str], tuple[Port, Port, int]] = {}
    other_names: dict[str, tuple[str, ...]] = {}
    for one in every:
        for interface, told, line in one.heard:
            _named(cables, one.where, told.node, line, forwards=told.forwards)
            own = one.own.get(interface)
            here = Port(one.node, interface, own.speed_bps if own else None, mac=own.mac if own else None)
            there = told.port
            if here.node == there.node:
                continue
            ends = frozenset((here.id, there.id))
            known = claims.get(ends)
            if known is not None:  # each end knows the other's speed
                here, there = known[1], _with_speed(known[0], there)
            claims[ends] = (here, there, line)
            if len(told.names) > 1:
                other_names[there.id] = told.names[1:]
    notes, unsure = _contradictions(claims)
    for here, there, line in claims.values():
        cables.join(here, there, line)
    fabric = cables.fabric("lldp", tuple(notes))
    told_all = frozenset(one.node for one in every if one.whole)
    return Source(
        "LLDP",
        fabric,
        told_all,
        other_names=other_names,
        unsure=unsure,
        notes=tuple(notes),
        addresses=addresses(every),
    )


def _parts_joined(every: list[Answers]) -> list[Answers]:
    """What a node was heard to hear at one port and at another is one node's."""
    whole = [one for one in every if one.whole]
    parts: dict[str, Answers] = {one.node: one for one in whole}
    for one in every:
        known = parts.setdefault(one.node, one)
        if one.whole or known is one:
            continue
        known.heard += one.heard
        known.own.update(one.own)
    return [*whole, *(one for one in parts.values() if not one.whole)]


def addresses(every: list[Answers]) -> dict[str, str]:
    """Management address -> node; link-local ones and those that several nodes have are left out."""
    owners: dict[str, set[str]] = {}
    for one in every:
        ports = [told for _, told, _ in one.heard]
        for node, several in ((one.node, one.addresses), *((told.node, told.addresses) for told in ports)):
            for text in several:
                try:
                    address = ipaddress.ip_address(text)
                except ValueError:
                    continue
                if not (address.is_link_local or address.is_loopback or address.is_unspecified):
                    owners.setdefault(str(address), set()).add(node)
    return {address: next(iter(nodes)) for address, nodes in owners.items() if len(nodes) == 1}


def _with_speed(port: Port, told: Port) -> Port:
    return Port(port.node, port.name, port.speed_bps or told.speed_bps, mac=port.mac or told.mac)


def _contradictions(claims: dict[frozenset[str], tuple[Port, Port, int]]) -> tuple[list[str], frozenset[str]]:
    """Takes out the claims of which only one can hold; what is said of them, and the ports that they are of."""
    at: dict[str, list[frozenset[str]]] = {}
    for ends in claims:
        for end in ends:
            at.setdefault(end, []).append(ends)
    notes = []
    wrong: set[frozenset[str]] = set()
    unsure: set[str] = set()
    for end, several in sorted(at.items()):
        if len(several) < 2:
            continue
        others = {other: ends for ends in several for other in ends - {end}}
        named = [other for other in others if not _MAC.fullmatch(other.partition(":")[2])]
        if len(named) == 1 and len({other.partition(":")[0] for other in others}) == 1:
            wrong.update(ends for other, ends in others.items() if other not in named)  # one port, once by its address
            continue
        wrong.update(several)
        unsure.update(end for ends in several for end in ends)
        notes.append(
            f"not modelled, since its two ends or several neighbours contradict: {end} - {', '.join(sorted(others))}"
        )
    for ends in wrong:
        del claims[ends]
    return notes, frozenset(unsure)


def _named(cables: Cables, where: str, name: str, line: int, *, forwards: bool | None) -> None:
    try:
        cables.node(name, line, forwards=forwards)
    except TopologyError as error:
        raise TopologyError(where, line, "", error.message) from None


def _documents(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each JSON document and where it begins."""
    decoder = json.JSONDecoder()
    at = len(text) - len(text.lstrip())
    while at < len(text):
        try:
            document, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TopologyError(
                where, error.lineno, "", f"expected JSON of lldpctl, got a mistake: {error.msg}"
            ) from None
        except RecursionError:
            raise TopologyError(where, 1, "", "expected JSON of lldpctl, got values nested too deeply") from None
        if not isinstance(document, dict) or not {"lldp", "local-chassis"} & document.keys():
            line = text.count("\n", 0, at) + 1
            raise TopologyError(where, line, "", "expected what lldpctl -f json prints, an object with the key lldp")
        yield at, document
        at = end + len(text[end:]) - len(text[end:].lstrip())


class _Reader:
    """Values of one document, in either form."""

    def __init__(self, text: str, where: str, start: int) -> None:
        self._text, self._where, self._start = text, where, start

    def line(self, word: str) -> int:
        """Where a word is written, as near as can be told."""
        at = self._text.find(json.dumps(word, ensure_ascii=False), self._start)
        return self._text.count("\n", 0, max(at, self._start)) + 1

    def wrong(self, near: str, key: str, expected: str, got: object) -> TopologyError:
        said = f"expected {expected}, got {str(got)[:40]!r}"
        return TopologyError(self._where, self.line(near), key, said)

    def many(self, value: object) -> list[Any]:
        return [] if value is None else value if isinstance(value, list) else [value]

    def one(self, value: object, near: str = "lldp", key: str = "") -> dict[str, Any]:
        found = self.many(value)
        if not found:
            return {}
        if not isinstance(found[0], dict):
            raise self.wrong(near, key, "an object", found[0])
        return found[0]

    def text(self, value: object, near: str, key: str) -> str:
        """Of `"x"`, or of `[{"value": "x"}]`; empty where there is nothing."""
        found = self.many(value)
        if not found:
            return ""
        said = found[0].get("value", "") if isinstance(found[0], dict) else found[0]
        if not isinstance(said, str):
            raise self.wrong(near, key, "text", said)
        return said

    def interfaces(self, value: object) -> Iterator[tuple[str, dict[str, Any]]]:
        for item in self.many(self.one(value).get("interface")):
            if not isinstance(item, dict):
                raise self.wrong("interface", "interface", "an object", item)
            if isinstance(item.get("name"), str):
                yield item["name"], item
                continue
            for name, body in item.items():
                if not isinstance(body, dict):
                    raise self.wrong(name, "interface", "an object of an interface", body)
                yield name, body

    def chassis(self, value: dict[str, Any], near: str = "chassis") -> tuple[str, bool | None, tuple[str, ...]]:
        """The name of a node, its id where it has none, whether it forwards, and its addresses."""
        body, name = value, self.text(value.get("name"), near, "chassis.name")
        if not name and len(value) == 1 and "id" not in value:
            name = next(iter(value))
            body = self.one(value[name], near, "chassis")
        name = name or self.text(self.one(body.get("id"), near, "chassis.id").get("value"), near, "chassis.id")
        if not name:
            raise self.wrong(near, "chassis", "a name or an id", value)
        able = [one for one in self.many(body.get("capability")) if isinstance(one, dict)]
        forwards = any(one.get("type") in _FORWARDING and one.get("enabled") is True for one in able)
        said = [one.get("value") if isinstance(one, dict) else one for one in self.many(body.get("mgmt-ip"))]
        addresses = tuple(one for one in said if isinstance(one, str))
        return clean(name), forwards if able else None, addresses

    def told(self, interface: str, body: dict[str, Any]) -> Told:
        name, forwards, addresses = self.chassis(self.one(body.get("chassis"), interface, "chassis"), interface)
        port = self.one(body.get("port"), interface, "port")
        own = self.one(port.get("id"), interface, "port.id")
        kind, value = own.get("type"), self.text(own.get("value"), interface, "port.id")
        described = self.text(port.get("descr"), interface, "port.descr")
        names = port_names(kind or "", value, described)
        if not names:
            raise self.wrong(interface, "port", "an id or a description", port)
        current = self.text(self.one(port.get("auto-negotiation"), interface, "port").get("current"), interface, "port")
        mau = _MAU.match(current)
        speed = int(mau[1]) * (10**9 if mau[2] else 10**6) if mau else None
        return Told(name, names, speed or None, value if kind == "mac" else None, forwards, addresses)
