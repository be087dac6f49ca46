"""What steers in one network namespace: routes, labels, tunnels, and what keeps them from outliving us."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from linkpass.app.namespace import Namespace
from linkpass.app.tunnels import Tunnels
from linkpass.config import Config
from linkpass.core import events as ev
from linkpass.core.settings import CoreSettings
from linkpass.edges.kernel.egress import EgressEdge
from linkpass.edges.kernel.guardian import Guardian
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.edges.kernel.nft import NoNftError
from linkpass.edges.kernel.routes import RouteEdge, Way
from linkpass.edges.kernel.tunnels import sweep_tunnels
from linkpass.edges.kernel.watch import UplinkInfo
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.traces import TraceEdge

logger = structlog.get_logger()


class Steering:
    """Both `open`s need this thread in the namespace, as does what `refreshes` returns."""

    def __init__(
        self,
        config: Config,
        emit: Callable[[ev.Event], None],
        again: Callable[[Callable[[], None]], None],
        notes: list[str],
    ) -> None:
        """`emit`: takes what others have removed; `again`: has work done soon, in the namespace."""
        self._config, self._notes = config, notes
        self.steers = False
        """Whether anything may be changed here."""
        self.off: dict[int, str] = {}
        """Rungs that cannot be used here, and why."""
        self.removed: set[str] = set()
        """Objects whose removal the core knows of and has not answered yet."""
        self.routes = RouteEdge(
            config.prefixes, metric=config.routes.metric, rto_min_ms=config.routes.rto_min_ms, vrf=config.routes.vrf
        )
        self.labels = LabelEdge(
            probe_port=config.probing.port,
            protocols=(config.probing.ip_protocol,),
            emit=emit,
            vrf=config.routes.vrf,
        )
        self.tunnels = Tunnels(config, emit) if config.tunnels.enabled else None
        self._egress = EgressEdge()
        self._guardian = Guardian(vrf=config.routes.vrf)
        self.routes.on_laid = lambda laid: again(lambda: self._guardian.watch(laid=laid))

    # life
    def open(self, settings: CoreSettings, *, steers: bool) -> None:
        """Sweep what an earlier run has left. Raises OSError; what only takes a rung away is noted instead."""
        self.routes.open()
        self.steers = steers
        if not steers:
            return
        self._guardian.open()
        for line in [*self.routes.sweep(), *self._egress.sweep()]:
            self._notes.append(f"removed what an earlier run left: {line}")
        if 1 in settings.rungs:
            try:
                self.labels.open()
            except NoNftError as error:
                self.off[1] = str(error)
        for rung, why in self.off.items():
            self._notes.append(f"rung {rung} is off: {why}")

    def open_tunnels(
        self, settings: CoreSettings, probes: ProbeEdge | None, traces: TraceEdge | None, infos: Iterable[UplinkInfo]
    ) -> None:
        """Those of an earlier run go, or are taken over."""
        wanted, self.tunnels = self.tunnels, None
        if not self.steers:
            if wanted is not None and settings.mode != "act":
                self._notes.append("tunnels.enabled: tunnels are made in act mode alone")
            return
        if wanted is not None and 1 in settings.rungs:
            try:
                wanted.open(settings, self.routes, probes, traces)
                self.tunnels = wanted
                wanted.set_uplinks(infos)
            except (OSError, RuntimeError) as error:
                self._notes.append(f"no tunnels: {error}")
            self._notes += wanted.notes()
        if self.tunnels is None:
            self._notes += [f"removed what an earlier run left: {line}" for line in sweep_tunnels()]

    def end_is_near(self) -> None:
        if self.tunnels is not None:
            self.tunnels.end_is_near()

    def hand_back(self, namespace: Namespace) -> None:
        """Everything to the kernel again. What of it fails is logged, and the guardian sees to the rest."""
        if not self.steers:
            return
        swept = True
        tunnels = [self.tunnels.close] if self.tunnels is not None else []
        for end in (self.labels.close, *tunnels, self._egress.sweep, self.routes.withdraw_all):
            try:
                with namespace:
                    end()
            except (OSError, RuntimeError) as error:
                swept = False
                logger.warning("could not hand everything back", error=str(error))
        self._guardian.close(swept=swept)

    def let_go(self) -> None:
        """After `hand_back`, or instead of it where the namespace has ended."""
        if self.tunnels is not None:
            self.tunnels.let_go()
        self.routes.close()

    # what changes
    def set_ways(self, infos: Iterable[UplinkInfo]) -> None:
        named = {one.name for one in self._config.uplinks}
        self.routes.set_ways(
            {
                one.name: Way(one.index, one.gateway4, one.gateway6, everywhere=one.name in named)
                for one in infos
                if one.present
            }
        )

    def set_tunnels(self, infos: Iterable[UplinkInfo]) -> None:
        if self.tunnels is not None:
            self.tunnels.set_uplinks(infos)

    def lost(self, what: str) -> bool:
        """Others have removed it; False: that is known already."""
        if what in self.removed:
            return False
        self.removed.add(what)
        kind, _, name = what.partition(" ")
        if kind == "group":
            self.routes.forget(name)
        return True

    def refreshes(self) -> list[Callable[[], None]]:
        """Re-arm what expires, and put back what the kernel has dropped with a carrier; each whether or not the other
        can be."""
        works: list[Callable[[], None]] = []
        if 1 not in self.off and 1 in self._config.rungs:
            works.append(self.labels.refresh)
        if self.tunnels is not None:
            works.append(self.tunnels.refresh)
        return [*works, self.routes.refresh, self._guardian.check]

    def spare_queue_pairs(self, infos: Iterable[UplinkInfo], now_s: float) -> None:
        """Have soft-RoCE's outlive a loss of carrier."""
        devices = {one.name: one.index for one in infos if one.present}
        line = self._egress.keep(devices, now_s)
        if line:
            self._notes.append(line)
            logger.info(line)

    def port_ids(self) -> set[int]:
        """Netlink's of our own sockets: what they change is no news."""
        ours = {self.routes.port_id}
        if self.tunnels is not None and self.tunnels.edge is not None:
            ours.add(self.tunnels.edge.port_id)
        return ours


def concerns_tunnels(before: UplinkInfo | None, now: UplinkInfo) -> bool:
    """A carrier that goes does not: its moment belongs to the traffic. One that comes does: the kernel may have taken
    routes away."""
    if before is None or (now.usable and not before.usable):
        return True
    return (before.present, before.index, before.mtu, before.gateway4) != (
        now.present, now.index, now.mtu, now.gateway4,
    )  # fmt: skip
