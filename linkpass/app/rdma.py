"""RDMA in the daemon: ports' counters and Ethernet statistics once a second, queue pairs a few times a second, and what
all of them show."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from linkpass.aside import Aside
from linkpass.config import Config
from linkpass.core.events import CongestionEvidence, Event, FlowGoes, FlowStands, PeerPatience
from linkpass.edges.clock import Clock
from linkpass.edges.counters import CounterEdge
from linkpass.edges.device_events import DeviceEventEdge
from linkpass.edges.netdevs import NetdevEdge
from linkpass.edges.probes.roce import RoceFlow, RoceProbes
from linkpass.edges.queue_pairs import LOOK_S, QueuePairEdge
from rdma.borrowed import may_borrow
from rdma.counters.evidence import outward
from rdma.ethernet.watch import Netdevs
from rdma.steering import Setting

OFF = "off in the configuration"


class Rdma:
    """One a host: RDMA devices and their queue pairs are seen from the daemon's own namespace."""

    def __init__(
        self, config: Config, clock: Clock, submit: Callable[[Event], None], uplinks: Callable[[], Iterable[str]],
        roce: Callable[[], RoceProbes | None] = lambda: None,
    ) -> None:  # fmt: skip
        """`submit` takes what is for the core of that namespace, `uplinks` tells its uplinks, `roce`: its datagrams
        through RDMA devices."""
        self._config, self._clock, self._submit, self._uplinks = config, clock, submit, uplinks
        self._roce = roce
        self._networks = [ipaddress.ip_network(prefix) for prefix in config.prefixes]
        self._counters = CounterEdge(config.rdma.evidence, clock.now_s) if config.rdma.counters else None
        self._ethernet = self._ethernet_edge() if config.rdma.ethernet else None
        self._flows = QueuePairEdge(self._on_flow) if config.rdma.flows else None
        heard = config.rdma.events or config.probing.protocol == "verbs"  # datagrams follow addresses that move
        self._events = DeviceEventEdge(submit, self._on_gids) if heard else None
        self._timer: asyncio.TimerHandle | None = None
        self._congested: dict[str, CongestionEvidence] = {}

    def open(self) -> list[str]:
        """Never fails: what cannot be had is returned in words. Looks at queue pairs by itself from now on; counters
        are read when `poll` is called."""
        if self._flows is not None:
            self._look()
        return self._events.open() if self._events is not None else []

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for edge in (self._counters, self._ethernet, self._flows, self._events):
            if edge is not None:
                edge.close()

    def poll(self) -> Iterator[list[str]]:
        """Read counters and statistics, look for devices, a piece at a time; what each says that it did not say
        before."""
        if self._counters is not None:
            yield self._counters.poll()
        if self._ethernet is not None:
            netdevs = self._counters.netdevs if self._counters is not None else ()
            yield self._ethernet.poll((*netdevs, *self._uplinks()))
        self._tell_congestion()
        if self._flows is not None and (roce := self._roce()) is not None:
            uses = ((device, to) for device, to in self._flows.addresses() if to.is_global)
            roce.set_flows(RoceFlow(d, to.port, to.sgid_index, to.gid, to.traffic_class, to.sl) for d, to in uses)
        if self._flows is not None:
            yield self._flows.lines()
        if self._events is not None:
            yield self._events.poll()

    def _tell_congestion(self) -> None:
        """To the core, of each uplink of which the counters say something else than before."""
        by_netdev = list(self._counters.congested()) if self._counters is not None else []
        for uplink in {*self._uplinks(), *self._congested}:
            found = [one for netdev, one in by_netdev if netdev == uplink]
            found += self._ethernet.congested(uplink) if self._ethernet is not None else ()
            out, into = (tuple(sorted({one.says for one in found if outward(one) is way})) for way in (True, False))
            event = CongestionEvidence(uplink=uplink, out=out, into=into)
            before = self._congested.get(uplink, CongestionEvidence(uplink=uplink))
            if event != before:
                self._congested[uplink] = event
                self._submit(event)

    def peers(self) -> Mapping[str, bool]:
        """Peers of RDMA flows, and whether data with them has advanced since this was last asked."""
        return self._flows.take_peers() if self._flows is not None else {}

    def view(self, rungs: Mapping[str, Mapping[str, Any]], ways: Callable[[str], tuple[str, ...]]) -> dict[str, Any]:
        """`rungs`: as `app.picture` shows them, "1" and "2" with `armed` and `why`; `ways`: see `Setting`."""
        shown = {**self.ports(), "live_qps_why": self.steer_why}
        if (roce := self._roce()) is not None:
            shown["datagrams"], shown["datagrams_why"] = roce.rows(), roce.why
        if self._flows is None:
            return {**shown, "flows": [], "flows_why": OFF, "flows_age_s": None, "flows_failures": 0}
        setting = Setting(
            labels=str(rungs["1"]["why"]),
            routes=str(rungs["2"]["why"]),
            vrf=self._config.routes.vrf,
            device={device["name"]: tuple(device["netdevs"]) for device in shown["devices"]},
            live_qps=self.steer_why,
            ways=ways,
            unproven=self._config.rdma.steer.unproven,
        )
        return {
            **shown,
            "flows": self._flows.snapshot(setting),
            "flows_why": self._flows.why,
            "flows_age_s": self._flows.age_s(self._clock.now_s()),
            "flows_failures": self._flows.failures,
        }

    @property
    def queue_pairs(self) -> QueuePairEdge | None:
        return self._flows

    @property
    def steer_why(self) -> str:
        """Why queue pairs of running programs are not moved; empty when they are."""
        return steering_off(self._config)

    def ports(self) -> dict[str, Any]:
        shown = self._ports()
        if self._ethernet is None:
            return {**shown, "ethernet": [], "ethernet_why": OFF}
        return {**shown, "ethernet": self._ethernet.snapshot(), "ethernet_why": self._ethernet.why}

    def _ports(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"why": OFF, "devices": []}
        if self._counters is not None:
            shown = self._counters.snapshot()
        if self._events is not None:
            shown["events_why"] = self._events.why
            for port in (port for device in shown["devices"] for port in device["ports"]):
                now = self._events.gids(port["name"])
                port["heard"] = now is not None
                port["gids"] = port["gids"] if now is None else msgspec.to_builtins(now)
        return shown

    def _on_gids(self, device: str) -> None:
        """Its addresses have moved: who uses one by its index looks again."""
        if self._flows is not None:
            self._flows.ask_again(device)
        if (roce := self._roce()) is not None:
            roce.reread(device)

    def _ethernet_edge(self) -> NetdevEdge:
        rdma = self._config.rdma
        netdevs = Netdevs(rdma.module_interval_s)
        return NetdevEdge(rdma.evidence, netdevs, self._clock.now_s, Aside("ethernet"))

    def _look(self) -> None:
        assert self._flows is not None
        pause_s = LOOK_S
        try:
            pause_s = self._flows.poll(self._clock.now_s())
        except Exception as error:  # noqa: BLE001 - one flow that is odd must not end the looking at all of them
            self._flows.failed(error)
        finally:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _on_flow(self, event: Event) -> None:
        """Of flows to the configured prefixes; any other is shown and no more."""
        assert isinstance(event, FlowStands | FlowGoes | PeerPatience)
        address = ipaddress.ip_address(event.peer)
        if any(address in network for network in self._networks):
            self._submit(event)


def steering_off(config: Config) -> str:
    """Why no queue pair of a running program may be changed here; empty when one may."""
    if not config.rdma.steer.live_qps:
        return "rdma.steer.live_qps is off"
    if config.mode != "act":
        return "mode is observe"
    if not config.rdma.flows:
        return "rdma.flows is off"
    return "" if may_borrow() else "CAP_SYS_PTRACE is missing"
