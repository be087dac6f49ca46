"""A story for the report, made up but shaped like a real one: two runs, four faults, moves on four hosts."""

from __future__ import annotations

import math
import random

from lab.bench.shape import Machine
from lab.report import FaultShown, MoveShown, RunShown, Story

FAULTS = (
    ("carrier", "host1 loses carrier on its link to leaf1", 6.0, 4.0, 31.0, 2100.0),
    ("blackhole", "leaf1-spine1 swallows packets both ways, carrier stays up", 16.0, 38.0, 52.0, 6200.0),
    ("bucket", "one ECMP bucket of four vanishes on leaf3>spine2", 26.0, 41.0, 47.0, 890.0),
    ("5 % loss", "leaf2-spine1 loses every twentieth packet", 36.0, 190.0, 63.0, 660.0),
)


def made_up_run(seed: int, stalls_s: list[tuple[float, float]], end_s: float = 46.0) -> RunShown:
    chance = random.Random(seed)
    at, ends, took, losses = 0.0, [], [], []
    waiting = list(stalls_s)
    while at < end_s:
        step = 0.031 + abs(chance.gauss(0, 0.004))
        if waiting and at + step > waiting[0][0]:
            step += waiting.pop(0)[1]
        at += step
        ends.append(at)
        took.append(step)
        losses.append(2.3 + 2.6 * math.exp(-len(losses) / 180) + random.Random(len(losses)).gauss(0, 0.09))
    return RunShown(ends, took, losses, 0.034)


def made_up_story() -> Story:
    with_it = made_up_run(1, [(since, stall / 1000) for _, _, since, _, stall, _ in FAULTS])
    without = made_up_run(2, [(since, stall / 1000) for _, _, since, _, _, stall in FAULTS])
    moves = [
        MoveShown(since + reroute / 1000, f"host{host}", "moved 25% of the flows to host3 away", "3 probes lost", rung)
        for (name, _, since, reroute, _, _) in FAULTS
        for host, rung in (((1, 2), (3, 1)) if name == "carrier" else ((1, 1), (2, 1), (4, 1)))
    ]
    return Story(
        title="Four faults, and training went on",
        fabric="leaf-spine: 4 hosts, 4 leaves, 2 spines",
        run=with_it,
        faults=[
            FaultShown(
                name, what, since, since + 4, reroute, stall, stall_without, since, since + 4,
                "ended only with the fault" if stall_without > 4000 else "", 0, True, 3,
            )
            for name, what, since, reroute, stall, stall_without in FAULTS
        ],
        moves=moves,
        hosts=["host1", "host2", "host3", "host4"],
        machine=Machine("A processor <of some kind>", 2, "Linux 6.18"),
        commit="0123456789ab",
        weights="b7d40c8108ab557d26be2b53333b6a1c41e0d37cca518c4c0975daf77116dffd",
        weights_identical=True,
        reference=with_it,
        without=without,
        notes=["TCP congestion control reno; timers of the job's sockets tuned."],
    )  # fmt: skip
