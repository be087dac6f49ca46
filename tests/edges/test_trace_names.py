"""Which node an address belongs to, and what joins nothing; and the program that says who the neighbours are."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import pytest

from linkpass.edges import neighbours as edge
from linkpass.edges.neighbours import NeighbourEdge, neighbours
from linkpass.edges.traces.names import Names

MAC, OTHER = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")


def named(told: Mapping[str, str] | None = None, mac: bytes = MAC) -> Names:
    names = Names(told or {})
    names.gateway("eth1", mac)
    names.gateway("eth2", OTHER)
    return names


def test_whoever_answers_at_the_first_hop_is_the_neighbour() -> None:
    names = named()
    for address in ("fd00::1", "fd00::2"):
        names.met("eth1", address)
    names.met("eth2", "fd00::9")
    assert [names.at(one, "eth1", 1) for one in ("fd00::1", "fd00::2")] == ["fd00::1", "fd00::1"]
    assert names.at("fd00::2", "eth2", 3) == "fd00::1", "wherever it answers"
    assert names.at("fd00::9", "eth2", 1) == "fd00::9"
    assert dict(names) == {"fd00::2": "fd00::1"}


def test_a_name_of_one_is_a_name_of_all() -> None:
    names = named({"fd00::2": "leaf1"})
    for address in ("fd00::1", "fd00::2", "fd00::3"):
        names.met("eth1", address)
    assert {names.at(f"fd00::{number}", "eth1", 1) for number in (1, 2, 3)} == {"leaf1"}


def test_two_uplinks_to_one_node_are_seen_by_a_common_address() -> None:
    names = named()
    for uplink, address in (("eth1", "fd00::1"), ("eth2", "fd00::2"), ("eth2", "fd00::1")):
        names.met(uplink, address)
    assert names.at("fd00::1", "eth1", 1) == names.at("fd00::2", "eth2", 1)


def test_what_contradicts_is_not_joined() -> None:
    names = named({"fd00::1": "leaf1", "fd00::2": "leaf2"})
    for address in ("fd00::1", "fd00::2", "fd00::3"):
        names.met("eth1", address)
    assert [names.at(f"fd00::{number}", "eth1", 1) for number in (1, 2, 3)] == ["leaf1", "leaf2", "fd00::3"]


@pytest.mark.parametrize("mac", ["00005e000101", "00005e0002ff"])
def test_a_virtual_routers_address_joins_nothing(mac: str) -> None:
    names = named(mac=bytes.fromhex(mac))
    for address in ("fd00::1", "fd00::2"):
        names.met("eth1", address)
    assert dict(names) == {}


def test_another_neighbour_is_another_node() -> None:
    names = named()
    names.met("eth1", "fd00::1")
    names.gateway("eth1", b"")
    names.gateway("eth1", OTHER)
    names.met("eth1", "fd00::2")
    assert names.at("fd00::2", "eth1", 1) == "fd00::2"


def test_link_local_addresses_are_of_an_uplink() -> None:
    names = named()
    names.met("eth1", "fe80::1")
    names.met("eth2", "fe80::1")
    assert (names.at("fe80::1", "eth1", 1), names.at("fe80::1", "eth2", 1)) == ("fe80::1%eth1", "fe80::1%eth2")
    assert names.at("fe80::1", "eth1", 2) is None
    names.announced({"eth1": "leaf1"}, {"fd00::7": "spine1"})
    assert names.at("fe80::1", "eth1", 1) == "leaf1"
    assert names.at("fd00::7", "eth1", 2) == "spine1"
    names.met("eth1", "fd00::1")
    assert names.at("fd00::1", "eth1", 1) == "leaf1"
    names.announced({}, {})
    assert names.at("fd00::1", "eth1", 1) == "fd00::1" and len(names) == 0


# the program
def port(name: str, *addresses: str) -> dict[str, object]:
    return {"chassis": {name: {"mgmt-ip": list(addresses)}}, "port": {"id": {"type": "ifname", "value": "swp1"}}}


def test_ports_with_one_neighbour_tell() -> None:
    interfaces = [{"eth1": port("leaf1", "fd00::1")}, {"eth2": port("leaf2")}, {"eth2": port("leaf3", "fd00::3")}]
    text = json.dumps({"lldp": {"interface": interfaces}})
    assert neighbours(text, "host1") == ({"eth1": "leaf1"}, {"fd00::1": "leaf1", "fd00::3": "leaf3"})


async def look(code: str, told: list[object] | None = None) -> str:
    program = [sys.executable, "-c", code]
    return await NeighbourEdge(program, "host1", lambda *heard: (told if told is not None else []).append(heard)).look()


async def test_what_goes_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    assert await look("print('{\"lldp\": {}}')", told) == "" and told == [({}, {})]
    assert (await look("raise SystemExit(3)")).endswith(": exit status 3")
    assert "expected JSON of lldpctl" in await look("print('nothing')")
    absent = NeighbourEdge(["/no/such"], "host1", lambda *heard: None)
    assert await absent.look() == "/no/such: No such file or directory"
    monkeypatch.setattr(edge, "TIMEOUT_S", 0.2)
    assert (await look("import time; time.sleep(60)")).endswith(": not done after 0.2 s")
    monkeypatch.setattr(edge, "TIMEOUT_S", 20.0)
    monkeypatch.setattr(edge, "MOST_BYTES", 1000)
    talkative = "print('x' * 100000, flush=True); import time; time.sleep(60)"
    assert (await look(talkative)).endswith(": says too much")
