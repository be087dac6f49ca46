"""Who is named when the fabric of a running job fails: real daemons, one fault after another, and a confusion matrix.

Each daemon names by itself what its own paths show, with its peers' words. What the fabric's operator reads is the sum
of their journals: the first right name counts for the time, every name that is none of the fault's for the accusations,
and what all of them together hold at the end for the kind.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lab.bench import shape
from lab.bench.reroute import Progress, built
from lab.bench.shape import Bench, Metrics, Row, Target, percentiles
from lab.daemons import Daemons, DaemonSpec, Entry
from lab.faults import parse
from lab.job import Job, JobSpec
from lab.netns.lab import NetnsLab
from topology.model import Fabric

NAME: Final = "naming"
HARD_S: Final = 2.0
SOFT_S: Final = 8.0
SETTLE_S: Final = 90.0
START_S: Final = 180.0
JOB_STEPS: Final = 10_000_000
VERDICT: Final = re.compile(r"^verdict (direction|link|nic|switch|host): (.+)$")
KINDS: Final = ("direction", "link", "switch", "host", "nothing")
DECOYS: Final = ("rate",)
"""Faults after which nothing is to be named: an overloaded link does what it can."""


@dataclass(frozen=True, slots=True)
class Case:
    """`fault`: its text, to be filled in, or several with `+` between them; `kind` of the elements that fail.
    `most`: of injections; after a host's death the job has to be started again, which takes a minute."""

    fault: str
    kind: str
    hold_s: float = HARD_S
    most: int = 1000


CASES: Final[dict[str, Case]] = {
    "one-way": Case("blackhole:{direction}", "direction"),
    "both-ways": Case("blackhole:{link}", "link"),
    "uplink": Case("blackhole:{uplink}", "link"),
    "leaf-hangs": Case("dead:{leaf}:silent", "switch"),
    "spine-hangs": Case("dead:{spine}:silent", "switch"),
    "host-frozen": Case("freeze:{host}", "host", 4.0),
    "loss-1pct": Case("loss:{direction}:1%", "direction", SOFT_S),
    "loss-5pct": Case("loss:{link}:5%", "link", SOFT_S),
    "bucket": Case("bucket:{direction}:1/4", "direction", 4.0),
    "big-packets": Case("large:{direction}:1000", "direction", 4.0),
    "two-at-once": Case("blackhole:{direction}+blackhole:{other}", "direction"),
    "beside-congestion": Case("rate:{other}:50mbit+blackhole:{direction}", "direction", 4.0),
    # A host's port and its cable are one class: nothing that is seen from outside tells them apart.
    "port-dark": Case("carrier:{uplink}@{host_of_uplink}", "link"),
    "host-dead": Case("dead:{host}", "host", 4.0, most=3),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """`n` injections of each case, as far as the case allows so many."""

    n: int = 13
    seed: int = 0
    cases: tuple[str, ...] = tuple(CASES)

    @property
    def total(self) -> int:
        return round(sum(self.times(case) * CASES[case].hold_s for case in self.cases))

    def times(self, case: str) -> int:
        return min(self.n, CASES[case].most)


@dataclass(slots=True)
class Injection:
    """`named_s`: until the first right name; None: none came. `wrong`: other names. `held`: the kind of what all
    daemons together hold at the end."""

    fault: str
    named_s: float | None
    held: str
    wrong: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    took_s: float = 0.0
    """All of it, with the wait until everything was good before."""


def run(fabric: Fabric, plan: Plan, tell: Progress, *, name: str, folder: Path | None = None) -> Bench:
    """Build the lab, try everything, take it down. Raises LabError when the job or a daemon dies."""
    found: dict[str, list[Injection]] = {case: [] for case in plan.cases}
    chance = random.Random(plan.seed)
    with built(fabric, name, folder) as lab, ExitStack() as stack:
        tell("starting daemons and the job", 0.0)
        spec = DaemonSpec(realtime=True, tcp_timers=True, extra={"diagnosis": {"enabled": True}})
        daemons = stack.enter_context(Daemons(lab, spec))
        daemons.start().wait_ready(START_S)
        hosts = [host.name for host in fabric.hosts]
        job = Job(lab, hosts, lab.run_dir / "job", JobSpec(steps=JOB_STEPS))
        stack.callback(job.close)
        job.start().wait_steps(20, START_S)
        done_s = 0.0
        order = [case for case in plan.cases for _ in range(plan.times(case))]
        chance.shuffle(order)
        for number, case in enumerate(order, 1):
            tell(f"{case}, {number} of {len(order)}", done_s)
            text = _place(CASES[case].fault, fabric, chance)
            began_s = time.monotonic()
            found[case].append(_try(lab, daemons, fabric, text, CASES[case]))
            if text.startswith("dead:") and (dead := text.split(":")[1]) in hosts:
                daemons.processes.pop(dead).wait()
                daemons.start_one(dead)
                job.close()
                job = Job(lab, hosts, lab.run_dir / f"job-{number}", JobSpec(steps=JOB_STEPS))
                stack.callback(job.close)
                job.start().wait_steps(20, START_S)
            found[case][-1].took_s = time.monotonic() - began_s
            done_s += CASES[case].hold_s
            job.check()
    return shape.check(Bench(NAME, shape.commit(), shape.machine(), plan.seed, tuple(rows(found))))


def _place(fault: str, fabric: Fabric, chance: random.Random) -> str:
    between = [
        link for link in fabric.links if {fabric.node(link.a.node).role, fabric.node(link.b.node).role} == {"switch"}
    ]
    uplinks = [link for link in fabric.links if link not in between]
    direction = chance.choice([direction for link in between for direction in link.directions()])
    ends = set(direction.split(">"))
    # Two at one node might be the node as well.
    others = [one for link in between for one in link.directions() if ends.isdisjoint(one.split(">"))]
    uplink = chance.choice(uplinks)
    choices = {
        "link": [link.id for link in between],
        "other": others or [direction],
        "leaf": [node.name for node in fabric.switches if node.tier == 1],
        "spine": [node.name for node in fabric.switches if node.tier == 2],
        "host": [node.name for node in fabric.hosts],
        "host_of_uplink": [port.node for port in (uplink.a, uplink.b) if fabric.node(port.node).role == "host"],
    }
    drawn = {name: chance.choice(some) for name, some in choices.items() if some}
    return fault.format(direction=direction, uplink=uplink.id, **drawn)


def _try(lab: NetnsLab, daemons: Daemons, fabric: Fabric, text: str, case: Case) -> Injection:
    _settle(daemons)
    faults = [parse(one, fabric) for one in text.split("+")]
    gone = {fault.where for fault in faults if fault.kind in ("freeze", "dead")}
    with ExitStack() as stack:
        for fault in faults:
            active = lab.fault(fault)
            stack.callback(active.undo)
        time.sleep(case.hold_s)
        others = [host for host in daemons.hosts if host not in gone]
        held = {verdict for host in others for verdict in daemons.view(host)["verdicts"]}
    # The last one is what fails: a decoy comes before it.
    entries = [one for one in daemons.journal(active.injected_at_s) if one.host not in gone]
    failed = [fault.where for fault in faults if fault.kind not in DECOYS]
    return judge(text, failed, fabric, entries, held, active.injected_at_s)


def _settle(daemons: Daemons) -> None:
    """What is named when a fault comes would not be named again: the end of every name is waited for."""
    daemons.clear()

    def quiet(host: str) -> bool:
        view = daemons.view(host)
        return not view["findings"] and not view["named"] and daemons.is_settled(host, view)

    daemons.wait_for(quiet, SETTLE_S, "find everything good and name nothing")


def judge(
    text: str, failed: Sequence[str], fabric: Fabric, entries: Sequence[Entry], held: set[str], started_s: float
) -> Injection:
    """Pure: what was written down and held, against what was broken. Named is when all that failed has been."""
    found = Injection(text, None, "nothing")
    unnamed = set(failed)
    for entry in entries:
        match = VERDICT.match(entry.what)
        if match is None or entry.what.endswith("holds no longer"):
            continue
        suspects = _suspects(match[2])
        found.told.append(f"{entry.now_s - started_s:.3f} s {entry.host}: {entry.what}")
        # A class that holds the fault is right: no path of this host tells its members apart.
        right = {where for where in failed if suspects & _meant(where, fabric)}
        if unnamed and not unnamed - right:
            found.named_s = entry.now_s - started_s
        unnamed -= right
        if not right and not any(suspects & _parts(where, fabric) for where in failed):
            found.wrong.append(entry.what)
    found.held = _kind(held, fabric)
    return found


def _parts(where: str, fabric: Fabric) -> set[str]:
    """What is a part of an element, and no wrong name for it, though too small a one for a node."""
    if where in _nodes(fabric):
        return {part for link in fabric.links_of(where) for part in (link.id, *link.directions())}
    if ">" in where:
        return set()
    link = fabric.link(where)
    ports = {port.id for port in (link.a, link.b) if fabric.node(port.node).role == "host"}
    return {*link.directions(), *ports}


def _meant(where: str, fabric: Fabric) -> set[str]:
    """Names for it that are right: also each direction of a link, and the port that no path tells from it."""
    return {where} | (set() if where in _nodes(fabric) else _parts(where, fabric))


def _suspects(text: str) -> set[str]:
    """`a (or b, c: not told apart) lets nothing through`."""
    first, _, rest = text.partition(" ")
    among = re.match(r"\(or (.+): not told apart\)", rest)
    return {first, *(among[1].split(", ") if among else ())}


def _nodes(fabric: Fabric) -> set[str]:
    return {node.name for node in fabric.nodes}


def _kind(held: set[str], fabric: Fabric) -> str:
    """Of what all daemons together hold: two directions of one link are the link."""
    kinds: dict[str, str] = {}
    for verdict in held:
        kind, _, name = verdict.partition(" ")
        kinds[name] = "link" if kind == "nic" else kind
    for kind in ("host", "switch", "link"):
        if kind in kinds.values():
            return kind
    directions = {name for name, kind in kinds.items() if kind == "direction"}
    if any(set(link.directions()) <= directions for link in fabric.links):
        return "link"
    return "direction" if directions else "nothing"


def rows(found: dict[str, list[Injection]]) -> Iterator[Row]:
    for case, ours in found.items():
        if not ours:
            continue
        metrics: Metrics = {
            "named_s": percentiles(CASES[case].hold_s if one.named_s is None else one.named_s for one in ours),
            "named_ratio": sum(one.named_s is not None for one in ours) / len(ours),
            "kind_ratio": sum(one.held == CASES[case].kind for one in ours) / len(ours),
            "false_accusations": sum(len(one.wrong) for one in ours),
        }
        info: dict[str, Any] = {
            "kind": CASES[case].kind, "held": dict(Counter(one.held for one in ours)),
            "took_s": round(sum(one.took_s for one in ours), 1),
            "injections": [
                {"fault": one.fault, "named_s": one.named_s, "held": one.held, "wrong": one.wrong, "told": one.told}
                for one in ours
            ],
        }  # fmt: skip
        yield Row(case, len(ours), metrics, {}, info)


def confusion(bench: Bench) -> dict[str, Counter[str]]:
    """What failed -> what was held, counted."""
    found: dict[str, Counter[str]] = {}
    for row in bench.rows:
        found.setdefault(row.info["kind"], Counter()).update(row.info["held"])
    return found


def targets(bench: Bench) -> list[Target]:
    wanted = []
    for row in bench.rows:
        soft = CASES[row.case].hold_s == SOFT_S
        if CASES[row.case].kind != "host":  # a host is given up after `escalate_s`, not named within it
            wanted.append(Target(row.case, "named_s", "p99", "<=", 5.0 if soft else 0.3))
        wanted.append(Target(row.case, "named_ratio", "", ">=", 0.995 if not soft else 0.98))
        wanted.append(Target(row.case, "kind_ratio", "", ">=", 0.99))
        wanted.append(Target(row.case, "false_accusations", "", "==", 0.0))
    return wanted
