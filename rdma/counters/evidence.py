"""From what a port counted to what that says: congestion, loss, a sick link. Pure.

Congestion is not failure. Marks and notifications say that a queue was long and senders were asked to slow down; pauses
say that a neighbour had no room. Loss is told by sequence numbers and timeouts, a sick link by symbols. Each formula
names its source; each threshold is configuration, and what is unknown makes no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from rdma.counters.reading import Window
from rdma.sysfs import Unknown

Kind = Literal["congestion", "loss", "sick link", "failed"]


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Above which a figure is worth a word."""

    ecn_marked_ratio: float = 0.05
    """DCQCN marks from the first full buffer threshold on and is in balance at a few percent: one in twenty is a queue
    that stands."""
    cnp_per_s: float = 1000.0
    """A receiver sends at most one for a flow in 50 us: a thousand a second is one flow slowed for 5 % of the time."""
    out_of_sequence_ratio: float = 1e-4
    """Go-back-N sends a whole window again for one lost packet; at one in 10,000 goodput falls visibly."""
    answer_timeouts_per_s: float = 0.1
    """A healthy fabric has none: each is a tail that was lost whole, and a stall of 4 us x 2^timeout."""
    transmit_wait_ratio: float = 0.2
    """Of the time, if the length of a tick is known."""
    symbol_errors_per_s: float = 1.0
    """A link at the allowed bit error rate of 1e-12 has one in 10 s at 100 Gbit/s; error correction hides these."""
    receive_error_ratio: float = 1e-6
    tick_s: float = 0.0
    """How long a tick of `port_xmit_wait` is on this device; 0: unknown, ticks are shown as ticks."""
    paused_ratio: float = 0.05
    """Of the time, per priority. Pauses of a few microseconds absorb what arrives at once; a pause stops every flow of
    the priority, those that cause nothing too, so that one part in twenty is line rate lost to all of them."""
    discard_ratio: float = 1e-4
    """As `out_of_sequence_ratio`, which is what a discarded RoCE packet becomes."""
    uncorrectable_blocks_per_s: float = 0.1
    """Ethernet allows one frame of 64 bytes in 1.6e9 to be lost (6.2e-10): with about eight in a block that is one
    block in 87 s at 100 Gbit/s, in 22 s at 400."""
    corrected_bit_ratio: float = 1e-5
    """RS(528,514) is specified for links that get up to 5e-5 bits wrong, RS(544,514) for 2.4e-4; healthy ones are
    orders of magnitude below, and this leaves a factor of five."""
    optical_margin_db: float = 0.0
    """How near a lane's light may come to the module's own warning limits; its maker knows them best."""
    module_margin_c: float = 0.0
    """How near the module's temperature may come to its own warning limit."""


class Finding(msgspec.Struct, frozen=True):
    """A figure beyond its threshold. `what`: the figure's name; `value`, `limit`: in its unit."""

    port: str
    kind: Kind
    what: str
    value: float
    limit: float
    says: str
    source: str


class Figure(msgspec.Struct, frozen=True):
    """One formula: from a window to a figure. `limit` reads its threshold; 0: any is too many."""

    name: str
    kind: Kind
    of: Callable[[Window, Thresholds], float | Unknown]
    limit: Callable[[Thresholds], float]
    says: str
    source: str


def ratio(window: Window, part: str, *whole: str) -> float | Unknown:
    """Of a window in which nothing came there is no ratio."""
    count, base = window.of(part), window.of(*whole)
    if isinstance(count, Unknown):
        return count
    if isinstance(base, Unknown):
        return base
    if base <= 0:
        return Unknown("no number", "no packet in this time")
    return count / base


def wait_ratio(window: Window, limits: Thresholds) -> float | Unknown:
    ticks = window.per_s("transmit_wait_ticks")
    if isinstance(ticks, Unknown):
        return ticks
    return ticks * limits.tick_s if limits.tick_s > 0 else Unknown("no number", "the length of a tick is not known")


_RECEIVED: Final = ("rdma_received_packets", "received_packets")
_SENT: Final = ("rdma_sent_packets", "sent_packets")
_DCQCN: Final = "Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, sections 3.1 and 3.3"
_IBTA: Final = "InfiniBand Architecture Specification, volume 1"

FIGURES: Final = (
    Figure("ecn_marked_ratio", "congestion", lambda w, _: ratio(w, "ecn_marked_packets", *_RECEIVED),
           lambda t: t.ecn_marked_ratio, "packets arrive marked: a queue stands on their way", f"{_DCQCN}; RFC 3168"),
    Figure("cnp_handled_per_s", "congestion", lambda w, _: w.per_s("cnp_handled"), lambda t: t.cnp_per_s,
           "receivers ask us to slow down: our packets meet a queue", _DCQCN),
    Figure("cnp_sent_per_s", "congestion", lambda w, _: w.per_s("cnp_sent"), lambda t: t.cnp_per_s,
           "we ask senders to slow down: what we receive met a queue", _DCQCN),
    Figure("transmit_wait_ratio", "congestion", wait_ratio, lambda t: t.transmit_wait_ratio,
           "the port had something to send and no credit: the next hop is full", f"{_IBTA}, 16.1.3.5, PortXmitWait"),
    Figure("out_of_sequence_ratio", "loss", lambda w, _: ratio(w, "out_of_sequence", *_RECEIVED),
           lambda t: t.out_of_sequence_ratio, "requests are missing: packets to us are lost or overtake one another",
           f"{_IBTA}, 9.7.5.2.1"),
    Figure("sequence_nak_ratio", "loss", lambda w, _: ratio(w, "sequence_naks", *_SENT),
           lambda t: t.out_of_sequence_ratio, "peers miss packets of ours", f"{_IBTA}, 9.7.5.2.1"),
    Figure("answer_timeouts_per_s", "loss", lambda w, _: w.per_s("answer_timeouts"),
           lambda t: t.answer_timeouts_per_s, "no answer in time: a whole tail was lost", f"{_IBTA}, 9.7.6.1.3"),
    Figure("retries_exceeded_per_s", "failed", lambda w, _: w.per_s("retries_exceeded"), lambda _: 0.0,
           "queue pairs gave up: their programs have lost a connection", f"{_IBTA}, 9.7.6.1.3"),
    Figure("symbol_errors_per_s", "sick link", lambda w, _: w.per_s("symbol_errors"),
           lambda t: t.symbol_errors_per_s, "bits arrive wrong: a cable, an optic or a port is sick",
           f"{_IBTA}, 16.1.3.5, SymbolErrorCounter"),
    Figure("receive_error_ratio", "sick link", lambda w, _: ratio(w, "receive_errors", "received_packets"),
           lambda t: t.receive_error_ratio, "packets arrive broken", f"{_IBTA}, 16.1.3.5, PortRcvErrors"),
    Figure("link_downs_per_s", "sick link", lambda w, _: w.per_s("link_downs"), lambda _: 0.0,
           "the link went down and was trained anew", f"{_IBTA}, 16.1.3.5, LinkDownedCounter"),
)  # fmt: skip


_OUTWARD: Final = ("cnp_handled", "transmit_wait", "link_paused", "paused_ratio")


def outward(finding: Finding) -> bool:
    """Whether congestion is that of what the port sends, or of what it receives."""
    return finding.what.startswith(_OUTWARD)


def figures(window: Window, limits: Thresholds, which: Iterable[Figure] = FIGURES) -> dict[str, float | Unknown]:
    """Every figure of a window, unknown ones as such."""
    return {figure.name: figure.of(window, limits) for figure in which}


def findings(window: Window, limits: Thresholds, which: Iterable[Figure] = FIGURES) -> Iterator[Finding]:
    """Those above their threshold."""
    for figure in which:
        value, limit = figure.of(window, limits), figure.limit(limits)
        if not isinstance(value, Unknown) and value > limit:
            yield Finding(window.port, figure.kind, figure.name, value, limit, figure.says, figure.source)
