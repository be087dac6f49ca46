"""What looks out of a network namespace: probes, traces, echoes, neighbours, the job's sockets and its pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from linkpass.app.carriers import Spawn
from linkpass.config import Config, ConfigError, read_key
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings
from linkpass.edges.clock import Clock
from linkpass.edges.echoes import EchoEdge
from linkpass.edges.flow_paths import FlowPathEdge
from linkpass.edges.kernel.queues import QueueEdge
from linkpass.edges.kernel.watch import UplinkInfo
from linkpass.edges.neighbours import EVERY_S, NeighbourEdge
from linkpass.edges.pace import PaceEdge
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.sockets import SocketEdge
from linkpass.edges.traces import Plan, TraceEdge
from rdma.resent import Sends
from topology.model import Fabric

logger = structlog.get_logger()


class Senses:
    """Each is None where it is not wanted or cannot be had; `notes` says why. Opened inside the namespace."""

    def __init__(
        self,
        config: Config,
        *,
        own_namespace: bool,
        names: dict[str, str],
        fabric: Fabric | None,
        submit: Callable[[ev.Event], None],
        spawn: Spawn,
        clock: Clock,
        notes: list[str],
    ) -> None:
        """`own_namespace`: the daemon's own."""
        self._config, self._own_namespace, self._names, self._fabric = config, own_namespace, names, fabric
        self._submit, self._spawn, self._clock, self._notes = submit, spawn, clock, notes
        self.probes: ProbeEdge | None = None
        self.traces: TraceEdge | None = None
        self.echoes: EchoEdge | None = None
        self.sockets: SocketEdge | None = None
        self.pace: PaceEdge | None = None
        self._queues: QueueEdge | None = None
        self._flow_paths: FlowPathEdge | None = None
        self._neighbours: NeighbourEdge | None = None
        self._neighbours_why = ""
        self._ask_neighbours_at_s = float("-inf")

    def open_probing(self, settings: CoreSettings) -> None:
        """Everything that asks the fabric. Without it only carrier is known."""
        try:
            key = read_key(self._config)
        except ConfigError as error:
            self._notes.append(f"no probes are sent, only carrier is known: {error}")
            return
        probes = ProbeEdge(settings, key, self._submit, self._clock.now_s, vrf=self._config.routes.vrf)
        traces = TraceEdge(
            settings, self._submit, self._names, clock=self._clock.now_s, vrf=self._config.routes.vrf,
            plan=Plan(self._fabric, settings.host) if self._fabric is not None else None,
        )  # fmt: skip
        try:
            probes.open()
            traces.open()
        except OSError as error:
            probes.close()
            traces.close()
            self._notes.append(f"no probes are sent, only carrier is known: {error}")
            return
        self.probes, self.traces = probes, traces
        queues = QueueEdge(self._submit, self._clock.now_s, settings.detection.queueing_s)
        try:
            queues.open()
        except OSError as error:
            queues.close()
            self._notes.append(f"it is not known whether uplinks are overrun: {error}")
        else:
            self._queues = queues
        echoes = EchoEdge(settings, self._submit, vrf=self._config.routes.vrf)
        try:
            echoes.open()
        except OSError as error:
            self._notes.append(f"kernels of peers are not asked whether they run: {error}")
        else:
            self.echoes = echoes
        if self._config.fabric.lldpctl and self._own_namespace:  # lldpd hears the daemon's own namespace
            self._neighbours = NeighbourEdge(self._config.fabric.lldpctl, settings.host, traces.names.announced)
        if self._config.probing.protocol == "verbs" and self._own_namespace:
            self._notes += probes.open_roce(self._config.prefixes)

    def open_sockets(self, settings: CoreSettings) -> None:
        """The job's, and its pace where stragglers are looked for."""
        sockets = SocketEdge(self._submit, self._config.prefixes, settings.address, self._on_data)
        try:
            sockets.open()
        except OSError as error:
            self._notes.append(f"active peers are not known: {error}")
        else:
            self.sockets = sockets
            self._open_pace(settings)
            if settings.diagnosis.enabled and settings.diagnosis.flows:
                self._flow_paths = FlowPathEdge(self._submit, settings.address)

    def _open_pace(self, settings: CoreSettings) -> None:
        """Looks at the job's sockets, and talks of it with peers where there are probes."""
        if not settings.stragglers.enabled or self.sockets is None:
            return
        talk = self.probes.open_pace() if self.probes is not None else None
        pace = PaceEdge(
            settings.stragglers, self._submit, talk.tell if talk is not None else lambda *_: 0, self._clock.now_s
        )
        try:
            pace.open()
        except OSError as error:
            self._notes.append(f"stragglers are not looked for: {error}")
        else:
            self.pace = pace

    def poll(self, now_s: float, also_active: Mapping[str, bool], sends: Iterable[Sends] = ()) -> None:
        """What is done about once a second. `also_active`: peers to which data flows past the kernel's sockets;
        `sends`: what RDMA flows have sent lately."""
        if self.sockets is not None:
            self.sockets.poll(now_s, also_active)
            if self.pace is not None:
                self.pace.follow(self.sockets.connections())
            if self._flow_paths is not None:
                self._flow_paths.follow(self.sockets.connections(), now_s, sends)
        if self._queues is not None:
            self._queues.poll()
        if self._neighbours is not None and now_s >= self._ask_neighbours_at_s:
            self._ask_neighbours_at_s = now_s + EVERY_S
            self._spawn(self._ask_neighbours(self._neighbours))

    async def _ask_neighbours(self, neighbours: NeighbourEdge) -> None:
        why = await neighbours.look()
        if why and why != self._neighbours_why:
            logger.warning("no neighbours are known by LLDP", why=why)
        self._neighbours_why = why

    def tell_uplink(self, info: UplinkInfo) -> None:
        """An uplink as the kernel has it now."""
        gateway_mac = info.gateway6_mac or info.gateway4_mac
        if self.echoes is not None and info.usable:
            try:
                self.echoes.set_uplink(info.name, info.index)
            except OSError as error:
                logger.warning("nobody is asked over an uplink", uplink=info.name, error=str(error))
        elif self.echoes is not None:
            self.echoes.drop_uplink(info.name)
        if self._queues is not None and info.usable:
            self._queues.set_uplink(info.name, info.index, info.speed_bps)
        elif self._queues is not None:
            self._queues.drop_uplink(info.name)
        if self._flow_paths is not None and info.usable:
            try:
                self._flow_paths.set_uplink(info.name)
            except OSError as error:
                logger.warning("paths of flows over an uplink are not known", uplink=info.name, error=str(error))
        for edge in (self.probes, self.traces):
            if edge is None:
                continue
            if info.usable:
                try:
                    edge.set_uplink(info.name, info.index, info.mac, gateway_mac)
                except OSError as error:
                    logger.warning("uplink cannot be probed", uplink=info.name, error=str(error))
            elif edge is self.probes or not info.present:
                # The traces' socket stays open without carrier: closing it waits for the kernel (an RCU grace period,
                # 10 to 20 ms), and this is the moment when traffic has to be moved.
                edge.drop_uplink(info.name)

    def _on_data(self, peer: str, grown_bytes: int) -> None:
        if self.probes is not None:
            self.probes.note_data(peer, grown_bytes)

    def arrived(self, rank: int, step: int) -> bool:
        """A trainer's word: a rank of this host has come to a step. False: stragglers are not looked for here."""
        if self.pace is None:
            return False
        arrival = ev.StepArrived(rank=rank, step=step, at_s=self._clock.now_s())
        self._submit(arrival)
        self.pace.arrived(arrival)
        return True

    @property
    def pace_view(self) -> dict[str, Any] | None:
        """Of the looks at the job's sockets; None where stragglers are not looked for."""
        return self.pace.view() if self.pace is not None else None

    @property
    def faults(self) -> int:
        """Faults of linkpass itself that were met here."""
        return sum(edge.faults for edge in (self.probes, self.pace) if edge is not None)

    def close(self) -> None:
        """Safe to call twice, and after a failed open."""
        for edge in (
            self.pace, self._flow_paths, self.probes, self.traces, self.echoes, self.sockets, self._queues
        ):  # fmt: skip
            if edge is not None:
                edge.close()
