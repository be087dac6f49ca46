"""The daemon, its uplinks, peers, links, paths, namespaces, probes and steering, as metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from linkpass.edges.metrics.families import Row, View, counter, gauge, rows_of, space_of


def _daemon(view: View) -> Iterator[Metric]:
    info = (str(view.get("version", "")), str(view.get("host", "")), str(view.get("mode", "")))
    yield from gauge("info", "Version, host and mode of the daemon.", ("version", "host", "mode"), [(info, 1)])
    yield from gauge("uptime_seconds", "Time since the daemon started.", (), [((), view.get("uptime_s"))])
    yield from counter("cpu_seconds", "Processor time that the daemon has used.", (), [((), view.get("cpu_s"))])
    yield from gauge("resident_memory_bytes", "Memory that the daemon holds.", (), [((), view.get("rss_bytes"))])
    yield from counter("moves", "Times that traffic was moved to another path.", (), [((), view.get("moves"))])
    yield from counter("faults", "Faults of linkpass itself; the log has each kind.", (), [((), view.get("faults"))])
    verdict = [(tuple(text.partition(" ")[::2]), 1) for text in view.get("verdicts") or ()]
    yield from gauge("verdict", "1 for each element that is blamed now.", ("kind", "element"), verdict)
    full = [(place, 1) for place in dict.fromkeys((one["kind"], one["name"]) for one in view.get("congestion") or ())]
    yield from gauge(
        "congested", "1 for each direction or host at which a queue stands now.", ("kind", "element"), full
    )
    first = [((), view.get("first_verdict_s"))]
    yield from gauge("first_verdict_seconds", "From the start to the first verdict on a path.", (), first)
    rungs = [((str(rung),), state.get("armed")) for rung, state in (view.get("rungs") or {}).items()]
    yield from gauge("rung_armed", "1 when a rung of the ladder can be used on this host.", ("rung",), rungs)


def _stragglers(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "stragglers")
    rows = [((row.get("name") or row["host"], row["cause"], *of(row)), row) for row in rows_of(view, "stragglers")]
    who = ("host", "cause", *space)
    yield from gauge("straggler", "1 for a host that all others wait for.", who, [(name, 1) for name, _ in rows])
    lag = [(name, row.get("lag_s")) for name, row in rows]
    yield from gauge("straggler_lag_seconds", "What a step is longer for a straggler, at least.", who, lag)
    text = "Arrivals at steps that were not believed: of another time, or far from where the job is."
    yield from counter("arrivals_refused", text, (), [((), view.get("arrivals_refused"))])
    pace = view.get("pace") or {}
    yield from counter("pace_cpu_seconds", "Processor time of the looks at the job's sockets.", (),
                       [((), pace.get("cpu_s"))])  # fmt: skip
    text = "Steps of the job that this host has seen from its sockets."
    yield from counter("pace_steps", text, (), [((), pace.get("steps"))])
    yield from gauge("pace_period_seconds", "From one step to the next.", (), [((), pace.get("period_s"))])


def _uplinks(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "uplinks")
    rows = [((row["name"], *of(row)), row) for row in rows_of(view, "uplinks")]
    who = ("uplink", *space)
    usable = "1 when the kernel can send over an uplink: up, carrier, a gateway."
    yield from gauge("uplink_usable", usable, who, [(name, row.get("usable")) for name, row in rows])
    states = [((*name, str(row["state"])), 1) for name, row in rows if row.get("state")]
    yield from gauge("uplink_state", "1 for the state that an uplink is in.", (*who, "state"), states)
    penalty = [(name, row.get("penalty")) for name, row in rows]
    yield from gauge("uplink_damping_penalty", "Damping penalty of an uplink.", who, penalty)
    held = [(name, row.get("suppressed_until_s") is not None) for name, row in rows]
    yield from gauge("uplink_suppressed", "1 while damping holds an uplink down.", who, held)
    full = [(name, bool(row["overrun"])) for name, row in rows if "overrun" in row]
    yield from gauge("uplink_overrun", "1 while more is sent over an uplink than it carries.", who, full)
    speed = [(name, row["speed_bps"] / 8) for name, row in rows if row.get("speed_bps")]
    yield from gauge("uplink_speed_bytes_per_second", "Speed of an uplink's port.", who, speed)


def _peers(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "peers")
    rows = [((row["address"], row.get("name") or "", *of(row)), row) for row in rows_of(view, "peers")]
    who = ("peer", "name", *space)
    active = [(peer, row.get("active")) for peer, row in rows]
    yield from gauge("peer_active", "1 while this host has connections with a peer.", who, active)
    silent = [(peer, row.get("silent")) for peer, row in rows]
    yield from gauge("peer_silent", "1 while nothing at all is heard from a peer.", who, silent)
    slow = [(peer, bool(row["slow"])) for peer, row in rows if "slow" in row]
    yield from gauge("peer_slow", "1 while a host lets probes wait much longer than the others do.", who, slow)
    stale = [(peer, row.get("stale_s")) for peer, row in rows]
    yield from gauge("peer_stale_seconds", "Time since anything was heard from a peer.", who, stale)
    steerable = [
        ((*peer, rung.removeprefix("rung")), able)
        for peer, row in rows
        for rung, able in (row.get("steerable") or {}).items()
        if rung.startswith("rung")
    ]
    yield from gauge("peer_steerable", "1 when a rung can move traffic to a peer.", (*who, "rung"), steerable)


def _links(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "links")
    rows = [((row["id"], *of(row)), row) for row in rows_of(view, "links")]
    who = ("link", *space)
    states = [((*link, str(row["state"])), 1) for link, row in rows if row.get("state")]
    yield from gauge("link_state", "1 for the state that a link's direction is in.", (*who, "state"), states)
    penalty = [(link, row.get("penalty")) for link, row in rows]
    yield from gauge("link_damping_penalty", "Damping penalty of a link's direction.", who, penalty)
    drained = [(link, row.get("drained")) for link, row in rows]
    yield from gauge("link_drained", "1 while a link's direction is drained.", who, drained)


def _paths(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "paths")
    count: Counter[tuple[str, ...]] = Counter()
    in_use: Counter[tuple[str, ...]] = Counter()
    loss: dict[tuple[str, ...], list[float]] = defaultdict(list)
    rtt_s: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of(view, "paths"):
        where = (row["peer"], row["uplink"], *of(row))
        evidence = row.get("evidence") or "unknown"
        count[(*where, evidence)] += 1
        in_use[where] += bool(row.get("in_use"))
        if evidence != "unknown" and row.get("loss_ratio") is not None:
            loss[where].append(row["loss_ratio"])
        if row.get("rtt_s"):
            rtt_s[where].append(row["rtt_s"])
    labels = ("peer", "uplink", *space)
    yield from gauge("paths", "Probed paths by what probes say of them.", (*labels, "evidence"), count.items())
    yield from gauge("paths_in_use", "Paths that carry traffic.", labels, in_use.items())
    worst = [(where, max(values)) for where, values in loss.items()]
    yield from gauge("path_worst_loss_ratio", "Loss on the worst path to a peer over an uplink.", labels, worst)
    least = [(where, min(values)) for where, values in rtt_s.items()]
    yield from gauge("path_least_rtt_seconds", "Round trip on the fastest path.", labels, least)
    most = [(where, max(values)) for where, values in rtt_s.items()]
    yield from gauge("path_most_rtt_seconds", "Round trip on the slowest path.", labels, most)


def _traces(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "traces")
    count: Counter[tuple[str, ...]] = Counter()
    for row in rows_of(view, "traces"):
        count[(row["uplink"], row["kind"], *of(row))] += 1
    text = "What traces have found out beside the hops, by kind: hops that are mute, answer in part, and the like."
    yield from gauge("trace_notes", text, ("uplink", "kind", *space), count.items())


def _namespaces(view: View) -> Iterator[Metric]:
    rows: dict[str, Row] = {row.get("name") or str(row.get("inode", "")): row for row in rows_of(view, "netns")}
    connections = [((name,), row.get("connections")) for name, row in rows.items()]
    text = "Established connections in a network namespace."
    yield from gauge("netns_connections", text, ("netns",), connections)
    steerable = [((name,), row.get("steerable")) for name, row in rows.items()]
    text = "1 when flows of a network namespace can be steered."
    yield from gauge("netns_steerable", text, ("netns",), steerable)


def _probes(view: View) -> Iterator[Metric]:
    probes = view.get("probes") or {}
    yield from counter("probes_sent", "Probes sent.", (), [((), probes.get("sent"))])
    yield from counter("probes_heard", "Valid probes heard from peers.", (), [((), probes.get("heard"))])
    refused = [((str(reason),), count) for reason, count in (probes.get("refused") or {}).items()]
    yield from counter("probes_refused", "Probes that were refused, by reason.", ("reason",), refused)
    yield from counter("probes_lost", "Probes that a peer has not heard.", (), [((), probes.get("lost"))])
    late = [((), probes.get("late"))]
    yield from counter("probes_late", "Probes heard after they were counted as lost.", (), late)
    unsent = [((), probes.get("unsent"))]
    yield from counter("probes_unsent", "Probes that an unusable uplink did not take: not losses.", (), unsent)
    starved = [((), probes.get("daemon_late"))]
    yield from counter("daemon_late", "Times that the daemon itself ran late and judged nothing.", (), starved)
    overflows = [((), probes.get("overflows"))]
    yield from counter("probe_overflows", "Times that the daemon's own receive ring overflowed.", (), overflows)
    stretch = [((), probes.get("stretch"))]
    text = "By what probing is slower than configured, to keep its budget."
    yield from gauge("probe_interval_stretch_ratio", text, (), stretch)
    budget = [((), probes.get("budget_packets_per_s"))]
    yield from gauge("probe_budget_packets_per_second", "Most probes that this host may send.", (), budget)


def _steering(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "steering")
    rows = [((row["object"], *of(row)), row) for row in rows_of(view, "steering")]
    who = ("object", *space)
    agree = [(name, list(row.get("desired") or ()) == list(row.get("programmed") or ())) for name, row in rows]
    text = "1 when the kernel holds what was wanted of a steering object."
    yield from gauge("steering_programmed", text, who, agree)
    down = [(name, bool(row.get("stood_down"))) for name, row in rows]
    text = "1 when this host has given up an object that others keep removing."
    yield from gauge("steering_stood_down", text, who, down)
    tries = [(name, row.get("tries")) for name, row in rows]
    yield from gauge("steering_reprograms", "Times that an object had to be programmed again.", who, tries)


PARTS = (_daemon, _stragglers, _uplinks, _peers, _links, _paths, _traces, _namespaces, _probes, _steering)
