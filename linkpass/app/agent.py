"""One network namespace: a core, its driver and its edges, wired together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from linkpass import __version__
from linkpass.app.carriers import Carriers, Spawn
from linkpass.app.namespace import Namespace
from linkpass.app.senses import Senses
from linkpass.app.steering import Steering, concerns_tunnels
from linkpass.config import Config, ConfigError, core_settings, read_key
from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.driver import Driver
from linkpass.edges.clock import Clock
from linkpass.edges.hook import HookEdge
from linkpass.edges.journal import JournalEdge
from linkpass.edges.kernel.watch import UplinkInfo, WatchEdge
from linkpass.edges.moves import Known, MoveEdge
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.probes.roce import RoceProbes
from linkpass.edges.queue_pairs import QueuePairEdge
from linkpass.edges.recorder import RecorderEdge
from linkpass.edges.tcp_timers import TcpTimerEdge
from linkpass.edges.undo import UndoJournal
from linkpass.faults import Faults
from linkpass.wire.probe import Signer
from rdma.moving import Patience

if TYPE_CHECKING:
    from topology.model import Fabric

TUNE_AGAIN_S = 0.02
GOODBYE_SEQ = 0
"""A goodbye concerns no link, so that it stands in no order with other words."""
REFRESH_S = 20.0
"""A third of the time after which the kernel drops what we do not refresh."""
EVERYWHERE = ("0.0.0.0/0", "::/0")
AF_INET, AF_INET6 = 2, 10

logger = structlog.get_logger()


class Agent:
    """Lives in one network namespace. `open` wires, `poll` is called once a second, `close` hands traffic back."""

    def __init__(
        self,
        config: Config,
        namespace: Namespace,
        *,
        clock: Clock,
        journal: JournalEdge,
        names: dict[str, str],
        fabric: Fabric | None = None,
        spawn: Spawn,
        timers: TcpTimerEdge | None,
        record_to: str = "",
        also_active: Callable[[], Mapping[str, bool]] = dict,
        queue_pairs: QueuePairEdge | None = None,
        undo: UndoJournal | None = None,
    ) -> None:
        """`also_active`: peers to which data flows past the kernel's sockets, and whether it has advanced.
        `queue_pairs`: those of this namespace; `undo`: where to write down what cannot be marked."""
        self.config = config
        self.namespace = namespace
        self.journal = journal
        self.notes: list[str] = []
        self.closed = False
        self._faults = Faults()
        self.attends = False
        """Whether there are peers here to probe and traffic to steer; else uplinks are watched and no more."""
        self.first_verdict_s: float | None = None
        self._clock = clock
        self._names = names
        self._fabric = fabric
        self._spawn = spawn
        self._timers = timers
        self._record_to = record_to
        self._also_active = also_active
        self._queue_pairs = queue_pairs
        self._undo = undo
        self._moves: MoveEdge | None = None
        self._tape: RecorderEdge | None = None
        self._opened_s = 0.0
        self._refreshed_s = 0.0
        self.steering = Steering(config, self._from_watch, self._again, self.notes)
        self.steering.routes.on_leads = lambda group, uplinks: self.submit(ev.GroupLeads(group=group, uplinks=uplinks))
        self._watch = WatchEdge(
            config.prefixes or EVERYWHERE,
            self._from_watch,
            self._on_uplink,
            configured=[
                UplinkInfo(one.name, gateway4=one.gateway4 or "", gateway6=one.gateway6 or "") for one in config.uplinks
            ],
            own_port_ids=self.steering.port_ids,
            owners=self.steering.routes.owners,
            vrf=config.routes.vrf,
        )
        self._watch.on_routes = self._on_routes
        self._hook = HookEdge(config.escalate.hook, config.escalate.timeout_s)
        self._infos: dict[str, UplinkInfo] = {}
        self.senses = Senses(
            config, own_namespace=not namespace.name, names=names, fabric=fabric, submit=self.submit, spawn=spawn,
            clock=clock, notes=self.notes,
        )  # fmt: skip
        self._early: list[ev.Event] = []
        self.driver: Driver | None = None
        self.core: Core | None = None

    # life

    def open(self) -> None:
        """Wire everything inside the namespace. Raises ConfigError, OSError or NotPermittedError; what only takes a
        rung away is noted instead."""
        with self.namespace:
            self._watch.open()
            settings = self._settings()
            self.steering.open(settings, steers=self.acting and self.attends)
            rungs = tuple(rung for rung in settings.rungs if self.attends and rung not in self.steering.off)
            settings = msgspec.structs.replace(settings, rungs=rungs)
            self.core = Core(settings)
            self._open_tape(settings)
            if self.attends:
                self.senses.open_probing(settings)
                if self._queue_pairs is not None and self.probes is not None:
                    self._queue_pairs.on_again.add(self.probes.ask_more)
            self.senses.open_sockets(settings)
            self.steering.open_tunnels(settings, self.probes, self.senses.traces, self._infos.values())
            self._open_moves()
        relabels = 1 in rungs and settings.mode == "act"
        if relabels and self.senses.traces is not None:
            self.senses.traces.relabelled()
        carriers = Carriers(
            routes=self.steering.routes, labels=self.steering.labels, tunnels=self.steering.tunnels, probes=self.probes,
            traces=self.senses.traces, sockets=self.senses.sockets, moves=self._moves, echoes=self.senses.echoes,
            hook=self._hook, journal=self.journal, clock=self._clock, address=settings.address,
            relabels=relabels, removed=self.steering.removed,
            submit=self.submit, spawn=self._spawn,
        )  # fmt: skip
        self.driver = Driver(self.core, carriers.table(), self._clock.now_s, self._tape, carriers.tell)
        self._opened_s = self._refreshed_s = self._clock.now_s()
        with self.namespace:
            for info in self._infos.values():
                self.senses.tell_uplink(info)
        for event in self._early:
            self.driver.submit(event)
        self._early.clear()
        for peer in self.config.peers if self.attends else ():
            self.submit(ev.PeerKnown(peer=peer, name=self._names.get(peer, "")))
        for _ in self.poll():
            pass
        self.driver.open()

    def poll(self) -> Iterator[None]:
        """What is done about once a second: look at the sockets, refresh what would expire, resolve gateways. A piece
        at a time; nothing is done that the caller does not ask for."""
        for piece in self._pieces(self._clock.now_s()):
            if self.closed:
                return
            with self._faults.caught("a turn of an agent"):
                piece()
            yield

    def _pieces(self, now_s: float) -> list[Callable[[], None]]:
        def look() -> None:
            sends = self._queue_pairs.take_sent() if self._queue_pairs is not None else ()
            self.senses.poll(now_s, self._also_active(), sends)

        works = [self._watch.resolve_gateways]
        if self._moves is not None:
            works.append(self._moves.listen)
        if self.steering.steers:
            works.append(self._spare_queue_pairs)
        if self.steering.tunnels is not None:
            works.append(self.steering.tunnels.mend_end)
        if now_s - self._refreshed_s >= REFRESH_S and self.steering.steers:
            self._refreshed_s = now_s
            works += self.steering.refreshes()
        return [look, self._tune, *(partial(self._try, work) for work in works)]

    def _tune(self) -> None:
        """Tune new sockets' timers in short slices, so that looking for their owners never holds up the probes."""
        sockets = self.senses.sockets
        if self._timers is None or sockets is None or self.closed:
            return
        if self._timers.poll(sockets.sockets(), self.namespace.name):
            asyncio.get_running_loop().call_later(TUNE_AGAIN_S, self._tune)

    def close(self) -> None:
        """Stop, and hand the traffic back to the kernel. Safe to call after a failed `open`."""
        self.closed = True
        self.steering.end_is_near()
        self._say_goodbye()
        if self.driver is not None:
            self.driver.close()
        if self._queue_pairs is not None and self.probes is not None:
            self._queue_pairs.on_again.discard(self.probes.ask_more)
        self.senses.close()
        if self._moves is not None:
            self._moves.close()
        if not self.namespace.gone:
            self.steering.hand_back(self.namespace)
        self.steering.let_go()
        self._watch.close()
        if self._tape is not None:
            self._tape.close()

    def _say_goodbye(self) -> None:
        """Tell the peers that what follows is no failure of this host; nobody waits for an answer."""
        if self.probes is None or self.core is None:
            return
        peers = tuple(self.core.world.table.peers)
        word = ev.Notice(kind="goodbye", link="", origin=self.core.settings.host, seq=GOODBYE_SEQ, ttl_s=1.0)
        try:
            self.probes.send_notice(cmd.SendNotice(cmd_id=0, cause="", notice=word, peers=peers))
        except (OSError, RuntimeError, ValueError) as error:
            logger.warning("no goodbye was said", error=str(error))

    @property
    def probes(self) -> ProbeEdge | None:
        """None where no peer is probed."""
        return self.senses.probes

    @property
    def roce(self) -> RoceProbes | None:
        """Datagrams through RDMA devices, where they are configured."""
        return self.probes.roce if self.probes is not None else None

    @property
    def faults(self) -> int:
        """Faults of linkpass itself that were met here; the log has each."""
        of_driver = self.driver.faults if self.driver is not None else 0
        return self._faults.count + of_driver + self.senses.faults

    @property
    def first_verdict_at_s(self) -> float | None:
        """Monotonic; `first_verdict_s` counts from `open`."""
        return None if self.first_verdict_s is None else self._opened_s + self.first_verdict_s

    @property
    def settled(self) -> bool:
        """Whether all that has come in is handled, and all that followed from it is told."""
        return self.driver is None or self.driver.settled

    @property
    def acting(self) -> bool:
        return self.config.mode == "act"

    def submit(self, event: ev.Event) -> None:
        """An event for the core; before `open` is done it waits."""
        if isinstance(event, ev.PeerKnown) and not event.name and event.peer in self._names:
            event = ev.PeerKnown(peer=event.peer, name=self._names[event.peer])
        if isinstance(event, ev.PathEvidence) and self.first_verdict_s is None and event.evidence != "unknown":
            self.first_verdict_s = self._clock.now_s() - self._opened_s
        if self.driver is None:
            self._early.append(event)
        else:
            self.driver.submit(event)

    # wiring

    def _settings(self) -> CoreSettings:
        found = self._watch.own_address(AF_INET6) or self._watch.own_address(AF_INET)
        config = self.config
        if self.namespace.name:  # the configured address is that of the daemon's own namespace
            config = msgspec.structs.replace(config, address="")
        try:
            settings = core_settings(config, address=found)
            self.attends = bool(config.prefixes)
        except ConfigError as error:
            if config.prefixes and not (config.netns or self.namespace.name):
                raise
            settings = core_settings(msgspec.structs.replace(config, address="::1"))
            if config.prefixes:
                self.notes.append(f"{self._where}uplinks are watched and nothing is steered: {error}")
        if not config.prefixes:
            self.notes.append("no prefixes configured: uplinks are watched, no peer is probed and nothing is steered")
        if self.namespace.name:
            settings = msgspec.structs.replace(settings, host=f"{settings.host}.{self.namespace.name}")
        return settings

    @property
    def _where(self) -> str:
        """The beginning of a note about a namespace that is not the daemon's own."""
        return f"network namespace {self.namespace.name}: " if self.namespace.name else ""

    def _open_moves(self) -> None:
        steer = self.config.rdma.steer
        if not steer.live_qps or not self.acting or self._queue_pairs is None or self._undo is None:
            return
        if self.probes is None:
            self.notes.append("rdma.steer.live_qps: without probes no queue pair is moved")
            return
        known = Known(
            flows=lambda: self._queue_pairs.flows if self._queue_pairs is not None else (),
            family=self._queue_pairs.family,
            uplink=self._uplink_towards,
            trusted=lambda: self.core.trusted_uplinks(self._clock.now_s()) if self.core is not None else (),
            ask_again=self._queue_pairs.ask_again,
        )
        self._moves = MoveEdge(
            known, Signer(read_key(self.config)), self._undo, self.submit, self._clock.now_s,
            port=steer.port, device=self.config.routes.vrf, patience=Patience(whole_s=steer.patience_s),
        )  # fmt: skip
        self._moves.open()

    @property
    def moves_view(self) -> dict[str, Any] | None:
        """Of queue pairs that are moved; None where none may be."""
        return self._moves.view() if self._moves is not None else None

    def ways_to(self, address: str) -> tuple[str, ...]:
        """The uplinks that rung 2 can choose from for an address."""
        return self.steering.routes.ways_to(address)

    def _uplink_towards(self, own: str, peer: str) -> str:
        try:
            return self.steering.routes.blind_uplink(peer, own)
        except OSError:
            return ""

    def _open_tape(self, settings: CoreSettings) -> None:
        if not self._record_to:
            return
        config = self.config
        tape = RecorderEdge(
            self._record_to,
            settings,
            version=__version__,
            wall=self._clock.wall(),
            max_bytes=config.recorder.max_bytes,
        )
        try:
            tape.open()
        except OSError as error:
            self.notes.append(f"nothing is recorded: {error}")
        else:
            self._tape = tape

    # what the kernel tells

    def _from_watch(self, event: ev.Event) -> None:
        if isinstance(event, ev.SteeringLost) and not self.steering.lost(event.what):
            return  # one removal, told route by route
        self.submit(event)

    def _on_routes(self) -> None:
        """Others' routes are not what they were: ours lie over those that are there, and lead where those lead."""
        if self.driver is not None and self.steering.steers:
            self._try(self.steering.routes.refresh)
            self._try(lambda: self.steering.set_tunnels(self._infos.values()))

    def _on_uplink(self, info: UplinkInfo) -> None:
        before = self._infos.get(info.name)
        self._infos[info.name] = info
        self.steering.set_ways(self._infos.values())
        if self.driver is not None:
            with self.namespace:
                self.senses.tell_uplink(info)
            if self.steering.tunnels is not None and concerns_tunnels(before, info):
                self._again(lambda: self.steering.set_tunnels(self._infos.values()))
            if self.steering.steers and info.usable and before is not None and not before.usable:
                for work in self.steering.refreshes():
                    self._again(work)

    # inside

    def _again(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._try, work)

    def _try(self, work: Callable[[], None]) -> None:
        """In the agent's namespace, for what may need a new socket or process there. Raises nothing."""
        with self._faults.caught("work in a network namespace"):
            try:
                with self.namespace:
                    work()
            except (OSError, RuntimeError) as error:
                logger.warning("refresh failed", error=str(error))

    def _spare_queue_pairs(self) -> None:
        """Soft-RoCE's outlive a loss of carrier, from the first of them that is seen on."""
        pairs = self._queue_pairs
        if pairs is not None and any(pairs.family(flow.qp.device) == "rxe" for flow in pairs.flows):
            self.steering.spare_queue_pairs(self._infos.values(), self._clock.now_s())

    @property
    def uplinks(self) -> dict[str, UplinkInfo]:
        return dict(self._infos)


def journal_folder(config: Config) -> Path:
    """Where journals lie; a folder that cannot be made is the caller's error to show."""
    folder = Path(config.journal.dir)
    os.makedirs(folder, exist_ok=True)
    return folder
