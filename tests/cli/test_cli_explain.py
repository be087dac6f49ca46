"""`linkpass capture explain` on files: formats, what people read, and what it answers to mistakes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from roce_story import BEGAN_NS, LINK, A, B, Story, explain, packet
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, CookedLinuxV2, Dot1Q, Ether
from scapy.utils import PcapNgWriter, RawPcapWriter


@pytest.fixture
def story() -> Story:
    """One packet is lost beyond the point of capture, and what says so."""
    lost = Story().a(0.0, 5).b(0.001, 5).a(0.1, 6, label=0x111).a(0.167, 6, label=0x222).b(0.168, 6)
    return lost.put(0.2, ARP(hwdst="02:00:00:00:00:02"))


def test_for_people(story: Story, tmp_path: Path) -> None:
    result = explain(story.write(tmp_path / "roce.pcap"))
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert lines[0].startswith("roce.pcap: 5 RoCE packets in 0.200 s from ") and lines[0].endswith("looked at: 1 ARP")
    assert lines[2] == "Queue pairs, a line for each direction (2)"
    first = "fd00::a qp 17|fd00::b qp 34|RC|3|200 B|1|100.0 ms idle|-|50000|0x222|2"  # those with trouble come first
    assert re.split(r"  +", lines[4]) == first.split("|")
    at = lines.index(next(line for line in lines if line.startswith("What happened")))
    what = "\n".join(lines[at + 2 :])
    assert "0.100000 s  moved" in what and "0.167000 s  sent again  fd00::a qp 17  fd00::b qp 34" in what
    assert "67.0 ms after it was sent before; no NAK seen: a timeout; progress after 1.0 ms" in what
    assert "note: sent again: the first copy passed here" in what


def test_nothing_to_tell(tmp_path: Path) -> None:
    result = explain(Story().a(0.0, 5).b(0.001, 5).write(tmp_path / "fine.pcap"))
    assert "Nothing was sent again, refused, missing, marked or moved." in result.output


def test_only_the_first_queue_pairs_are_shown(tmp_path: Path) -> None:
    story = Story()
    for qpn in range(50):
        story.put(qpn / 100, packet(A, B, 100 + qpn, 4, 1, b"x"))
    file = story.a(1.0, 5).a(1.1, 5).write(tmp_path / "many.pcap")
    few, every = explain(file).output, explain(file, "--all").output
    assert "Queue pairs, a line for each direction (51); 11 more with --all" in few
    assert few.count("fd00::b qp") < every.count("fd00::b qp")
    assert few.splitlines()[4].split()[5] == "34"


@pytest.mark.parametrize("form", ["pcapng", "gzip", "VLAN", "Linux cooked", "raw IP", "microseconds"])
def test_every_form_says_the_same(story: Story, form: str, tmp_path: Path) -> None:
    plain = json.loads(explain(story.write(tmp_path / "plain.pcap"), "--json").output)
    file = tmp_path / "other.pcap"
    if form == "gzip":
        file.write_bytes(gzip.compress((tmp_path / "plain.pcap").read_bytes()))
    elif form == "pcapng":
        with PcapNgWriter(str(file)) as writer:
            for at_s, data in story.frames:
                frame = Ether(data)
                frame.time = BEGAN_NS / 1e9 + at_s
                writer.write(frame)
    else:
        link = {"Linux cooked": 276, "raw IP": 101}.get(form, 1)
        with RawPcapWriter(str(file), linktype=link) as raw:
            raw.write_header(None)
            for at_s, data in story.frames[:-1] if link != 1 else story.frames:
                inner = Ether(data).payload
                framed = {"VLAN": LINK / Dot1Q(vlan=7) / inner, "Linux cooked": CookedLinuxV2(ifindex=4) / inner,
                          "raw IP": inner, "microseconds": Ether(data)}[form]  # fmt: skip
                raw.write_packet(bytes(framed), sec=1_700_000_000, usec=round(at_s * 1e6))
    other = json.loads(explain(file, "--json").output)
    assert [one["says"] for one in other["findings"]] == [one["says"] for one in plain["findings"]]
    for mine, theirs in zip(other["flows"], plain["flows"], strict=True):
        assert {key: mine[key] for key in ("packets", "sent_again", "sender_qpn", "payload_bytes", "broken")} == {
            key: theirs[key] for key in ("packets", "sent_again", "sender_qpn", "payload_bytes", "broken")
        }


def test_a_file_that_ends_within_a_frame_is_read_as_far(story: Story, tmp_path: Path) -> None:
    file = story.write(tmp_path / "cut.pcap")
    file.write_bytes(file.read_bytes()[:-100])
    assert json.loads(explain(file, "--json").output)["packets"] in (4, 5)


def test_mistakes(tmp_path: Path) -> None:
    assert explain(tmp_path / "none.pcap").exit_code == 2
    assert "No such file" in explain(tmp_path / "none.pcap").output
    assert "Is a directory" in explain(tmp_path).output
    (tmp_path / "text").write_text("no packets in here, only words")
    (tmp_path / "nothing").write_bytes(b"")
    for name in ("text", "nothing"):
        wrong = explain(tmp_path / name)
        assert wrong.exit_code == 2 and "expected a pcap or pcapng file" in wrong.output
    empty = explain(Story().write(tmp_path / "empty.pcap"))
    assert empty.exit_code == 2 and "a capture without a packet" in empty.output


def test_no_roce_says_what_was_there(tmp_path: Path) -> None:
    v4 = IP(src="10.0.0.1", dst="10.0.0.2")
    story = Story().put(0, v4 / TCP()).put(1, v4 / TCP()).put(2, v4 / UDP(dport=53)).put(3, v4 / UDP(dport=4791) / b"x")
    result = explain(story.write(tmp_path / "tcp.pcap"))
    assert result.exit_code == 1
    assert "no RoCEv2 packets among 4: 2 TCP, 1 UDP, 1 UDP port 4791, but no RoCE" in result.output
    assert "RoCE hardware passes tcpdump by" in result.output
    first = bytes(LINK)[:12] + b"\x89\x15" + bytes(60)
    assert "0x8915 is RoCE v1" in explain(Story().put(0, first).write(tmp_path / "v1.pcap")).output
    strange = explain(Story().put(0, b"\0" * 60).write(tmp_path / "ib.pcap", link=247))
    assert strange.exit_code == 1 and "1 link type 247" in strange.output and "tcpdump -i eth1" in strange.output
