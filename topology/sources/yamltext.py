"""YAML in which every value knows its line, so that an error can say where. Scalars stay the text that was written.

YAML 1.1 reads `52:54:00:11:22:33` as a number in base 60, `on` as true and the node name `1` as an integer. A
topology file means the text in each of these, and so does containerlab, which decodes them into strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml


class TopologyError(ValueError):
    """The one error of a wrong file, one line long: `FILE:LINE: key KEY: expected ..., got ...`. Lines count from 1."""

    def __init__(self, where: str, line: int, key: str, message: str) -> None:
        super().__init__(where, line, key, message)
        self.where = where
        self.line = line
        self.key = key
        self.message = message

    def __str__(self) -> str:
        key = f" key {self.key if self.key.isprintable() else ascii(self.key)}:" if self.key else ""
        return f"{self.where}:{self.line}:{key} {self.message}"


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping. `lines` has the line of each key."""

    line: int
    items: dict[str, object]
    lines: dict[str, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence. `lines` has the line of each item."""

    line: int
    items: tuple[object, ...]
    lines: tuple[int, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps lines and text, fills in variables, and refuses a key that appears twice."""

    variables: Mapping[str, str]

    yaml_implicit_resolvers = {  # noqa: RUF012 - the attribute PyYAML looks up
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def table(self, node: yaml.MappingNode) -> Table:
        own: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "expected a plain key", key.start_mark)
            if key.value in own:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} appears twice", key.start_mark)
            own.add(key.value)
        self.flatten_mapping(node)
        items: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = expand(key.value, self.variables)
            items[name] = self.construct_object(value, deep=True)
            lines[name] = key.start_mark.line + 1
        return Table(node.start_mark.line + 1, items, lines)

    def row(self, node: yaml.SequenceNode) -> Row:
        items = tuple(self.construct_object(item, deep=True) for item in node.value)
        return Row(node.start_mark.line + 1, items, tuple(item.start_mark.line + 1 for item in node.value))

    def text(self, node: yaml.ScalarNode) -> str:
        return expand(node.value, self.variables)


for _tag in ("str", "int", "float", "bool", "timestamp", "binary"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.text)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.table)
_Loader.add_constructor("tag:yaml.org,2002:seq", _Loader.row)

_VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-=])(?P<default>[^}]*))?\})"
)
_TEMPLATE = re.compile(r"^[^#\n]*(\{\{.*?(?:\}\}|$))", re.MULTILINE)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$NAME`, `${NAME}` and `${NAME:-default}` (also `:=`, `-`, `=`) filled in; one that has no value stays.

    With a colon the default also stands in for an empty value, as in a shell."""

    def value(found: re.Match[str]) -> str:
        given = variables.get(found["plain"] or found["name"])
        if found["how"] and (given is None or (not given and found["how"].startswith(":"))):
            return str(found["default"])
        return found[0] if given is None else given

    return _VARIABLE.sub(value, text) if "$" in text else text


def unset(text: str) -> str | None:
    """The first variable that a text still asks for."""
    found = _VARIABLE.search(text)
    return found[0] if found else None


def load(text: str, where: str, variables: Mapping[str, str]) -> Table:
    """The one document of a file as a Table. Raises TopologyError."""
    if template := _TEMPLATE.search(text):
        line = text.count("\n", 0, template.start(1)) + 1
        got = template.group(1).strip()
        raise TopologyError(where, line, "", f"expected a rendered file, got the Go template {got!r}; render it first")
    try:
        documents = list(_documents(text, variables))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join((error.problem or error.context or "cannot be read").split())
        raise TopologyError(where, line, "", f"expected YAML, got a mistake: {problem}") from None
    except yaml.YAMLError as error:
        raise TopologyError(where, 1, "", f"expected YAML text, got {' '.join(str(error).split())}") from None
    except RecursionError:
        raise TopologyError(where, 1, "", "expected a topology, got values nested too deeply") from None
    if len(documents) > 1:
        raise TopologyError(where, 1, "", f"expected one YAML document, got {len(documents)}")
    root = documents[0] if documents else None
    if not isinstance(root, Table):
        raise TopologyError(where, 1, "", f"expected a mapping with the keys name and topology, got {say(root)}")
    return root


def _documents(text: str, variables: Mapping[str, str]) -> Iterator[object]:
    loader = _Loader(text)
    loader.variables = variables
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            yield loader.get_data()
    finally:
        loader.dispose()


def say(value: object) -> str:
    """A value as an error message names it."""
    match value:
        case None:
            return "nothing"
        case Table():
            return "a mapping" if value.items else "an empty mapping"
        case Row():
            return f"a list of {len(value.items)}"
        case _:
            text = str(value)
            return repr(text if len(text) <= 60 else f"{text[:57]}...")
