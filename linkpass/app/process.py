"""The process around the agents: signals, the control socket, metrics, the watchdog, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import ipaddress
import os
import resource
import signal
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from linkpass import __version__, log
from linkpass.app.agent import Agent, journal_folder
from linkpass.app.host import host_edge
from linkpass.app.namespace import Namespace
from linkpass.app.picture import netns_rows, picture
from linkpass.app.rdma import Rdma
from linkpass.app.undoing import undo_journal
from linkpass.config import Config
from linkpass.config.fabric_file import FabricFileError, read_fabric
from linkpass.core.events import Event
from linkpass.edges import moves
from linkpass.edges.clock import Clock
from linkpass.edges.journal import JournalEdge
from linkpass.edges.kernel.egress import EgressEdge
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.edges.kernel.routes import RouteEdge
from linkpass.edges.kernel.tunnels import sweep_tunnels
from linkpass.edges.notify import Notifier
from linkpass.edges.tcp_timers import KIND, TcpTimerEdge
from linkpass.edges.undo import UndoJournal
from linkpass.faults import Faults

if TYPE_CHECKING:
    from topology.model import Fabric
    from topology.sources.cables import Source

TICK_S = 1.0
REALTIME_PRIORITY = 5
"""Above ordinary work, below the kernel's own real-time threads (50)."""
REALTIME_LIMIT_US = 200_000
"""RLIMIT_RTTIME: a daemon that computes this long without waiting is broken, and the kernel ends it."""
SETTLE_LOOK_S, SETTLE_LOOKS = 0.001, 2000
"""An operator's answer waits until all that he caused is told, looks so often, and for two seconds at most: the drain
of an uplink has a few words for each peer."""
CLEANUP_S = 5.0
"""`cleanup` waits for so long for queues that drain."""

logger = structlog.get_logger()


def main(config: Config, path: str | Path | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit status. Raises ConfigError, ControlError, PermissionError at the start."""
    log.set_up()
    return asyncio.run(Daemon(config, path).run())


class Daemon:
    """The faces and the agents behind them."""

    def __init__(self, config: Config, path: str | Path | None = None) -> None:
        self.config = config
        self._path = path
        self._clock = Clock()
        self._started_s = self._clock.now_s()
        self._journal = JournalEdge(config.journal.dir, max_bytes=config.journal.max_bytes)
        self._undo: UndoJournal | None = None
        self._leftovers: moves.Leftovers | None = None
        self._left: list[str] = []
        """Queue pairs that an earlier run has changed and that could not be put back yet."""
        self._timers: TcpTimerEdge | None = None
        self._rdma = Rdma(
            config, self._clock, lambda event: self._agents[0].submit(event), lambda: self._agents[0].uplinks,
            lambda: self._agents[0].roce if self._agents else None,
        )  # fmt: skip
        self._host = host_edge(config.health, lambda event: self._agents[0].submit(event))
        self._agents: list[Agent] = []
        self._faults = Faults()
        self._tasks: asyncio.TaskGroup | None = None
        self._notes: list[str] = []
        self._source: Source | None = None
        self._called: dict[str, str] = {}
        """Address -> name."""
        self._refused: dict[str, str] = {}
        """Namespaces that could not be attended, and why."""

    async def run(self) -> int:
        """Run to the end. Probing begins before the web server is even loaded: that takes a third of a second."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        notifier = Notifier.from_environment()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                self._open()
                async with AsyncExitStack() as doors:
                    await self._open_doors(doors)
                    self._settle()
                    notifier.ready(f"{self.config.mode}s")
                    while not stop.is_set():
                        await self._tick(stop, notifier)
                    notifier.stopping()
            finally:
                self._close()
        return 0

    async def _open_doors(self, doors: AsyncExitStack) -> None:
        """The control socket, without which nobody could ask why, and the metrics, without which work goes on."""
        control = await asyncio.to_thread(importlib.import_module, "linkpass.edges.control")
        await doors.enter_async_context(control.ControlEdge(self.config.control.socket, self))
        if not self.config.metrics.listen:
            return
        metrics = await asyncio.to_thread(importlib.import_module, "linkpass.edges.metrics")
        address, _, port = self.config.metrics.listen.rpartition(":")
        try:
            await doors.enter_async_context(metrics.MetricsEdge(address.strip("[]"), int(port), self.metrics))
        except metrics.MetricsError as error:
            self._notes.append(str(error))
            logger.warning(str(error))

    # life

    def _open(self) -> None:
        self._journal.open()
        self._open_timers()
        self._read_fabric()
        self._called = self._names()
        for name in ("", *self.config.netns):
            self._attend(name)
        self._host.open()
        for note in (*self._all_notes(), *self._rdma.open()):
            logger.warning(note)

    def _attend(self, name: str) -> None:
        """Open an agent in a namespace. What goes wrong in the daemon's own is raised; another one that is not there
        yet is looked for again, since jobs come and go."""
        space = Namespace(name)
        if space.inode() is None:
            return
        agent = Agent(
            self.config,
            space,
            clock=self._clock,
            journal=self._journal,
            names=self._called,
            fabric=self._fabric(),
            spawn=self._spawn,
            timers=self._timers,
            record_to=self.config.recorder.file if not name else "",
            also_active=self._rdma.peers if not name else dict,
            queue_pairs=self._rdma.queue_pairs if not name else None,
            undo=self._undo,
        )
        try:
            agent.open()
        except BaseException as error:
            agent.close()
            if not name or not isinstance(error, OSError):
                raise
            if self._refused.get(name) != str(error):
                logger.warning("a network namespace cannot be attended", netns=name, error=str(error))
            self._refused[name] = str(error)
        else:
            self._agents.append(agent)
            self._refused.pop(name, None)

    def _visit(self) -> None:
        """Namespaces that have ended are let go, those that have begun are attended."""
        for agent in [one for one in self._agents if one.namespace.gone]:
            logger.info("a network namespace has ended", netns=agent.namespace.name)
            self._agents.remove(agent)
            self._faults.count += agent.faults
            with self._faults.caught("letting a network namespace go"):
                agent.close()
        attended = {agent.namespace.name for agent in self._agents}
        for name in self.config.netns:
            if os.path.basename(name) not in attended:
                with self._faults.caught("attending a network namespace"):
                    self._attend(name)

    def _open_undo(self) -> None:
        """What an earlier run has left is put back, also by a daemon that only observes."""
        undo = undo_journal(journal_folder(self.config))
        if self.config.mode != "act" and not undo.path.exists():
            return
        undo.open()
        self._undo = undo
        self._notes += undo.unread
        self._leftovers = moves.Leftovers(undo)
        timers = self.config.tcp_timers
        self._timers = TcpTimerEdge(undo, timers.rto_min_us, timers.rto_max_ms)
        with self._faults.caught("putting TCP timers back"):
            if restored := self._timers.restore():
                logger.info("restored what an earlier run had changed", sockets=restored)
        with self._faults.caught("putting queue pairs back"):
            self._put_back()

    def _put_back(self) -> None:
        """Queue pairs that an earlier run had stopped go on; until the last one does, or is gone."""
        if self._leftovers is None:
            return
        put, left = self._leftovers.again()
        if put:
            logger.warning("queue pairs that an earlier run had changed are put back", count=put)
        for line in left if left != self._left else ():
            logger.error(line)
        self._left = left
        if not left:
            self._leftovers = None

    def _open_timers(self) -> None:
        self._open_undo()
        if self._timers is None or not self.config.tcp_timers.enabled or self.config.mode != "act":
            self._timers = None
            return
        try:
            self._timers.open()
        except OSError as error:
            self._notes.append(f"TCP timers stay as they are: {error}")
            self._timers = None

    def _settle(self) -> None:
        """Once everything is loaded: what lives for ever is taken out of the garbage collector's rounds."""
        gc.collect()
        gc.freeze()
        if self.config.realtime:
            try:
                resource.setrlimit(resource.RLIMIT_RTTIME, (REALTIME_LIMIT_US, REALTIME_LIMIT_US))
                flags = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(0, flags, os.sched_param(REALTIME_PRIORITY))
            except (OSError, ValueError) as error:
                self._notes.append(f"realtime is not to be had: {error}")
                logger.warning(self._notes[-1])

    async def _tick(self, stop: asyncio.Event, notifier: Notifier) -> None:
        try:
            async with asyncio.timeout(TICK_S):
                await stop.wait()
        except TimeoutError:
            await self._turn()
            notifier.watchdog()

    async def _turn(self) -> None:
        """Once a second, a part at a time with the loop in between: probes are answered meanwhile. A fault of ours in
        one part must not keep the others from their work."""
        with self._faults.caught("putting queue pairs back"):
            self._put_back()
        with self._faults.caught("looking for network namespaces"):
            self._visit()
        for agent in list(self._agents):
            with self._faults.caught("a turn of an agent"):
                for _ in agent.poll():
                    await asyncio.sleep(0)
        with self._faults.caught("reading this host's own evidence"):
            for line in self._host.poll(self._clock.now_s()):
                logger.info(line)
        await asyncio.sleep(0)
        with self._faults.caught("a turn of RDMA"):
            for lines in self._rdma.poll():
                for line in lines:
                    logger.warning(line)
                await asyncio.sleep(0)

    def _close(self) -> None:
        """Whatever one end meets, the others come to theirs: traffic is handed back."""
        ends = [self._host.close, self._rdma.close, *(agent.close for agent in self._agents)]
        ends += [one.close for one in (self._timers, self._undo) if one is not None]
        for end in (*ends, self._journal.close):
            with self._faults.caught("the end of a part"):
                end()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            with self._faults.caught("work in the background"):
                await work

        assert self._tasks is not None
        self._tasks.create_task(guarded())

    def _read_fabric(self) -> None:
        """Before anything is probed: a large file takes a second."""
        if not self.config.fabric.file:
            return
        try:
            self._source = read_fabric(Path(self.config.fabric.file))
        except FabricFileError as error:
            self._notes.append(f"the fabric's file is not used: {error}")

    def _fabric(self) -> Fabric | None:
        return self._source.fabric if self._source is not None else None

    def _names(self) -> dict[str, str]:
        """Address -> name, from the configuration's table and file, then from what the fabric's file tells; addresses
        as `ipaddress` prints them."""
        names: dict[str, str] = dict(self._source.addresses) if self._source is not None else {}
        if self.config.fabric.names_file:
            try:
                names.update(msgspec.json.decode(Path(self.config.fabric.names_file).read_bytes(), type=dict[str, str]))
            except (OSError, msgspec.MsgspecError) as error:
                self._notes.append(f"{self.config.fabric.names_file}: {error}")
        names.update(self.config.fabric.names)
        return {str(ipaddress.ip_address(address)): name for address, name in names.items()}

    @property
    def faults(self) -> int:
        """Faults of linkpass itself since the start."""
        return self._faults.count + sum(agent.faults for agent in self._agents)

    def _all_notes(self) -> list[str]:
        refused = [f"network namespace {name}: {why}" for name, why in self._refused.items()]
        attended = {agent.namespace.name for agent in self._agents} | self._refused.keys()
        faults = self.faults
        waited = [name for name in self.config.netns if os.path.basename(name) not in attended]
        return [
            *self._notes,
            *self._left,
            *(note for agent in self._agents for note in agent.notes),
            *refused,
            *(f"network namespace {name}: not there yet" for name in waited),
            *(
                [f"{faults} command(s) or turn(s) met a fault of linkpass itself: see the log, and please report it"]
                if faults
                else []
            ),
        ]

    # faces

    def view(self) -> Mapping[str, Any]:
        shown = picture(self._agents, self._clock.now_s(), self._started_s)
        shown["notes"] = self._all_notes()
        shown["version"] = __version__
        shown["faults"] = self.faults
        shown["rdma"] = self._rdma_view(shown["rungs"])
        shown["host_sources"] = self._host.snapshot(self._clock.now_s())
        if self._timers is not None:
            shown["tcp_timers"] = msgspec.to_builtins(self._timers.summary())
        return shown

    def _rdma_view(self, rungs: Mapping[str, Any]) -> Mapping[str, Any]:
        first = self._agents[0]
        return {**self._rdma.view(rungs, first.ways_to), "moves": first.moves_view}

    async def namespaces(self) -> Sequence[Any]:
        policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)

        def look() -> Sequence[Any]:
            # A thread that the job keeps from running could hold on to the interpreter's lock: it runs as we do.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, policy, parameters)
            return netns_rows(self._agents)

        return await asyncio.to_thread(look)

    def paths(self) -> Sequence[Any]:
        paths: list[Any] = picture(self._agents, self._clock.now_s(), self._started_s)["paths"]
        return paths

    def why(self, name: str) -> Sequence[Any]:
        return self._journal.why(name)

    def causes(self) -> Sequence[str]:
        return self._journal.causes()

    def journal(self, since: int) -> Sequence[Any]:
        return self._journal.since(since)

    def links(self) -> Iterable[str]:
        """Links and directions of the fabric's file."""
        fabric = self._fabric()
        return () if fabric is None else (name for link in fabric.links for name in (link.id, *link.directions()))

    def metrics(self) -> bytes:
        from linkpass.edges.metrics import exposition

        def seen() -> dict[str, Any]:
            shown = picture(self._agents, self._clock.now_s(), self._started_s)
            sources = self._host.snapshot(self._clock.now_s())
            rdma = self._rdma_view(shown["rungs"])
            return {**shown, "faults": self.faults, "rdma": rdma, "host_sources": sources}

        return exposition(seen)

    def arrived(self, rank: int, step: int) -> bool:
        told = [agent.senses.arrived(rank, step) for agent in self._agents]  # each of them
        return any(told)

    async def submit(self, event: Event) -> Mapping[str, Any]:
        """Hand an operator's event to every core, and say what was decided at once."""
        last = self._journal.since(0)
        before = last[-1].seq if last else 0
        for agent in self._agents:
            agent.submit(event)
        for _ in range(SETTLE_LOOKS):
            await asyncio.sleep(SETTLE_LOOK_S)  # a real wait: turns without one count against RLIMIT_RTTIME
            if all(agent.settled for agent in self._agents):
                break
        entries = self._journal.since(before)
        cause = next((entry.cause for entry in entries if entry.cause), "")
        return {"cause": cause, "entries": msgspec.to_builtins(entries)}


def cleanup(config: Config) -> list[str]:
    """Remove what carries our marks, restore what could not be marked; in words. Raises OSError."""
    done: list[str] = []
    folder = Path(config.journal.dir)
    if folder.is_dir():
        undo = undo_journal(folder)
        undo.open()
        done += undo.unread
        try:
            put, left = moves.restore(undo, CLEANUP_S)
            if put:
                done.append(f"put {put} queue pair(s) back ({moves.KIND})")
            done += left
            timers = TcpTimerEdge(undo, config.tcp_timers.rto_min_us, config.tcp_timers.rto_max_ms)
            restored = timers.restore()
            if restored:
                done.append(f"restored the TCP timers of {restored} socket(s) ({KIND})")
        finally:
            undo.close()
    for name in ("", *config.netns):
        space = Namespace(name)
        with space:
            routes = RouteEdge(config.prefixes, metric=config.routes.metric, vrf=config.routes.vrf)
            routes.open()
            try:
                removed = routes.sweep() + LabelEdge(probe_port=config.probing.port).sweep()
                removed += EgressEdge().sweep() + sweep_tunnels()
            finally:
                routes.close()
        done += [f"removed {what}" + (f" in {name}" if name else "") for what in removed]
    return done
