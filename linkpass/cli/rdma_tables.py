"""Ports, flows and datagrams of RDMA, and Ethernet ports, as tables of the status."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from linkpass.cli.tables import Row, seconds, speed, table, word

FLOWS_SHOWN = 16
"""RDMA flows shown unless all are asked for: a job has hundreds, and they are alike."""
OLD_S = 5.0
"""A look at them that is older is told of."""


def ports(view: Row, *, everything: bool) -> RenderableType | None:
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


def ethernet(view: Row, *, everything: bool) -> RenderableType | None:
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


def flows(view: Row, *, everything: bool) -> RenderableType | None:
    rdma = view.get("rdma") or {}
    every = rdma.get("flows") or ()
    shown = [row for row in every if everything or row["stands"] or row["state"] == "SQD"] or every[:FLOWS_SHOWN]
    rows = [
        (
            f"{row['program'] or '?'} {row['pid'] or ''}".rstrip(),
            f"{row['device']} {row['qpn']}",
            row["peer"] or "?",
            word(_state(row)),
            _patience(row),
            _again(row),
            " ".join(name for name, why in row["rungs"].items() if not why) or "-",
            "; ".join(f"no {name}: {why}" for name, why in row["rungs"].items() if why),
        )
        for row in shown
    ]
    if not rows:
        return None
    why, age_s = rdma.get("flows_why") or "", rdma.get("flows_age_s") or 0.0
    notes = [*([why] if why else []), *([f"as of {seconds(age_s)} ago"] if age_s > OLD_S else [])]
    title = f"RDMA flows ({len(every)})" + (f" ({'; '.join(notes)})" if notes else "")
    return table(
        title, "program", "queue pair", "peer", "state", "gives up", "sent again", "moved by", "why not", rows=rows
    )


def _again(row: Row) -> str:
    """How often it went back to send again in the last ten seconds."""
    again = row.get("sent_again")
    return "?" if again is None else f"{again} or more" if row["sent_again_least"] else str(again)


def datagrams(view: Row, *, everything: bool) -> RenderableType | None:
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


def _state(row: Row) -> str:
    if row["state"] == "SQD":
        return "stopped"
    return "stands" if row["stands"] else "good" if row["silent_s"] == 0 else "idle"


def _patience(row: Row) -> str:
    """When its transport gives up: counted from the last answer, or what is left of it while nothing advances."""
    if row["left_s"] is not None:
        return f"{seconds(row['left_s'])} left"
    return "never" if row["never_gives_up"] else seconds(row["gives_up_after_s"])


PARTS = (ports, ethernet, flows, datagrams)
