"""A picture of the core's state, for `status`, `paths`, metrics and the recorder's readers."""

from __future__ import annotations

import msgspec

from linkpass.core import congestion
from linkpass.core.diagnosis.verdict import Verdict as Finding
from linkpass.core.paths import Path, Peer
from linkpass.core.steer import grade_path
from linkpass.core.tracing import notes_on
from linkpass.core.world import GROUP, World, names_of


class UplinkView(msgspec.Struct, frozen=True):
    name: str
    usable: bool
    state: str
    why: str
    speed_bps: int
    penalty: float
    suppressed_until_s: float | None
    carries: bool
    overrun: str = ""
    """Why its own queue stands: more is sent over it than it carries. Empty: it does not."""


class PeerView(msgspec.Struct, frozen=True):
    address: str
    name: str
    active: bool
    silent: bool
    evidence: dict[str, int]
    labels: tuple[int, ...]
    rung1: bool
    rung1_why: str
    filtered: str
    silence: str = ""
    """What its silence means; empty: it is heard, or that is not said yet."""
    said: str = ""
    """What it says of itself; empty: nothing bad."""
    slow: str = ""
    """How late it answers probes, when it is slow; empty: it is not."""


class LinkView(msgspec.Struct, frozen=True):
    id: str
    state: str
    why: str
    penalty: float
    drained: bool
    since_s: float
    cause: str


class PathView(msgspec.Struct, frozen=True):
    peer: str
    peer_name: str
    uplink: str
    label: int
    hops: tuple[str | None, ...]
    evidence: str
    state: str
    why: str
    grade: str
    loss_ratio: float
    rtt_s: float
    in_use: bool
    traces: tuple[str, ...] = ()
    """What is known of traces over it, by kind; the view's own `traces` say why."""


class TraceView(msgspec.Struct, frozen=True):
    """What traces over an uplink have found out at a hop; `peers`: to how many."""

    uplink: str
    kind: str
    hop: int
    nodes: tuple[str, ...]
    peers: int
    what: str
    why: str
    since_s: float


class CongestionView(msgspec.Struct, frozen=True):
    """Something that is full. `kind`: `congestion` of directions, or `full` of a receiver or of this host."""

    kind: str
    name: str
    why: str
    since_s: float


class SteeringView(msgspec.Struct, frozen=True):
    object: str
    desired: tuple[int | str, ...]
    programmed: tuple[int | str, ...] | None
    tries: int
    stood_down: str
    why: str


class HostEvidenceView(msgspec.Struct, frozen=True):
    """What this host's own sources hold against it now."""

    source: str
    accelerator: str
    what: str
    severity: str
    why: str
    since_s: float
    cause: str
    handed_over: bool


class StragglerView(msgspec.Struct, frozen=True):
    """A host that all others wait for. `ago_s`: since it was named; `cause`: what they wait for, not the causal id."""

    host: str
    name: str
    cause: str
    rank: int
    lag_s: float
    period_s: float
    ago_s: float
    why: str
    story: str


class View(msgspec.Struct, frozen=True):
    host: str
    address: str
    mode: str
    moves: int
    verdicts: tuple[str, ...]
    findings: tuple[Finding, ...]
    uplinks: tuple[UplinkView, ...]
    peers: tuple[PeerView, ...]
    links: tuple[LinkView, ...]
    paths: tuple[PathView, ...]
    steering: tuple[SteeringView, ...]
    host_evidence: tuple[HostEvidenceView, ...] = ()
    traces: tuple[TraceView, ...] = ()
    stragglers: tuple[StragglerView, ...] = ()
    congestion: tuple[CongestionView, ...] = ()
    arrivals_refused: int = 0
    named: tuple[str, ...] = ()
    """Elements that the journal has named and not taken back yet."""


def view_of(world: World, now_s: float) -> View:
    """Render the world; pure and costly enough not to be called in the fast path."""
    settings = world.settings
    group = world.wishes.get(GROUP)
    chosen = group.value if group is not None and not group.stood_down else None
    carrying = tuple(world.usable_uplinks()) if chosen is None else chosen
    uplinks = tuple(
        UplinkView(
            uplink.name,
            uplink.usable,
            uplink.element.state,
            uplink.why or uplink.port_err or uplink.element.why,
            uplink.speed_bps,
            round(uplink.element.penalty_now(now_s), 1),
            uplink.element.reuse_at_s(now_s) if uplink.element.suppressed else None,
            uplink.name in carrying,
            world.congestion.overrun.get(uplink.name, ""),
        )
        for uplink in world.uplinks.values()
    )
    peers = []
    paths = []
    for peer in world.table.peers.values():
        evidence: dict[str, int] = {}
        armed, rung1_why = rung1_of(world, peer.address)
        for path in peer.used():
            evidence[path.evidence] = evidence.get(path.evidence, 0) + 1
            grade, why, _ = grade_path(world, peer, path, now_s)
            paths.append(
                PathView(
                    peer.address,
                    peer.title(),
                    path.uplink,
                    path.label,
                    path.hops or (),
                    path.evidence,
                    path.element.state,
                    why,
                    grade,
                    path.loss_ratio,
                    path.rtt_s,
                    path.label in peer.labels
                    if armed and peer.labels
                    else path.uplink in carrying and _plain(peer, path),
                    notes_on(world, peer.address, path.uplink),
                )
            )
        peers.append(
            PeerView(
                peer.address,
                peer.name,
                peer.active,
                peer.silent_since_s is not None,
                evidence,
                peer.labels,
                armed,
                rung1_why,
                peer.filtered,
                peer.host.meaning,
                peer.host.said if peer.host.said_until_s > now_s else "",
                peer.host.slowness.why if peer.host.slow else "",
            )
        )
    links = []
    seen = sorted({link for path in world.table.in_use() for link in path.links} | set(world.links))
    for direction in seen:
        element = world.links.get(direction)
        words = world.words_on(direction, now_s)
        links.append(
            LinkView(
                direction,
                element.state if element else "up",
                (words[0] if words else "") or (element.why if element else ""),
                round(element.penalty_now(now_s), 1) if element else 0.0,
                words is not None or any(name in world.drains for name in names_of(direction)),
                element.since_s if element else 0.0,
                element.cause if element else "",
            )
        )
    steering = tuple(
        SteeringView(wish.name, wish.value or (), wish.programmed, wish.lost, wish.stood_down, wish.why)
        for wish in world.wishes.values()
    )
    traces = tuple(
        TraceView(uplink, kind, hop, tuple(one.nodes), len(one.peers), one.what, one.why, one.since_s)
        for (uplink, kind, hop), one in sorted(world.noted.items())
    )
    if settings.diagnosis.enabled:
        verdicts = tuple(f"{one.kind} {one.element}" for one in world.findings if one.certain)
    else:
        verdicts = tuple(f"{verdict.kind} {verdict.name}".strip() for verdict in world.verdicts)
    return View(
        settings.host,
        settings.address,
        settings.mode,
        world.moves,
        verdicts,
        world.findings,
        uplinks,
        tuple(peers),
        tuple(links),
        tuple(paths),
        steering,
        tuple(
            HostEvidenceView(
                *key[:2], key[2], one.severity, one.why, one.since_s, one.cause, key[1] in world.hosts.handed_over
            )
            for key, one in world.hosts.own.items()
        ),
        traces,
        _stragglers(world, now_s),
        tuple(CongestionView(*one) for one in congestion.told(world)),
        world.arrivals_refused,
        world.in_force,
    )


def _plain(peer: Peer, path: Path) -> bool:
    """It carries flows that are in no tunnel."""
    return peer.hashed or not path.label


def _stragglers(world: World, now_s: float) -> tuple[StragglerView, ...]:
    return tuple(
        StragglerView(
            one.host, world.title(one.host), one.cause, one.rank, one.lag_s, one.period_s, now_s - one.since_s,
            "; ".join(one.evidence), one.story,
        )
        for one in world.stragglers.values()
    )  # fmt: skip


def rung1_of(world: World, address: str) -> tuple[bool, str]:
    """Whether rung 1 can move a peer's flows, and why not."""
    peer = world.table.peer(address)
    wish = world.wishes.get(f"labels {address}")
    if not peer.labelled:
        return False, peer.why_no_tunnels or "IPv4 has no flow label, and no tunnels lead there"
    if 1 not in world.settings.rungs:
        return False, "rung 1 is off in the configuration"
    if peer.disarmed:
        return False, peer.disarmed
    if not any(path.label for path in peer.used()):
        return False, "no traced path yet"
    if wish is not None and wish.stood_down:
        return False, wish.stood_down
    used = [path for path in peer.used() if path.label]
    over = sorted({path.uplink for path in used})
    if peer.useless:
        return False, peer.useless
    if all(uplink in peer.blunt for uplink in over):
        return True, f"labels choose the uplink alone: {'; '.join(peer.blunt[uplink] for uplink in over)}"
    what = "labels" if peer.hashed else "tunnels"
    return True, f"{len(used)} {what} over {len({path.hops for path in used})} path(s)"
