"""Cabling plans in Graphviz's DOT, as Cumulus Linux's Prescriptive Topology Manager reads them (`topology.dot`):

    graph "plan" {
        edge [speed="400G"]
        "leaf1" [function="leaf"]
        "host1":"eth1" -- "leaf1":"swp1" [rail="1"]
    }

Language: graphviz.org/doc/info/lang.html. An edge is a cable, both its ends with their ports. Attributes that are read,
also as defaults of `edge` and `node`: `speed`, `rail`, `plane` of edges; `function` (leaf, spine, host, ...) and `rack`
of nodes. All others, which are for drawing or for other tools, are let be. Edges between subgraphs and HTML texts are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from topology.model import Port
from topology.sources.cables import Cables, Source
from topology.sources.reading import speed_bps
from topology.sources.yamltext import TopologyError

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*)|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<edge>--|->)"""
    r"""|(?P<id>[^\W\d]\w*|-?(?:\.\d+|\d+(?:\.\d*)?))|(?P<sign>[][{};,=:+])""",
    re.DOTALL | re.MULTILINE,
)
_START: Final = re.compile(
    r"\A(?:\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)*+(?:strict\s+)?(?:di)?graph\b(?!\s*:)", re.IGNORECASE | re.DOTALL
)
_ESCAPED: Final = re.compile(r'\\(["\n])')
_WORDS: Final = frozenset({"strict", "graph", "digraph", "node", "edge", "subgraph"})
MOST_NESTED: Final = 50


def is_output(text: str) -> bool:
    """Whether a text looks like such a file."""
    return _START.match(text) is not None


def read(text: str, where: str = "<text>") -> Source:
    """Raises TopologyError, naming file, line and what was expected."""
    return _Parser(where, list(_tokens(text, where))).source()


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind`: id (a name, quoted or not), word (a keyword), sign, edge, end."""

    kind: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Scope:
    """The defaults that hold within braces."""

    node: dict[str, str] = field(default_factory=dict)
    edge: dict[str, str] = field(default_factory=dict)
    graph: dict[str, str] = field(default_factory=dict)

    def inner(self) -> _Scope:
        return _Scope(dict(self.node), dict(self.edge), dict(self.graph))


def _tokens(text: str, where: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            what = "a quote that is not closed" if text[at] == '"' else repr(text[at : at + 20].split("\n")[0])
            raise TopologyError(where, line, "", f"expected DOT, got {what}")
        if found["id"] and text[found.end() : found.end() + 1].isalnum():
            raise TopologyError(where, line, "", f"expected DOT, got {found['id']!r} running into letters: quote it")
        kind, value = found.lastgroup or "space", found[found.lastgroup or 0]
        if kind == "quoted":
            yield _Token("id", _ESCAPED.sub(lambda one: one[1].strip("\n"), value), line)
        elif kind != "space":
            yield _Token("word" if kind == "id" and value.lower() in _WORDS else kind, value, line)
        line += text.count("\n", at, found.end())
        at = found.end()
    yield _Token("end", "the end of the file", line)


class _Parser:
    def __init__(self, where: str, tokens: list[_Token]) -> None:
        self._where = where
        self._tokens = tokens
        self._at = 0
        self._cables = Cables(where, "")
        self._arrows = "--"

    def source(self) -> Source:
        if self._word("strict"):
            pass
        start = self._next
        if start.kind != "word" or start.text.lower() not in ("graph", "digraph"):
            raise self._wrong("graph or digraph")
        self._arrows = "--" if start.text.lower() == "graph" else "->"
        self._at += 1
        name = self._take() if self._next.kind == "id" else _Token("id", "plan", 1)
        self._sign("{")
        self._statements(_Scope(), 0)
        if self._next.kind != "end":
            raise self._wrong("one graph")
        fabric = self._cables.fabric(name.text or "plan")
        if not fabric.links:
            raise TopologyError(self._where, start.line, "", 'no cable: expected "host1":"eth1" -- "leaf1":"swp1"')
        return Source("DOT", fabric)

    # statements
    def _statements(self, scope: _Scope, depth: int) -> None:
        """Up to the closing brace, which is taken."""
        if depth > MOST_NESTED:
            raise TopologyError(
                self._where, self._next.line, "", f"expected at most {MOST_NESTED} braces in one another"
            )
        while not self._is("}"):
            if self._word("subgraph") or self._is("{"):
                if self._next.kind == "id":
                    self._take()
                self._sign("{")
                self._statements(scope.inner(), depth + 1)
                if self._next.kind == "edge":
                    raise self._wrong("a cable between two ports, not between subgraphs")
            elif self._next.kind == "word" and self._next.text.lower() in ("graph", "node", "edge"):
                getattr(scope, self._take().text.lower()).update(self._attributes())
            elif self._next.kind == "id":
                self._statement(scope)
            elif not self._is(";"):
                raise self._wrong("a node, a cable or }")
            else:
                self._take()
        self._sign("}")

    def _statement(self, scope: _Scope) -> None:
        ends = [self._end()]
        if self._is("=") and ends[0][1] is None:
            self._take()
            self._name("a value")
            return
        while self._next.kind == "edge":
            if self._take().text != self._arrows:
                self._at -= 1
                raise self._wrong(f"{self._arrows} in this kind of graph")
            if self._is("{") or self._next.text.lower() == "subgraph":
                raise self._wrong("a cable between two ports, not between subgraphs")
            ends.append(self._end())
        own = self._attributes()
        if len(ends) == 1:
            name, _, line = ends[0]
            said = {**scope.node, **own}
            group = said.get("function") or said.get("role") or ""
            self._cables.node(name, line, group=group, rack=said.get("rack"))
            return
        said = {**scope.edge, **own}
        if len(ends) > 2:
            self._at -= 1
            raise TopologyError(self._where, ends[2][2], "", "expected a cable of two ends: a port has one cable")
        a, b = (self._port(end, said) for end in ends)
        self._cables.join(a, b, ends[0][2])

    def _end(self) -> tuple[str, str | None, int]:
        """A node and its port. What a third part says (where an edge is drawn) is left out."""
        name = self._name("a node")
        port: str | None = None
        for place in range(2):
            if self._is(":"):
                self._take()
                said = self._name("a port")
                port = said.text if place == 0 else port
        return name.text, port, name.line

    def _port(self, end: tuple[str, str | None, int], said: Mapping[str, str]) -> Port:
        node, name, line = end
        if name is None:
            raise TopologyError(self._where, line, "", f'expected a port of {node}, as in "{node}":"swp1"')
        speed = speed_bps(said["speed"]) if said.get("speed") else None
        if said.get("speed") and speed is None:
            got = said["speed"][:40]
            raise TopologyError(self._where, line, "speed", f"expected bits per second like 400G, got {got!r}")
        numbers = []
        for word in ("rail", "plane"):
            text = said.get(word)
            if text and not (text.isascii() and text.isdecimal() and len(text) < 5):
                raise TopologyError(self._where, line, word, f"expected a number from 0 to 4095, got {text[:40]!r}")
            numbers.append(int(text) if text else None)
        return Port(node, name, speed, numbers[0], numbers[1])

    def _attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while self._is("["):
            self._take()
            while not self._is("]"):
                name = self._name("an attribute or ]").text
                self._sign("=")
                found[name.lower()] = self._name("a value").text
                if self._is(",") or self._is(";"):
                    self._take()
            self._take()
        return found

    # tokens
    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, sign: str) -> bool:
        return self._next.kind == "sign" and self._next.text == sign

    def _word(self, word: str) -> bool:
        """Takes the keyword if it is there."""
        here = self._next.kind == "word" and self._next.text.lower() == word
        self._at += here
        return here

    def _sign(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wrong(sign)
        self._take()

    def _name(self, what: str) -> _Token:
        if self._next.kind != "id":
            raise self._wrong(what)
        first = self._take()
        text = first.text
        while self._is("+"):
            self._take()
            if self._next.kind != "id":
                raise self._wrong("a text after +")
            text += self._take().text
        return _Token("id", text, first.line)

    def _wrong(self, expected: str) -> TopologyError:
        token = self._next
        got = token.text if token.kind == "end" else repr(token.text[:40])
        return TopologyError(self._where, token.line, "", f"expected {expected}, got {got}")
