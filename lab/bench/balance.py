"""Whether many flows are spread over the links as well as the kernel would have spread them.

Paired: the same connections are measured as the kernel spreads them, then with the daemons. Links are compared with
those that have the same place in the fabric (host to leaf, leaf to spine, …); a round's figure is that of the place
where the fullest link is furthest above the mean. Probes are taken along: they are load, too.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import streams
from lab.bench import shape
from lab.bench.reroute import Progress, built
from lab.bench.shape import Bench, Metrics, Row, Target
from lab.daemons import Daemons, DaemonSpec
from lab.errors import LabError
from lab.netns.lab import NetnsLab
from lab.trial import START_S
from topology.model import Fabric

NAME = "balance"
MEASURE_S = 3.0
SETTLE_S = 1.0
ROUND_S = 20.0
FLOWS = {"flows-64": 64, "flows-128": 128, "flows-256": 256}
"""Row -> connections in the whole fabric, at least (the same number between all pairs of hosts)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`n`: rounds of each row, each with connections of its own (other ports, other labels)."""

    n: int = 5
    seed: int = 0
    rows: tuple[str, ...] = tuple(FLOWS)

    @property
    def total(self) -> int:
        return round(self.n * len(self.rows) * ROUND_S)


@dataclass(frozen=True, slots=True)
class Spread:
    """Fullest link over the mean, by place."""

    by_place: Mapping[str, float]

    @property
    def worst(self) -> float:
        return max(self.by_place.values())


def run(fabric: Fabric, plan: Plan, tell: Progress, *, name: str, folder: Path | None = None) -> Bench:
    """Raises LabError when streams or a daemon die."""
    rows = []
    done = 0
    with built(fabric, name, folder) as lab:
        for row in plan.rows:
            pairs = []
            for number in range(plan.n):
                tell(f"{row}: round {number + 1} of {plan.n}", done * ROUND_S)
                pairs.append(_round(lab, FLOWS[row]))
                done += 1
            rows.append(row_of(row, pairs))
    return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows)))


def row_of(name: str, pairs: list[tuple[Spread, Spread]]) -> Row:
    """`pairs`: (the kernel's, with linkpass) of each round."""
    ours = [after.worst for _, after in pairs]
    theirs = [before.worst for before, _ in pairs]
    places = sorted({place for _, after in pairs for place in after.by_place})
    return Row(
        name,
        len(pairs),
        _metrics(ours),
        {"kernel": _metrics(theirs)},
        {
            "rounds": [{"kernel": round(b.worst, 3), "linkpass": round(a.worst, 3)} for b, a in pairs],
            "places": {
                place: {
                    "kernel": round(statistics.fmean(b.by_place[place] for b, _ in pairs), 3),
                    "linkpass": round(statistics.fmean(a.by_place[place] for _, a in pairs), 3),
                }
                for place in places
            },
        },
    )


def targets(bench: Bench) -> list[Target]:
    """No worse than the kernel in the same run."""
    kernel = {row.case: shape.figure(row.without["kernel"], "max_mean_ratio") or 0.0 for row in bench.rows}
    return [Target(case, "max_mean_ratio", "", "<=", value) for case, value in kernel.items()]


def spread(lab: NetnsLab, over_s: float) -> Spread:
    """Measure the load of every direction for a while."""
    before = lab.counters()
    time.sleep(over_s)
    loads = lab.counters().since(before).directions
    groups: dict[str, list[int]] = {}
    for link in lab.fabric.links:
        for direction in link.directions():
            hop = lab.fabric.direction(direction)
            groups.setdefault(_place(lab.fabric, hop.port.node, hop.peer.node), []).append(loads[direction].bytes)
    return Spread({place: max(found) / max(statistics.fmean(found), 1.0) for place, found in groups.items()})


def _round(lab: NetnsLab, flows: int) -> tuple[Spread, Spread]:
    hosts = [host.name for host in lab.fabric.hosts]
    each = -(-flows // (len(hosts) * (len(hosts) - 1)))
    with _streams(lab, each):
        time.sleep(SETTLE_S)
        before = spread(lab, MEASURE_S)
        with Daemons(lab, DaemonSpec()) as daemons:
            daemons.start().wait_ready(START_S)
            daemons.wait_for(lambda host: _labelled(daemons, host), START_S, "spread the flows")
            time.sleep(SETTLE_S)
            after = spread(lab, MEASURE_S)
    return before, after


@contextmanager
def _streams(lab: NetnsLab, each: int) -> Iterator[None]:
    hosts = [host.name for host in lab.fabric.hosts]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for host in hosts:
            peers = ",".join(lab.address(other) for other in hosts if other != host)
            options = ["--bind", lab.address(host), "--peers", peers, "--flows", str(each)]
            argv = [sys.executable, streams.__file__, *options]
            running.append(
                lab.popen(host, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
        for host, process in zip(hosts, running, strict=True):
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise LabError(f"the streams of {host} ended with status {process.wait()}")
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _labelled(daemons: Daemons, host: str) -> bool:
    view = daemons.view(host)
    return all(peer["active"] and peer["labels"] for peer in view["peers"]) and daemons.is_settled(host, view)


def _place(fabric: Fabric, source: str, target: str) -> str:
    names = {0: "host", 1: "leaf", 2: "spine"}
    tiers = (fabric.node(source).tier, fabric.node(target).tier)
    return ">".join(names.get(tier, f"tier{tier}") if tier is not None else "?" for tier in tiers)


def _metrics(ratios: list[float]) -> Metrics:
    return {"max_mean_ratio": round(statistics.fmean(ratios), 3), "max_mean_worst_ratio": round(max(ratios), 3)}
