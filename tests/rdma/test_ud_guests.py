"""Datagrams of RoCE between two emulated hosts: what arrives, what is told of it, what is on the wire."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guest_pair import Pair, Side

from lab.netns import namespace

pytestmark = pytest.mark.guests
TOOL = Path(__file__).with_name("ud_tool.py")
PATIENCE_S = 60.0
CLASSES = (0, 26 << 2)
UD_SEND_ONLY = 0x64
"""Opcode of a datagram in the base transport header."""


def lines(side: Side, log: str) -> list[dict[str, Any]]:
    text = (side.guest.share / log).read_text()
    whole = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
    return [json.loads(line) for line in whole if line.startswith("{")]


def run(side: Side, *words: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in side.python(TOOL, *words).splitlines()]


@contextmanager
def serving(side: Side, address: str, how: str) -> Iterator[dict[str, Any]]:
    """Where it answers."""
    log = f"serve-{time.monotonic_ns()}"
    pid = side.start_python(log, TOOL, "serve", address, how)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while not (said := lines(side, log)):
            assert time.monotonic() < end_s, (side.guest.share / log).read_text()
            time.sleep(0.1)
        yield said[0]
    finally:
        side.guest.signal(pid, 9)


@contextmanager
def watching(pair: Pair) -> Iterator[list[bytes]]:
    """Frames that leave the first guest while it lasts, with 10 bytes of the tap's header removed by the kernel."""
    frames: list[bytes] = []
    with namespace.inside(pair.wire):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # hears nothing before it is bound
    wire.bind(("tap-a", 3))
    wire.setblocking(False)
    try:
        yield frames
        while True:
            try:
                frames.append(wire.recv(2048))
            except BlockingIOError:
                return
    finally:
        wire.close()


@pytest.mark.parametrize(("how", "family"), [("woken", 6), ("polled", 6), ("woken", 4)])
def test_a_question_and_its_answer(pair: Pair, how: str, family: int) -> None:
    """Each in the class asked for; the time that the answering host had it is told apart from the rest."""
    here, there = (pair.a.v6, pair.b.v6) if family == 6 else (pair.a.v4, pair.b.v4)
    with serving(pair.b, there, how) as place:
        place_of, *answers, last = run(pair.a, "ask", here, how, place["gid"], place["qpn"], place["qkey"])
    assert place_of["wakes"] == place["wakes"] == (how == "woken")
    assert last["broken"] == ""
    assert [one["number"] for one in answers] == list(range(10))
    for one in answers:
        assert one["whole"]
        seen = [ipaddress.ip_address(one[end]) for end in ("source", "target")]
        assert seen == [ipaddress.ip_address(end["gid"]) for end in (place, place_of)]
        assert one["seen_class"] == one["answer_class"] == CLASSES[one["number"] % 2]
        assert 0 <= one["there_s"] < one["round_s"]
    left = [token for one in answers for token in one["left"]]
    assert sorted(left) == sorted(set(left)) and set(left) <= set(range(1, 11))


def test_on_the_wire_they_are_roce_in_the_class_asked_for_and_soft_roce_writes_no_label(pair: Pair) -> None:
    """The label that was asked for does not come through: nftables gives these packets theirs, as the job's."""
    with serving(pair.b, pair.b.v6, "woken") as place, watching(pair) as frames:
        run(pair.a, "ask", pair.a.v6, "woken", place["gid"], place["qpn"], place["qkey"])
    ours = [f[14:] for f in frames if f[12:14] == b"\x86\xdd" and f[20] == 17 and f[56:58] == (4791).to_bytes(2, "big")]
    asked = [packet for packet in ours if packet[8:24] == socket.inet_pton(socket.AF_INET6, pair.a.v6)]
    assert len(asked) == 10
    first = [int.from_bytes(packet[:4], "big") for packet in asked]
    assert [word >> 20 & 0xFF for word in first] == [*CLASSES] * 5
    assert {word & 0xFFFFF for word in first} == {0}
    assert {packet[48] for packet in asked} == {UD_SEND_ONLY}
    assert len({packet[40:42] for packet in asked}) == 1  # the queue pair's own source port
    assert len({int.from_bytes(packet[64:68], "big") & 0xFFFFFF for packet in asked}) == 1  # its number, in DETH


def test_a_datagram_without_a_way_breaks_the_port_which_opens_anew(pair: Pair) -> None:
    before, broken, after, last = run(pair.a, "break", pair.a.v6)
    assert broken["broken"] and broken["refused"]
    assert (before["gid"], after["gid"]) == (pair.a.v6, pair.a.v6)
    assert (last["arrived"], last["broken"]) == (1, "")
