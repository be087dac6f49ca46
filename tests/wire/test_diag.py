"""The kernel's socket table, held against `ss` and against Python's own idea of a prefix."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.netns import namespace
from linkpass.wire import diag

ADDRESSES = ["127.0.0.1", "127.9.8.7", "127.9.8.8", "127.200.0.1", "::1"]


def dump(sock: socket.socket, prefixes: list[str], states: int = 1 << diag.ESTABLISHED) -> list[diag.Connection]:
    answers = diag.Dump(7)
    sock.send(diag.request(7, prefixes, states))
    while not answers.done:
        answers.feed(sock.recv(1 << 18))
    return answers.connections


class Table:
    def __init__(self, sock: socket.socket, pairs: list[tuple[socket.socket, socket.socket]], name: str) -> None:
        self.sock, self.pairs, self.name = sock, pairs, name


@pytest.fixture(scope="module")
def table() -> Iterator[Table]:
    """A namespace whose only connections are pairs to each of ADDRESSES."""
    name = f"te-{os.getpid()}d"
    namespace.remove(name)
    os.close(namespace.create(name))
    with ExitStack() as stack:
        stack.callback(namespace.remove, name)
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        pairs = []
        with namespace.inside(name):
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            sock = stack.enter_context(socket.socket(socket.AF_NETLINK, kind, diag.NETLINK_SOCK_DIAG))
            family = socket.AF_INET6
            server = stack.enter_context(socket.create_server(("::", 0), family=family, dualstack_ipv6=True))
            for address in ADDRESSES:
                ours = stack.enter_context(socket.create_connection((address, server.getsockname()[1]), 5))
                pairs.append((ours, stack.enter_context(server.accept()[0])))
        yield Table(sock, pairs, name)


@pytest.mark.netns
def test_each_connection_is_the_socket_that_its_owner_has(table: Table) -> None:
    found = {c.inode: c for c in dump(table.sock, [])}
    assert len(found) == 2 * len(ADDRESSES)
    for ours, _ in table.pairs:
        c = found[os.fstat(ours.fileno()).st_ino]
        assert (c.src, c.sport) == ours.getsockname()[:2] and (c.dst, c.dport) == ours.getpeername()[:2]
        assert c.cookie == struct.unpack("=Q", ours.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        assert c.uid == os.getuid() and c.state == diag.ESTABLISHED


@pytest.mark.netns
def test_ipv4_spoken_over_an_ipv6_socket_is_ipv4(table: Table) -> None:
    found = {c.inode: c for c in dump(table.sock, ["127.9.8.7/32"])}
    theirs = table.pairs[ADDRESSES.index("127.9.8.7")][1]
    assert theirs.family == socket.AF_INET6
    c = {c.inode: c for c in dump(table.sock, [])}[os.fstat(theirs.fileno()).st_ino]
    assert c.src == "127.9.8.7" and c.inode not in found and len(found) == 1


@pytest.mark.netns
def test_counters_are_those_of_ss(table: Table) -> None:
    ours, theirs = table.pairs[0]
    ours.sendall(b"x" * 5000)
    received = 0
    while received < 5000:
        received += len(theirs.recv(5000))
    shown = subprocess.run(
        ["ip", "netns", "exec", table.name, "ss", "-HtnieO"], capture_output=True, text=True, check=True
    ).stdout
    found = {c.inode: c for c in dump(table.sock, [])}
    seen = 0
    for line in shown.splitlines():
        ino = re.search(r"ino:(\d+)", line)
        if ino is None:
            continue
        c = found[int(ino[1])]
        numbers = dict(re.findall(r"\b(bytes_acked|bytes_received|rto|sk|rtt):([0-9a-f.]+)", line))
        assert c.cookie == int(numbers["sk"], 16)
        assert c.acked_bytes == int(numbers.get("bytes_acked", 0))
        assert c.received_bytes == int(numbers.get("bytes_received", 0))
        assert c.rto_us == pytest.approx(float(numbers["rto"]) * 1000)
        assert c.rtt_us == pytest.approx(float(numbers["rtt"]) * 1000)
        seen += 1
    assert seen == 2 * len(ADDRESSES)
    assert found[os.fstat(ours.fileno()).st_ino].acked_bytes == 5000 + 1  # and the opening SYN
    assert found[os.fstat(theirs.fileno()).st_ino].received_bytes == 5000


def _prefix(address: str, length: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{length}", strict=False))


four = st.builds(_prefix, st.sampled_from([a for a in ADDRESSES if "." in a] + ["10.1.2.3"]), st.integers(1, 32))
six = st.builds(_prefix, st.sampled_from(["::1", "fd00::1", "::3"]), st.integers(100, 128))


@pytest.mark.netns
@given(prefixes=st.lists(four | six, min_size=1, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_keeps_exactly_what_is_inside_a_prefix(table: Table, prefixes: list[str]) -> None:
    networks = [ipaddress.ip_network(prefix) for prefix in prefixes]
    everything = dump(table.sock, [])
    wanted = {c.cookie for c in everything if any(ipaddress.ip_address(c.dst) in network for network in networks)}
    assert {c.cookie for c in dump(table.sock, prefixes)} == wanted


@pytest.mark.netns
def test_only_the_states_that_were_asked_for(table: Table) -> None:
    listening = 10
    assert {c.state for c in dump(table.sock, [], 1 << listening)} == {listening}
    assert {c.state for c in dump(table.sock, [], 1 << listening | 1 << 1)} == {listening, 1}


def _message(kind: int, seq: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, seq, 0) + body


def test_a_refusal_is_an_error_with_the_kernel_s_number() -> None:
    for kind in (2, 3):
        with pytest.raises(diag.RefusedError) as caught:
            diag.Dump(7).feed(_message(kind, 7, struct.pack("=i", -errno.EPERM)))
        assert caught.value.errno == errno.EPERM


def test_answers_to_an_earlier_request_are_passed_over() -> None:
    answers = diag.Dump(8)
    answers.feed(_message(2, 7, struct.pack("=i", -errno.EPERM)) + _message(3, 7, b"\0" * 4))
    assert not answers.done
    answers.feed(_message(diag.TCPDIAG_GETSOCK, 8, b"\x02\x01" + b"\0" * 70) + _message(3, 8, b"\0" * 4))
    assert [c.dst for c in answers.connections] == ["0.0.0.0"]


@given(st.binary(max_size=400))
def test_garbage_is_no_connection_and_no_traceback(data: bytes) -> None:
    diag.parse(data)
    diag.Dump(7).feed(data)
    diag.Dump(7).feed(_message(diag.TCPDIAG_GETSOCK, 7, data))
