"""What a real flow sends again, and on which path: connections over two uplinks, one of which loses."""

from __future__ import annotations

import contextlib
import fcntl
import selectors
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from two_uplinks import OWN6, PEER4, PEER6, PREFIX6, TwoUplinks

from linkpass.core.events import Event, FlowAt, FlowCount, FlowsLosing, FlowWindow
from linkpass.edges.flow_paths import CALM_S, ROCE, FlowPathEdge, Way, parse
from linkpass.edges.sockets import SocketEdge
from linkpass.wire.diag import Connection
from rdma.resent import Sends

pytestmark = pytest.mark.netns

FLOWS, WRITES, ROUNDS = 24, 30, 6
"""The kernel deals flows out by a hash with a seed of its own: of 24 no uplink is left with too few to tell by."""
LABEL = 0x1234
OURS = f"""table ip6 t {{ chain c {{ type filter hook output priority 0;
 meta l4proto tcp ip6 flowlabel set {LABEL}
}}
}}"""
LOSES = """table ip6 t { chain c { type filter hook prerouting priority -300;
 iifname "p1" meta l4proto tcp numgen random mod 20 0 drop
}
}"""


def nft(name: str, rules: str) -> None:
    subprocess.run(["ip", "netns", "exec", name, "nft", "-f", "-"], input=rules, text=True, check=True)


class Rig:
    """`FLOWS` connections from the host to a peer that reads all; both edges of the host."""

    def __init__(self, two: TwoUplinks, stack: ExitStack) -> None:
        self.said: list[Event] = []
        self.now_s = 0.0
        self.sockets = SocketEdge(lambda _: None, (PREFIX6,), OWN6, lambda *_: None)
        self.edge = FlowPathEdge(self.said.append, OWN6)
        stack.enter_context(closing(self.sockets))
        stack.enter_context(closing(self.edge))
        with two.on_host():
            Path("/proc/sys/net/ipv6/fib_multipath_hash_policy").write_text("1")  # by ports: flows on both uplinks
            self.sockets.open()
            for uplink in ("eth1", "eth2"):
                self.edge.set_uplink(uplink)
        server = stack.enter_context(two.server(PEER6))
        self.flows = [stack.enter_context(two.connect(server)) for _ in range(FLOWS)]
        selector = stack.enter_context(selectors.DefaultSelector())
        for flow in self.flows:
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(stack.enter_context(server.accept()[0]), selectors.EVENT_READ)
        self._over = threading.Event()
        reader = threading.Thread(target=self._read, args=(selector,))
        reader.start()
        stack.callback(reader.join)
        stack.callback(self._over.set)

    def _read(self, selector: selectors.BaseSelector) -> None:
        while not self._over.is_set():
            for key, _ in selector.select(0.05):
                with contextlib.suppress(OSError):
                    key.fileobj.recv(1 << 16)  # type: ignore[union-attr]

    def round(self) -> None:
        """All send, all is acknowledged, the table is read."""
        for _ in range(WRITES):
            for flow in self.flows:
                flow.sendall(b"x" * 500)
        until_s = time.monotonic() + 30
        while any(self._unacknowledged(flow) for flow in self.flows):
            assert time.monotonic() < until_s
        self.poll()

    @staticmethod
    def _unacknowledged(flow: socket.socket) -> int:
        return int(struct.unpack("i", fcntl.ioctl(flow, termios.TIOCOUTQ, b"\0" * 4))[0])

    def poll(self) -> None:
        self.now_s += 1.0
        self.sockets.poll(self.now_s)
        self.edge.follow(self.sockets.connections(), self.now_s)

    def told(self) -> dict[str, tuple[int, int]]:
        """Uplink -> segments sent, sent again, as told so far."""
        found = {"eth1": (0, 0), "eth2": (0, 0)}
        for event in self.said:
            assert isinstance(event, FlowWindow | FlowsLosing) and event.peer == PEER6
            for one in event.counts if isinstance(event, FlowWindow) else ():
                sent, again = found[one.flow.uplink]
                found[one.flow.uplink] = sent + one.sent, again + one.again
        return found


@pytest.fixture
def rig(two: TwoUplinks) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(two, stack)


def test_what_is_sent_again_is_told_of_the_path_that_loses(two: TwoUplinks, rig: Rig) -> None:
    nft(two.host, OURS)
    nft(two.far, LOSES)
    for _ in range(ROUNDS):
        rig.round()
    told = rig.told()
    assert told["eth2"][0] > WRITES and told["eth2"][1] == 0
    sent, again = told["eth1"]
    assert 0.01 < again / sent < 0.2
    labels = {one.flow.label for event in rig.said if isinstance(event, FlowWindow) for one in event.counts}
    assert labels == {LABEL}
    losing = {one for event in rig.said if isinstance(event, FlowsLosing) for one in event.flows}
    ports = {flow.getsockname()[1]: flow.getpeername()[1] for flow in rig.flows}
    assert {(one.uplink, one.label) for one in losing} == {("eth1", LABEL)}
    assert all(ports[one.sport] == one.dport for one in losing)


def test_nobody_looks_at_packets_while_nothing_is_sent_again(two: TwoUplinks, rig: Rig) -> None:
    hooks = ["ip", "netns", "exec", two.host, "cat", "/proc/net/packet"]

    def looking() -> int:
        """Packet sockets of all protocols."""
        lines = subprocess.run(hooks, check=True, text=True, capture_output=True).stdout.splitlines()[1:]
        return sum(line.split()[3] == "0003" for line in lines)

    rig.round()
    rig.round()
    assert looking() == 0 and rig.said == []
    nft(two.far, LOSES)
    rig.round()
    rig.round()
    assert looking() == 2
    nft(two.far, "flush ruleset")
    rig.poll()
    rig.now_s += CALM_S
    rig.poll()
    until_s = time.monotonic() + 30
    while looking():
        assert time.monotonic() < until_s


def flow(sent: int, again: int, twice: int = 0) -> Connection:
    return Connection("a", 1, "b", 2, 7, 9, 0, retransmitted=again, sent_segments=sent, had_twice=twice)


def test_what_the_receiver_had_twice_was_not_lost_and_a_flow_that_has_moved_tells_of_no_path() -> None:
    said: list[Event] = []
    edge = FlowPathEdge(said.append, "a")
    edge.follow([flow(100, 0)], 0.0)
    for number, (way, again, twice) in enumerate([(("eth1", 5), 4, 3), (("eth1", 5), 8, 6), (("eth2", 6), 9, 6)], 2):
        edge._read = lambda way=way: {("b", 1, 2): way}  # type: ignore[method-assign]
        edge.follow([flow(100 * number, again, twice)], float(number))
    (event,) = [one for one in said if isinstance(one, FlowWindow)]
    assert event.counts == (FlowCount(FlowAt("eth1", 5, 1, 2), 100, 1),)
    losing = [one.flows for one in said if isinstance(one, FlowsLosing)]
    assert losing == [(FlowAt("eth1", 5, 1, 2),), (FlowAt("eth2", 6, 1, 2),)]


def test_flows_from_another_address_of_the_host_are_left_out() -> None:
    said: list[Event] = []
    edge = FlowPathEdge(said.append, "other")
    edge._read = lambda: {("b", 1, 2): ("eth1", 5)}  # type: ignore[method-assign]
    for number in range(1, 5):
        edge.follow([flow(100 * number, number)], float(number))
    assert said == []


def sends(since_s: float, again: int, *, own: str = "a", least: bool = False) -> Sends:
    return Sends("writer (pid 7), queue pair 17 of rxe0", own, "b", 18, since_s, 100, again, least)


def follow(ways: list[Way], told: list[Sends]) -> list[Event]:
    """A poll a second: in each the queue pair is seen there, and this is told of it."""
    said: list[Event] = []
    edge = FlowPathEdge(said.append, "a")
    for second, (way, one) in enumerate(zip(ways, told, strict=True)):
        edge._read = lambda way=way: {("b", 18, ROCE): way}  # type: ignore[method-assign]
        edge.follow([], float(second), [one])
    return said


def test_what_a_queue_pair_sent_again_is_told_of_its_path_with_its_name() -> None:
    """What is known may reach into the window before, so it has to be seen there in three."""
    said = follow([("eth1", 5)] * 5, [sends(second - 1.5, 2, least=second == 3) for second in range(5)])
    name, at = "writer (pid 7), queue pair 17 of rxe0", FlowAt("eth1", 5, 18, ROCE)
    assert said == [FlowWindow(peer="b", counts=(FlowCount(at, 100, 2, name, least),)) for least in (False, True)]
    # no FlowsLosing: copies of TCP headers would not go its way


def test_what_it_may_have_sent_before_it_moved_is_told_of_no_path() -> None:
    ways: list[Way] = [("eth1", 5)] * 3 + [("eth2", 6)] * 4
    said = follow(ways, [sends(second - 1.5, 9 if second == 3 else 0) for second in range(7)])
    assert all(one.again == 0 for event in said if isinstance(event, FlowWindow) for one in event.counts)
    assert follow([("eth1", 5)] * 5, [sends(second - 3.0, 2) for second in range(5)]) == []  # known too late
    assert follow([("eth1", 5)] * 5, [sends(second - 0.5, 2, own="other") for second in range(5)]) == []


@pytest.mark.parametrize("address", [PEER6, PEER4])
def test_a_roce_packet_as_it_leaves_tells_its_queue_pair(two: TwoUplinks, address: str) -> None:
    """Other datagrams do not pass. The base transport header: InfiniBand Architecture Specification, volume 1, 9.2."""
    header = struct.pack(">BBHII", 4, 0x40, 0xFFFF, 0xABCDE, 77)
    edge = FlowPathEdge(lambda _: None, OWN6)
    with closing(edge), two.on_host():
        for uplink in ("eth1", "eth2"):
            edge.set_uplink(uplink)
        edge._look()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            for _ in range(200):
                for port in (4790, 4791, 4792):
                    sock.sendto(header + bytes(64), (address, port))
        ((flow, way),) = edge._read().items()
    assert flow == (address, 0xABCDE, ROCE)
    assert way is not None and way[0] in ("eth1", "eth2") and (way[1] == 0 or ":" in address)


@pytest.mark.parametrize("address", [PEER6, PEER4])
def test_a_frame_as_it_leaves_tells_its_flow(two: TwoUplinks, address: str) -> None:
    """Both families pass the filter, UDP does not."""
    edge = FlowPathEdge(lambda _: None, OWN6)
    with closing(edge), two.on_host():
        for uplink in ("eth1", "eth2"):
            edge.set_uplink(uplink)
        edge._look()
        with two.server(address) as server, two.connect(server) as client, server.accept()[0] as taken:
            with socket.socket(client.family, socket.SOCK_DGRAM) as other:
                for _ in range(200):
                    client.sendall(b"x" * 100)
                    taken.recv(1 << 16)
                    other.sendto(b"x" * 100, client.getpeername()[:2])
            ((peer, sport, dport), way) = next(iter(edge._read().items()))
            assert (peer, sport, dport) == (address, client.getsockname()[1], client.getpeername()[1])
            assert way is not None and way[0] in ("eth1", "eth2") and bool(way[1]) == (":" in address)


def test_what_is_cut_off_or_has_no_ports_tells_nothing() -> None:
    four = bytes(12) + b"\x08\x00" + b"\x45" + bytes(5) + b"\x20\x00" + bytes(60)
    assert parse(four) is not None  # a first fragment has the ports
    assert parse(four[:53]) is None
    assert parse(four[:20] + b"\x00\x01" + four[22:]) is None
    assert parse(four[:14] + b"\x46" + four[15:]) is None
    assert parse(bytes(12) + b"\x86\xdd" + bytes(59)) is None
