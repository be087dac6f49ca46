"""The tap on the wire: what it sees of real TCP in a real lab, and the questions asked of what it saw."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from talk import until

from lab import bpf
from lab.capture import Capture, Flow, Sighting, Sightings
from lab.errors import LabError
from lab.faults import Blackhole
from lab.netns.lab import NetnsLab

ONE, TWO = Flow("fd00::1", 1000, "fd00::2", 2000), Flow("fd00::1", 1001, "fd00::2", 2000)


def sighting(direction: str, flow: Flow, first_s: float, last_s: float | None = None, packets: int = 5) -> Sighting:
    return Sighting(direction, flow, first_s, last_s or first_s + 0.01, packets, packets * 100)


def test_a_flow_is_followed_from_the_broken_direction_to_another() -> None:
    seen = Sightings(
        [
            sighting("host1>leaf1", ONE, 9.9),
            sighting("leaf1>spine1", ONE, 9.9),
            sighting("leaf1>spine1", TWO, 9.9),
            sighting("host1>leaf1", ONE, 10.01),
            sighting("leaf1>spine2", ONE, 10.037),
            sighting("leaf1>spine2", TWO, 10.050),
            sighting("leaf1>spine2", ONE, 10.060),
        ]
    )
    found = seen.reroute({"leaf1>spine1"}, 10.0, 11.0)
    assert (found.affected, found.moved) == (2, 2)
    assert (found.first_s, found.last_s) == (pytest.approx(0.037), pytest.approx(0.050))


def test_where_a_flow_was_before_is_no_new_link() -> None:
    seen = Sightings([sighting("a>b", ONE, 9.9), sighting("b>c", ONE, 9.9), sighting("b>c", ONE, 10.1)])
    found = seen.reroute({"a>b"}, 10.0, 11.0)
    assert (found.affected, found.moved, found.first_s, found.last_s) == (1, 0, None, None)


def test_flows_long_gone_are_not_affected() -> None:
    seen = Sightings([sighting("a>b", ONE, 5.0), sighting("c>d", ONE, 10.1)])
    assert seen.reroute({"a>b"}, 10.0, 11.0).affected == 0


def test_only_some_flows() -> None:
    seen = Sightings([sighting("a>b", ONE, 9.9), sighting("a>b", TWO, 9.9), sighting("c>d", TWO, 10.2)])
    found = seen.reroute({"a>b"}, 10.0, 11.0, only={TWO})
    assert (found.affected, found.moved, found.first_s) == (1, 1, pytest.approx(0.2))


def test_packets_between_two_moments() -> None:
    seen = Sightings([sighting("a>b", ONE, 1.0, packets=3), sighting("a>b", TWO, 2.0, packets=4)])
    assert seen.packets_on({"a>b"}, 0.0, 3.0) == 7
    assert seen.packets_on({"a>b"}, 1.5, 3.0) == 4
    assert seen.packets_on({"b>a"}, 0.0, 3.0) == 0
    assert seen.bytes_on({"a>b"}, 1.5, 3.0) == 400
    assert seen.last_on({"a>b"}, 0.0, 3.0) == pytest.approx(2.01)
    assert seen.last_on({"a>b"}, 3.0, 4.0) is None


@contextmanager
def connection(lab: NetnsLab, source: str, target: str, family: int) -> Iterator[socket.socket]:
    """A TCP connection between two hosts; what arrives is read and dropped."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with lab.in_netns(target):
        server = socket.socket(kind)
    with lab.in_netns(source):
        client = socket.socket(kind)
    with server, client:
        server.bind((lab.address(target, family), 0))
        server.listen()
        client.connect((lab.address(target, family), server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:

            def drain() -> None:
                while accepted.recv(1 << 16):
                    pass

            reader = threading.Thread(target=drain)
            reader.start()
            try:
                yield client
            finally:
                client.shutdown(socket.SHUT_WR)
                reader.join()


@pytest.fixture
def capture(whole: NetnsLab) -> Iterator[Capture]:
    with Capture.of(whole) as capture:
        yield capture


@pytest.mark.netns
@pytest.mark.parametrize("family", [6, 4])
def test_a_connection_is_seen_on_every_link_of_its_path(capture: Capture, whole: NetnsLab, family: int) -> None:
    began_s = time.monotonic()
    capture.watch()
    with connection(whole, "host1", "host3", family) as client:
        source, target = client.getsockname(), client.getpeername()
        for _ in range(50):
            client.sendall(b"x" * 1000)
        flow = Flow(source[0], source[1], target[0], target[1])
        back = Flow(target[0], target[1], source[0], source[1])
        seen = Sightings()

        def arrived() -> bool:
            seen.seen.extend(capture.take().seen)
            return sum(s.size_bytes for s in seen.seen if s.flow == flow) > 4 * 50_000

        assert until(arrived)
    ended_s = time.monotonic()
    for one in (flow, back):
        path = {s.direction for s in seen.seen if s.flow == one}
        assert len(path) == 4  # host - leaf - spine - leaf - host
        assert {s.direction.split(">")[0] for s in seen.seen if s.flow == one} >= {
            whole.names[one.source],
        }
    assert all(began_s <= s.first_s <= s.last_s <= ended_s for s in seen.seen)


@pytest.mark.netns
def test_packets_that_a_fault_takes_are_seen_all_the_same(capture: Capture, whole: NetnsLab) -> None:
    with connection(whole, "host1", "host3", 6) as client:
        capture.watch()
        client.sendall(b"x" * 1000)
        seen = Sightings()

        def on_its_way() -> list[str]:
            seen.seen.extend(capture.take().seen)
            return [s.direction for s in seen.seen if s.flow.source_port == client.getsockname()[1]]

        assert until(lambda: len(set(on_its_way())) == 4)
        first = next(d for d in on_its_way() if d.startswith("host1>"))
        fault = whole.fault(Blackhole(first))
        capture.watch()
        client.sendall(b"y" * 1000)
        lost = Sightings()

        def offered() -> int:
            lost.seen.extend(capture.take().seen)
            return lost.packets_on({first}, 0.0, float("inf"))

        assert until(lambda: offered() > 0)
        fault.undo()


@pytest.mark.netns
def test_a_paused_capture_sees_nothing(capture: Capture, whole: NetnsLab) -> None:
    capture.watch()
    capture.pause()
    with connection(whole, "host1", "host2", 6) as client:
        client.sendall(b"x" * 1000)
    assert capture.take().seen == []


@pytest.mark.netns
def test_probes_and_udp_are_not_the_jobs(capture: Capture, whole: NetnsLab) -> None:
    capture.watch()
    with whole.in_netns("host1"):
        probe = socket.socket(socket.AF_INET6)
        other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with probe, other:
        other.sendto(b"x", (whole.address("host2"), 9))
        with pytest.raises(ConnectionRefusedError):
            probe.connect((whole.address("host2"), 3785))
    assert capture.take().seen == []


@pytest.mark.netns
@pytest.mark.parametrize("family", [6, 4])
def test_traces_are_not_the_jobs(capture: Capture, whole: NetnsLab, family: int) -> None:
    options = {6: (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS), 4: (socket.IPPROTO_IP, socket.IP_TTL)}
    with connection(whole, "host1", "host2", family) as client:
        client.setsockopt(*options[family], 31)
        capture.watch()
        client.sendall(b"x" * 1000)
        seen = Sightings()

        def answered() -> int:
            seen.add(capture.take())
            return len(seen.seen)

        assert until(lambda: answered() > 0)
        assert {sighting.flow.source for sighting in seen.seen} == {whole.address("host2", family)}


@pytest.mark.netns
def test_the_label_on_the_wire_is_told(capture: Capture, whole: NetnsLab) -> None:
    capture.watch()
    with connection(whole, "host1", "host2", 6) as client:
        client.sendall(b"x" * 1000)
        seen = Sightings()

        def come() -> int:
            seen.add(capture.take())
            return len(seen.seen)

        assert until(lambda: come() > 0)
    assert all(0 < sighting.label < 1 << 20 for sighting in seen.seen)


@pytest.mark.netns
def test_a_device_that_is_not_there_is_named(whole: NetnsLab) -> None:
    port = whole.wire_port("leaf1>spine1")
    with pytest.raises(LabError, match="no device w99a"), Capture(port.namespace, {"w99a": "a>b"}):
        pass


@pytest.mark.netns
def test_a_program_that_the_verifier_refuses_says_why() -> None:
    with pytest.raises(LabError, match="R0"):
        bpf.load_filter(bpf.assemble([bpf.leave()]), "bad")


def test_labels_of_jumps() -> None:
    code = bpf.assemble([bpf.Jump("end"), bpf.constant(0, 1), "end", bpf.leave()])
    assert code[2:4] == b"\x01\x00"
    with pytest.raises(KeyError):
        bpf.assemble([bpf.Jump("nowhere")])
