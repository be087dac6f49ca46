"""Which peers a host talks to and whether its data advances: real connections between namespaces."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from two_uplinks import OUTSIDE6, OWN4, OWN6, PEER4, PEER6, PREFIX4, PREFIX6, TwoUplinks

from lab.netns import namespace
from linkpass.core.events import Event, PeerData, PeersActive
from linkpass.edges import sockets
from linkpass.edges.sockets import NoSocketTableError, SocketEdge
from linkpass.wire import diag

pytestmark = pytest.mark.netns


class Watch:
    """A socket edge on the host, and what it says."""

    def __init__(self, two: TwoUplinks, prefixes: tuple[str, ...] = (PREFIX6, PREFIX4), own: str = OWN6) -> None:
        self.said: list[Event] = []
        self.grown: list[tuple[str, int]] = []
        self.edge = SocketEdge(self.said.append, prefixes, own, lambda peer, grown: self.grown.append((peer, grown)))
        with two.on_host():
            self.edge.open()

    def poll(self, **also: bool) -> list[Event]:
        self.said.clear()
        self.grown.clear()
        self.edge.poll(0.0, {f"fd02:ff::{name.removeprefix('h')}": advanced for name, advanced in also.items()})
        return list(self.said)

    def close(self) -> None:
        self.edge.close()


@pytest.fixture
def watch(two: TwoUplinks) -> Iterator[Watch]:
    with closing(Watch(two)) as made:
        yield made


def exchange(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    """Send, and wait until all is received and the sender knows it. Besides `size` the sender counts 1 byte sent and 2
    received; the receiver 1 byte sent that is acknowledged now, 1 that is acknowledged soon, and 1 received."""
    sender.sendall(b"x" * size)
    left = size
    while left:
        left -= len(receiver.recv(left))
    receiver.sendall(b"y")
    assert sender.recv(1) == b"y"
    sender.sendall(b"z")  # acknowledges the answer
    assert receiver.recv(1) == b"z"
    receiver.sendall(b"y")
    assert sender.recv(1) == b"y"


def test_peers_come_and_go_with_their_connections(two: TwoUplinks, watch: Watch) -> None:
    assert watch.poll() == []
    with ExitStack() as stack:
        server6, server4 = stack.enter_context(two.server(PEER6)), stack.enter_context(two.server(PEER4))
        six = stack.enter_context(two.connect(server6))
        stack.enter_context(server6.accept()[0])
        assert watch.poll()[0] == PeersActive(peers=(PEER6,))
        assert PeersActive not in map(type, watch.poll())
        four = stack.enter_context(two.connect(server4))
        stack.enter_context(server4.accept()[0])
        assert watch.poll()[0] == PeersActive(peers=(PEER4, PEER6))
        (flow,) = watch.edge.flows(PEER6)
        assert (flow.src, flow.sport) == six.getsockname()[:2] and (flow.dst, flow.dport) == six.getpeername()[:2]
        assert flow.src == OWN6 and flow.label == 0
        assert watch.edge.flows("fd02:ff::77") == ()
        assert set(watch.edge.sockets()) == {os.fstat(sock.fileno()).st_ino for sock in (six, four)}
        six.close()
        assert watch.poll()[0] == PeersActive(peers=(PEER4,))
    assert watch.poll() == [PeersActive(peers=())]


def test_peers_of_what_passes_the_kernel_by_count_as_well(two: TwoUplinks, watch: Watch) -> None:
    """RDMA flows are in no socket table; whether they advance is told from elsewhere."""
    assert watch.poll(h2=True, h9=False) == [PeersActive(peers=("fd02:ff::2", "fd02:ff::9"))]
    assert {PeerData(peer="fd02:ff::2", flows=True), PeerData(peer="fd02:ff::9", flows=False)} == set(
        watch.poll(h2=True, h9=False)
    )
    assert watch.poll(h2=True, h9=False) == []
    assert watch.poll(h2=False, h9=False) == [PeerData(peer="fd02:ff::2", flows=False)]
    watch.said.clear()
    watch.edge.poll(0.0, {"198.51.100.7": True, OWN6: True})  # outside the prefixes, and this host itself
    assert watch.said == [PeersActive(peers=())]


def test_what_is_no_peer_of_the_job_is_left_out(two: TwoUplinks, watch: Watch) -> None:
    with ExitStack() as stack:
        outside = stack.enter_context(two.server(OUTSIDE6))
        stack.enter_context(two.connect(outside))
        with two.on_host():
            own = stack.enter_context(socket.create_server((OWN6, 0), family=socket.AF_INET6))
            stack.enter_context(socket.create_connection(own.getsockname()[:2], source_address=(OWN6, 0)))
        stack.enter_context(own.accept()[0])
        assert watch.poll() == []


def test_a_connection_that_nobody_has_accepted_is_not_the_job_s_yet(two: TwoUplinks, watch: Watch) -> None:
    with ExitStack() as stack:
        with two.on_host():
            server = stack.enter_context(socket.create_server((OWN6, 0), family=socket.AF_INET6))
        with two.on_far():
            address = server.getsockname()[:2]
            stack.enter_context(socket.create_connection(address, source_address=(PEER6, 0)))
        assert watch.poll() == []
        stack.enter_context(server.accept()[0])
        assert watch.poll()[0] == PeersActive(peers=(PEER6,))


def test_ipv4_over_ipv6_sockets_counts_as_ipv4(two: TwoUplinks, watch: Watch) -> None:
    with ExitStack() as stack:
        with two.on_host():
            server = stack.enter_context(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True))
        with two.on_far():
            address = (OWN4, server.getsockname()[1])
            stack.enter_context(socket.create_connection(address, source_address=(PEER4, 0)))
        stack.enter_context(server.accept()[0])
        assert watch.poll()[0] == PeersActive(peers=(PEER4,))


def test_growth_is_told_and_data_that_stops_is_an_event(two: TwoUplinks, watch: Watch) -> None:
    with two.server() as server, two.connect(server) as ours, server.accept()[0] as theirs:
        exchange(ours, theirs, 30_000)
        assert watch.poll() == [PeersActive(peers=(PEER6,))]
        assert watch.grown == []  # a fresh edge: how old these bytes are is not known
        exchange(ours, theirs, 5000)
        assert watch.poll() == [PeerData(peer=PEER6, flows=True)]
        assert watch.grown == [(PEER6, 5000 + 3)]
        assert watch.poll() == [PeerData(peer=PEER6, flows=False)]
        assert watch.poll() == [] and watch.grown == [(PEER6, 0)]
        exchange(theirs, ours, 700)
        assert watch.poll() == [PeerData(peer=PEER6, flows=True)] and watch.grown in ([(PEER6, 702)], [(PEER6, 703)])


def test_a_new_connection_s_bytes_all_count_but_its_opening_does_not(two: TwoUplinks, watch: Watch) -> None:
    watch.poll()
    with two.server() as server, two.connect(server) as ours, server.accept()[0] as theirs:
        assert watch.poll() == [PeersActive(peers=(PEER6,)), PeerData(peer=PEER6, flows=False)]
        with two.connect(server) as second, server.accept()[0] as far:
            exchange(second, far, 100)
            exchange(theirs, ours, 10)
            assert watch.poll() == [PeerData(peer=PEER6, flows=True)] and watch.grown in (
                [(PEER6, 115)],
                [(PEER6, 116)],
            )


def test_how_data_stands_is_told(two: TwoUplinks, watch: Watch) -> None:
    """A peer that reads nothing shuts its window; one that is cut off acknowledges nothing."""
    watch.poll()
    with two.server() as server, two.connect(server) as ours, server.accept()[0] as theirs:
        exchange(ours, theirs, 1000)
        watch.poll()
        ours.setblocking(False)
        until_s = time.monotonic() + 30
        while not any(isinstance(one, PeerData) and one.stands == "shut" for one in watch.poll()):
            with contextlib.suppress(BlockingIOError):
                ours.send(b"x" * 100_000)
            assert time.monotonic() < until_s
        theirs.settimeout(30)
        read = 0
        while not any(isinstance(one, PeerData) and one.flows for one in watch.poll()):
            read += len(theirs.recv(1 << 20))
        assert read
        while theirs.recv(1 << 20):  # drained, so that what follows finds an open window
            if not any(c.timer == diag.PERSIST for c in watch.edge.connections()) and not _waits(ours):
                break
            watch.poll()
        with two.on_far():
            subprocess.run(
                ["nft", "table inet t { chain c { type filter hook input priority 0; policy drop; }; }"], check=True
            )
        watch.poll()
        ours.send(b"x")
        until_s = time.monotonic() + 30
        while not any(isinstance(one, PeerData) and one.stands == "unacked" for one in watch.poll()):
            assert time.monotonic() < until_s


def _waits(sock: socket.socket) -> bool:
    """Whether something that was written is not acknowledged yet (SIOCOUTQ)."""
    return bool(int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder))


def test_a_peer_that_comes_back_starts_afresh(two: TwoUplinks, watch: Watch) -> None:
    watch.poll()
    with two.server() as server:
        for _ in range(2):
            with two.connect(server) as ours, server.accept()[0] as theirs:
                exchange(ours, theirs, 10)
                assert watch.poll() == [PeersActive(peers=(PEER6,)), PeerData(peer=PEER6, flows=True)]
            assert watch.poll() == [PeersActive(peers=())]


def test_without_prefixes_nothing_is_watched(two: TwoUplinks) -> None:
    with closing(Watch(two, ())) as watch, two.server() as server, two.connect(server), server.accept()[0]:
        assert watch.poll() == []


def test_a_refused_table_is_counted_and_what_was_known_stays(two: TwoUplinks, watch: Watch) -> None:
    with two.server() as server, two.connect(server), server.accept()[0]:
        watch.poll()
        table = watch.edge._table
        assert table is not None
        # A dump that overflows a small buffer, unread: until it is read to its end the kernel begins no other.
        with ExitStack() as stack:
            for _ in range(120):
                stack.enter_context(two.connect(server))
            table._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            table._socket.send(diag.request(999))
            assert watch.poll() == [] and watch.edge.errors == 1 and "socket table" in watch.edge.last_error
            assert len(watch.edge.flows(PEER6)) == 1
            watch.poll()
            assert watch.edge.errors == 1 and len(watch.edge.flows(PEER6)) == 121


def test_namespaces_with_connections_are_found_by_name_and_by_process(two: TwoUplinks) -> None:
    with two.server() as server, two.connect(server), server.accept()[0]:
        found = {space.name: space for space in sockets.namespaces()}
        assert found[two.host].connections == 1 and found[two.far].connections == 1
        assert found[two.host].inode == namespace.inode_of(two.host) and found[two.host].pids == ()
        with two.on_host():
            sleeper = subprocess.Popen(["sleep", "100"])
            here = [space.name for space in sockets.namespaces() if space.here]
        try:
            assert here == [two.host]
            assert {s.name: s.pids for s in sockets.namespaces()}[two.host] == (sleeper.pid,)
            namespace.remove(two.host)  # its name goes, the process holds it
            (space,) = (s for s in sockets.namespaces() if s.pids == (sleeper.pid,))
            assert space.name == f"pid:{sleeper.pid}" and space.connections == 1
        finally:
            sleeper.kill()
            sleeper.wait()
    assert two.far not in {space.name for space in sockets.namespaces()}


def test_without_root_namespaces_says_what_it_may_not_enter() -> None:
    code = (
        "import os; from linkpass.edges.sockets import namespaces as n; os.setgid(65534); os.setuid(65534); print(n())"
    )
    name = f"te-{os.getpid()}n"
    os.close(namespace.create(name))
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    finally:
        namespace.remove(name)
    assert done.returncode == 0, done.stderr
    assert f"name='{name}'" in done.stdout and "needs root" in done.stdout


def test_a_kernel_without_socket_table_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diag, "NETLINK_SOCK_DIAG", 31)  # a netlink family that no kernel has
    with pytest.raises(NoSocketTableError, match="socket table"):
        SocketEdge(lambda _: None, (PREFIX6,), OWN6, lambda *_: None).open()
