"""Rung 1: flow labels rewritten on their way out, per peer and flow bucket, from one nftables map.

The rule hashes the kernel's own label of a flow into a bucket, so that the kernel's re-roll after a timeout still
moves the flow: a second chance should a label of ours lead nowhere. The chain is of type `route`, which looks the
uplink up again with the new label. A flow whose peer is not in the map passes untouched: the lookup and both writes
stand in one rule, and a missed lookup ends the rule. Elements expire when the daemon no longer refreshes them.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from linkpass.edges.kernel.sock import ANSWER_S, refused
from linkpass.wire import nfnl, rtnl

NETLINK_NETFILTER = 12
TABLE = "linkpass"
MAP = "labels"
BUCKETS = 16
TIMEOUT_S = 60
SEED = 0x5EED
NFT_S = 10.0


class NoNftError(RuntimeError):
    """Rung 1 cannot be had on this host; the text says why and what to do."""


class LabelEdge:
    """Owns the table `ip6 linkpass`. Refusals of the kernel raise KernelRefusedError."""

    def __init__(
        self, *, probe_port: int, protocols: Iterable[str] = ("tcp",), timeout_s: float = TIMEOUT_S, table: str = TABLE
    ) -> None:
        self._probe_port = probe_port
        self._protocols = tuple(protocols)
        self._timeout_ms = int(timeout_s * 1000)
        self._table = table
        self._socket: socket.socket | None = None
        self._seq = 0
        self._entries: dict[str, tuple[int, ...]] = {}

    def open(self) -> None:
        """Make the table in this thread's namespace, empty; one of an earlier run is replaced in the same transaction.

        Raises NoNftError."""
        self._nft(self._rules())
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
        sock.bind((0, 0))
        sock.settimeout(ANSWER_S)
        self._socket = sock

    def set_labels(self, peer: str, labels: tuple[int, ...]) -> None:
        """Give each bucket of a peer its label; an empty tuple leaves the peer's flows to the kernel."""
        old = self._entries.get(peer, ())
        remove = [nfnl.Entry(peer, bucket, label) for bucket, label in enumerate(old)]
        add = [nfnl.Entry(peer, bucket, label) for bucket, label in enumerate(labels)]
        if labels:
            self._entries[peer] = labels
        else:
            self._entries.pop(peer, None)
        self._replace(remove, add)

    def refresh(self) -> None:
        """Give all elements their full time again, in one transaction and so without a gap."""
        everything = self._all()
        if everything:
            self._replace(everything, everything)

    def close(self) -> None:
        """Remove the table: the kernel's own labels again."""
        if self._socket is not None:
            self.sweep()
            self._socket.close()
            self._socket = None
        self._entries.clear()

    def sweep(self) -> list[str]:
        """Remove our table, whoever made it; what was removed, in words."""
        sock = self._socket
        own = sock is None
        if sock is None:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
            sock.bind((0, 0))
            sock.settimeout(ANSWER_S)
        try:
            error = self._send(sock, nfnl.delete_table(self._table, self._next_seq(1)))
        finally:
            if own:
                sock.close()
        return [] if error else [f"nftables table ip6 {self._table}"]

    def _all(self) -> list[nfnl.Entry]:
        return [
            nfnl.Entry(peer, bucket, label)
            for peer, labels in self._entries.items()
            for bucket, label in enumerate(labels)
        ]

    def _replace(self, remove: list[nfnl.Entry], add: list[nfnl.Entry]) -> None:
        if not remove and not add:
            return
        sock = self._socket
        if sock is None:
            raise RuntimeError("the label edge is not open")
        timeout_ms, seq = self._timeout_ms, self._next_seq(2)
        error = self._send(sock, nfnl.replace_elements(self._table, MAP, remove, add, timeout_ms=timeout_ms, seq=seq))
        if not error:
            return
        # An element has expired (we slept), or somebody flushed the map: write all of it anew, as one transaction too.
        batch = nfnl.replace_elements(
            self._table, MAP, [], self._all(), timeout_ms=timeout_ms, seq=self._next_seq(2), flush=True
        )
        error = self._send(sock, batch)
        if error:
            raise refused(error, f"labels in table ip6 {self._table}")

    def _next_seq(self, messages: int) -> int:
        self._seq += messages + 2
        return self._seq

    @staticmethod
    def _send(sock: socket.socket, batch: nfnl.Batch) -> int:
        """Send a batch; errno of its first refusal, 0 when all was taken."""
        sock.send(batch.data)
        waits_for, failure = set(batch.waits_for), 0
        while waits_for:
            for answer in rtnl.messages(sock.recv(65536)):
                if answer.kind != rtnl.NLMSG_ERROR:
                    continue
                if answer.error and answer.seq >= min(batch.waits_for) - 1:
                    failure = failure or answer.error
                    if answer.seq not in batch.waits_for:  # the frame itself was refused: nothing else will come
                        return failure
                waits_for.discard(answer.seq)
        return failure

    def _rules(self) -> str:
        protocols = ", ".join(self._protocols)
        flow = "ip6 flowlabel"
        if not _auto_labels():  # every label is 0 then: tell flows apart by their ports
            flow = "ip6 flowlabel . th sport . th dport"
        table = f"ip6 {self._table}"
        return f"""add table {table}
delete table {table}
table {table} {{
  map {MAP} {{
    typeof ip6 daddr . numgen inc mod {BUCKETS} : @nh,16,16
    flags timeout
  }}
  chain output {{
    type route hook output priority -150; policy accept;
    meta l4proto != {{ {protocols} }} accept
    th dport {self._probe_port} accept
    @nh,16,16 set ip6 daddr . jhash {flow} mod {BUCKETS} seed {SEED:#x} map @{MAP} @nh,8,8 set @nh,8,8 & 0xf0
  }}
}}
"""

    @staticmethod
    def _nft(rules: str) -> None:
        nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin")
        if nft is None:
            raise NoNftError("rung 1 needs the program nft: install the package nftables")
        done = subprocess.run(
            [nft, "-f", "-"], input=rules, text=True, capture_output=True, timeout=NFT_S, check=False
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise NoNftError(f"nft refused the table of labels: {said[0] if said else f'exit {done.returncode}'}")


def _auto_labels() -> bool:
    try:
        return Path("/proc/sys/net/ipv6/auto_flowlabels").read_text().strip() != "0"
    except OSError:
        return True
