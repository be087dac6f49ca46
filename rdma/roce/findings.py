"""What is found, in words: each says what a capture can know, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rdma.roce.direction import Direction, Hole
from rdma.roce.packet import Packet, operation
from rdma.roce.psn import ROUND
from rdma.roce.retries import Stall

SILENT: Final = 2.0
"""A sender that says nothing for this many of its longest intervals between two tries has given up."""


def span(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def numbers(start: int, end: int) -> str:
    """Unrolled numbers as they were on the wire; `end` is not included."""
    first, last = start % ROUND, (end - 1) % ROUND
    return f"PSN {first}" if end - start == 1 else f"PSN {first} to {last}"


def broken(packet: Packet) -> str:
    return f"{operation(packet.opcode)}, PSN {packet.psn}: wrong ICRC; left out of all else, its receiver drops it"


def jumped(packet: Packet) -> str:
    return f"PSN jumps to {packet.psn}: another connection with the same numbers, or much that was not captured"


def slow_down(packet: Packet) -> str:
    return f"{packet.source} tells queue pair {packet.qpn} of {packet.target} to slow down (CNP)"


def moved(before: tuple[int, int | None], now: tuple[int, int | None]) -> str:
    changes = []
    if before[1] != now[1]:
        was, is_now = ("none" if one is None else f"{one:#x}" for one in (before[1], now[1]))
        changes.append(f"flow label {is_now} (before: {was})")
    if before[0] != now[0]:
        changes.append(f"UDP source port {now[0]} (before: {before[0]})")
    return f"moved to {', '.join(changes)}"


def refused(packet: Packet) -> str:
    waits = "" if packet.rnr_s is None else f", wait {span(packet.rnr_s)}"
    what = {
        "PSN sequence error": f"PSN {packet.psn} was expected, a later one came",
        "receiver not ready": f"receiver not ready for PSN {packet.psn}{waits}",
    }.get(packet.nak, f"{packet.nak} at PSN {packet.psn}: fatal for the connection")
    return f"{packet.source} answers with a NAK: {what}"


def skipped(hole: Hole) -> str:
    left, answered = hole.left or (0, 0)
    count = hole.end - hole.start
    what = f"{count} packet{'s' if count > 1 else ''} not seen ({numbers(hole.start, hole.end)})"
    if not left:
        return f"{what}; came later"
    if left < count:
        what += f", {left} of them to the end"
    if answered == left:
        return f"{what}: acknowledged, so they arrived and this capture missed them"
    return f"{what}: lost before this point, or not captured"


def sent_again(stall: Stall, flow: Direction) -> str:
    count = f"{stall.packets} packet{'s' if stall.packets > 1 else ''}" + (
        f", the first {stall.rounds} times" if stall.rounds > 1 else ""
    )
    says = f"sent again from PSN {stall.psn} on: {count}"
    if stall.after_s:
        says += f"; {span(stall.after_s)} after it was sent before"
    if stall.nak:
        says += f"; asked for by a NAK ({stall.nak})"
    elif flow.pair is not None:
        says += "; no NAK seen: a timeout"
    if stall.answered:
        says += "; it had been acknowledged: the answer was lost between here and the sender, or late"
    if stall.ended_s is None:
        return f"{says}; no progress in this capture"
    proof = "" if flow.pair is not None else " (a new packet; answers are not in this capture)"
    return f"{says}; progress after {span(stall.ended_s - stall.began_s)}{proof}"


def given_up(flow: Direction, end_s: float) -> tuple[bool | None, str]:
    """Whether retries ran out, as far as silence can tell: False, True, or None when the capture ends too early."""
    stall = flow.retries.stall
    if stall is None or not flow.reliable:
        return False, ""
    last_s = flow.last_request_s or stall.last_s
    silence_s = end_s - last_s
    tries = f"PSN {stall.psn} sent again {stall.rounds} time{'s' if stall.rounds > 1 else ''} without progress"
    if silence_s > SILENT * stall.interval_s and stall.interval_s > 0:
        return True, f"{tries}, then silence for {span(silence_s)}: as when retries are exhausted"
    return None, f"{tries}; this capture ends {span(silence_s)} later, too early to say whether it gave up"


def notes(flows: Sequence[Direction], untold: int, places: int) -> Iterator[str]:
    """What this capture cannot tell."""
    alone = sum(one.pair is None and one.transport in ("RC", "XRC", "UC") for one in flows)
    if alone:
        yield (
            f"{alone} of {len(flows)} directions without a known other one: whose queue pair sent them, and what was "
            "answered, is unknown"
        )
    if any(one.missing for one in flows):
        yield "missing packets: a capture cannot tell those lost before it from those it did not catch"
    if any(one.retries.again for one in flows):
        yield "sent again: the first copy passed here; a loss beyond, a lost answer and a late one look alike"
    unchecked = sum(one.unchecked for one in flows)
    if unchecked:
        yield f"{unchecked} packets were cut off by the capture: their ICRC is not checked (capture with -s 0)"
    if flows and not any(one.ect or one.ce for one in flows):
        yield "no packet allows congestion marks (ECN): that none has one says nothing of congestion"
    if places > 1 or any(one.copies for one in flows):
        copies = sum(one.copies for one in flows)
        yield f"captured at several points: {copies} packets seen again elsewhere within 1 ms are counted once"
    if untold:
        yield f"{untold} packets of further queue pairs are left out: there are too many"
