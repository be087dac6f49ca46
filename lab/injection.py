"""One fault on a job: what is known while it goes on, and what came of it. Pure: sightings, logs and journals in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lab.capture import Flow, Reroute, Sightings
from lab.cases import Case, Place
from lab.daemons import Entry
from lab.steps import RankLog, Stall, count_stalls, longest_stall, median_step_s, step_ratio

BEFORE_S = 0.25
"""How long flows are looked at before the fault: long enough for each to have been on its path."""
FLAP_HALF_S = 0.25
"""A link that flaps twice a second is down for so long, and then up."""
UNDER_WAY_S = 0.005
"""What was sent before a flow moved may still be on its way to the bad link."""
LONG_STALL_S = 0.05
USUAL_S = 2.0
"""Before the fault: what a step usually takes is taken from there."""
MOVED_S = 1.0
"""From then on traffic should have left the fault."""


@dataclass(slots=True)
class Live:
    """An injection in progress, for whoever watches. Moments are None until they have come."""

    case: Case
    place: Place
    fault: str
    injected_at_s: float | None = None
    undone_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Injection:
    """What one fault did. Times in seconds after the injection; None: it did not happen, or was not measured.

    `reroute_s`: the first packet of an affected flow on a direction where that flow was not before; `out`, `into`: of
    the flows that the link's host sends, and of those that are sent to it (None: the link has no host).
    `rerouted_s`: the same moment of the flow that took longest, if all moved. `off_link_s`: the job's last packet on
    the broken directions, if they were empty from then to the end of the fault."""

    case: str
    fault: str
    link: str
    injected_at_s: float
    undone_at_s: float
    job: int
    affected: int
    moved: int
    reroute_s: float | None
    out: Reroute | None
    into: Reroute | None
    rerouted_s: float | None
    off_link_s: float | None
    stall: Stall
    stalls: int
    """Gaps of more than 50 ms beyond the median, of the rank that had most."""
    median_step_s: float
    step_ratio: float | None
    """A median step from MOVED_S after the fault to its end, over one before the fault; None: too few before it."""
    steps_lost: int
    moves: int
    """Moves of the daemon that made most."""
    all_moves: int
    """Moves of all daemons."""
    packets_on_bad_link: int
    """Of the job, on the broken directions, after all affected flows had left (half a flap's period at the latest)."""
    retransmissions: int
    """Segments that were sent again, without the needless ones (`lab.netns.traffic.SentAgain`)."""
    return_s: float | None
    """From the end of the fault to the daemons' last move back, if they were given the time (`waited`)."""
    back_stall_s: float | None
    """The longest stall around that moment."""
    recovered: bool
    waited: bool = False
    """The daemons were given the time to bring the traffic back by themselves."""
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    live: Live,
    seen: Sightings,
    only: Collection[Flow] | None,
    ranks: Sequence[RankLog],
    *,
    stall: Stall,
    recovered: bool,
    waited: bool,
    retransmissions: int,
    entries: tuple[Entry, ...],
    notes: tuple[str, ...],
    job: int,
    steps_lost: int,
    host_address: str,
) -> Injection:
    """From what was seen to figures. `only`: the flows that a fault hits, where it does not hit all of a direction."""
    started_s, ended_s, broken = live.injected_at_s, live.undone_at_s, live.place.broken
    assert started_s is not None
    assert ended_s is not None
    affected = seen.flows_on(broken, started_s - BEFORE_S, started_s)
    if only is not None:
        affected &= set(only)

    def follow(flows: Collection[Flow]) -> Reroute:
        return seen.reroute(broken, started_s, ended_s, before_s=BEFORE_S, only=flows)

    every = follow(affected)
    rerouted_s = every.last_s if every.moved == every.affected else None
    last_s = seen.last_on(broken, started_s, ended_s, affected)
    gone = last_s is None or last_s < ended_s - BEFORE_S
    backs = [entry.now_s for entry in entries if entry.is_back and entry.now_s > ended_s] if waited else []
    back_s = max(backs, default=None)
    moves = Counter((e.host, e.cause, e.is_back) for e in entries if e.is_move)
    median_s = median_step_s(ranks)
    around_s = None if back_s is None else (back_s - BEFORE_S, back_s + BEFORE_S)
    return Injection(
        case=live.case.name,
        fault=live.fault,
        link=live.place.link,
        injected_at_s=started_s,
        undone_at_s=ended_s,
        job=job,
        affected=every.affected,
        moved=every.moved,
        reroute_s=every.first_s,
        out=follow({flow for flow in affected if flow.source == host_address}) if host_address else None,
        into=follow({flow for flow in affected if flow.target == host_address}) if host_address else None,
        rerouted_s=rerouted_s,
        off_link_s=(0.0 if last_s is None else last_s - started_s) if gone else None,
        stall=stall,
        stalls=count_stalls(ranks, started_s, ended_s, median_s, LONG_STALL_S),
        median_step_s=median_s,
        step_ratio=_step_ratio(ranks, started_s, ended_s),
        steps_lost=steps_lost,
        moves=max(Counter(host for host, _, _ in moves).values(), default=0),
        all_moves=len(moves),
        packets_on_bad_link=seen.packets_on(broken, _left_s(live, started_s, rerouted_s), ended_s, only),
        retransmissions=retransmissions,
        return_s=None if back_s is None else back_s - ended_s,
        back_stall_s=None if around_s is None else longest_stall(ranks, *around_s, median_s).seconds,
        recovered=recovered,
        waited=waited,
        entries=entries,
        notes=notes,
    )


def _step_ratio(ranks: Sequence[RankLog], started_s: float, ended_s: float) -> float | None:
    try:
        return step_ratio(ranks, (started_s - USUAL_S, started_s), (started_s + MOVED_S, ended_s))
    except ValueError:
        return None


def _left_s(live: Live, started_s: float, rerouted_s: float | None) -> float:
    """From when on no packet of the job belongs on the bad link: all have left, or a flapping link rises again."""
    half_s = FLAP_HALF_S if live.case.name == "flap" else float("inf")
    first_s = min(half_s, float("inf") if rerouted_s is None else rerouted_s)
    return started_s + (first_s + UNDER_WAY_S if first_s < float("inf") else 0.0)
