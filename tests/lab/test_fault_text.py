"""The text form of faults: what is right comes back the same, what is wrong is answered in one line with a way out."""

from __future__ import annotations

import msgspec
import pytest

from lab.errors import LabError
from lab.faults import EXAMPLES, AnyFault, Carrier, Dead, Delay, Flap, Large, Loss, Rate, parse
from topology.generate import leaf_spine as generate
from topology.model import Fabric


@pytest.mark.parametrize("text", [text for text, _ in EXAMPLES])
def test_every_example_of_the_help_parses_and_prints_the_same(text: str, leaf_spine: Fabric) -> None:
    fault = parse(text, leaf_spine)
    assert str(fault) == text
    stored = msgspec.json.decode(msgspec.json.encode(fault), type=AnyFault)
    assert stored == fault


def test_values(leaf_spine: Fabric) -> None:
    assert parse("loss:leaf1-spine1:0.5%", leaf_spine) == Loss("leaf1-spine1", 0.005)
    assert parse("rate:leaf1>spine1:1.5gbit", leaf_spine) == Rate("leaf1>spine1", 1_500_000_000)
    assert parse("flap:host1-leaf1:carrier:10s:2hz", leaf_spine) == Flap("host1-leaf1", 2.0, "carrier", 10.0)
    assert parse("large:leaf1-spine1:1280", leaf_spine) == Large("leaf1-spine1", 1280)
    assert parse("delay:leaf1>spine1:0.5s", leaf_spine) == parse("delay:leaf1>spine1:500ms", leaf_spine)
    assert parse("delay:leaf1>spine1:2.5ms", leaf_spine) == Delay("leaf1>spine1", 0.0025)
    assert parse("dead:spine1:silent", leaf_spine) == Dead("spine1", silent=True)


def test_a_link_may_be_named_the_other_way_round(leaf_spine: Fabric) -> None:
    assert parse("carrier:spine1-leaf1@leaf1", leaf_spine) == Carrier("leaf1-spine1", "leaf1")


def test_parallel_links_are_named_by_port() -> None:
    fabric = generate(hosts=2, racks=1, uplinks=1, spines=1, parallel=2)
    for link in fabric.links:
        for text in (f"blackhole:{link.id}", f"loss:{link.directions()[1]}:5%", f"flap:{link.id}:2hz:carrier"):
            assert str(parse(text, fabric)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blackhol:leaf1-spine1", "did you mean blackhole?"),
        ("blackhole", "expected blackhole:LINK"),
        ("dead", "expected dead:NODE"),
        ("blackhole:leaf1-spine9", "leaf1-spine1"),
        ("blackhole:leaf1>spine9", "leaf1>spine1"),
        ("carrier:leaf1>spine1", "is one direction"),
        ("carrier:leaf1-spine1@leaf2", "is no end of leaf1-spine1; did you mean leaf1?"),
        ("loss:leaf1-spine1", "as in loss:LINK:5%"),
        ("loss:leaf1-spine1:5", "from 0.01% to 100%, got '5'"),
        ("loss:leaf1-spine1:0%", "from 0.01% to 100%"),
        ("bucket:leaf1>spine1:5/4", "1 ≤ K ≤ N"),
        ("bucket:leaf1>spine1:0/4", "1 ≤ K ≤ N"),
        ("rate:leaf1-spine1:fast", "such as 100mbit"),
        ("large:leaf1>spine1", "as in large:A>B:1000"),
        ("large:leaf1>spine1:50", "100 to 65535"),
        ("large:leaf1>spine1:1kb", "a size in bytes"),
        ("delay:leaf1-spine1:20", "such as 20ms"),
        ("delay:leaf1-spine1:11s", "1ms to 10s"),
        ("flap:leaf1-spine1", "as in flap:LINK:2hz"),
        ("flap:leaf1-spine1:2hz:0s", "longest time"),
        ("flap:leaf1>spine1:2hz:carrier", "is one direction"),
        ("dead:spine9", "did you mean spine2 or spine1?"),
        ("dead:spine1:loud", "dead:NODE:silent"),
        ("freeze:leaf1", "is a switch"),
        ("freeze:host9", "did you mean host"),
    ],
)
def test_a_wrong_text_is_answered_with_what_was_expected(text: str, words: str, leaf_spine: Fabric) -> None:
    with pytest.raises(LabError) as caught:
        parse(text, leaf_spine)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
