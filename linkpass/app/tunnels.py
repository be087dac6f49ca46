"""Entropy tunnels of one namespace: their devices, the marks that deal flows over them, and who hears of which."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import structlog

from linkpass.config import Config
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings
from linkpass.edges.kernel.marks import MarkEdge
from linkpass.edges.kernel.routes import RouteEdge
from linkpass.edges.kernel.tunnels import END_NAME, NoTunnelsError, TunnelEdge, TunnelWay
from linkpass.edges.kernel.watch import UplinkInfo
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.traces import TraceEdge
from linkpass.wire.vxlan import End

LINGER_S = 0.25
"""Between the word that this host's end goes and its going: peers need some ms to take their flows out."""

logger = structlog.get_logger()


class Tunnels:
    """Nothing is made before `open`, which needs this thread in the namespace, as do all but `close`."""

    def __init__(self, config: Config, submit: Callable[[ev.Event], None]) -> None:
        self._config, self._submit = config, submit
        self._probes: ProbeEdge | None = None
        self._routes: RouteEdge | None = None
        self._told: dict[str, dict[int, str]] = {}
        self._made: dict[int, tuple[str, int]] = {}
        self._said: list[str] = []
        self._packet_bytes = 0
        self.edge: TunnelEdge | None = None
        self.marks: MarkEdge | None = None

    # life
    def open(
        self, settings: CoreSettings, routes: RouteEdge, probes: ProbeEdge | None, traces: TraceEdge | None
    ) -> None:
        """Raises NoTunnelsError, NoNftError or OSError when there can be none here."""
        config = self._config
        if probes is None or traces is None:
            raise NoTunnelsError("without probes no tunnel is proved")
        if config.routes.vrf:
            raise NoTunnelsError("uplinks in a VRF (routes.vrf) are not supported")
        wanted = End(config.tunnels.port, config.tunnels.vni)
        edge = TunnelEdge(
            settings.address, wanted, first_port=config.tunnels.first_source_port, per_uplink=config.tunnels.per_uplink,
            on_lost=self._on_lost,
        )  # fmt: skip
        marks = MarkEdge(probe_port=config.probing.port, protocols=(config.probing.ip_protocol,), emit=self._submit)
        edge.open()
        try:
            marks.open()
        except RuntimeError:
            edge.close()
            raise
        self.edge, self.marks = edge, marks
        self._probes, self._routes = probes, routes
        traces.ask_ends_of(probes.end_of)
        probes.on_end(self._on_end)
        probes.set_end(wanted, END_NAME, edge.end_index)

    def end_is_near(self) -> None:
        """What is said from now on says that packets in tunnels have no end here."""
        if self._probes is not None:
            self._probes.set_end(None)

    def close(self) -> None:
        """Take our own flows out, leave peers a moment to do the same, then remove everything."""
        if self.edge is None or self.marks is None:
            return
        self.marks.close()
        self.edge.withdraw()
        if self.edge.peers:
            time.sleep(LINGER_S)
        self.edge.sweep()

    def let_go(self) -> None:
        """After `close`, or instead of it where the namespace has ended."""
        if self.edge is not None:
            self.edge.close()

    # what there is
    def set_uplinks(self, infos: Iterable[UplinkInfo]) -> None:
        """Uplinks have changed, or what lies over them. Raises OSError or NoTunnelsError."""
        if self.edge is None or self._routes is None:
            return
        there = {one.index: one for one in infos if one.present}
        ways = {one.name: TunnelWay(one.index, one.mtu, one.gateway4) for one in there.values()}
        # Routes go with the last carrier, and come back with it: the job's packets are the same.
        found = self._routes.packet_bytes({index: one.mtu for index, one in there.items()})
        self._packet_bytes = found or self._packet_bytes
        try:
            self.edge.set_ways(ways, self._packet_bytes)
        finally:
            self._tell()

    def refresh(self) -> None:
        """Re-arm what expires."""
        if self.marks is not None:
            self.marks.refresh()

    def set_labels(self, peer: str, labels: tuple[int, ...]) -> None:
        """Deal a peer's flows over tunnels; none: take them out. What others have removed is made again first. Raises
        OSError, NoNftError or NoTunnelsError."""
        if self.edge is None or self.marks is None:
            return
        if labels and self.edge.mend():
            self._tell()
        self.marks.set_labels(peer, labels)

    def mend_end(self) -> None:
        """Put back this host's end, where others have removed it; peers are told when it is not."""
        if self.edge is None or self._probes is None or self.edge.end_index:
            return
        why = self.edge.mend_end()
        if why:
            self._probes.set_end(None)
            if why not in self._said:
                self._said.append(why)
                logger.warning(why)
            return
        self._probes.set_end(End(self._config.tunnels.port, self._config.tunnels.vni), END_NAME, self.edge.end_index)

    def notes(self) -> list[str]:
        """Why there are fewer tunnels than one could wish for."""
        return [*self.edge.refused.values()] if self.edge is not None else []

    # who hears of it
    def _on_end(self, peer: str, end: End | None) -> None:
        """A peer has said where it takes packets out, or that it does not (any more)."""
        assert self.edge is not None
        try:
            self.edge.set_peer(peer, end)
        except OSError as error:
            logger.warning("no tunnels to a peer", peer=peer, error=str(error))
            self.edge.set_peer(peer, None)
        self._tell_of(peer, "" if end is not None else "it takes nothing out of tunnels (any more)")

    def _tell(self) -> None:
        """The probes first: what they cannot send through must not be chosen."""
        assert self.edge is not None
        assert self._probes is not None
        made = {port: (one.name, one.index) for port, one in self.edge.tunnels.items()}
        if made != self._made:
            self._made = made
            self._probes.set_tunnels({port: (one.name, one.mark) for port, one in self.edge.tunnels.items()})
        for peer in {*self.edge.peers, *self._told}:
            self._tell_of(peer, "; ".join(self.edge.refused.values()))
        for why in self.edge.refused.values():
            if why not in self._said:
                self._said.append(why)
                logger.warning(why)

    def _tell_of(self, peer: str, why: str) -> None:
        assert self.edge is not None
        reach = self.edge.reach(peer)
        if reach != self._told.get(peer, {}):
            self._told[peer] = reach
            self._submit(ev.PeerTunnels(peer=peer, uplink_of=reach, why=why))

    def _on_lost(self, ports: set[int], by: str) -> None:
        """Others have removed something: whose flows go there is told, and is put right with the core's next word."""
        if self.marks is not None:
            for peer in self.marks.using(ports):
                self.marks.set_labels(peer, ())
                self._submit(ev.SteeringLost(what=f"labels {peer}", by=by))
