"""Slurm's `topology.conf` of the tree plugin: which nodes and switches each switch joins, by no port names.

Format: slurm.schedmd.com/topology.conf.html; host lists as `scontrol show hostnames` expands them. A port is called by
the node at its other end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

from topology.model import Port
from topology.sources.cables import Cables, Source
from topology.sources.yamltext import TopologyError

MOST_NAMES: Final = 200_000

_LINE: Final = re.compile(r"^\s*(?:SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_WORD: Final = re.compile(r"(\w+)=(\S+)")
_PART: Final = re.compile(r"\[([^][]*)\]|([^][]+)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_KEYS: Final = ("switchname", "switches", "nodes", "linkspeed")


def is_output(text: str) -> bool:
    """Whether a text looks like such a file."""
    return _LINE.search(text) is not None


def read(text: str, where: str = "<text>") -> Source:
    """Raises TopologyError, naming file, line and what was expected."""
    cables = Cables(where, "slurm")
    switches: dict[str, tuple[int, list[str], list[str]]] = {}
    for number, line in _lines(text):
        words = _words(line, where, number)
        name = words["switchname"]
        if name in switches:
            raise TopologyError(where, number, "", f"switch {name} is on line {switches[name][0]} already")
        below = {key: list(expanded(words[key], where, number)) for key in ("switches", "nodes") if key in words}
        if not below:
            raise TopologyError(where, number, "", f"switch {name}: expected Switches= or Nodes=")
        switches[name] = (number, below.get("switches", []), below.get("nodes", []))
        cables.node(name, number, role="switch")
    if not switches:
        raise TopologyError(where, 1, "", "no switch: expected lines SwitchName=NAME Switches=... or Nodes=...")
    for name, (number, lower, nodes) in switches.items():
        for other in lower:
            if other not in switches:
                raise TopologyError(where, number, "", f"switch {name} joins {other}, which has no line SwitchName=")
        for other in nodes:
            cables.node(other, number, role="host")
        for other in (*nodes, *lower):
            cables.join(Port(name, other), Port(other, name), number)
    note = "Slurm's file tells which nodes each switch joins, not by which ports: they are called by the other end"
    return Source("Slurm", cables.fabric("slurm", (note,)), ports=False)


def expanded(hosts: str, where: str = "<text>", line: int = 1) -> Iterator[str]:
    """The names of a host list: `tux[0-2,007],login1`, also with several brackets in a name."""
    count = 0
    for one in re.split(r",(?![^[]*\])", hosts):
        parts = [
            [found[2]] if found[2] else _numbers(found[1], where, line)
            for found in _PART.finditer(one)
        ]  # fmt: skip
        if not one or "".join(found[0] for found in _PART.finditer(one)) != one:
            raise TopologyError(where, line, "", f"expected a host list like tux[0-7,12], got {hosts[:60]!r}")
        for names in product(*parts):
            count += 1
            if count > MOST_NAMES:
                raise TopologyError(where, line, "", f"expected at most {MOST_NAMES} names, got more in {hosts[:60]!r}")
            yield "".join(names)


def _numbers(text: str, where: str, line: int) -> list[str]:
    made: list[str] = []
    for one in text.split(","):
        found = _RANGE.fullmatch(one)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or last < first or last - first >= MOST_NAMES:
            raise TopologyError(where, line, "", f"expected numbers like [0-7,12], got [{text[:60]}]")
        width = len(found[1]) if found[1].startswith("0") or len(found[1]) == len(found[2] or "") else 0
        made += [str(number).zfill(width) for number in range(first, last + 1)]
    return made


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Without comments; what a backslash continues is one line, with the number of its first."""
    kept, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split("#", 1)[0].rstrip()
        start = start or number
        if bare.endswith("\\"):
            kept += bare[:-1] + " "
            continue
        if whole := (kept + bare).strip():
            yield start, whole
        kept, start = "", 0
    if kept.strip():
        yield start, kept.strip()


def _words(line: str, where: str, number: int) -> dict[str, str]:
    """The keys of a line, in lower case."""
    found = [_WORD.fullmatch(word) for word in re.sub(r"\s*=\s*", "=", line).split()]
    words = {one[1].lower(): one[2] for one in found if one is not None}
    if "blockname" in words or "blocksizes" in words:
        raise TopologyError(
            where, number, "", "a file of topology/block, which names no switches: expected SwitchName="
        )
    wrong = next((key for key in words if key not in _KEYS), "")
    if None in found or wrong or "switchname" not in words or len(words) < len(found):
        got = wrong or line[:60]
        raise TopologyError(where, number, "", f"expected SwitchName=NAME Switches=LIST Nodes=LIST, got {got!r}")
    if re.search(r"[][,]", words["switchname"]):
        raise TopologyError(where, number, "", f"expected the name of one switch, got {words['switchname'][:60]!r}")
    return words
