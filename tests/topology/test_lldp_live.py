"""Real lldpd in namespaces: what it prints is the cabling, its frames say the same, and swapped cables are named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import fabric_texts as texts
import pytest
from click.testing import CliRunner, Result
from lldp_lab import LldpLab

from linkpass.cli import cli
from linkpass.cli.scapy_here import import_scapy_quietly
from linkpass.edges.neighbours import NeighbourEdge
from topology import generate
from topology.model import Fabric
from topology.sources import lldp

pytestmark = pytest.mark.netns

FABRIC = generate.leaf_spine(2, uplinks=2, racks=1, spines=1)
FORMS = {"host1": "json", "host2": "json0", "leaf1": "json0", "leaf2": "json", "spine1": "json"}


@pytest.fixture
def lab() -> Iterator[LldpLab]:
    made = LldpLab(FABRIC)
    yield made
    made.close()


def heard(lab: LldpLab, node: str, form: str) -> lldp.Answers:
    return lldp.answers(lab.chassis(node, form) + lab.told(node, form), node)


def settled(lab: LldpLab, fabric: Fabric) -> None:
    """Every node hears what is at the other end of each of its cables."""

    def ready() -> bool:
        live = lldp.joined([heard(lab, node, form) for node, form in FORMS.items()])
        return ends(live.fabric) == ends(fabric) and not live.notes

    lab.until(ready)


def ends(fabric: Fabric) -> set[frozenset[str]]:
    return {frozenset((link.a.id, link.b.id)) for link in fabric.links}


def diff(lab: LldpLab, folder: Path, *options: str) -> Result:
    (folder / "live").mkdir(exist_ok=True)
    (folder / "plan.dot").write_text(texts.dot(FABRIC))
    for node, form in FORMS.items():
        (folder / "live" / f"{node}.json").write_text(lab.told(node, form))
    return CliRunner().invoke(cli, ["topology", "diff", str(folder / "plan.dot"), str(folder / "live"), *options])


def test_cables_that_are_swapped_are_named(lab: LldpLab, tmp_path: Path) -> None:
    settled(lab, FABRIC)
    done = diff(lab, tmp_path)
    assert (done.exit_code, "6 links are as planned, nothing differs" in done.output) == (0, True), done.output
    one, other = FABRIC.link("host1-leaf1"), FABRIC.link("host2-leaf2")
    now = texts.swapped(FABRIC, one, other)
    lab.uncable((one, other))
    for link in now.links:
        if link.index in (one.index, other.index):
            lab.cable(link)
    settled(lab, now)
    done = diff(lab, tmp_path, "--json")
    assert done.exit_code == 1, done.output
    data = json.loads(done.stdout)
    (found,) = data["differences"]
    assert found["kind"] == "swapped"
    assert set(found["ports"]) == {port.id for link in (one, other) for port in (link.a, link.b)}
    assert (data["alike"], data["not_compared"], data["notes"]) == (4, 0, [])


def test_captured_frames_say_what_is_printed(lab: LldpLab) -> None:
    import_scapy_quietly()
    from scapy.contrib import lldp as decoded
    from scapy.layers.l2 import Ether

    settled(lab, FABRIC)
    for node in ("host1", "leaf1"):
        for interface, told, line in heard(lab, node, FORMS[node]).heard:
            frame = Ether(lab.frame(node, interface))
            assert frame[decoded.LLDPDUSystemName].system_name.decode() == told.node
            assert frame[decoded.LLDPDUPortDescription].description.decode() == told.names[0]
            assert frame[decoded.LLDPDUPortID].id == told.mac
            assert frame.src == told.mac
            assert line > 1


async def test_the_daemon_asks_who_is_at_its_uplinks_and_a_capture_says_the_same(lab: LldpLab, tmp_path: Path) -> None:
    import_scapy_quietly()
    from scapy.layers.l2 import Ether
    from scapy.utils import PcapNgWriter

    settled(lab, FABRIC)
    wanted = {link.port("host1").name: link.peer("host1").node for link in FABRIC.links_of("host1")}
    for form in ("json", "json0"):
        told: list[Mapping[str, str]] = [{}]
        words = lab.asking("host1", "-f", form, "show", "neighbors", "details")
        neighbours = NeighbourEdge(words, "host1", lambda ports, _, told=told: told.append(ports))
        for _ in range(100):  # on a busy machine an announcement may be late, and the neighbour forgotten meanwhile
            assert await neighbours.look() == ""
            if told[-1] == wanted:
                break
            await asyncio.sleep(0.1)
        assert told[-1] == wanted
    live = tmp_path / "live"
    live.mkdir()
    for node in ("host1", "leaf1"):
        with PcapNgWriter(str(live / f"{node}.pcapng")) as writer:
            for port in FABRIC.ports(node):
                frame = Ether(lab.frame(node, port.name))
                frame.sniffed_on = port.name
                writer.write(frame)
    plan = tmp_path / "plan.dot"
    plan.write_text(texts.dot(FABRIC))
    done = CliRunner().invoke(cli, ["topology", "diff", str(plan), str(live)])
    heard = {link.id for node in ("host1", "leaf1") for link in FABRIC.links_of(node)}
    assert (done.exit_code, f"{len(heard)} links are as planned" in done.output) == (0, True), done.output
