"""Views as rich tables. Values the daemon does not know are shown as `-`, never as zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from linkpass.subnet.finding import Finding
    from topology.model import Fabric
    from topology.sources.ways import Way

Row = Mapping[str, Any]
FLOWS_SHOWN = 16
"""RDMA flows shown unless all are asked for: a job has hundreds, and they are alike."""

STYLES = {
    "up": "green", "good": "green", "usable": "green", "armed": "green", "yes": "green", "act": "green",
    "down": "red", "blackhole": "red", "unusable": "red", "off": "red", "silent": "red", "stood down": "red",
    "stands": "red",
    "held": "yellow", "watch": "yellow", "lossy": "yellow", "queueing": "yellow", "drained": "yellow", "no": "yellow",
    "unknown": "dim", "-": "dim", "observe": "cyan",
}  # fmt: skip


def word(text: Any) -> Text:
    """A word of the vocabulary in its colour."""
    shown = "-" if text in (None, "") else str(text)
    return Text(shown, STYLES.get(shown, ""))


def seconds(value: float | None) -> str:
    """A span in a unit that fits."""
    if value is None:
        return "-"
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes, _ = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours // 24} d {hours % 24} h"
        if hours >= 48
        else f"{hours} h {minutes:02d} min"
        if hours
        else f"{minutes} min"
    )


def speed(bps: float | None) -> str:
    if not bps:
        return "-"
    unit, size = next(
        ((u, s) for u, s in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)) if bps >= s), ("bit/s", 1)
    )
    return f"{bps / size:g} {unit}"


def table(title: str, *columns: str, rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table; cells that are not renderable become text."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text("-" if cell is None else str(cell)) for cell in row))
    return made


def status_of(view: Row, *, everything: bool) -> RenderableType:
    """The whole status. Links and peers that are well are left out unless `everything`."""
    parts: list[RenderableType] = [*_head(view), _uplinks(view)]
    for part in (_peers, _links, _rdma, _ethernet, _flows, _datagrams, _namespaces, _steering):
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
    return [*lines, ""]


def _uplinks(view: Row) -> RenderableType:
    rows = []
    for row in view.get("uplinks") or ():
        until = row.get("suppressed_until_s")
        held = "" if until is None else "held down by damping"
        why = "; ".join(filter(None, (row.get("why"), held)))
        usable = word("usable" if row.get("usable") else "unusable")
        rows.append(
            (
                _in_space(row, row["name"]),
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


def _in_space(row: Row, name: str) -> str:
    """A name of another network namespace than the daemon's own says which."""
    return f"{row['netns']}:{name}" if row.get("netns") else name


def _penalty(row: Row) -> str:
    return f"{row['penalty']:.0f}" if row.get("penalty") else ""


def _peers(view: Row, *, everything: bool) -> RenderableType | None:
    rows = []
    hidden = 0
    for row in view.get("peers") or ():
        evidence = {key: count for key, count in (row.get("evidence") or {}).items() if count}
        able = row.get("steerable") or {}
        bad = row.get("silent") or set(evidence) - {"good"} or not evidence
        if not (everything or row.get("active") or bad):
            hidden += 1
            continue
        state = word("silent" if row.get("silent") else "active" if row.get("active") else "known")
        said = Text(" ").join(Text.assemble(f"{count} ", word(key)) for key, count in evidence.items()) or word("-")
        rungs = " ".join(key.removeprefix("rung") for key in sorted(able) if key.startswith("rung") and able[key])
        why = row.get("filtered") or able.get("why", "")
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


def _rdma(view: Row, *, everything: bool) -> RenderableType | None:
    rdma = view.get("rdma") or {}
    rows = [
        (
            port["name"],
            port["protocol"],
            device["driver"] or "?",
            word(str(port["state"] or "unknown").lower()),
            speed(port.get("rate_bps")),
            " ".join(port["netdevs"]),
            "; ".join(f"{one['says']} ({one['what']} {one['value']:.3g})" for one in port["findings"]),
        )
        for device in rdma.get("devices") or ()
        for port in device["ports"]
        if everything or port["findings"] or port["state"] != "ACTIVE" or len(rdma["devices"]) <= 8
    ]
    if not rows:
        return Text(rdma["why"]) if rdma.get("why") else None
    why = "; ".join(filter(None, (rdma.get("why"), rdma.get("events_why"))))
    title = "RDMA ports" + (f" ({why})" if why else "")
    return table(title, "port", "protocol", "driver", "state", "speed", "devices", "counters say", rows=rows)


def _ethernet(view: Row, *, everything: bool) -> RenderableType | None:
    """A port of which nothing is known (a virtual device) is shown with everything, and why."""
    rdma = view.get("rdma") or {}
    rows = [
        (
            port["name"],
            port["driver"] or "?",
            _pauses(port),
            _sum(port["totals"], "port_receive_discards", "port_transmit_discards", "internal_receive_discards"),
            _sum(port["totals"], "fec_corrected_blocks", "fec_corrected_bit_errors", first=True),
            _sum(port["totals"], "fec_uncorrectable_blocks", "uncorrected_symbols", first=True),
            _module(port),
            "; ".join(f"{one['says']} ({one['what']} {one['value']:.3g})" for one in port["findings"])
            or ("; ".join(f"{part}: {why}" for part, why in port["unknown"].items()) if everything else ""),
        )
        for port in rdma.get("ethernet") or ()
        if everything or port["totals"] or port["module"] or port["findings"]
    ]
    if not rows:
        return None
    columns = ("device", "driver", "pauses in/out", "discards", "corrected", "uncorrectable", "module", "says")
    return table("Ethernet ports (since their drivers began to count)", *columns, rows=rows)


def _sum(totals: Row, *names: str, first: bool = False) -> int | str:
    """Of those that are known, or the first of them; `?` when none is."""
    known = [totals[name] for name in names if name in totals]
    return (known[0] if first else sum(known)) if known else "?"


def _pauses(port: Row) -> str:
    """Frames received and sent, of the link or of all priorities, and the priority that is paused most now."""
    totals = port["totals"]
    every = [sum(count for name, count in totals.items() if way in name) for way in ("pauses_received", "pauses_sent")]
    if not any("pauses_" in name for name in totals):
        return "?"
    worst = max((value or 0 for name, value in port["figures"].items() if "paus" in name), default=0)
    return f"{every[0]}/{every[1]}" + (f", {worst:.0%} of time" if worst >= 0.005 else "")


def _module(port: Row) -> str:
    """Temperature, and the light of the lanes that receive least and most."""
    module = port["module"]
    if not module:
        return "?"
    warm = "?" if module["temperature_c"] is None else f"{module['temperature_c']:.0f} °C"
    light = [lane["receive_power_dbm"] for lane in module["lanes"] if lane["receive_power_dbm"] is not None]
    in_light = f", {min(light):.1f}…{max(light):.1f} dBm in" if light else ""
    return f"{module['kind']}, {warm}{in_light}"


def _flows(view: Row, *, everything: bool) -> RenderableType | None:
    rdma = view.get("rdma") or {}
    every = rdma.get("flows") or ()
    shown = [row for row in every if everything or row["stands"]] or every[:FLOWS_SHOWN]
    rows = [
        (
            f"{row['program'] or '?'} {row['pid']}",
            f"{row['device']} {row['qpn']}",
            row["peer"] or "?",
            word("stands" if row["stands"] else "good" if row["silent_s"] == 0 else "idle"),
            _patience(row),
            " ".join(name for name, why in row["rungs"].items() if not why) or "-",
            "; ".join(f"no {name}: {why}" for name, why in row["rungs"].items() if why),
        )
        for row in shown
    ]
    if not rows:
        return None
    title = f"RDMA flows ({len(every)})" + (f" ({rdma['flows_why']})" if rdma.get("flows_why") else "")
    return table(title, "program", "queue pair", "peer", "state", "gives up", "moved by", "why not", rows=rows)


def _datagrams(view: Row, *, everything: bool) -> RenderableType | None:
    rdma = view.get("rdma") or {}
    every = rdma.get("datagrams") or ()
    shown = [row for row in every if everything or row["evidence"] != "good"] or every[:FLOWS_SHOWN]
    rows = [
        (
            row["name"],
            row["peer"],
            word(row["evidence"]),
            seconds(row["network_s"]),
            seconds(row["host_s"]),
            seconds(row["peer_host_s"]),
            f"{row['lost']} of {row['sent']}" if row["lost"] else "",
            row["why"] if row["evidence"] != "good" else "",
        )
        for row in shown
    ]
    why = f" ({rdma['datagrams_why']})" if rdma.get("datagrams_why") else ""
    if not rows:
        return Text(f"no RoCE datagrams{why}") if why else None
    columns = ("from", "peer", "evidence", "network", "this host", "peer's host", "lost", "why")
    return table(f"RoCE datagrams{why}", *columns, rows=rows)


def _patience(row: Row) -> str:
    """When its transport gives up: counted from the last answer, or what is left of it while nothing advances."""
    if row["left_s"] is not None:
        return f"{seconds(row['left_s'])} left"
    return "never" if row["never_gives_up"] else seconds(row["gives_up_after_s"])


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
                _in_space(row, row["object"]),
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


def paths_table(rows: Iterable[Row]) -> Table:
    """One row a path."""
    cells = [
        (
            row.get("peer_name") or row.get("name") or row["peer"],
            _in_space(row, row["uplink"]),
            f"{row['label']:#06x}",
            " ".join(hop or "?" for hop in row.get("hops") or ()) or "-",
            word(row.get("evidence")),
            f"{row['loss_ratio']:.1%}" if row.get("loss_ratio") else "",
            seconds(row.get("rtt_s") or None),
            seconds(row.get("age_s")),
            "in use" if row.get("in_use") else "",
            row.get("why", ""),
        )
        for row in rows
    ]
    columns = ("peer", "uplink", "label", "hops", "evidence", "loss", "round trip", "heard", "use", "why")
    return table("", *columns, rows=cells)


def journal_table(entries: Sequence[Row]) -> Table:
    """One row an entry; the second column counts from the first entry of the same start."""
    first: dict[Any, float] = {}
    cells = []
    for row in entries:
        since_s = row["now_s"] - first.setdefault(row.get("run"), row["now_s"])
        style = "yellow" if row.get("level") == "warning" else ""
        rung = str(row["rung"]) if row.get("rung") else ""
        cells.append(
            (row["wall"], f"+{since_s * 1e3:.1f} ms", row["cause"], rung, Text(row["what"], style), row["why"])
        )
    return table("", "time", "since", "id", "rung", "what", "why", rows=cells)


def fabric_data(fabric: Fabric) -> dict[str, Any]:
    """A fabric as plain data."""
    return {
        "name": fabric.name,
        "nodes": [
            {"name": node.name, "role": node.role, "tier": node.tier, "rack": node.rack, "kind": node.kind}
            for node in fabric.nodes
        ],
        "links": [
            {
                "id": link.id,
                "ports": [
                    {"node": p.node, "name": p.name, "speed_bps": p.speed_bps, "rail": p.rail, "plane": p.plane}
                    for p in (link.a, link.b)
                ],
            }
            for link in fabric.links
        ],
        "notes": list(fabric.notes),
    }


def subnet_of(
    fabric: Fabric, findings: Sequence[Finding], ways: Sequence[Way], notes: Sequence[str], *, asked: bool
) -> RenderableType:
    """The fabric, ways that were asked for, and last what is wrong. `asked`: more than the fabric was."""
    parts = [fabric_of(fabric, notes)]
    for way in ways:
        steps = "".join(f" > {hop.peer.node}" for hop in way.hops)
        end = Text(way.end, "green" if way.end == "arrives" else "red")
        why = f": {way.why}" if way.why else ""
        parts += ["", Text.assemble(f"{way.source} to LID {way.lid}{steps} ", end, why)]
    rows = [(Text(one.kind, "red"), " - ".join(one.ports), one.says) for one in findings]
    if rows:
        parts += ["", table("Named", "what", "where", "why", rows=rows)]
    elif asked:
        parts += ["", Text("nothing is named", "green")]
    return Group(*parts)


def fabric_of(fabric: Fabric, notes: Sequence[str] = ()) -> RenderableType:
    """Tiers, nodes and links as tables, then the notes."""
    tiers: dict[Any, list[str]] = defaultdict(list)
    for node in fabric.nodes:
        tiers[node.tier].append(node.name)
    tier_rows = [
        ("unknown" if tier is None else tier, len(names), " ".join(names))
        for tier, names in sorted(tiers.items(), key=lambda item: -1 if item[0] is None else item[0])
    ]
    node_rows = [
        (node.name, node.role, node.tier, node.rack, node.kind, " ".join(sorted(fabric.neighbours(node.name))))
        for node in fabric.nodes
    ]
    link_rows = [
        (
            link.id,
            f"{link.a.node}:{link.a.name}",
            f"{link.b.node}:{link.b.name}",
            speed(link.a.speed_bps),
            link.a.rail,
            link.a.plane,
        )
        for link in fabric.links
    ]
    head = f"{fabric.name}: {len(fabric.hosts)} hosts, {len(fabric.switches)} switches, {len(fabric.links)} links"
    return Group(
        Text(head, "bold"), "",
        table("Tiers", "tier", "nodes", "names", rows=tier_rows), "",
        table("Nodes", "node", "role", "tier", "rack", "kind", "neighbours", rows=node_rows), "",
        table("Links", "link", "one end", "other end", "speed", "rail", "plane", rows=link_rows),
        *(Text(f"note: {note}", "dim") for note in notes or fabric.notes),
    )  # fmt: skip
