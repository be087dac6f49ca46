"""A probing host as a process of its own, for tests that stop it: `probe_peer.py FILE`, the file says who it is."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys

from linkpass.core.commands import ProbeTarget, SetProbes
from linkpass.core.settings import CoreSettings
from linkpass.edges.probes import ProbeEdge


async def main(who: dict[str, object]) -> None:
    settings = CoreSettings(host="peer", address=str(who["address"]))
    edge = ProbeEdge(settings, bytes.fromhex(str(who["key"])), lambda event: None)
    edge.open()
    for name, (ifindex, mac, gateway_mac) in who["uplinks"].items():  # type: ignore[attr-defined]
        edge.set_uplink(name, ifindex, bytes.fromhex(mac), bytes.fromhex(gateway_mac))
    targets = tuple(ProbeTarget(str(who["peer"]), uplink, label, 0.01) for uplink, label in who["plan"])  # type: ignore[attr-defined]
    edge.set_probes(SetProbes(cmd_id=1, cause="", targets=targets))
    await asyncio.Event().wait()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        described = json.load(file)
    netns = os.open(described["netns"], os.O_RDONLY)
    if ctypes.CDLL(None).setns(netns, 0x40000000):
        raise SystemExit("setns failed")
    os.close(netns)
    asyncio.run(main(described))
