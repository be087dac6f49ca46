"""The filters, run by the kernel: on a pair of local datagram sockets, which honour them as packet sockets do."""

from __future__ import annotations

import socket

import pytest

from linkpass.wire import bpf, frame


def passes(program: bytes, data: bytes) -> bool:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with a, b:
        b.setblocking(False)
        attached = bpf.Filter(program)
        b.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, attached.fprog)
        a.setblocking(False)
        try:
            a.send(data)
            return bool(b.recv(2048))
        except (BlockingIOError, PermissionError):
            return False


def build(size: int, protocol: int, payload: bytes, sport: int = 3785, dport: int = 3785) -> bytes:
    return frame.Template(frame.Headers(bytes(6), bytes(6), bytes(size), bytes(size), protocol, sport, dport)).frame(
        payload
    )


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("protocol", [frame.TCP, frame.UDP])
def test_probes_go_to_the_ring_of_their_urgency_and_nothing_else_passes(size: int, protocol: int) -> None:
    calm, urgent = (bpf.probes(size, protocol, 3785, urgent=u) for u in (False, True))
    every = bpf.probes(size, protocol, 3785)
    for payload, is_urgent in ((b"\x01\x00abc", False), (b"\x01\x01abc", True), (b"\x01\x02abc", False), (b"", False)):
        probe = build(size, protocol, payload)
        assert passes(urgent, probe) == is_urgent
        assert passes(calm, probe) != is_urgent
        assert passes(every, probe)
    other = frame.UDP if protocol == frame.TCP else frame.TCP
    data = b"\x01\x01" * 40
    strangers = [
        build(size, protocol, data, sport=3784), build(size, protocol, data, dport=443), build(size, other, data), b"x",
    ]  # fmt: skip
    if size == 4:
        whole = build(size, protocol, data)
        strangers += [whole[:14] + b"\x46" + whole[15:], whole[:20] + b"\x20\x00" + whole[22:]]
    for stranger in strangers:
        assert not any(passes(program, stranger) for program in (calm, urgent, every))


def test_nothing_passes_nothing() -> None:
    assert not passes(bpf.nothing(), build(16, frame.TCP, b"\x01\x00abc"))
