"""Measures how soon a straggler is named, and what looking costs: `python tests/e2e/bench_stragglers.py --n 10`.

A namespace fabric, a daemon per host that only observes, the Gloo job. Each trial plants one fault in the running job
and counts the steps from then on until it is named, by anybody and by all; before, for `--healthy-s`, and between
trials nobody may be."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import rig as rigs
from pace_rig import PaceRig

from lab.throttle import throttled

STEPS_MOST = 60


def trial(rig: PaceRig, host: str, cause: str, fault: AbstractContextManager[Any]) -> dict[str, Any]:
    since_s = time.monotonic()
    first = rig.job.steps
    with fault:
        while rig.job.steps < first + STEPS_MOST and len({e.host for e in rig.names(since_s)}) < len(rig.hosts):
            rig.job.update()
            time.sleep(0.01)
        names = rig.names(since_s)
    right = [e for e in names if e.what.startswith(f"straggler {host}: ") and cause in e.what]
    steps = rig.steps_until(right, since_s)
    return {
        "victim": host, "first_steps": min(steps, default=None), "all_steps": max(steps, default=None),
        "first_s": min((e.now_s for e in right), default=since_s) - since_s,
        "named_by": len({e.host for e in right}),
        "wrong": [f"{e.host}: {e.what} ({e.why})" for e in names if e not in right],
        "period_s": rig.job.median_step_s(since_s),
    }  # fmt: skip


def healthy(rig: PaceRig, seconds: float) -> dict[str, Any]:
    before = {host: rig.daemons.view(host) for host in rig.hosts}
    rig.job.update()
    begun_s, first = time.monotonic(), rig.job.steps
    time.sleep(seconds)
    rig.job.update()
    span_s = time.monotonic() - begun_s
    views = {host: rig.daemons.view(host) for host in rig.hosts}
    whole = [round((views[h]["cpu_s"] - before[h]["cpu_s"]) / span_s, 5) for h in rig.hosts]
    after = {host: view["pace"] for host, view in views.items()}
    if after[rig.hosts[0]] is None:
        return {"seconds": span_s, "daemon_cpu_ratio": whole}
    return {
        "daemon_cpu_ratio": whole,
        "seconds": span_s, "steps": rig.job.steps - first, "period_s": rig.job.median_step_s(begun_s),
        "false": [f"{e.host}: {e.what} ({e.why})" for e in rig.names(0.0)],
        "cpu_ratio": [round((after[h]["cpu_s"] - before[h]["pace"]["cpu_s"]) / span_s, 5) for h in rig.hosts],
        "hits": {h: [(c["kind"], c["units"], c["hits"]) for c in after[h]["claims"]] for h in rig.hosts},
        "interval_s": [after[h]["interval_s"] for h in rig.hosts], "connections": after[rig.hosts[0]]["connections"],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--pause-s", type=float, default=0.1)
    parser.add_argument("--slow-s", type=float, default=0.1)
    parser.add_argument("--rate", default="10mbit")
    parser.add_argument("--healthy-s", type=float, default=60.0)
    parser.add_argument("--off", action="store_true", help="without looking, to compare the daemons' processor time")
    parser.add_argument("--ordinary", action="store_true", help="the job is scheduled as anything else")
    parser.add_argument("--cases", default="compute,network,stopped")
    args = parser.parse_args()
    rigs.START_S = 400.0
    found: dict[str, list[Any]] = {}
    how = {"enabled": not args.off, "undisturbed": not args.ordinary}
    with tempfile.TemporaryDirectory() as folder, PaceRig(Path(folder), args.pause_s, **how) as rig:
        print("healthy", json.dumps(healthy(rig, args.healthy_s)), flush=True)
        for case in filter(None, args.cases.split(",")):
            for number in range(args.n):
                rig.nobody()
                rank = number % len(rig.hosts)
                host = rig.hosts[rank]
                fault: AbstractContextManager[Any] = rig.slowed(rank, args.slow_s)
                if case == "network":
                    fault = rig.narrowed(host, args.rate)
                elif case == "stopped":
                    fault = throttled(rig.job.processes[rank].pid, 0.7, 0.3)
                row = trial(rig, host, "network" if case == "network" else "compute", fault)
                found.setdefault(case, []).append(row["first_steps"])
                print(case, json.dumps(row), flush=True)
                if row["named_by"] < len(rig.hosts):
                    for name in rig.hosts:
                        print("   ", name, json.dumps(rig.daemons.view(name)["pace"]), flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
