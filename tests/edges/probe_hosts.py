"""Two hosts whose probe edges probe each other in a fabric of namespaces, and what they told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import probe_lab as lab

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings, Detection, Probing
from linkpass.edges.probes import ProbeEdge

KEY = b"the fabric's shared secret"
PLAN = (("eth1", 11), ("eth1", 12), ("eth2", 21))
"""Two labels by the long way, one by the short way; `by_switch` finds out which spine each label takes."""


def heal() -> None:
    for node in lab.SWITCHES:
        lab.nft(node, "")


class Host:
    """One daemon's probe edge, and what it told."""

    def __init__(self, fabric: lab.Fabric, name: str, key: bytes = KEY, address: str = "", **probing: object) -> None:
        self.name, self.fabric = name, fabric
        self.address = address or lab.HOSTS[name]
        self.told: list[ev.Event] = []
        self.changed = asyncio.Event()
        settings = CoreSettings(
            host=name,
            address=self.address,
            probing=msgspec.structs.replace(Probing(), **probing),
            detection=Detection(grace_s=0.1),
        )
        self.edge = ProbeEdge(settings, key, self.hear)

    def hear(self, event: ev.Event) -> None:
        self.told.append(event)
        self.changed.set()

    def open(self) -> Host:
        with lab.inside(self.name):
            self.edge.open()
        for uplink in ("eth1", "eth2"):
            self.set_uplink(uplink)
        return self

    def set_uplink(self, uplink: str) -> None:
        at, made = (self.name, uplink), self.fabric
        with lab.inside(self.name):
            self.edge.set_uplink(uplink, made.ifindex[at], made.mac[at], made.gateway_mac(*at))

    def plan(self, peer: str, paths: tuple[tuple[str, int], ...] = PLAN, interval_s: float = 0.01) -> None:
        targets = tuple(cmd.ProbeTarget(peer, uplink, label, interval_s) for uplink, label in paths)
        self.edge.set_probes(cmd.SetProbes(cmd_id=1, cause="t", targets=targets))

    async def until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        """Bounded: what the kernel and two daemons do takes as long as it takes."""
        async with asyncio.timeout(seconds):
            while not true():
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self.changed.wait()

    def evidence(self) -> dict[tuple[str, int], str]:
        return {(p.uplink, p.label): p.evidence for p in self.edge.snapshot().paths}

    def news(self) -> list[ev.Event]:
        """All but the daemons' lateness, which a busy machine causes at any time."""
        return [event for event in self.told if not isinstance(event, ev.DaemonLate | ev.ProbeDelays)]

    def all(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for event in self.told if isinstance(event, kind)]

    async def good(self, paths: tuple[tuple[str, int], ...] = PLAN) -> None:
        """Every path answers and the grace is over; what was told so far is forgotten."""
        await self.until(lambda: all(self.evidence().get(path) == "good" for path in paths))
        await asyncio.sleep(0.15)
        self.told.clear()

    def judged(self) -> list[tuple[str, int, str]]:
        return [(e.uplink, e.label, e.evidence) for e in self.told if isinstance(e, ev.PathEvidence)]


@contextlib.asynccontextmanager
async def pair(fabric: lab.Fabric, **probing: object) -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts that probe each other and find every path good."""
    one, two = Host(fabric, "h1", **probing), Host(fabric, "h2", **probing)  # type: ignore[arg-type]
    try:
        one.open()
        two.open()
        one.plan(two.address)
        two.plan(one.address)
        await one.good()
        await two.good()
        yield one, two
    finally:
        one.edge.close()
        two.edge.close()
        two.edge.close()
