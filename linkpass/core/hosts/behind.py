"""The switches in front of a silent host: whether they live, and whether they explain the silence instead of the host.

Hosts that hang on the same switches and fall silent together have one cause, and it is no host: the smallest
explanation wins. It is dropped when a switch is seen alive: a peer answers through it, it answers hop-limited probes
itself, or a host that hangs on it alone answers an echo. A host with several switches is cut off only when all of them
fail; one of them that lives acquits them all. A host that alone is known behind one switch, which shows no life,
cannot be told from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from linkpass.core.host_state import NEVER_S
from linkpass.core.paths import Peer
from linkpass.core.world import World

TOGETHER_S = 2.0
"""Peers that were last heard this close together fell silent together; more where peers are probed slowly."""
NEIGHBOURS = 3
"""Hosts behind a switch that are asked whether it lives."""


def last_hops(peer: Peer) -> frozenset[str]:
    """The switches that a peer hangs on, as traces have shown them; none: not known, or none between."""
    paths = peer.used() or peer.paths.values()
    return frozenset(path.hops[-1] for path in paths if path.hops and path.hops[-1] is not None)


def life(world: World, peer: Peer, now_s: float) -> str:
    """What shows that one of its switches has lived on in this silence; empty: nothing does."""
    hops, since_s = last_hops(peer), peer.silent_since_s or now_s
    for other in _speaking(world, active_only=now_s < since_s + world.slow_s):
        crossed = hops & {hop for path in other.used() if path.answers for hop in path.hops or ()}
        if crossed:
            return f"{other.title()} answers through {min(crossed)}"
    return _answers(world, peer)


def _answers(world: World, peer: Peer) -> str:
    """The same, of what the switches themselves, or hosts that were asked, have answered."""
    if peer.host.answer is not None and peer.host.answer.echoed:
        return "the network carries its kernel's answers"
    for hop in sorted(last_hops(peer)):
        if world.hosts.seen.get(hop, -1) >= peer.host.from_id:
            return f"{hop} answers traces"
        at_s, by = world.hosts.vouched_s.get(hop, (NEVER_S, ""))
        if peer.silent_since_s is not None and at_s > peer.silent_since_s:
            return f"{by} behind {hop} answers an echo"
    return ""


def waits_for_slow_ones(world: World, peer: Peer, now_s: float) -> bool:
    """Whether somebody behind the same switches is probed so slowly that its silence would not be known yet."""
    hops = last_hops(peer)
    if now_s >= (peer.silent_since_s or now_s) + world.slow_s:
        return False
    return any(not other.active and last_hops(other) & hops for other in _speaking(world, active_only=False))


def fellows(world: World, peer: Peer) -> list[Peer]:
    """Those who fell silent together with a peer and hang on the same switches, or on unknown ones like it."""
    hops, since_s = last_hops(peer), peer.silent_since_s
    together_s = max(TOGETHER_S, world.slow_s)
    found = []
    for other in world.table.peers.values():
        if other is peer or other.silent_since_s is None or since_s is None or other.left or other.filtered:
            continue
        theirs = last_hops(other)
        if abs(other.silent_since_s - since_s) <= together_s and (hops & theirs or not (hops or theirs)):
            found.append(other)
    return found


def explained_by(world: World, peer: Peer, now_s: float) -> tuple[tuple[str, ...], str]:
    """(switches, why) that explain a silence instead of the host; ((), why not). Unknown switches explain as well: then
    the name is empty."""
    hops = last_hops(peer)
    if hops and hops <= world.hosts.blamed and not _answers(world, peer):
        return tuple(sorted(hops)), "localisation names it"
    if alive := life(world, peer, now_s):
        return (), alive
    together = fellows(world, peer)
    if not together:
        return (), f"{', '.join(sorted(hops))} would have to fail together" if len(hops) > 1 else ""
    names = ", ".join(sorted(one.title() for one in (peer, *together)))
    if not hops:
        return ("",), f"{names} fell silent together, and the switches in front of them are not known"
    return tuple(sorted(hops)), f"{names} fell silent together, and nobody behind it is heard"


def inseparable(world: World, peer: Peer, now_s: float) -> str:
    """The only switch in front of a silent host, when nothing shows whether it lives; empty: it can be told from it."""
    hops = last_hops(peer)
    if len(hops) > 1 or life(world, peer, now_s):
        return ""
    if hops:
        return min(hops)
    if any(path.hops == () for path in peer.paths.values()):  # no switch between
        return ""
    alike = (other for other in _speaking(world, active_only=False) if not last_hops(other))
    if any(path.answers for other in alike for path in other.used()):
        return ""
    return "its switch, which is not known,"


def neighbours(world: World, peer: Peer) -> list[Peer]:
    """Hosts that hang on the only switch of a silent one and on no other, and are not known to be silent."""
    hops = last_hops(peer)
    if len(hops) != 1:
        return []
    there = (other for other in world.table.peers.values() if other is not peer and other.silent_since_s is None)
    return [other for other in there if last_hops(other) == hops][:NEIGHBOURS]


def _speaking(world: World, *, active_only: bool) -> Iterable[Peer]:
    """Peers that are heard; of those that are probed slowly it is known only after a while that they are not."""
    for other in world.table.peers.values():
        if other.silent_since_s is None and (other.active or not active_only):
            yield other
