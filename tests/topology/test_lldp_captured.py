"""Captured LLDP frames as a source: pcap and pcapng files that real lldpd's frames are written to, and broken ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from linkpass.cli import cli
from linkpass.cli.scapy_here import import_scapy_quietly
from linkpass.config.fabric_file import FabricFileError, read_fabric

import_scapy_quietly()
from scapy.contrib.lldp import (  # noqa: E402
    LLDPDUChassisID,
    LLDPDUEndOfLLDPDU,
    LLDPDUManagementAddress,
    LLDPDUPortDescription,
    LLDPDUPortID,
    LLDPDUSystemCapabilities,
    LLDPDUSystemName,
    LLDPDUTimeToLive,
)
from scapy.layers.l2 import Dot1Q, Ether  # noqa: E402
from scapy.utils import PcapNgWriter, wrpcap  # noqa: E402

PLAN = "graph plan {\n host1:eth1 -- leaf1:swp1\n host2:eth1 -- leaf1:swp2\n leaf1:swp3 -- spine1:swp1\n}\n"


def announced(
    node: str, port: str, *, mac: str = "", router: bool = False, address: str = "", vlan: bool = False
) -> Ether:
    """As lldpd (port id a MAC, the name in the description) or a switch (port id a name) announces a port."""
    ids = (
        LLDPDUPortID(subtype=3, id=mac) / LLDPDUTimeToLive(ttl=120) / LLDPDUPortDescription(description=port.encode())
        if mac
        else LLDPDUPortID(subtype=5, id=port.encode()) / LLDPDUTimeToLive(ttl=120)
    )
    unit = (
        LLDPDUChassisID(subtype=7, id=b"chassis-of-" + node.encode())
        / ids
        / LLDPDUSystemName(system_name=node.encode())
    )
    unit /= LLDPDUSystemCapabilities(router_available=1, router_enabled=int(router))
    if address:
        raw = bytes(int(part) for part in address.split("."))
        unit /= LLDPDUManagementAddress(management_address_subtype=1, management_address=raw)
    head = Ether(dst="01:80:c2:00:00:0e", src=mac or "02:00:00:00:00:01")
    return head / (Dot1Q(vlan=1) / unit if vlan else unit) / LLDPDUEndOfLLDPDU()


def topology(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["topology", *map(str, arguments)])


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.dot"
    file.write_text(PLAN)
    return file


def captured(path: Path, *frames: Ether) -> Path:
    wrpcap(str(path), list(frames))
    return path


def captured_ng(path: Path, *frames: tuple[str, Ether]) -> Path:
    with PcapNgWriter(str(path)) as writer:
        for interface, frame in frames:
            frame.sniffed_on = interface
            writer.write(frame)
    return path


def test_both_ends_of_a_wire_are_a_link(plan: Path, tmp_path: Path) -> None:
    file = captured(
        tmp_path / "any.pcap",
        announced("host1", "eth1", mac="02:00:00:00:01:01"),
        announced("leaf1", "swp1", router=True, vlan=True),
        announced("host1", "eth1", mac="02:00:00:00:01:01"),
    )
    result = topology("diff", plan, file)
    assert (result.exit_code, "1 links are as planned, nothing differs" in result.output) == (0, True), result.output
    assert "not compared, since neither end tells of it: 2 links" in result.output, "the rest was not captured"
    shown = json.loads(topology(file, "--json").stdout)
    assert {(node["name"], node["role"]) for node in shown["nodes"]} == {("host1", "host"), ("leaf1", "switch")}


def test_a_folder_of_captures_and_of_answers_names_a_swap(plan: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    captured(live / "host1.pcap", announced("host1", "eth1", mac="02:00:00:00:01:01"), announced("leaf1", "swp2"))
    captured_ng(live / "host2.pcapng", ("eth1", announced("leaf1", "swp1", router=True)))
    neighbour = {"chassis": {"leaf1": {}}, "port": {"id": {"type": "ifname", "value": "swp3"}}}
    (live / "spine1.json").write_text(json.dumps({"lldp": {"interface": [{"swp1": neighbour}]}}))
    result = topology("diff", plan, live, "--json")
    assert result.exit_code == 1, result.output
    (found,) = json.loads(result.stdout)["differences"]
    assert found["kind"] == "swapped"
    assert set(found["ports"]) == {"host1:eth1", "host2:eth1", "leaf1:swp1", "leaf1:swp2"}
    assert json.loads(result.stdout)["alike"] == 1


def test_ports_of_one_node_may_be_in_several_files(plan: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    for number in (1, 2):
        captured(
            live / f"leaf1-swp{number}.pcap", announced("leaf1", f"swp{number}"), announced(f"host{number}", "eth1")
        )
    captured_ng(live / "leaf1.pcapng", ("swp3", announced("spine1", "swp1")))
    result = topology("diff", plan, live)
    assert (result.exit_code, "3 links are as planned" in result.output) == (0, True), result.output


def test_cooked_captures_tell_interfaces_apart(plan: Path, tmp_path: Path) -> None:
    """tcpdump -i any: Linux cooked v2, the interface's number and whether we sent the frame in its header."""
    rows = ((7, 4, announced("leaf1", "swp1")), (7, 0, announced("host1", "eth1")),
            (8, 0, announced("host2", "eth1")), (8, 4, announced("leaf1", "swp2")))  # fmt: skip
    file = tmp_path / "leaf1.pcap"
    with open(file, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 276))
        for index, kind, frame in rows:
            data = struct.pack("!HHIHBB8s", 0x88CC, 0, index, 1, kind, 6, bytes(8)) + bytes(frame)[14:]
            out.write(struct.pack("<IIII", 1, 0, len(data), len(data)) + data)
    result = topology("diff", plan, file)
    assert (result.exit_code, "2 links are as planned" in result.output) == (0, True), result.output


def test_what_a_capture_does_not_tell_is_said(plan: Path, tmp_path: Path) -> None:
    one_end = captured(tmp_path / "host1.pcap", announced("leaf1", "swp1"))
    unclear = captured(tmp_path / "x.pcap", announced("leaf1", "swp1"), announced("leaf2", "swp1"))
    none = captured(tmp_path / "none.pcap", Ether(type=0x0800) / b"xx")
    broken = captured(tmp_path / "broken.pcap", Ether(type=0x88CC) / b"\x02\x07\x04")
    for file, said in (
        (one_end, "host1.pcap:1: at which port leaf1 was heard is not said: call the file after its node"),
        (unclear, "x.pcap:1: at which port leaf1 was heard is not said"),
        (none, "none.pcap:1: no LLDP frame in it; they come every 30 s"),
        (broken, "broken.pcap:1: LLDP frame 1 is broken"),
    ):
        result = topology("diff", plan, file)
        assert (result.exit_code, said in result.stderr) == (2, True), result.output
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(one_end.read_bytes()[:10])
    assert topology("diff", plan, cut).exit_code == 2


def test_several_neighbours_at_one_port_are_a_contradiction(tmp_path: Path) -> None:
    file = captured_ng(
        tmp_path / "host1.pcapng", ("eth1", announced("leaf1", "swp1")), ("eth1", announced("leaf2", "swp1"))
    )
    result = topology(file)
    assert "contradict" in result.output, result.output


def test_the_daemon_has_no_use_for_captures(tmp_path: Path) -> None:
    file = captured(tmp_path / "x.pcap", announced("leaf1", "swp1"), announced("host1", "eth1"))
    with pytest.raises(FabricFileError, match="not UTF-8"):
        read_fabric(file)
