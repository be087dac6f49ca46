"""A lab as a plain value for people and programs: what stands, what carries, what is broken, who runs in it."""

from __future__ import annotations

import time
from typing import Any

from lab.netns.lab import NetnsLab
from lab.netns.processes import state_letter


def describe(lab: NetnsLab) -> dict[str, Any]:
    """Everything that `linkpass lab status` shows. Counts are packets and bytes since the lab was built."""
    counters, dropped, now_s = lab.counters(), lab.dropped(), time.monotonic()
    carrier = {(node, device): up for node in lab.plan.nodes for device, up in lab.carriers(node).items()}
    everybody = lab.processes()
    return {
        "name": lab.name,
        "run_dir": str(lab.run_dir),
        "notes": list(lab.notes),
        "nodes": [
            {
                "name": node.name,
                "role": lab.fabric.node(node.name).role,
                "tier": node.tier,
                "namespace": lab.namespace(node.name),
                "address6": node.v6,
                "address4": node.v4,
                "ports": [wire.end(node.name).device for wire in lab.plan.wires_of(node.name)],
                "processes": [
                    {"pid": one.pid, "state": state_letter(one.pid), "argv": list(one.argv)}
                    for one in everybody
                    if one.node == node.name
                ],
            }
            for node in lab.plan.nodes.values()
        ],
        "links": [
            {
                "id": wire.link,
                "directions": [
                    {
                        "id": direction,
                        "carrier": carrier[near.node, near.device],
                        "packets": counters.directions[direction].packets,
                        "bytes": counters.directions[direction].bytes,
                        "lost": counters.directions[direction].packets - counters.directions[direction].delivered,
                    }
                    for direction, (near, _) in zip((wire.forward, wire.backward), wire.both_ways(), strict=True)
                ],
            }
            for wire in lab.plan.wires
        ],
        "faults": [
            {
                "id": record.id,
                "fault": str(record.fault),
                "age_s": now_s - record.injected_at_s,
                "down": record.down,
                "dropped": dropped.get(record.id),
            }
            for record in lab.faults()
        ],
    }
