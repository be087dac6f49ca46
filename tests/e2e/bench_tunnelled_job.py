"""How fast a job over IPv4 gets off a failing link through entropy tunnels, and without them: run by hand.

    python tests/e2e/bench_tunnelled_job.py [INJECTIONS] [CASE ...]

The columns are those of `linkpass lab bench reroute`, of the same fabric with room for tunnels."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from roomy_fabric import PREFIX4, make_room, roomy

from lab.bench.shape import percentiles
from lab.cases import CASES
from lab.daemons import DaemonSpec
from lab.job import JobSpec
from lab.trial import JOB_STEPS, Trial

TUNNELS = {"tunnels": {"enabled": True}, "": {"prefixes": [PREFIX4]}}
PLAIN = {"": {"prefixes": [PREFIX4]}}
SETUPS = {
    "tunnels, timers tuned": DaemonSpec(family=4, tcp_timers=True, realtime=True, extra=TUNNELS),
    "flow labels of IPv6, timers tuned": DaemonSpec(tcp_timers=True, realtime=True),
    "tunnels": DaemonSpec(family=4, realtime=True, extra=TUNNELS),
    "rung 2 alone, timers tuned": DaemonSpec(family=4, tcp_timers=True, realtime=True, extra=PLAIN),
    "kernel": None,
}


def main(count: int, cases: list[str]) -> None:
    folder = Path(tempfile.mkdtemp())
    lab = roomy(folder / "lab", "b")
    try:
        lab.up()
        make_room(lab)
        for name, spec in SETUPS.items():
            job = JobSpec(steps=JOB_STEPS, family=spec.family if spec else 4)
            with Trial(lab, folder / name.replace(" ", "-"), spec, job=job) as trial:
                quiet = percentiles([1e3 * trial.quiet()[0] for _ in range(count)])
                print(f"{name}: undisturbed, longest stall {quiet} ms", flush=True)
                for case in cases:
                    found = [trial.inject(CASES[case]) for _ in range(count if spec else max(2, count // 3))]
                    hit = [one for one in found if one.affected]
                    first = percentiles([1e3 * (one.reroute_s or one.undone_at_s - one.injected_at_s) for one in hit])
                    stall = percentiles([1e3 * one.stall.seconds for one in found])
                    rungs = {entry.rung for one in found for entry in one.entries if entry.is_move}
                    lost = sum(one.steps_lost for one in found)
                    print(f"{name}: {case}: first packet elsewhere {first} ms, stall {stall} ms, rungs {rungs or '-'}, "
                          f"steps lost {lost}, n = {len(found)}, no other way {sum(o.reroute_s is None for o in hit)}",
                          flush=True)  # fmt: skip
    finally:
        lab.down()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, sys.argv[2:] or ["blackhole-oneway"])
