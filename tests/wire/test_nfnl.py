"""nfnetlink batches: their layout, and what the kernel makes of them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import netns

from linkpass.wire import nfnl, rtnl

NAME = f"te-{os.getpid()}-n"
PEER = "fd00:ff::2"
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO: outside of it process ids are others than the kernel counts."""
RULES = """
table ip6 t {
  map labels {
    typeof ip6 daddr . numgen inc mod 16 : @nh,16,16
    flags timeout
  }
}
"""


def entries(label: int, buckets: int = 4) -> list[nfnl.Entry]:
    return [nfnl.Entry(PEER, bucket, label) for bucket in range(buckets)]


@given(st.integers(0, 15), st.integers(0, 0xFFFF), st.integers(1, 1 << 30))
def test_a_batch_is_framed_and_numbered(bucket: int, label: int, seq: int) -> None:
    one = [nfnl.Entry(PEER, bucket, label)]
    batch = nfnl.replace_elements("t", "labels", one, one, timeout_ms=60_000, seq=seq)
    found = list(rtnl.messages(batch.data))
    assert [message.kind for message in found] == [
        nfnl.BATCH_BEGIN,
        nfnl.DELETE_SET_ELEMENT,
        nfnl.NEW_SET_ELEMENT,
        nfnl.BATCH_END,
    ]
    assert [message.seq for message in found] == list(range(seq, seq + 4))
    assert batch.waits_for == {seq + 1, seq + 2}


def test_an_element_is_address_and_bucket_to_a_big_endian_label() -> None:
    (_, new, _) = rtnl.messages(
        nfnl.replace_elements("t", "labels", [], [nfnl.Entry(PEER, 3, 0x1234)], timeout_ms=1500, seq=1).data
    )
    found = dict(rtnl.attributes(new.body, 4))
    assert (found[1], found[2]) == (b"t\0", b"labels\0")
    element = dict(rtnl.attributes(dict(rtnl.attributes(found[3]))[1]))
    key, data = dict(rtnl.attributes(element[1]))[1], dict(rtnl.attributes(element[2]))[1]
    assert key == socket.inet_pton(socket.AF_INET6, PEER) + struct.pack("=I", 3)
    assert data == b"\x12\x34"
    assert element[4] == struct.pack("!Q", 1500)


class Kernel:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
        self._socket.bind((0, 0))
        self._socket.settimeout(5)

    def close(self) -> None:
        self._socket.close()

    def send(self, batch: nfnl.Batch) -> dict[int, int]:
        """Sequence number -> errno of each answer."""
        self._socket.send(batch.data)
        answers: dict[int, int] = {}
        while not batch.waits_for <= answers.keys():
            answers |= {message.seq: message.error for message in rtnl.messages(self._socket.recv(65536))}
        return answers


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A namespace with the map; the test runs inside."""
    netns.create(NAME)
    try:
        netns.pushns(NAME)
        try:
            subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
            made = Kernel()
            yield made
            made.close()
        finally:
            netns.popns()
    finally:
        netns.remove(NAME)


def listed() -> str:
    return subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout


@pytest.mark.netns
def test_the_kernel_takes_a_replacement_as_a_whole(kernel: Kernel) -> None:
    first = kernel.send(nfnl.replace_elements("t", "labels", [], entries(0x1111), timeout_ms=60_000, seq=10))
    assert set(first.values()) == {0}
    assert listed().count("0x1111") == 4 and f"{PEER} . 3 timeout 1m" in listed()
    again = nfnl.replace_elements("t", "labels", entries(0x1111), entries(0x2222), timeout_ms=60_000, seq=20)
    assert set(kernel.send(again).values()) == {0}
    assert listed().count("0x2222") == 4 and "0x1111" not in listed()


@pytest.mark.netns
def test_a_batch_with_one_refusal_changes_nothing(kernel: Kernel) -> None:
    kernel.send(nfnl.replace_elements("t", "labels", [], entries(0x1111, 2), timeout_ms=60_000, seq=10))
    missing = nfnl.replace_elements("t", "labels", entries(0x1111, 4), entries(0x2222, 4), timeout_ms=60_000, seq=20)
    assert errno.ENOENT in kernel.send(missing).values()
    assert listed().count("0x1111") == 2 and "0x2222" not in listed()


@pytest.mark.netns
def test_a_flush_needs_to_know_no_element(kernel: Kernel) -> None:
    kernel.send(nfnl.replace_elements("t", "labels", [], entries(0x1111, 2), timeout_ms=60_000, seq=10))
    anew = nfnl.replace_elements("t", "labels", [], entries(0x2222), timeout_ms=60_000, seq=20, flush=True)
    assert set(kernel.send(anew).values()) == {0}
    assert listed().count("0x2222") == 4 and "0x1111" not in listed()


@pytest.mark.netns
def test_a_table_is_removed_once(kernel: Kernel) -> None:
    assert set(kernel.send(nfnl.delete_table("t", 10)).values()) == {0}
    assert listed() == ""
    assert errno.ENOENT in kernel.send(nfnl.delete_table("t", 20)).values()


@pytest.mark.netns
def test_what_is_removed_and_by_whom_is_read_from_the_kernel(kernel: Kernel) -> None:
    told = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    told.bind((0, 0))
    told.settimeout(5)
    told.setsockopt(270, 1, nfnl.GROUP_NFTABLES)
    with told:
        for words, wanted in (
            (("add", "element", "ip6", "t", "labels", "{", PEER, ".", "3", ":", "7", "}"), []),
            (("delete", "element", "ip6", "t", "labels", "{", PEER, ".", "3", "}"), [("element", PEER)]),
            (("delete", "table", "ip6", "t"), [("map", ""), ("table", "")]),
        ):
            with subprocess.Popen(["nft", *words]) as nft:
                pass
            assert nft.returncode == 0
            removals, author = [], None
            while author is None:
                for message in rtnl.messages(told.recv(1 << 16)):
                    author = nfnl.parse_author(message)
                    if (removal := nfnl.parse_removal(message)) is not None:
                        assert removal.table == "t"
                        removals.append((removal.what, removal.peer))
            assert removals == wanted and author is not None and author.name == "nft"
            assert author.pid == nft.pid or os.stat("/proc/self/ns/pid").st_ino != FIRST_PID_NAMESPACE


@given(st.binary(max_size=120), st.sampled_from([nfnl.DELETE_TABLE, nfnl.DELETE_SET_ELEMENT, nfnl.NEW_GENERATION]))
def test_a_malformed_notification_is_no_fault(body: bytes, kind: int) -> None:
    told = rtnl.Message(kind, 0, 0, 0, b"\x0a\0\0\0" + body)
    nfnl.parse_removal(told)
    nfnl.parse_author(told)
