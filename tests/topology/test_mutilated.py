"""A text that was mutilated is read, or refused by its own error; and every format is told by its content."""

from __future__ import annotations

import json
from pathlib import Path

import fabric_texts as texts
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topology import generate
from topology.sources.formats import read
from topology.sources.nccl import Host
from topology.sources.yamltext import TopologyError

FABRIC = generate.rail(2, rails=2, spines=1, planes=2, speed_bps=400 * 10**9)
IB = Path(__file__).with_name("ib")
WHOLE = {
    "DOT": texts.dot(FABRIC),
    "LLDP": (texts.FOLDER / "leaf1-chassis.json").read_text() + (texts.FOLDER / "leaf1.json").read_text(),
    "LLDP json0": (texts.FOLDER / "leaf1.json0").read_text(),
    "Slurm": texts.slurm(FABRIC),
    "NCCL": texts.NCCL,
    "containerlab": texts.containerlab(FABRIC),
    "ibnetdiscover": (IB / "ibnetdiscover.txt").read_text(),
    "iblinkinfo": (IB / "iblinkinfo.txt").read_text(),
}
PIECES = (
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "=",
    "--",
    "\n",
    "\\",
    "#",
    "null",
    "0",
    "-1",
    "<",
    ">",
    "/*",
    "é",
    "\0",
    "\t",
)


def refusal(text: str) -> TopologyError | None:
    """How a text is refused; any other error ends the test."""
    try:
        read(text, "f")
    except TopologyError as error:
        return error
    return None


@pytest.mark.parametrize("name", WHOLE)
def test_a_format_is_told_by_its_content(name: str) -> None:
    found = read(WHOLE[name], "x")
    assert isinstance(found, Host) if name == "NCCL" else found.format == name.split()[0]  # type: ignore[union-attr]


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_a_mutilated_text_is_read_or_refused(name: str, data: st.DataObject) -> None:
    text = WHOLE[name]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 60)))
        other = data.draw(st.sampled_from(("", text[start:end] * 2, *PIECES)))
        text = text[:start] + other + text[end:]
    error = refusal(text)
    if error is not None:
        assert 1 <= error.line <= text.count("\n") + 2
        assert str(error).startswith(f"f:{error.line}:") and "\n" not in str(error)


@settings(deadline=None)
@given(st.sampled_from(["{", '{"lldp":', "graph", "graph {", "SwitchName=", "<system", "Switch 1 ", ""]), st.text())
def test_any_text_is_read_or_refused(start: str, text: str) -> None:
    assert "\n" not in str(refusal(start + text))


KEYS = (
    "interface", "eth1", "chassis", "port", "id", "type", "value", "descr", "name", "capability", "via", "rid",
    "current", "status", "auto-negotiation", "enabled",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(JSON, st.sampled_from(["lldp", "local-chassis"]))
def test_any_json_of_neighbours_is_read_or_refused(value: object, key: str) -> None:
    assert "\n" not in str(refusal(json.dumps({key: value})))
