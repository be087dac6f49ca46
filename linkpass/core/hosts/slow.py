"""Hosts that let probes wait: evidence that the host is slow, and not the network.

How long a probe waits there is measured by the host's own clock alone (`linkpass.core.events.ProbeDelay`), so that no
path and no other clock is in it. A second counts against a host when it was much later than at its best and much later
than most others: a load that all hosts share is no host's fault. Seconds add up as queues do (`detect`): a host is slow
when those in which it was late outnumber the others by enough, and no longer when it has been in time for as long, and
for twice as long each time that it is soon slow again.

What follows is little. A queue on a path to a slow host is the host's: it names no link and moves nothing
(`congestion`). Losses stay losses, whoever is slow. The host is not given up for it, nor sooner: who is slow needs more
time to answer, not less. When it falls silent and is given up for other reasons this stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from linkpass.core import congestion
from linkpass.core.events import ProbeDelay, ProbeDelays
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

WINDOW_S = 1.0
LEAST_OTHERS = 2
"""Hosts, this one among them, that a host is compared with."""
STILL = 0.5
"""What is slow stays so with this share of the lateness that has made it so."""


def on_delays(world: World, tray: Tray, event: ProbeDelays, now_s: float) -> None:
    """Weigh one window of all hosts. This host's own lateness is for comparison: `own` speaks of it."""
    late: dict[str, str] = {}
    for row in event.delays:
        peer = world.table.peers.get(row.host)
        others = [one.delay_s for one in event.delays if one.source == row.source and one.host != row.host]
        if peer is None or row.host == world.settings.address or len(others) < LEAST_OTHERS:
            continue
        if _is_late(world, peer, row, usual_s := median(others)):
            late[row.host] = (
                f"{row.source}: {row.delay_s * 1e3:.3g} ms late, {row.floor_s * 1e3:.3g} ms at its best, "
                f"{usual_s * 1e3:.3g} ms the median of {len(others)} others"
            )
    for address, why in late.items():
        _late(world, tray, world.table.peers[address], why, now_s)


def deadlines(world: World) -> Iterator[float]:
    for peer in world.table.peers.values():
        if peer.host.slowness.until_s is not None:
            yield peer.host.slowness.until_s


def tick(world: World, tray: Tray, now_s: float) -> None:
    for peer in world.table.peers.values():
        one = peer.host.slowness
        if one.until_s is None or one.until_s > now_s:
            continue
        one.until_s, one.score, one.ended_at_s = None, 0, now_s
        what, why = f"{peer.title()} answers probes in time", f"for {one.hold_s:.0f} s"
        if peer.silent_since_s is not None:
            what, why = f"{peer.title()} is no longer held to be slow", "it is silent: nothing more is known"
        tray.record(one.cause, what, why, element=peer.title())
        congestion.look_soon(world, now_s)


def _is_late(world: World, peer: Peer, row: ProbeDelay, usual_s: float) -> bool:
    detection = world.settings.detection
    share = STILL if peer.host.slow else 1.0
    over_s, ratio = share * detection.slow_host_s, max(1.0, share * detection.slow_host_ratio)
    return row.delay_s - row.floor_s >= over_s and row.delay_s >= ratio * usual_s


def _late(world: World, tray: Tray, peer: Peer, why: str, now_s: float) -> None:
    one, detection = peer.host.slowness, world.settings.detection
    in_time = max(0, round((now_s - one.at_s) / WINDOW_S) - 1) if one.score else 0
    one.score = min(detection.slow_host_windows, max(0, one.score - in_time) + 1)
    one.at_s, one.why = now_s, why
    if one.until_s is None:
        if one.score < detection.slow_host_windows:
            return
        relapsed = now_s - one.ended_at_s < world.settings.damping.forget_s
        least_s = detection.slow_host_windows * WINDOW_S
        longer_s = min(2 * one.hold_s, world.settings.damping.observe_max_s)
        one.hold_s = max(least_s, longer_s) if relapsed else least_s
        one.cause = one.cause if relapsed else world.incident(now_s)
        queued = sum(path.evidence == "queueing" for path in peer.used())
        queues = f"; the queue on {queued} of its path(s) is laid at the host" if queued else ""
        tray.record(
            one.cause, f"{peer.title()} is slow: it lets probes wait", why + queues, element=peer.title(),
            level="warning",
        )  # fmt: skip
        congestion.look_soon(world, now_s)
    one.until_s = now_s + one.hold_s
