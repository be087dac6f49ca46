"""What the demo's three runs come to: the page's story and the figures, pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lab.bench.shape import Bench, Row, commit, machine, percentiles
from lab.demo_plan import DemoSpec, Played, Tried, note_on
from lab.job import Job
from lab.report import FaultShown, MoveShown, RunShown, Story
from lab.steps import RankLog
from lab.trial import Injection
from topology.model import Fabric


def first_difference(ours: Sequence[RankLog], reference: Sequence[RankLog]) -> int | None:
    """The first step at which any rank's weights differ from the reference's; None: they never do."""
    known = {step: value for log in reference for step, value in log.hashes.items()}
    differ = [step for log in ours for step, value in log.hashes.items() if known.get(step, value) != value]
    return min(differ, default=None)


def identical_by(job: Job, found: Injection, broke_at: int | None, *, identical: bool | None) -> bool | None:
    """Whether the weights were still right after a fault: what went wrong before or in it is laid at its door."""
    if identical is None or broke_at is None:
        return identical
    at = min(sum(end_s <= found.undone_at_s for end_s in log.ends_s) for log in job.ranks)
    return broke_at > at


def story_of(
    spec: DemoSpec,
    tried: Sequence[Tried],
    ours: Played,
    theirs: Played | None,
    reference: list[RankLog],
    notes: Sequence[str],
    *,
    identical: bool | None,
) -> Story:
    origin_s = min(log.ends_s[0] for log in ours.job.ranks)
    their_origin_s = min(log.ends_s[0] for log in theirs.jobs[0].ranks) if theirs else 0.0
    return Story(
        title=_title(tried),
        fabric=f"{spec.fabric.name}: {_shape(spec.fabric)}",
        run=RunShown.of(ours.job.ranks, origin_s),
        faults=[_shown(one, origin_s, their_origin_s) for one in tried],
        moves=[
            MoveShown(entry.now_s - origin_s, entry.host, entry.what, entry.why, entry.rung)
            for _, found in ours.found
            for entry in found.entries
            if entry.is_move
        ],
        hosts=[host.name for host in spec.fabric.hosts],
        machine=machine(),
        commit=commit(),
        weights=max(ours.job.ranks[0].hashes.items())[1],
        weights_identical=identical,
        reference=RunShown.of(reference, min(log.ends_s[0] for log in reference)),
        without=_joined([RunShown.of(job.ranks, their_origin_s) for job in theirs.jobs]) if theirs else None,
        notes=notes,
    )


def _shown(one: Tried, origin_s: float, their_origin_s: float) -> FaultShown:
    found, other = one.found, one.without
    shown = FaultShown(
        name=one.act.case.name,
        what=f"{one.act.case.what} ({found.fault})",
        since_s=found.injected_at_s - origin_s,
        until_s=found.undone_at_s - origin_s,
        reroute_ms=_ms(found.reroute_s),
        stall_ms=_ms(found.stall.seconds),
        steps_lost=found.steps_lost,
        weights_identical=one.identical,
        moves=found.all_moves,
    )
    if other is None:
        return shown
    return dataclasses.replace(
        shown,
        stall_without_ms=_ms(other.stall.seconds),
        without_since_s=other.injected_at_s - their_origin_s,
        without_until_s=other.undone_at_s - their_origin_s,
        without_note=note_on(other),
    )


def figures_of(spec: DemoSpec, tried: Sequence[Tried], took_s: float) -> Bench:
    rows = tuple(
        Row(
            case=one.act.case.name,
            n=1,
            metrics={
                **({"reroute_ms": percentiles([one.found.reroute_s * 1e3])} if one.found.reroute_s is not None else {}),
                "stall_ms": percentiles([one.found.stall.seconds * 1e3]),
                "steps_lost": one.found.steps_lost,
                **({"weights_identical": one.identical} if one.identical is not None else {}),
                "moves": one.found.all_moves,
            },
            without={
                "kernel": {
                    "stall_ms": percentiles([one.without.stall.seconds * 1e3]),
                    "steps_lost": one.without.steps_lost,
                    "moves": 0,
                }
            }
            if one.without is not None
            else {},
            info={"fault": one.found.fault, "hold_s": one.act.hold_s, "demo_s": round(took_s, 1)},
        )
        for one in tried
    )
    return Bench("demo", commit(), machine(), spec.seed, rows)


def _joined(runs: Sequence[RunShown]) -> RunShown:
    """A job that was started anew is shown as one."""
    first = runs[0]
    return RunShown(
        [end for one in runs for end in one.ends_s],
        [took for one in runs for took in one.took_s],
        [loss for one in runs for loss in one.losses],
        first.median_s,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _title(tried: Sequence[Tried]) -> str:
    survived = all(one.found.recovered for one in tried)
    faults = f"{number_word(len(tried))} fault{'s' * (len(tried) != 1)}"
    return f"{faults}, and training {'went on' if survived else 'did not survive'}"


def number_word(count: int) -> str:
    words = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    return words[count] if count < len(words) else str(count)


def _shape(fabric: Fabric) -> str:
    tiers = [node.tier for node in fabric.switches]
    parts = [f"{len(fabric.hosts)} hosts", f"{tiers.count(1)} leaves", f"{tiers.count(2)} spines"]
    return ", ".join(part for part in parts if not part.startswith("0 "))
