"""`linkpass status`: the daemon's view as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from linkpass.cli import host_tables, rdma_tables
from linkpass.cli.tables import Row, in_space, seconds, speed, table, word


def status_of(view: Row, *, everything: bool) -> RenderableType:
    """The whole status. Links and peers that are well are left out unless `everything`."""
    parts: list[RenderableType] = [*_head(view), _uplinks(view)]
    for part in (
        _findings,
        _peers,
        _links,
        host_tables.evidence,
        host_tables.sources,
        _traces,
        rdma_tables.ports,
        rdma_tables.ethernet,
        rdma_tables.flows,
        rdma_tables.datagrams,
        _namespaces,
        _steering,
    ):
        made = part(view, everything=everything)
        if made is not None:
            parts += ["", made]
    parts += ["", *_foot(view)]
    return Group(*parts)


def _head(view: Row) -> list[RenderableType]:
    name = view.get("host", "?")
    used = f", {seconds(view.get('cpu_s'))} of processor time, {(view.get('rss_bytes') or 0) / 1e6:.0f} MB"
    line = Text.assemble((name, "bold"), f" {view.get('address') or 'no address'} · ", word(view.get("mode")))
    line.append(f" · linkpass {view.get('version', '?')} · up {seconds(view.get('uptime_s'))}{used}")
    lines: list[RenderableType] = [line]
    for rung, state in (view.get("rungs") or {}).items():
        armed = word("armed" if state.get("armed") else "off")
        lines.append(Text.assemble(f"rung {rung} ", armed, f": {state['why']}" if state.get("why") else ""))
    verdicts = view.get("verdicts") or ()
    if verdicts:
        lines.append(Text(f"blamed: {', '.join(verdicts)}", "red"))
    lines += [Text(straggler(row), "yellow") for row in view.get("stragglers") or ()]
    for one in view.get("congestion") or ():
        full = f"overloaded: {one['name']} ({one['why']})" if one["kind"] == "congestion" else one["why"]
        lines.append(Text(full, "yellow"))
    return [*lines, ""]


def straggler(row: Row) -> str:
    """`straggler host3 (network): each step waits 40 of 120 ms for it; why host3-7`."""
    who = (row.get("name") or row["host"]) + (f" rank {row['rank']}" if row.get("rank", -1) >= 0 else "")
    wait = f"each step waits {seconds(row.get('lag_s'))} of {seconds(row.get('period_s'))} for it"
    return in_space(row, f"straggler {who} ({row['cause']}): {wait}; linkpass why {row.get('story')}")


def _uplinks(view: Row) -> RenderableType:
    rows = []
    for row in view.get("uplinks") or ():
        until = row.get("suppressed_until_s")
        held = "" if until is None else "held down by damping"
        full = f"overrun: {row['overrun']}" if row.get("overrun") else ""
        why = "; ".join(filter(None, (row.get("why"), full, held)))
        usable = word("usable" if row.get("usable") else "unusable")
        rows.append(
            (
                in_space(row, row["name"]),
                usable,
                word(row.get("state")),
                speed(row.get("speed_bps")),
                _penalty(row),
                why,
            )
        )
    if not rows:
        return Text("no uplinks: no route to the configured prefixes, or none are configured")
    return table("Uplinks", "uplink", "kernel", "state", "speed", "penalty", "why", rows=rows)


def _penalty(row: Row) -> str:
    return f"{row['penalty']:.0f}" if row.get("penalty") else ""


def _findings(view: Row, *, everything: bool) -> RenderableType | None:
    """What the diagnosis says. Suspicions are left out unless `everything`."""
    rows = []
    for row in view.get("findings") or ():
        if not (row["certain"] or everything):
            continue
        element = Text(" or ").join([Text(row["element"], "bold"), *map(Text, row["others"])])
        loses = "" if row["kind"] == "congestion" else f"{row['loss_ratio']:.1%}"
        part = "" if row["scope"] == "whole" else f" of {row['scope']}"
        sure = f"{row['confidence']:.1%}" if row["certain"] else "suspected"
        why = "; ".join([*row["evidence"], *(f"not {text}" for text in row["ruled_out"])])
        rows.append((row["kind"], element, loses + part, sure, why))
    return table("Named", "kind", "element", "loses", "sure", "why", rows=rows) if rows else None


def _peers(view: Row, *, everything: bool) -> RenderableType | None:
    rows = []
    hidden = 0
    for row in view.get("peers") or ():
        evidence = {key: count for key, count in (row.get("evidence") or {}).items() if count}
        able = row.get("steerable") or {}
        bad = row.get("silent") or row.get("slow") or set(evidence) - {"good"} or not evidence
        if not (everything or row.get("active") or bad):
            hidden += 1
            continue
        state = word("silent" if row.get("silent") else "active" if row.get("active") else "known")
        said = Text(" ").join(Text.assemble(f"{count} ", word(key)) for key, count in evidence.items()) or word("-")
        rungs = " ".join(key.removeprefix("rung") for key in sorted(able) if key.startswith("rung") and able[key])
        slow = f"slow: {row['slow']}" if row.get("slow") else ""
        own_word = f"says of itself: {row['said']}" if row.get("said") else ""
        why = (
            "; ".join(filter(None, (row.get("silence"), own_word, slow))) or row.get("filtered") or able.get("why", "")
        )
        rows.append(
            (row.get("name") or row["address"], row["address"], state, said, seconds(row.get("stale_s")), rungs, why)
        )
    if not rows and not hidden:
        return Text("no peers: nothing is configured, connected or heard")
    title = "Peers" + (f" ({hidden} idle and well, --all shows them)" if hidden else "")
    return table(title, "peer", "address", "state", "paths", "heard", "rungs", "why", rows=rows)


def _links(view: Row, *, everything: bool) -> RenderableType | None:
    every = list(view.get("links") or ())
    shown = [row for row in every if everything or row.get("state") != "up" or row.get("drained")]
    if not every:
        return None
    if not shown:
        return Text(f"{len(every)} directions of links known, all up")
    rows = [
        (
            row["id"],
            word("drained" if row.get("drained") else row.get("state")),
            _penalty(row),
            row.get("cause"),
            row.get("why", ""),
        )
        for row in shown
    ]
    return table(f"Links ({len(every)} directions known)", "direction", "state", "penalty", "story", "why", rows=rows)


def _traces(view: Row, *, everything: bool) -> RenderableType | None:
    rows = [(row["what"], row.get("peers"), row.get("why", "")) for row in view.get("traces") or ()]
    return table("Traces", "what answers show", "peers", "why", rows=rows) if rows else None


def _namespaces(view: Row, *, everything: bool) -> RenderableType | None:
    rows = [
        (
            row.get("name") or f"inode {row.get('inode')}",
            row.get("connections"),
            _pids(row.get("pids")),
            word("yes" if row.get("steerable") else "no"),
            row.get("why", ""),
        )
        for row in view.get("netns") or ()
    ]
    if not rows:
        return None
    return table("Network namespaces", "namespace", "connections", "processes", "steerable", "why", rows=rows)


def _pids(pids: Any) -> str:
    if isinstance(pids, Sequence) and not isinstance(pids, str):
        return " ".join(map(str, pids[:6])) + (f" and {len(pids) - 6} more" if len(pids) > 6 else "")
    return "-" if pids is None else str(pids)


def _steering(view: Row, *, everything: bool) -> RenderableType | None:
    rows = []
    for row in view.get("steering") or ():
        agrees = list(row.get("desired") or ()) == list(row.get("programmed") or ())
        down = row.get("stood_down")
        if not (everything or down or not agrees):
            continue
        state = word("stood down" if down else "good" if agrees else "watch")
        why = "; ".join(filter(None, (down if isinstance(down, str) else "", row.get("why"))))
        rows.append(
            (
                in_space(row, row["object"]),
                state,
                _members(row.get("desired")),
                _members(row.get("programmed")),
                row.get("tries"),
                why,
            )
        )
    if not rows:
        return None
    title = "Steering" if view.get("mode") == "act" else "Steering (mode is observe: what it would do)"
    return table(title, "object", "state", "wanted", "programmed", "tries", "why", rows=rows)


def _members(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if len(value) == 16 and all(isinstance(item, int) for item in value):
        return " ".join(sorted({f"{item:#06x}" for item in value}))
    return " ".join(map(str, value)) or "withdrawn"


def _foot(view: Row) -> list[RenderableType]:
    probes = view.get("probes") or {}
    refused = ", ".join(f"{count} {reason}" for reason, count in (probes.get("refused") or {}).items() if count)
    line = f"probes: {probes.get('sent', '-')} sent, {probes.get('heard', '-')} heard"
    line += f", refused {refused}" if refused else ""
    line += f", lost {probes['lost']}" if probes.get("lost") else ""
    line += f", daemon late {probes['daemon_late']} times" if probes.get("daemon_late") else ""
    line += f", intervals stretched x{probes['stretch']:.2g}" if (probes.get("stretch") or 1) > 1.01 else ""
    moves = view.get("moves")
    return [Text(f"{line} · moves: {'-' if moves is None else moves}"), *map(Text, view.get("notes") or ())]
