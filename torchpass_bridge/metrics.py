"""What a coordinator tells Prometheus: the jobs that it watches, their spares, the store, and the ledger.

Read at each scrape from what it holds in memory anyway; nothing is asked of the store for it. Causes are free text, and
so no labels: `torchpass ledger` shows them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from torchpass_bridge.coordinator import Coordinator
from torchpass_bridge.ledger import line
from torchpass_bridge.wire import Entry

DAY_S = 86400.0
PHASES = ("none", "requested", "preparing", "quiescing", "moving", "resuming", "ended")


class Exported(Collector):
    """`days`: how far back the ledger's figures go."""

    def __init__(
        self, coordinator: Coordinator, up: Callable[[], bool], unix_s: Callable[[], float], days: float = 30.0
    ) -> None:
        self._coordinator = coordinator
        self._up = up
        self._unix_s = unix_s
        self._days = days

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("torchpass_store_up", "Whether the store answers.", value=float(self._up()))
        yield from self._jobs()
        yield self._spares()
        yield self._loans()
        yield from self._ledger()

    def _jobs(self) -> Iterable[Metric]:
        generation = GaugeMetricFamily("torchpass_job_generation", "Groups that the job has had.", labels=["job"])
        world = GaugeMetricFamily("torchpass_job_ranks", "World size.", labels=["job"])
        step = GaugeMetricFamily("torchpass_job_step", "The newest applied step that was heard of.", labels=["job"])
        phase = GaugeMetricFamily(
            "torchpass_job_phase", "1 for the phase that the job's incident is in, else 0.", labels=["job", "phase"]
        )
        desks = dict(self._coordinator.desks)  # a scrape runs in a thread of its own
        for name, desk in sorted(desks.items()):
            scene = desk.scene
            if scene is None:
                continue
            job = scene.job
            generation.add_metric([name], job.generation)
            world.add_metric([name], job.world)
            step.add_metric([name], scene.newest_step())
            now = "ended" if job.ended else job.incident.phase if job.incident else "none"
            for one in PHASES:
                phase.add_metric([name, one], float(one == now))
        return [generation, world, step, phase]

    def _spares(self) -> Metric:
        made = GaugeMetricFamily("torchpass_spares", "Spares that are offered, by state.", labels=["job", "state"])
        found = Counter(
            (held.value.job, "refused" if held.value.refused else "claimed" if held.value.claimed_by else "free")
            for held in list(self._coordinator.picture.spares.values())
        )
        for job in sorted({job for job, _ in found} | set(self._coordinator.desks)):
            for state in ("free", "claimed", "refused"):
                made.add_metric([job, state], found[job, state])
        return made

    def _loans(self) -> Metric:
        made = GaugeMetricFamily(
            "torchpass_loans", "Hosts of other jobs that may be had for spares, by state.", labels=["job", "state"]
        )
        found = Counter((h.value.job, h.value.state) for h in list(self._coordinator.picture.loans.values()))
        for job in sorted({job for job, _ in found} | set(self._coordinator.desks)):
            for state in ("offered", "called", "lent"):
                made.add_metric([job, state], found[job, state])
        return made

    def _ledger(self) -> Iterable[Metric]:
        since_s = self._unix_s() - self._days * DAY_S
        entries = [entry for entry in list(self._coordinator.entries.values()) if entry.ended_unix_s >= since_s]
        within = f"within {self._days:g} days"
        count = GaugeMetricFamily(
            "linkpass_ledger_incidents", f"Incidents {within}.", labels=["job", "kind", "trigger", "outcome"]
        )
        groups = Counter((entry.job, entry.kind, entry.trigger, entry.outcome) for entry in entries)
        for group, number in sorted(groups.items()):
            count.add_metric(list(group), number)
        yield count
        yield from _figures(entries, within)


def _figures(entries: list[Entry], within: str) -> Iterable[Metric]:
    ratio = GaugeMetricFamily(
        "linkpass_ledger_resolved_ratio", f"Share of incidents {within} resolved without lost progress.", labels=["job"]
    )
    pause = GaugeMetricFamily(
        "linkpass_ledger_pause_seconds", f"Pause of training by moves {within}.", labels=["job", "percentile"]
    )
    cost = GaugeMetricFamily(
        "linkpass_ledger_accelerator_seconds_lost", f"Pause times world size {within}.", labels=["job"]
    )
    steps = GaugeMetricFamily("linkpass_ledger_steps_lost", f"Applied steps done again {within}.", labels=["job"])
    for job in sorted({entry.job for entry in entries}):
        said = line([entry for entry in entries if entry.job == job])
        if said.resolved_ratio is not None:
            ratio.add_metric([job], said.resolved_ratio)
        for name, value in (said.pause_s or {}).items():
            if name != "max":
                pause.add_metric([job, name.removeprefix("p")], value)
        cost.add_metric([job], said.accelerator_s)
        steps.add_metric([job], said.steps_lost)
    return [ratio, pause, cost, steps]


def serve(exported: Exported, address: str, port: int) -> int:
    """The port; 0 takes a free one. OSError when it is taken."""
    registry = CollectorRegistry()
    registry.register(exported)
    server, _ = start_http_server(port, address, registry)
    return int(server.server_port)


def unix_s() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)
