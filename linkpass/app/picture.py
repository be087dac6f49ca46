"""What the daemon shows: the core's view, the probes' counters, the namespaces and the process, as one plain dict."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from linkpass import __version__
from linkpass.app.agent import Agent
from linkpass.edges.sockets import namespaces

ROWS = (
    "uplinks", "peers", "links", "paths", "steering", "congestion", "host_evidence", "traces", "stragglers",
)  # fmt: skip
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def picture(agents: Sequence[Agent], now_s: float, started_s: float) -> dict[str, Any]:
    """All but the namespaces; the first agent that has peers lends the daemon its name. Costs some milliseconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    first = next((agent for agent in agents if agent.attends), agents[0])
    assert first.core is not None
    settings = first.core.settings
    shown: dict[str, Any] = {
        "host": settings.host,
        "address": settings.address,
        "mode": settings.mode,
        "version": __version__,
        "started_s": started_s,
        "uptime_s": now_s - started_s,
        "first_verdict_s": first.first_verdict_s,
        "first_verdict_at_s": first.first_verdict_at_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "rss_bytes": _rss_bytes(),
        "rungs": _rungs(first),
        "moves": 0,
        "arrivals_refused": 0,
        "verdicts": [],
        "findings": [],
        "named": [],
        "notes": [note for agent in agents for note in agent.notes],
        "netns": [],
        "probes": _probes(agents),
        "pace": first.senses.pace_view,
    }
    for key in ROWS:
        shown[key] = []
    for agent in agents:
        assert agent.core is not None
        view = msgspec.to_builtins(agent.core.view(now_s))
        shown["moves"] += view["moves"]
        shown["arrivals_refused"] += view["arrivals_refused"]
        shown["verdicts"] += view["verdicts"]
        shown["findings"] += view["findings"]
        shown["named"] += view["named"]
        snapshot = agent.probes.snapshot() if agent.probes is not None else None
        ages = (
            {(path.peer, path.uplink, path.label): path.answered_age_s for path in snapshot.paths} if snapshot else {}
        )
        heard = {peer.peer: peer.heard_age_s for peer in snapshot.peers} if snapshot else {}
        rung2 = 2 in agent.core.settings.rungs
        for peer in view["peers"]:
            peer["stale_s"] = heard.get(peer["address"])
            why = peer.pop("rung1_why")
            peer["steerable"] = {"rung1": peer.pop("rung1"), "rung2": rung2, "why": why}
        for path in view["paths"]:
            path["age_s"] = ages.get((path["peer"], path["uplink"], path["label"]))
        for key in ROWS:
            shown[key] += [{**row, "netns": agent.namespace.name} for row in view[key]]
    return shown


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _rungs(agent: Agent) -> dict[str, dict[str, Any]]:
    rungs = {}
    for rung in (1, 2):
        why = agent.steering.off.get(rung, "")
        if rung not in agent.config.rungs:
            why = "off in the configuration"
        elif not agent.config.prefixes:
            why = "no prefixes are configured"
        elif not agent.attends:
            why = "no address of this namespace is in the prefixes"
        elif not agent.acting:
            why = "mode is observe: says what it would do"
        rungs[str(rung)] = {"armed": not why, "why": why}
    return rungs


def _probes(agents: Sequence[Agent]) -> dict[str, Any]:
    total: dict[str, Any] = {"refused": {}}
    for agent in agents:
        if agent.probes is None:
            continue
        for name, value in msgspec.to_builtins(agent.probes.snapshot().stats).items():
            if name.startswith("refused_"):
                reason = name.removeprefix("refused_")
                total["refused"][reason] = total["refused"].get(reason, 0) + value
            elif name == "stretch":
                total[name] = max(value, total.get(name, 1.0))
            else:
                total[name] = total.get(name, 0) + value
    total["budget_packets_per_s"] = agents[0].config.probing.max_packets_per_s
    return total


def netns_rows(agents: Sequence[Agent]) -> list[dict[str, Any]]:
    """Every namespace with established connections: whether its flows can be steered, and why not.

    Costs some milliseconds for each hundred processes and namespaces of the machine."""
    mine = {agent.namespace.name: agent for agent in agents}
    acting, rows = agents[0].acting, []
    for space in namespaces():
        agent = mine.get("" if space.here else space.name)
        ours = agent is not None
        why = space.why
        if not why and not ours:
            why = f'another network namespace: add it to netns = ["{space.name}"]'
        elif not why and not agents[0].config.prefixes:
            why = "no prefixes are configured"
        elif not why and agent is not None and not agent.attends:
            why = "no address of this namespace is in the prefixes"
        elif not why and not acting:
            why = "mode is observe"
        row = {"name": space.name, "inode": space.inode, "connections": space.connections, "pids": list(space.pids)}
        rows.append({**row, "steerable": ours and not why, "why": why})
    return rows
