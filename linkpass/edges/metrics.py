"""Prometheus metrics from a view of the daemon, and the TCP port that serves them (read only, no control).

Paths are summed per peer and uplink, so that the number of series grows with peers times uplinks and not with labels.
What is not known is not exported: an absent sample is honest, a zero would not be."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rdma.counters.table import COUNTERS
from rdma.ethernet.table import STATISTICS, split

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

View = Mapping[str, Any]
Row = Mapping[str, Any]
Sample = tuple[tuple[str, ...], Any]


class ViewCollector(Collector):
    """Turns the view of the moment into metrics; nothing is remembered here."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        parts = (
            _daemon, _uplinks, _peers, _links, _paths, _namespaces, _probes, _steering, _rdma, _ethernet, _datagrams,
        )  # fmt: skip
        for part in parts:
            yield from part(view)

    def describe(self) -> Iterable[Metric]:
        return ()  # the registry would collect once at registration otherwise, before the daemon has a view


def exposition(view: Callable[[], View]) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view))
    return generate_latest(registry)


def _gauge(name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]) -> Iterator[Metric]:
    """One gauge; samples without a value are left out, and so is a gauge without samples."""
    return _family(GaugeMetricFamily(f"linkpass_{name}", text, labels=list(labels)), samples)


def _counter(name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]) -> Iterator[Metric]:
    return _family(CounterMetricFamily(f"linkpass_{name}", text, labels=list(labels)), samples)


def _family(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]) -> Iterator[Metric]:
    """Two samples of one name would make Prometheus refuse the whole page: the first one stays."""
    seen = set()
    for values, value in samples:
        if value is not None and values not in seen:
            seen.add(values)
            family.add_metric(list(values), float(value))
    if family.samples:
        yield family


def _rows(view: View, key: str) -> list[Row]:
    return list(view.get(key) or ())


def _space(view: View, key: str) -> tuple[tuple[str, ...], Callable[[Row], tuple[str, ...]]]:
    """The label of the network namespace and its value in a row; no label where the daemon acts in its own alone."""
    if any(row.get("netns") for row in _rows(view, key)):
        return ("netns",), lambda row: (row.get("netns") or "",)
    return (), lambda _: ()


def _daemon(view: View) -> Iterator[Metric]:
    info = (str(view.get("version", "")), str(view.get("host", "")), str(view.get("mode", "")))
    yield from _gauge("info", "Version, host and mode of the daemon.", ("version", "host", "mode"), [(info, 1)])
    yield from _gauge("uptime_seconds", "Time since the daemon started.", (), [((), view.get("uptime_s"))])
    yield from _counter("cpu_seconds", "Processor time that the daemon has used.", (), [((), view.get("cpu_s"))])
    yield from _gauge("resident_memory_bytes", "Memory that the daemon holds.", (), [((), view.get("rss_bytes"))])
    yield from _counter("moves", "Times that traffic was moved to another path.", (), [((), view.get("moves"))])
    verdict = [(tuple(text.partition(" ")[::2]), 1) for text in view.get("verdicts") or ()]
    yield from _gauge("verdict", "1 for each element that is blamed now.", ("kind", "element"), verdict)
    first = [((), view.get("first_verdict_s"))]
    yield from _gauge("first_verdict_seconds", "From the start to the first verdict on a path.", (), first)
    rungs = [((str(rung),), state.get("armed")) for rung, state in (view.get("rungs") or {}).items()]
    yield from _gauge("rung_armed", "1 when a rung of the ladder can be used on this host.", ("rung",), rungs)


def _uplinks(view: View) -> Iterator[Metric]:
    space, of = _space(view, "uplinks")
    rows = [((row["name"], *of(row)), row) for row in _rows(view, "uplinks")]
    who = ("uplink", *space)
    usable = "1 when the kernel can send over an uplink: up, carrier, a gateway."
    yield from _gauge("uplink_usable", usable, who, [(name, row.get("usable")) for name, row in rows])
    states = [((*name, str(row["state"])), 1) for name, row in rows if row.get("state")]
    yield from _gauge("uplink_state", "1 for the state that an uplink is in.", (*who, "state"), states)
    penalty = [(name, row.get("penalty")) for name, row in rows]
    yield from _gauge("uplink_damping_penalty", "Damping penalty of an uplink.", who, penalty)
    held = [(name, row.get("suppressed_until_s") is not None) for name, row in rows]
    yield from _gauge("uplink_suppressed", "1 while damping holds an uplink down.", who, held)
    speed = [(name, row["speed_bps"] / 8) for name, row in rows if row.get("speed_bps")]
    yield from _gauge("uplink_speed_bytes_per_second", "Speed of an uplink's port.", who, speed)


def _peers(view: View) -> Iterator[Metric]:
    space, of = _space(view, "peers")
    rows = [((row["address"], row.get("name") or "", *of(row)), row) for row in _rows(view, "peers")]
    who = ("peer", "name", *space)
    active = [(peer, row.get("active")) for peer, row in rows]
    yield from _gauge("peer_active", "1 while this host has connections with a peer.", who, active)
    silent = [(peer, row.get("silent")) for peer, row in rows]
    yield from _gauge("peer_silent", "1 while nothing at all is heard from a peer.", who, silent)
    stale = [(peer, row.get("stale_s")) for peer, row in rows]
    yield from _gauge("peer_stale_seconds", "Time since anything was heard from a peer.", who, stale)
    steerable = [
        ((*peer, rung.removeprefix("rung")), able)
        for peer, row in rows
        for rung, able in (row.get("steerable") or {}).items()
        if rung.startswith("rung")
    ]
    yield from _gauge("peer_steerable", "1 when a rung can move traffic to a peer.", (*who, "rung"), steerable)


def _links(view: View) -> Iterator[Metric]:
    space, of = _space(view, "links")
    rows = [((row["id"], *of(row)), row) for row in _rows(view, "links")]
    who = ("link", *space)
    states = [((*link, str(row["state"])), 1) for link, row in rows if row.get("state")]
    yield from _gauge("link_state", "1 for the state that a link's direction is in.", (*who, "state"), states)
    penalty = [(link, row.get("penalty")) for link, row in rows]
    yield from _gauge("link_damping_penalty", "Damping penalty of a link's direction.", who, penalty)
    drained = [(link, row.get("drained")) for link, row in rows]
    yield from _gauge("link_drained", "1 while a link's direction is drained.", who, drained)


def _paths(view: View) -> Iterator[Metric]:
    space, of = _space(view, "paths")
    count: Counter[tuple[str, ...]] = Counter()
    in_use: Counter[tuple[str, ...]] = Counter()
    loss: dict[tuple[str, ...], list[float]] = defaultdict(list)
    rtt_s: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in _rows(view, "paths"):
        where = (row["peer"], row["uplink"], *of(row))
        evidence = row.get("evidence") or "unknown"
        count[(*where, evidence)] += 1
        in_use[where] += bool(row.get("in_use"))
        if evidence != "unknown" and row.get("loss_ratio") is not None:
            loss[where].append(row["loss_ratio"])
        if row.get("rtt_s"):
            rtt_s[where].append(row["rtt_s"])
    labels = ("peer", "uplink", *space)
    yield from _gauge("paths", "Probed paths by what probes say of them.", (*labels, "evidence"), count.items())
    yield from _gauge("paths_in_use", "Paths that carry traffic.", labels, in_use.items())
    worst = [(where, max(values)) for where, values in loss.items()]
    yield from _gauge("path_worst_loss_ratio", "Loss on the worst path to a peer over an uplink.", labels, worst)
    least = [(where, min(values)) for where, values in rtt_s.items()]
    yield from _gauge("path_least_rtt_seconds", "Round trip on the fastest path.", labels, least)
    most = [(where, max(values)) for where, values in rtt_s.items()]
    yield from _gauge("path_most_rtt_seconds", "Round trip on the slowest path.", labels, most)


def _namespaces(view: View) -> Iterator[Metric]:
    rows: dict[str, Row] = {row.get("name") or str(row.get("inode", "")): row for row in _rows(view, "netns")}
    connections = [((name,), row.get("connections")) for name, row in rows.items()]
    text = "Established connections in a network namespace."
    yield from _gauge("netns_connections", text, ("netns",), connections)
    steerable = [((name,), row.get("steerable")) for name, row in rows.items()]
    text = "1 when flows of a network namespace can be steered."
    yield from _gauge("netns_steerable", text, ("netns",), steerable)


def _probes(view: View) -> Iterator[Metric]:
    probes = view.get("probes") or {}
    yield from _counter("probes_sent", "Probes sent.", (), [((), probes.get("sent"))])
    yield from _counter("probes_heard", "Valid probes heard from peers.", (), [((), probes.get("heard"))])
    refused = [((str(reason),), count) for reason, count in (probes.get("refused") or {}).items()]
    yield from _counter("probes_refused", "Probes that were refused, by reason.", ("reason",), refused)
    yield from _counter("probes_lost", "Probes that a peer has not heard.", (), [((), probes.get("lost"))])
    late = [((), probes.get("late"))]
    yield from _counter("probes_late", "Probes heard after they were counted as lost.", (), late)
    unsent = [((), probes.get("unsent"))]
    yield from _counter("probes_unsent", "Probes that an unusable uplink did not take: not losses.", (), unsent)
    starved = [((), probes.get("daemon_late"))]
    yield from _counter("daemon_late", "Times that the daemon itself ran late and judged nothing.", (), starved)
    overflows = [((), probes.get("overflows"))]
    yield from _counter("probe_overflows", "Times that the daemon's own receive ring overflowed.", (), overflows)
    stretch = [((), probes.get("stretch"))]
    text = "By what probing is slower than configured, to keep its budget."
    yield from _gauge("probe_interval_stretch_ratio", text, (), stretch)
    budget = [((), probes.get("budget_packets_per_s"))]
    yield from _gauge("probe_budget_packets_per_second", "Most probes that this host may send.", (), budget)


def _steering(view: View) -> Iterator[Metric]:
    space, of = _space(view, "steering")
    rows = [((row["object"], *of(row)), row) for row in _rows(view, "steering")]
    who = ("object", *space)
    agree = [(name, list(row.get("desired") or ()) == list(row.get("programmed") or ())) for name, row in rows]
    text = "1 when the kernel holds what was wanted of a steering object."
    yield from _gauge("steering_programmed", text, who, agree)
    down = [(name, bool(row.get("stood_down"))) for name, row in rows]
    text = "1 when this host has given up an object that others keep removing."
    yield from _gauge("steering_stood_down", text, who, down)
    tries = [(name, row.get("tries")) for name, row in rows]
    yield from _gauge("steering_reprograms", "Times that an object had to be programmed again.", who, tries)


def _rdma(view: View) -> Iterator[Metric]:
    ports = [port for device in (view.get("rdma") or {}).get("devices") or () for port in device["ports"]]
    rows = [((port["name"],), port) for port in ports]
    active = [(port, row["state"] == "ACTIVE" if row.get("state") else None) for port, row in rows]
    yield from _gauge("rdma_port_active", "1 when an RDMA port carries data.", ("port",), active)
    rate = [(port, row["rate_bps"] / 8 if row.get("rate_bps") else None) for port, row in rows]
    yield from _gauge("rdma_port_speed_bytes_per_second", "Speed of an RDMA port.", ("port",), rate)
    for name, counter in _BY_NAME.items():
        totals = [(port, row["totals"].get(name)) for port, row in rows]
        kind = _gauge if counter.gauge else _counter
        yield from kind(f"rdma_{name}", f"{counter.meaning[0].upper()}{counter.meaning[1:]}.", ("port",), totals)
    figures = [((*port, name), value) for port, row in rows for name, value in row["figures"].items()]
    text = "What an RDMA port's counters come to over the last second; rdma/counters/evidence.py has the formulas."
    yield from _gauge("rdma_figure", text, ("port", "figure"), figures)
    found = [((*port, one["kind"], one["what"]), 1) for port, row in rows for one in row["findings"]]
    yield from _gauge("rdma_finding", "1 for a figure above its limit.", ("port", "kind", "figure"), found)
    flows = (view.get("rdma") or {}).get("flows") or ()
    devices = sorted({row["device"] for row in flows})
    for name, text, counts in (
        ("rdma_flows", "Connected queue pairs of programs.", lambda row: True),
        ("rdma_flows_standing", "Those that send nothing new though work waits.", lambda row: row["stands"]),
    ):
        of = [((device,), sum(row["device"] == device and counts(row) for row in flows)) for device in devices]
        yield from _gauge(name, text, ("device",), of)


def _datagrams(view: View) -> Iterator[Metric]:
    rows = [((row["name"],), row) for row in (view.get("rdma") or {}).get("datagrams") or ()]
    for name, key, text in (
        ("network", "network_s", "What the network took of a RoCE datagram's way there and back."),
        ("host", "host_s", "What this host took to send a RoCE datagram and to read its answer."),
        ("peer_host", "peer_host_s", "What the peer took to answer a RoCE datagram."),
    ):
        of = [(place, row[key]) for place, row in rows]
        yield from _gauge(f"rdma_datagram_{name}_seconds", text, ("queue",), of)
    for name, text in (("sent", "RoCE datagrams sent."), ("lost", "RoCE datagrams that were not answered.")):
        yield from _counter(f"rdma_datagrams_{name}", text, ("queue",), [(place, row[name]) for place, row in rows])


_BY_NAME = {counter.name: counter for counter in reversed(COUNTERS)}
"""Where drivers share a name, the first row's words."""
_STATISTICS = {row.name: row for row in reversed(STATISTICS)}
_BASE = {"microseconds": ("_us", "_seconds", 1e6), "bits": ("_bits", "_bytes", 8)}
"""Prometheus' own units."""


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
        yield from _counter(f"ethernet_{name}", text, labels, samples)
    figures = [((row["name"], name), value) for row in rows for name, value in row["figures"].items()]
    text = (
        "What an Ethernet port's statistics come to over the last second; rdma/ethernet/evidence.py has the formulas."
    )
    yield from _gauge("ethernet_figure", text, ("device", "figure"), figures)
    found = [((row["name"], one["kind"], one["what"]), 1) for row in rows for one in row["findings"]]
    yield from _gauge("ethernet_finding", "1 for a figure beyond its limit.", ("device", "kind", "figure"), found)
    yield from _modules([((row["name"],), row["module"]) for row in rows if row["module"]])


def _modules(rows: list[tuple[tuple[str], Row]]) -> Iterator[Metric]:
    warm = [(device, module["temperature_c"]) for device, module in rows]
    yield from _gauge("module_temperature_celsius", "Temperature of an optical module.", ("device",), warm)
    supply = [(device, module["voltage_v"]) for device, module in rows]
    yield from _gauge("module_supply_volts", "Supply of an optical module.", ("device",), supply)
    lanes = [((*device, str(lane["number"])), lane) for device, module in rows for lane in module["lanes"]]
    for name, key, text in (
        ("module_receive_power_dbm", "receive_power_dbm", "Light received on a lane, over 1 mW; -40 for none."),
        ("module_transmit_power_dbm", "transmit_power_dbm", "Light sent on a lane, over 1 mW; -40 for none."),
    ):
        yield from _gauge(name, text, ("device", "lane"), [(lane, values[key]) for lane, values in lanes])
    bias = [(lane, None if values["bias_ma"] is None else values["bias_ma"] / 1000) for lane, values in lanes]
    yield from _gauge("module_laser_bias_amperes", "Current of a lane's laser.", ("device", "lane"), bias)


class MetricsError(Exception):
    """The port cannot be opened; the text is one line. The daemon can go on without."""


class MetricsEdge:
    """Serves `GET /metrics` and `GET /healthz` on a TCP port. `expose` gives the exposition of the moment."""

    def __init__(self, address: str, port: int, expose: Callable[[], bytes]) -> None:
        self._address, self._port = address, port
        self._expose = expose
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use: the kernel's choice when 0 was asked for."""
        addresses = self._runner.addresses if self._runner else []
        return int(addresses[0][1]) if addresses else self._port

    async def open(self) -> None:
        """Raises MetricsError."""
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._healthz)])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._address, self._port).start()
        except OSError as error:
            await runner.cleanup()
            reason = "port in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            shown = f"[{self._address}]" if ":" in self._address else self._address
            raise MetricsError(f'metrics {shown}:{self._port}: {reason}; set metrics.listen, or "" for none') from None
        self._runner = runner

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> MetricsEdge:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._expose(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})
