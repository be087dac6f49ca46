"""What can be broken in a lab: frozen values, and their text form for the command line.

    carrier:LINK            both ends lose carrier (the peer's laser is off); neither end's own setting changes
    carrier:LINK@NODE       only NODE's end loses carrier
    blackhole:LINK          packets vanish in both directions, carrier stays (silent)
    blackhole:A>B           … only from A to B
    loss:LINK:5%            each packet is lost with that chance; `A>B` for one direction
    bucket:A>B:1/4          the first of four ECMP buckets vanishes (a gray failure: pings mostly pass)
    rate:LINK:100mbit       the link carries no more than that, each way; `A>B` for one direction
    large:A>B:1000          packets of more than 1000 bytes vanish, smaller ones pass (a link that is sick or set wrong)
    delay:LINK:20ms         every packet comes that much later, each way; `A>B` for one direction
    flap:LINK:2hz           down and up again, twice a second, silently; `:carrier` with carrier; `:30s` at most
    dead:NODE               a switch or a host dies: its links lose carrier, a host's processes are killed
    dead:NODE:silent        … with carrier left on (a hung switch): its links become blackholes
    freeze:HOST             every process of the host stops (SIGSTOP); its kernel still answers

LINK is `leaf1-spine1`, a direction `leaf1>spine1`. `parse(str(fault), fabric) == fault` for every fault.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from lab.errors import LabError, near
from topology.model import Fabric, Link, UnknownElementError

FlapKind = Literal["blackhole", "carrier"]


class Fault(msgspec.Struct, frozen=True, tag=str.lower):
    """Base of all faults. `where` is a link id, a direction id or a node's name, as the fabric spells it."""

    where: str

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return ":".join([self.kind, self.where, *self._options()])

    def _options(self) -> list[str]:
        return []


class Carrier(Fault, frozen=True):
    """Carrier is lost at both ends, or at the end `node` alone."""

    node: str = ""

    def __str__(self) -> str:
        return f"carrier:{self.where}" + (f"@{self.node}" if self.node else "")


class Blackhole(Fault, frozen=True):
    """Packets vanish silently, on a link or one direction of it."""


class Loss(Fault, frozen=True):
    """Each packet is lost with the chance `ratio` (0 < ratio ≤ 1), independently."""

    ratio: float

    def _options(self) -> list[str]:
        return [f"{self.ratio * 100:g}%"]


class Bucket(Fault, frozen=True):
    """Packets whose hash falls into bucket `index` (1 … `of`) vanish: `lab.bucket` says which."""

    index: int
    of: int

    def _options(self) -> list[str]:
        return [f"{self.index}/{self.of}"]


class Rate(Fault, frozen=True):
    """A token bucket at the far end's port holds the direction to `bps` bits/s."""

    bps: int

    def _options(self) -> list[str]:
        return [_rate_text(self.bps)]


class Large(Fault, frozen=True):
    """Packets of more than `over_bytes` (IP header and all behind it) vanish; smaller ones pass."""

    over_bytes: int

    def _options(self) -> list[str]:
        return [str(self.over_bytes)]


class Delay(Fault, frozen=True):
    """Every packet is held for `by_s` in a process of the lab (`lab.netns.relay`); of two on one direction the longer
    counts."""

    by_s: float

    def _options(self) -> list[str]:
        return [f"{self.by_s * 1e3:g}ms"]


class Flap(Fault, frozen=True):
    """Down for half a period, up for the other half, `hz` times a second; ends by itself after `for_s`."""

    hz: float
    how: FlapKind = "blackhole"
    for_s: float = 60.0

    def _options(self) -> list[str]:
        return [
            f"{self.hz:g}hz",
            *([self.how] if self.how != "blackhole" else []),
            *([f"{self.for_s:g}s"] if self.for_s != 60.0 else []),
        ]


class Dead(Fault, frozen=True):
    """A node is gone. `silent`: carrier stays on at its neighbours."""

    silent: bool = False

    def _options(self) -> list[str]:
        return ["silent"] if self.silent else []


class Freeze(Fault, frozen=True):
    """All processes of a host are stopped; its kernel forwards and answers pings all the same."""


AnyFault = Carrier | Blackhole | Loss | Bucket | Rate | Large | Delay | Flap | Dead | Freeze

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("carrier:leaf1-spine1", "both ends lose carrier"),
    ("carrier:host1-leaf1@leaf1", "only leaf1 sees its port go down"),
    ("blackhole:leaf1-spine1", "packets vanish both ways, carrier stays"),
    ("blackhole:leaf1>spine1", "packets vanish one way"),
    ("loss:leaf1-spine1:5%", "5 % of the packets are lost, each way"),
    ("loss:leaf1>spine1:0.5%", "0.5 % one way"),
    ("bucket:leaf1>spine1:1/4", "one ECMP bucket of four vanishes; pings mostly pass"),
    ("rate:leaf1-spine1:100mbit", "100 Mbit/s each way"),
    ("large:leaf1>spine1:1000", "packets of more than 1000 bytes vanish; pings pass"),
    ("delay:leaf1-spine1:20ms", "20 ms later, each way"),
    ("flap:leaf1-spine1:2hz", "down and up twice a second, silently"),
    ("flap:host1-leaf1:2hz:carrier:10s", "the same with carrier, for ten seconds at most"),
    ("dead:spine1", "a switch loses power"),
    ("dead:spine1:silent", "a switch hangs: its ports stay up"),
    ("dead:host3", "a host loses power: its processes are killed"),
    ("freeze:host3", "every process of a host stops; the kernel still answers"),
)

_KINDS = ("carrier", "blackhole", "loss", "bucket", "rate", "large", "delay", "flap", "dead", "freeze")
_WITH_VALUE = {
    "loss": "loss:LINK:5%", "bucket": "bucket:A>B:1/4", "rate": "rate:LINK:100mbit", "large": "large:A>B:1000",
    "delay": "delay:LINK:20ms",
}  # fmt: skip
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def parse(text: str, fabric: Fabric) -> AnyFault:
    """A fault from its text form; every name is checked against the fabric.

    Raises LabError with the nearest right names, or with what was expected."""
    kind, colon, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise LabError(f"fault {text!r}: unknown kind {kind!r}; {near(kind, _KINDS)}")
    if not colon or not rest:
        raise LabError(f"fault {text!r}: expected {kind}:{'NODE' if kind in ('dead', 'freeze') else 'LINK'}…")
    if kind == "carrier":
        where, at, node = rest.partition("@")
        link = link_of(where, fabric)
        if at and node not in (link.a.node, link.b.node):
            raise LabError(f"fault {text!r}: {node!r} is no end of {link.id}; {near(node, (link.a.node, link.b.node))}")
        return Carrier(link.id, node)
    if kind == "blackhole":
        return Blackhole(place_of(rest, fabric))
    if kind == "dead":
        name, colon, option = rest.rpartition(":")
        if not colon:
            return Dead(_node(rest, fabric))
        if option != "silent":
            raise LabError(f"fault {text!r}: expected dead:NODE or dead:NODE:silent, got {option!r}")
        return Dead(_node(name, fabric), silent=True)
    if kind == "freeze":
        return Freeze(_host(rest, fabric))
    if kind == "flap":
        return _flap(text, rest, fabric)
    where, colon, value = rest.rpartition(":")
    if not colon:
        raise LabError(f"fault {text!r}: expected a value at the end, as in {_WITH_VALUE[kind]}")
    place = place_of(where, fabric)
    if kind == "loss":
        return Loss(place, _ratio(text, value))
    if kind == "rate":
        return Rate(place, _rate(text, value))
    if kind == "large":
        return Large(place, _size(text, value))
    if kind == "delay":
        return Delay(place, _delay(text, value))
    match = re.fullmatch(r"(\d+)/(\d+)", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]) <= 4096 or int(match[2]) < 2:
        raise LabError(f"fault {text!r}: expected a bucket K/N with 1 ≤ K ≤ N, N from 2 to 4096, got {value!r}")
    return Bucket(place, int(match[1]), int(match[2]))


def directions_of(where: str, fabric: Fabric) -> tuple[str, ...]:
    """The directions that a link id or a direction id stands for, in the order of the link's ends."""
    if ">" in where:
        fabric.direction(where)
        return (where,)
    return fabric.link(where).directions()


def place_of(text: str, fabric: Fabric) -> str:
    """The fabric's own spelling of a link or a direction: `spine1-leaf1` becomes `leaf1-spine1`."""
    try:
        if ">" in text:
            fabric.direction(text)
            return text
        return fabric.link(text).id
    except UnknownElementError as error:
        raise LabError(str(error)) from error


def link_of(text: str, fabric: Fabric) -> Link:
    """The link that a text names (its id, either way round)."""
    place = place_of(text, fabric)
    if ">" in place:
        raise LabError(f"{text!r} is one direction; expected the link {fabric.link_of(place).id!r}")
    return fabric.link(place)


def _node(name: str, fabric: Fabric) -> str:
    names = [node.name for node in fabric.nodes]
    if name not in names:
        raise LabError(f"unknown node {name!r}; {near(name, names)}")
    return name


def _host(name: str, fabric: Fabric) -> str:
    hosts = [node.name for node in fabric.hosts]
    if _node(name, fabric) not in hosts:
        raise LabError(f"{name!r} is a switch and runs no processes; {near(name, hosts)}")
    return name


def _flap(text: str, rest: str, fabric: Fabric) -> Flap:
    """Options stand at the end in any order: a frequency (needed), a kind, a longest time."""
    hz, how, for_s = 0.0, "blackhole", 60.0
    while True:
        where, colon, option = rest.rpartition(":")
        if colon and (match := re.fullmatch(r"([\d.]+)hz", option)):
            hz = float(match[1])
        elif colon and (match := re.fullmatch(r"([\d.]+)s", option)):
            for_s = float(match[1])
        elif colon and option in ("blackhole", "carrier"):
            how = option
        else:
            break
        rest = where
    if not 0.01 <= hz <= 50:
        raise LabError(f"fault {text!r}: expected a frequency from 0.01hz to 50hz, as in flap:LINK:2hz")
    if not 0 < for_s <= 86_400:
        raise LabError(f"fault {text!r}: expected a longest time above 0s and up to 86400s")
    if how == "carrier":
        return Flap(link_of(rest, fabric).id, hz, "carrier", for_s)
    return Flap(place_of(rest, fabric), hz, "blackhole", for_s)


def _ratio(text: str, value: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", value)
    ratio = float(match[1]) / 100 if match else 0.0
    if not 0.0001 <= ratio <= 1:
        raise LabError(f"fault {text!r}: expected a loss from 0.01% to 100%, got {value!r}")
    return ratio


def _size(text: str, value: str) -> int:
    if not value.isdecimal() or not 100 <= int(value) <= 65_535:
        raise LabError(f"fault {text!r}: expected a size in bytes (100 to 65535), as in large:A>B:1000, got {value!r}")
    return int(value)


def _delay(text: str, value: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", value)
    by_s = float(match[1]) * (1.0 if match[2] == "s" else 1e-3) if match else 0.0
    if not 0.001 <= by_s <= 10:
        raise LabError(f"fault {text!r}: expected a delay such as 20ms (1ms to 10s), got {value!r}")
    return by_s


def _rate(text: str, value: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", value.lower())
    bps = round(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not 8_000 <= bps <= 400 * 10**9:
        raise LabError(f"fault {text!r}: expected a rate such as 100mbit (8kbit to 400gbit), got {value!r}")
    return bps


def _rate_text(bps: int) -> str:
    for unit in ("g", "m", "k"):
        if bps % _UNITS[unit] == 0:
            return f"{bps // _UNITS[unit]}{unit}bit"
    return f"{bps}bit"
