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
def test_probes_pass_and_nothing_else_does(size: int, protocol: int) -> None:
    program = bpf.probes(size, protocol, 3785)
    for payload in (b"", b"\x01", bytes(200)):
        assert passes(program, build(size, protocol, payload))
    other = frame.UDP if protocol == frame.TCP else frame.TCP
    data = b"\x01\x01" * 40
    strangers = [
        build(size, protocol, data, sport=3784), build(size, protocol, data, dport=443), build(size, other, data), b"x",
    ]  # fmt: skip
    if size == 4:
        whole = build(size, protocol, data)
        options, fragment = whole[:14] + b"\x46" + whole[15:], whole[:20] + b"\x20\x00" + whole[22:]
        strangers += [options, fragment, whole[:20] + b"\x00\x01" + whole[22:]]
    for stranger in strangers:
        assert not passes(program, stranger)


def test_nothing_passes_nothing() -> None:
    assert not passes(bpf.nothing(), build(16, frame.TCP, b"\x01\x00abc"))
