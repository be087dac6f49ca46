"""One connection at a time, held against what its owner has done with it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.netns import namespace
from linkpass.wire import diag, tcp_info


class Link:
    """A connection inside a namespace, and a way to ask of both its ends."""

    def __init__(self, sock: socket.socket, ours: socket.socket, theirs: socket.socket) -> None:
        self.sock, self.ours, self.theirs = sock, ours, theirs

    def ask(self, end: socket.socket, cookie: int | None = None) -> tcp_info.TcpState | None:
        src, dst = end.getsockname(), end.getpeername()
        bare = [address[0].removeprefix("::ffff:") for address in (src, dst)]
        if cookie is None:
            (cookie,) = struct.unpack("=Q", end.getsockopt(socket.SOL_SOCKET, 57, 8))
        self.sock.send(tcp_info.question(7, bare[0], src[1], bare[1], dst[1], cookie))
        answer = self.sock.recv(8192)
        assert tcp_info.sequence(answer) == 7
        return tcp_info.parse(answer, bare[1])


@pytest.fixture(scope="module", params=["::1", "127.0.0.1"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    name = f"te-{os.getpid()}i"
    namespace.remove(name)
    os.close(namespace.create(name))
    with ExitStack() as stack:
        stack.callback(namespace.remove, name)
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        with namespace.inside(name):
            sock = stack.enter_context(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, diag.NETLINK_SOCK_DIAG))
            sock.settimeout(5)
            server = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
            ours = stack.enter_context(socket.create_connection((request.param, server.getsockname()[1]), 5))
            theirs = stack.enter_context(server.accept()[0])
        yield Link(sock, ours, theirs)


@pytest.mark.netns
def test_what_was_written_received_and_not_read(link: Link) -> None:
    before, there = link.ask(link.ours), link.ask(link.theirs)
    assert before is not None and there is not None
    link.ours.sendall(b"x" * 5000)
    assert link.theirs.recv(5000, socket.MSG_WAITALL | socket.MSG_PEEK) == b"x" * 5000
    after, heard = link.ask(link.ours), link.ask(link.theirs)
    assert after is not None and heard is not None
    assert after.written_bytes - before.written_bytes == 5000 and after.received_bytes == before.received_bytes
    assert heard.received_bytes - there.received_bytes == 5000 == heard.unread_bytes
    assert after.since_sent_s < before.since_sent_s + 60 and heard.since_received_s < 60
    assert after.cookie != heard.cookie and after.segment_bytes > 500
    assert len(link.theirs.recv(5000, socket.MSG_WAITALL)) == 5000
    read = link.ask(link.theirs)
    assert read is not None and read.unread_bytes == 0


@pytest.mark.netns
def test_what_the_peer_does_not_read_stands_and_is_told_as_blocked(link: Link) -> None:
    """Written counts what waits unsent, too: the moment in which the program wrote it is what is asked for."""
    before = link.ask(link.ours)
    assert before is not None
    link.ours.settimeout(0)
    sent = 0
    try:
        while True:
            sent += link.ours.send(b"y" * 65536)
    except BlockingIOError:
        pass
    first = link.ask(link.ours)
    assert first is not None
    assert first.written_bytes - before.written_bytes == sent
    assert first.queued_bytes > 2 * first.segment_bytes
    while (later := link.ask(link.ours)) is not None and later.blocked_s <= first.blocked_s:
        pass  # the clock of the kernel goes on; a closed window does not open by itself
    assert later is not None
    link.ours.settimeout(5)
    left = sent
    while left:
        left -= len(link.theirs.recv(1 << 20))


@pytest.mark.netns
def test_another_socket_with_these_ends_is_not_taken_for_it(link: Link) -> None:
    assert link.ask(link.ours, cookie=12345) is None


@given(st.binary(max_size=600))
def test_garbage_is_no_connection_and_no_traceback(data: bytes) -> None:
    tcp_info.parse(data, "h2")
    tcp_info.sequence(data)
    head = struct.pack("=IHHII", 88 + len(data), tcp_info.SOCK_DIAG_BY_FAMILY, 0, 7, 0)
    tcp_info.parse(head + bytes(72) + data, "h2")
