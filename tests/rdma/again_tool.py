"""Runs in a guest: follows what its only flow sends over eth0 and sends again, as the daemon does; prints it as JSON.

    again_tool.py ADDRESS SECONDS MOST

For SECONDS, and on until something was told to be sent again, MOST of them in all. ADDRESS: the flow's own. It loads no
more than it needs: where others keep the machine busy, an emulated one takes minutes for all of the daemon."""

from __future__ import annotations

import sys
import time

import msgspec

from linkpass.core.events import Event, FlowWindow
from linkpass.edges.flow_paths import FlowPathEdge
from rdma.flows import FlowTable
from rdma.nldev import Nldev
from rdma.resent import Sends, Sum, Went

LOOK_S, POLL_S = 0.2, 1.0


def lost(event: Event) -> bool:
    assert isinstance(event, FlowWindow)
    return any(one.again for one in event.counts)


def again(address: str, seconds: float, most_s: float) -> dict[str, object]:
    """`looks`: what was known of each; `counted`: what the device had counted before and after; `told`: by second."""
    told: list[Event] = []
    looks: list[Went | None] = []
    paths = FlowPathEdge(told.append, address)
    paths.set_uplink("eth0")
    with Nldev() as kernel:
        table, sums = FlowTable(kernel), Sum()
        begun_s = polled_s = time.monotonic()
        counted = [table._totals("rxe0")]
        while (now_s := time.monotonic()) < begun_s + seconds or (
            now_s < begun_s + most_s and not any(map(lost, told))
        ):
            (flow,) = table.look(now_s)
            looks.append(flow.went)
            if flow.went is not None:
                sums.add(flow.went)
            if now_s >= polled_s + POLL_S:
                polled_s, known = now_s, sums.told()
                sends = [] if known is None else [
                    Sends(flow.name, flow.source, flow.peer, flow.qp.rqpn or 0, sums.since_s, *known)
                ]  # fmt: skip
                paths.follow([], now_s, sends)
                sums = Sum()
            time.sleep(max(0.0, now_s + LOOK_S - time.monotonic()))
        counted.append(table._totals("rxe0"))
        bound = kernel.bound("rxe0")
    paths.close()
    return {"looks": looks, "counted": counted, "bound": bound, "told": told, "name": flow.name}


if __name__ == "__main__":
    own, at_least, at_most = sys.argv[1:]
    sys.stdout.buffer.write(msgspec.json.encode(again(own, float(at_least), float(at_most)), enc_hook=str))
