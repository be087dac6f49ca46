"""What the tools of infiniband-diags print, construct by construct. `ib/` was captured from ibsim 0.10 with
infiniband-diags 44.0 (one link of 4X among 12X, counters set at leaf1 port 7 and node2 HCA-2); what the simulator does
not do is written after the programs' sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.sources import iblinkinfo, ibnetdiscover, ibqueryerrors, ibroute
from topology.sources.infiniband import renamed
from topology.sources.yamltext import TopologyError

TEXTS = {file.stem: file.read_text() for file in sorted((Path(__file__).parent / "ib").glob("*.txt"))}
READERS: dict[str, Callable[[str, str], Any]] = {
    "ibnetdiscover": ibnetdiscover.parse,
    "iblinkinfo": iblinkinfo.parse,
    "dump_fts": ibroute.parse,
    "ibroute": ibroute.parse,
    "ibqueryerrors": ibqueryerrors.parse,
    "perfquery": ibqueryerrors.parse,
}
GUID = "0x{:016x}"


def reader(name: str) -> Callable[[str, str], Any]:
    return READERS[name.partition("-")[0]]


def link(inside: str, far: str, *, own: str = "", lid: int = 3, port: int = 1, ext: str = "  ") -> str:
    return f"      {own}{lid:6d} {port:4d}[{ext}] ==({inside})==>  {far}"


def far(lid: int, port: int, said: str, could: str = " ", ext: str = "  ") -> str:
    return f'{lid:6d} {port:4d}[{ext}] "{said}" ({could})'


def one_port(line: str) -> Any:
    subnet = iblinkinfo.read(f"Switch: {GUID.format(0x10)} MF0;sw:MQM9700/U1:\n{line}\n")
    return next(iter(subnet.nodes["0000000000000010"].ports.values()))


@pytest.mark.parametrize(
    ("inside", "could", "width", "speed", "bps", "could_width", "could_speed"),
    [
        (" 4X       106.25 Gbps Active/  LinkUp", " ", 4, "NDR", 400e9, None, None),
        (" 4X        212.5 Gbps Active/  LinkUp", " ", 4, "XDR", 800e9, None, None),
        (" 2X       106.25 Gbps Active/  LinkUp", "Could be 4X ", 2, "NDR", 200e9, 4, None),
        (" 1X        53.125 Gbps Active/  LinkUp", "Could be 4X Could be 106.25 Gbps", 1, "HDR", 50e9, 4, "NDR"),
        (" 4X     25.78125 Gbps Active/  LinkUp", " Could be 53.125 Gbps", 4, "EDR", 100e9, None, "HDR"),
        (" 4X      14.0625 Gbps Armed/  LinkUp", " ", 4, "FDR", 56e9, None, None),
        (" 4X 10.0 Gbps (FDR10) Active/  LinkUp", " ", 4, "FDR10", 40e9, None, None),
        (" 4X         10.0 Gbps Active/  LinkUp",
         " Could be FDR10 (Found link at QDR but expected speed is FDR10)", 4, "QDR", 40e9, None, "FDR10"),
        (" 4X          5.0 Gbps Active/  LinkUp", " Could be FDR10", 4, "DDR", 20e9, None, "FDR10"),
        (" 8X          2.5 Gbps Active/LinkErrorRecovery", " ", 8, "SDR", 20e9, None, None),
        (" 4X     undefined (16) Active/  LinkUp", " ", 4, "undefined (16)", None, None, None),
        ("undefined (3)     Extended speed Initialize/  LinkUp", " ", None, "Extended speed", None, None, None),
    ],
)  # fmt: skip
def test_widths_and_speeds_give_rates(
    inside: str, could: str, width: int, speed: str, bps: float, could_width: int, could_speed: str
) -> None:
    port = one_port(link(inside, far(7, 1, "gpu07 mlx5_0", could)))
    assert (port.width, port.speed, port.speed_bps) == (width, speed, bps)
    assert (port.could_width, port.could_speed) == (could_width, could_speed)


@pytest.mark.parametrize(
    ("inside", "rest", "state", "physical", "mute"),
    [
        ("                Down/ Polling", '           [  ] "" ( )', "Down", "Polling", False),
        ("                Down/Disabled", '           [  ] "" ( )', "Down", "Disabled", False),
        ("                Down/PortConfigurationTraining", '           [  ] "" ( )',
         "Down", "PortConfigurationTraining", False),
        ("                Down/   ?(9)", '           [  ] "" ( )', "Down", "?(9)", False),
        (" 4X         10.0 Gbps  ?(6)/  LinkUp", '    "Port not available"', "?(6)", "LinkUp", True),
        (" 4X         10.0 Gbps Active/  LinkUp", '    "Port not available"', "Active", "LinkUp", True),
    ],
)  # fmt: skip
def test_ports_without_a_link_say_why(inside: str, rest: str, state: str, physical: str, *, mute: bool) -> None:
    port = one_port(link(inside, rest, ext="12"))
    assert (port.state, port.physical, port.mute, port.peer) == (state, physical, mute, None)


def test_switch_settings_external_ports_and_odd_names_are_read() -> None:
    line = link(" 4X         10.0 Gbps Active/  LinkUp", far(7, 1, 'IB1 "x" (Rack 11 [spine 1]) ', ext="31"), ext=" 4")
    port = one_port(line.replace(")==>", ") (HOQ:16 VL_Stall:7)==>"))
    assert port.peer is not None and port.number == 1


def test_the_captured_outputs_are_one_subnet() -> None:
    net = ibnetdiscover.read(TEXTS["ibnetdiscover"])
    wanted = {frozenset((one.a.id, one.b.id)) for one in net.fabric.links}
    for name in ("iblinkinfo", "iblinkinfo-line"):
        subnet = iblinkinfo.read(TEXTS[name])
        assert {frozenset((one.a.id, one.b.id)) for one in subnet.fabric.links} == wanted
        assert {one.name: one.role for one in subnet.fabric.nodes} == {one.name: one.role for one in net.fabric.nodes}
        assert {lid: (node.name, at) for lid, (node, at) in subnet.lids.items()} == {
            lid: (node.name, at) for lid, (node, at) in net.lids.items()
        }
        slow = {node.port_id(at) for node in subnet.nodes.values() for at, p in node.ports.items() if p.could_width}
        assert slow == {"leaf1:8", "spine2:1"}


def alike(lids: tuple[int, int], *, line: bool) -> str:
    """Two adapters described alike at one switch."""
    up = " 4X         10.0 Gbps Active/  LinkUp"
    text = []
    for place, lid in enumerate(lids, 1):
        guid, name = GUID.format(0x100 * place), "MT23108 InfiniHost"
        if line:
            text += [f'{guid} "{name:>30}" {link(up, GUID.format(0x10) + " " + far(3, place, "sw"), lid=lid).strip()}']
            text += [
                f'{GUID.format(0x10)} "{"sw":>30}" '
                f"{link(up, guid + ' ' + far(lid, 1, name), port=place, lid=3 if any(lids) else 0).strip()}"
            ]
        else:
            text += [f"CA: {name}:", link(up, far(3 if any(lids) else 0, place, "sw"), own=f"{guid} ", lid=lid)]
    if not line:
        text += [f"Switch: {GUID.format(0x10)} sw:"]
        text += [
            link(up, far(lid, 1, "MT23108 InfiniHost"), lid=3 if any(lids) else 0, port=place)
            for place, lid in enumerate(lids, 1)
        ]
    else:
        text.sort(key=lambda one: one.startswith(GUID.format(0x10)))
    return "\n".join(text)


def test_adapters_described_alike_are_told_apart_by_lid_port_and_guid() -> None:
    for text in (alike((7, 8), line=False), alike((0, 0), line=False), alike((7, 8), line=True)):
        subnet = iblinkinfo.read(text)
        links = {frozenset((one.a.id, one.b.id)) for one in subnet.fabric.links}
        assert links == {
            frozenset(("sw:1", "H-0000000000000100:hca/1")), frozenset(("sw:2", "H-0000000000000200:hca/1"))
        } or links == {
            frozenset(("sw:1", "?-0000000000000100:1")), frozenset(("sw:2", "?-0000000000000200:1"))
        }  # fmt: skip


def test_another_text_s_names_are_taken_over_by_guid() -> None:
    net = ibnetdiscover.read(TEXTS["ibnetdiscover"])
    mapped = TEXTS["iblinkinfo"].replace("leaf1", "leaf one (rack 1)")
    subnet = renamed(iblinkinfo.read(mapped), net, "f")
    assert subnet.with_name("leaf one (rack 1)") is None
    assert {node.name for node in subnet.fabric.nodes} == {node.name for node in net.fabric.nodes}


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (iblinkinfo.parse, "", "f:1: no node: expected the output of iblinkinfo"),
        (iblinkinfo.parse, link("  Down/ Polling", '  [  ] "" ( )'), "f:1: a port before any node"),
        (iblinkinfo.parse, "Switch: 0x0000000000000010 sw:\nSwitch: 0x0000000000000010 sw:", "f:2: switch"),
        (iblinkinfo.parse, "< CA: x:", "f:1: a comparison, not a subnet: run iblinkinfo without --diff"),
        (iblinkinfo.parse, "iblinkinfo: iberror: failed: Failed to open port", "f:1: the program failed, it says: "),
        (ibroute.parse, "", "f:1: no table: expected the output of ibroute or dump_fts"),
        (ibroute.parse, TEXTS["ibroute-multicast"], "f:1: multicast tables are not followed: run ibroute or dump_fts "),
        (ibroute.parse, "\n".join(TEXTS["dump_fts"].splitlines()[:16]), "the table of 'spine2' was cut"),
        (ibroute.parse, TEXTS["dump_fts"].replace("0x0004 ", "0x0003 ", 1), "f:7: LID 3 appears twice"),
        (ibroute.parse, TEXTS["ibroute-all"] * 2, "f:14: the table of switch 0000000000200000 appears twice"),
        (ibroute.parse, "SubnGet() failed; MAD status 0x6e AM 0x0", "f:1: a switch did not answer, its table"),
        (ibqueryerrors.parse, "", "f:1: no port: expected the output of ibqueryerrors or perfquery"),
        (ibqueryerrors.parse, "SymbolErrorCounter:....7", "f:1: expected a line of ibqueryerrors or perfquery, got"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(read: Callable[[str, str], Any], text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert said in str(caught.value)


def test_two_adapters_that_nothing_tells_apart_are_refused_with_what_helps() -> None:
    text = alike((0, 0), line=False).replace(' 2[  ] "sw"', ' 1[  ] "sw"')
    with pytest.raises(TopologyError, match=r"any of 2 nodes called 'MT23108 InfiniHost': run iblinkinfo --line"):
        iblinkinfo.parse(text, "f")


def test_tables_have_their_holes_and_say_when_a_switch_was_silent() -> None:
    (whole,) = ibroute.parse(TEXTS["ibroute-all"])
    assert (whole.said, whole.first, whole.last, 0 in whole.ports) == ("leaf1", 0, 8, False)
    assert whole.ports[2] == 0 and whole.covers(9)
    silent = "SubnGet(LFT) failed on switch 'leaf1' Lid 2 Node GUID 0x200000 SMA LID 2; MAD status 0x6e AM 0x0\n"
    assert not ibroute.parse(silent + TEXTS["ibroute-all"])[0].answered
    warned = TEXTS["dump_fts"] + "\n*** WARNING ***: this command has been replaced by dump_fts\n\n"
    assert ibroute.parse(warned) == ibroute.parse(TEXTS["dump_fts"])
    part = TEXTS["ibroute-all"].replace("[0x0-", "[0x2-").splitlines()
    text = "\n".join(part[:3] + part[5:-1] + ["7 valid lids dumped "])
    assert not ibroute.parse(text)[0].covers(1) and not ibroute.parse(text)[0].covers(9)


def test_counters_are_read_with_what_was_left_out() -> None:
    reading = ibqueryerrors.parse(TEXTS["ibqueryerrors"])
    rows = {(row.said, row.port): row.values for row in reading.ports}
    assert rows["leaf1", 7]["SymbolErrorCounter"] == 77 and rows["leaf1", None]["SymbolErrorCounter"] == 77
    assert reading.nodes_checked == 8 and reading.silent_is_zero("SymbolErrorCounter")
    limited = ibqueryerrors.parse(TEXTS["ibqueryerrors-thresholds"])
    assert limited.thresholds == {"SymbolErrorCounter": 10, "VL15Dropped": 100}
    assert not limited.silent_is_zero("SymbolErrorCounter") and not limited.silent_is_zero("LinkDownedCounter")
    assert limited.silent_is_zero("PortRcvErrors")
    one = ibqueryerrors.parse(TEXTS["perfquery"])
    assert [(row.lid, row.port) for row in one.ports] == [(2, 7), (2, 7), (2, None), (2, 1)]
    assert not one.silent_is_zero("PortRcvErrors")
    failed = TEXTS["ibqueryerrors"].replace("## Suppressed", "##          3 PMA query failures\n## Suppressed")
    assert ibqueryerrors.parse(failed).failures == 3


JUNK = st.text(st.characters(min_codepoint=9, max_codepoint=255), max_size=12)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TEXTS)))
def test_mutilated_output_is_read_or_refused_with_a_line(data: st.DataObject, name: str) -> None:
    lines = TEXTS[name].splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        if not lines:
            break
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        start = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(start, min(len(line), start + 8)))
        how = data.draw(st.sampled_from(("cut", "junk", "drop", "twice", "end", "swap")))
        if how == "cut":
            lines[at] = line[:start] + line[end:]
        elif how == "junk":
            lines[at] = line[:start] + data.draw(JUNK) + line[end:]
        elif how == "drop":
            del lines[at]
        elif how == "twice":
            lines.insert(at, line)
        elif how == "end":
            lines = [*lines[:at], line[:start]]
        else:
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    text = "\n".join(lines)
    line = 1
    try:
        reader(name)(text, "f")
    except TopologyError as error:
        line = error.line
    assert 1 <= line <= max(1, len(text.splitlines()))
