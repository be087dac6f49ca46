"""Rung 1: flow labels rewritten on their way out, per peer and flow bucket, from one nftables map.

The rule hashes the kernel's own label of a flow into a bucket, so that the kernel's re-roll after a timeout still
moves the flow: a second chance should a label of ours lead nowhere. The chain is of type `route`, which looks the
uplink up again with the new label. Traces that ask for that choice (`Sender.rerouted`) get another hop limit here,
which has them looked up again, too. A flow whose peer is not in the map passes untouched: the lookup and both writes
stand in one rule, and a missed lookup ends the rule. Elements expire when the daemon no longer refreshes them.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from linkpass.core.events import Event, SteeringLost
from linkpass.edges.kernel import nft
from linkpass.edges.kernel.nft import NoNftError
from linkpass.edges.kernel.sock import ANSWER_S, KernelRefusedError, refused
from linkpass.edges.kernel.space import Space
from linkpass.edges.kernel.tablewatch import NETLINK_NETFILTER, TableWatch
from linkpass.wire import nfnl, rtnl

TABLE = "linkpass"
MAP = "labels"
BUCKETS = 16
TIMEOUT_S = 60
SEED = 0x5EED
SO_SNDBUFFORCE = 32
SEND_BYTES = 8 << 20
"""A transaction is one datagram; all elements of a thousand peers are 2 MB."""


class LabelEdge:
    """Owns the table `linkpass` of a family. Refusals of the kernel raise KernelRefusedError.

    `protocols` are those that the probes have: a fabric may send any other elsewhere, and then a label proves nothing.
    With `emit` others' removals are told (SteeringLost, `labels PEER`); the next `set_labels` makes the table anew."""

    NAME, FAMILY = "ip6", nfnl.FAMILY_IPV6

    def __init__(
        self,
        *,
        probe_port: int,
        protocols: Iterable[str] = ("tcp",),
        timeout_s: float = TIMEOUT_S,
        table: str = TABLE,
        emit: Callable[[Event], None] | None = None,
        vrf: str = "",
    ) -> None:
        """`vrf`: a packet that leaves through this device passes the hook twice; the second time counts, when its
        uplink is known (vrf_output6_direct, drivers/net/vrf.c)."""
        self._vrf = vrf
        self._probe_port = probe_port
        self._protocols = tuple(protocols)
        self._timeout_ms = int(timeout_s * 1000)
        self._table = table
        self._emit = emit
        self._socket: socket.socket | None = None
        self._space = Space()
        self._watch: TableWatch | None = None
        self._seq = 0
        self._broken = False
        self._entries: dict[str, tuple[int, ...]] = {}

    def open(self) -> None:
        """Make the table in this thread's namespace, empty; one of an earlier run is replaced in the same transaction.

        With `emit` it goes on listening in the running loop. Raises NoNftError."""
        self._space.open()
        try:
            self._create()
        except NoNftError:
            self._space.close()
            raise
        self._socket = _request_socket()
        if self._emit is not None:
            self._watch = TableWatch(
                self._table, self._socket.getsockname()[0], self._on_lost, self._on_unsure, self.FAMILY
            )
            self._watch.open()

    def set_labels(self, peer: str, labels: tuple[int, ...]) -> None:
        """Give each bucket of a peer its label; an empty tuple leaves the peer's flows to the kernel.

        Raises KernelRefusedError, or NoNftError where the table has to be made anew and cannot be."""
        old = self._entries.get(peer, ())
        remove = [nfnl.Entry(peer, bucket, label) for bucket, label in enumerate(old)]
        add = [nfnl.Entry(peer, bucket, label) for bucket, label in enumerate(labels)]
        if labels:
            self._entries[peer] = labels
        else:
            self._entries.pop(peer, None)
        if self._broken and labels:
            self._create()
            remove, add = [], self._all()
        if self._broken:
            return
        try:
            self._replace(remove, add)
        except KernelRefusedError as error:
            if error.errno != errno.ENOENT or (labels and self._watch is not None):
                raise
            if labels:  # nobody watches here: it has not been told, and is put right at once
                self._create()
                self._entries[peer] = labels
                self._replace([], self._all())

    def refresh(self) -> None:
        """Give all elements their full time again, some peers' at a time, each without a gap. What others have removed
        is not put back here. Raises KernelRefusedError."""
        entries = [] if self._broken else self._all()
        for at in range(0, len(entries), nfnl.ELEMENTS_AT_ONCE):
            some = entries[at : at + nfnl.ELEMENTS_AT_ONCE]
            if not self._entries:  # the table has turned out to be gone
                break
            self._replace(some, some)

    def close(self) -> None:
        """Remove the table: the kernel's own labels again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._socket is not None:
            self.sweep()
            self._socket.close()
            self._socket = None
        self._space.close()
        self._entries.clear()

    def sweep(self) -> list[str]:
        """Remove our table, whoever made it; what was removed, in words."""
        sock = self._socket or _request_socket()
        try:
            error = self._send(sock, nfnl.delete_table(self._table, self._seq + 1, self.FAMILY))
        finally:
            if sock is not self._socket:
                sock.close()
        return [] if error else [f"nftables table {self.NAME} {self._table}"]

    # others' hands

    def _on_lost(self, peers: set[str] | None, by: str) -> None:
        """Forget what was removed, tell whose it was: whether it is put back is not decided here."""
        if peers is None:
            self._broken = True
            peers = set(self._entries)
        for peer in sorted(peers & self._entries.keys()):
            del self._entries[peer]
            if self._emit is not None:
                self._emit(SteeringLost(what=f"labels {peer}", by=by))

    def _on_unsure(self) -> None:
        try:
            self.refresh()
        except OSError as error:
            self._on_lost(None, f"somebody ({error})")

    # how it is done

    def _all(self) -> list[nfnl.Entry]:
        return [
            nfnl.Entry(peer, bucket, label)
            for peer, labels in self._entries.items()
            for bucket, label in enumerate(labels)
        ]

    def _replace(self, remove: list[nfnl.Entry], add: list[nfnl.Entry]) -> None:
        if not remove and not add:
            return
        if not self._change(remove, add):
            return
        # An element has expired (we slept), or somebody flushed the map: write all of it anew, as one transaction too.
        error = self._change([], self._all(), flush=True)
        if error == errno.ENOENT:
            if self._watch is not None:
                self._watch.read()
            if not self._broken:
                self._on_lost(None, "somebody (table)")
        if error:
            raise refused(error, f"labels in table {self.NAME} {self._table}")

    def _change(self, remove: list[nfnl.Entry], add: list[nfnl.Entry], *, flush: bool = False) -> int:
        """One transaction; errno, 0 when it was taken."""
        if self._socket is None:
            raise RuntimeError("the label edge is not open")
        batch = nfnl.replace_elements(
            self._table, MAP, remove, add, timeout_ms=self._timeout_ms, seq=self._seq + 1, flush=flush,
            family=self.FAMILY,
        )  # fmt: skip
        return self._send(self._socket, batch)

    def _send(self, sock: socket.socket, batch: nfnl.Batch) -> int:
        """Send a batch; errno of its first refusal, 0 when all was taken."""
        self._seq = batch.last
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

    def _create(self) -> None:
        """The table with everything but elements, by one run of nft (some 20 ms). Raises NoNftError."""
        with self._space.inside():
            nft.run(self._rules(), "rung 1", "the table of labels")
        self._broken = False
        if self._watch is not None:
            self._watch.discard()

    def _rules(self) -> str:
        protocols = ", ".join(self._protocols)
        flow = "ip6 flowlabel"
        if "udp" in self._protocols or not _auto_labels():
            # RoCE's queue pairs and most of UDP have label 0 (as all has without auto_flowlabels): ports differ
            flow = "ip6 flowlabel . th sport . th dport"
        table = f"ip6 {self._table}"
        once = f'    oifname "{self._vrf}" accept\n' if self._vrf else ""
        return f"""add table {table}
delete table {table}
table {table} {{
  map {MAP} {{
    typeof ip6 daddr . numgen inc mod {BUCKETS} : @nh,16,16
    flags timeout
  }}
  chain output {{
    type route hook output priority -150; policy accept;
{once}    meta l4proto != {{ {protocols} }} accept
    th dport {self._probe_port} ip6 hoplimit 2 ip6 hoplimit set 1 accept
    th dport {self._probe_port} accept
    @nh,16,16 set ip6 daddr . jhash {flow} mod {BUCKETS} seed {SEED:#x} map @{MAP} @nh,8,8 set @nh,8,8 & 0xf0
  }}
}}
"""


def _request_socket() -> socket.socket:
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_NETFILTER)
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BYTES)
    except PermissionError:
        pass  # it may do for few peers; without the right nothing can be changed anyway
    sock.bind((0, 0))
    sock.settimeout(ANSWER_S)
    return sock


def _auto_labels() -> bool:
    """Whether the kernel gives each flow a label of its own: 0 and 2 leave it to the sockets, and few of them ask."""
    try:
        return Path("/proc/sys/net/ipv6/auto_flowlabels").read_text().strip() not in ("0", "2")
    except OSError:
        return True
