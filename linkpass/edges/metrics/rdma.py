"""RDMA ports, flows and datagrams, Ethernet ports and their modules, as metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from linkpass.edges.metrics.families import Row, Sample, View, counter, gauge
from rdma.counters.table import COUNTERS
from rdma.ethernet.table import STATISTICS, split

_BY_NAME = {counter.name: counter for counter in reversed(COUNTERS)}
"""Where drivers share a name, the first row's words."""
_STATISTICS = {row.name: row for row in reversed(STATISTICS)}
_BASE = {"microseconds": ("_us", "_seconds", 1e6), "bits": ("_bits", "_bytes", 8)}
"""Prometheus' own units."""


def _rdma(view: View) -> Iterator[Metric]:
    ports = [port for device in (view.get("rdma") or {}).get("devices") or () for port in device["ports"]]
    rows = [((port["name"],), port) for port in ports]
    active = [(port, row["state"] == "ACTIVE" if row.get("state") else None) for port, row in rows]
    yield from gauge("rdma_port_active", "1 when an RDMA port carries data.", ("port",), active)
    rate = [(port, row["rate_bps"] / 8 if row.get("rate_bps") else None) for port, row in rows]
    yield from gauge("rdma_port_speed_bytes_per_second", "Speed of an RDMA port.", ("port",), rate)
    for name, one in _BY_NAME.items():
        totals = [(port, row["totals"].get(name)) for port, row in rows]
        kind = gauge if one.gauge else counter
        yield from kind(f"rdma_{name}", f"{one.meaning[0].upper()}{one.meaning[1:]}.", ("port",), totals)
    figures = [((*port, name), value) for port, row in rows for name, value in row["figures"].items()]
    text = "What an RDMA port's counters come to over the last second; rdma/counters/evidence.py has the formulas."
    yield from gauge("rdma_figure", text, ("port", "figure"), figures)
    found = [((*port, one["kind"], one["what"]), 1) for port, row in rows for one in row["findings"]]
    yield from gauge("rdma_finding", "1 for a figure above its limit.", ("port", "kind", "figure"), found)
    flows = (view.get("rdma") or {}).get("flows") or ()
    devices = sorted({row["device"] for row in flows})
    for name, text, counts in (
        ("rdma_flows", "Connected queue pairs of programs.", lambda row: True),
        ("rdma_flows_standing", "Those that send nothing new though work waits.", lambda row: row["stands"]),
        ("rdma_flows_stopped", "Those whose send queue is stopped (SQD).", lambda row: row["state"] == "SQD"),
    ):
        of = [((device,), sum(row["device"] == device and counts(row) for row in flows)) for device in devices]
        yield from gauge(name, text, ("device",), of)


def _datagrams(view: View) -> Iterator[Metric]:
    rows = [((row["name"],), row) for row in (view.get("rdma") or {}).get("datagrams") or ()]
    for name, key, text in (
        ("network", "network_s", "What the network took of a RoCE datagram's way there and back."),
        ("host", "host_s", "What this host took to send a RoCE datagram and to read its answer."),
        ("peer_host", "peer_host_s", "What the peer took to answer a RoCE datagram."),
    ):
        of = [(place, row[key]) for place, row in rows]
        yield from gauge(f"rdma_datagram_{name}_seconds", text, ("queue",), of)
    for name, text in (("sent", "RoCE datagrams sent."), ("lost", "RoCE datagrams that were not answered.")):
        yield from counter(f"rdma_datagrams_{name}", text, ("queue",), [(place, row[name]) for place, row in rows])


def _ethernet(view: View) -> Iterator[Metric]:
    rows = list((view.get("rdma") or {}).get("ethernet") or ())
    told: dict[str, list[Sample]] = defaultdict(list)
    for row in rows:
        for name, value in row["totals"].items():
            base, each, number = split(name)
            told[base].append(((row["name"], number) if each else (row["name"],), value))
    for name, row in _STATISTICS.items():
        labels = ("device", row.each) if row.each else ("device",)
        text = f"{row.meaning[0].upper()}{row.meaning[1:]}."
        samples = told.get(name, [])
        if row.unit in _BASE:
            ending, base, size = _BASE[row.unit]
            name = name.removesuffix(ending) + base
            samples = [(of, value / size) for of, value in samples]
        yield from counter(f"ethernet_{name}", text, labels, samples)
    figures = [((row["name"], name), value) for row in rows for name, value in row["figures"].items()]
    text = (
        "What an Ethernet port's statistics come to over the last second; rdma/ethernet/evidence.py has the formulas."
    )
    yield from gauge("ethernet_figure", text, ("device", "figure"), figures)
    found = [((row["name"], one["kind"], one["what"]), 1) for row in rows for one in row["findings"]]
    yield from gauge("ethernet_finding", "1 for a figure beyond its limit.", ("device", "kind", "figure"), found)
    yield from _modules([((row["name"],), row["module"]) for row in rows if row["module"]])


def _modules(rows: list[tuple[tuple[str], Row]]) -> Iterator[Metric]:
    warm = [(device, module["temperature_c"]) for device, module in rows]
    yield from gauge("module_temperature_celsius", "Temperature of an optical module.", ("device",), warm)
    supply = [(device, module["voltage_v"]) for device, module in rows]
    yield from gauge("module_supply_volts", "Supply of an optical module.", ("device",), supply)
    lanes = [((*device, str(lane["number"])), lane) for device, module in rows for lane in module["lanes"]]
    for name, key, text in (
        ("module_receive_power_dbm", "receive_power_dbm", "Light received on a lane, over 1 mW; -40 for none."),
        ("module_transmit_power_dbm", "transmit_power_dbm", "Light sent on a lane, over 1 mW; -40 for none."),
    ):
        yield from gauge(name, text, ("device", "lane"), [(lane, values[key]) for lane, values in lanes])
    bias = [(lane, None if values["bias_ma"] is None else values["bias_ma"] / 1000) for lane, values in lanes]
    yield from gauge("module_laser_bias_amperes", "Current of a lane's laser.", ("device", "lane"), bias)


def _moves(view: View) -> Iterator[Metric]:
    """Queue pairs of running programs that are moved; nothing where none may be."""
    row = (view.get("rdma") or {}).get("moves") or {}
    stopped = "Queue pairs that stand because a move of them is under way, or could not be ended."
    yield from gauge("rdma_queue_pairs_stopped", stopped, (), [((), row.get("stopped"))])
    ended = [((outcome,), row.get(outcome)) for outcome in ("moved", "kept")]
    yield from counter("rdma_moves", "Moves of queue pairs that have ended, by how.", ("outcome",), ended)
    words = "Datagrams about moves that were not signed with the fabric's key, or no words."
    yield from counter("rdma_move_words_refused", words, (), [((), row.get("words_refused"))])


PARTS = (_rdma, _ethernet, _datagrams, _moves)
