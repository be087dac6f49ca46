"""How each command of the core is carried out: one method a command, and which edge it asks.

What can be done at once hands its outcome back; what takes longer is started, and tells by an event."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from linkpass.app.tunnels import Tunnels
from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.edges.clock import Clock
from linkpass.edges.echoes import EchoEdge
from linkpass.edges.hook import HookEdge
from linkpass.edges.journal import JournalEdge
from linkpass.edges.kernel.labels import LabelEdge
from linkpass.edges.kernel.routes import RouteEdge
from linkpass.edges.moves import MoveEdge
from linkpass.edges.probes import ProbeEdge
from linkpass.edges.sockets import SocketEdge
from linkpass.edges.traces import TraceEdge

Spawn = Callable[[Coroutine[Any, Any, None]], None]
logger = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Carriers:
    """Edges that could not be opened are None. `address`: the one that the job's sockets use; `relabels`: rung 1 is
    armed and rewrites the labels of flows; `removed`: objects whose removal by others the core knows of and has not
    answered yet."""

    routes: RouteEdge
    labels: LabelEdge
    tunnels: Tunnels | None
    probes: ProbeEdge | None
    traces: TraceEdge | None
    sockets: SocketEdge | None
    moves: MoveEdge | None
    echoes: EchoEdge | None
    hook: HookEdge
    journal: JournalEdge
    clock: Clock
    address: str
    relabels: bool
    removed: set[str]
    submit: Callable[[ev.Event], None]
    spawn: Spawn
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The uplinks of each group that was set last."""

    def table(self) -> dict[type[cmd.Command], Callable[..., ev.Event | None]]:
        """What the driver needs: a method for each command."""
        return {
            cmd.SetGroup: self._set_group,
            cmd.SetLabels: self._set_labels,
            cmd.MoveFlows: self._move_flows,
            cmd.SetProbes: self._set_probes,
            cmd.TraceLabels: self._trace,
            cmd.ResolveUplinks: self._resolve,
            cmd.CompareFlows: self._compare,
            cmd.TraceFlows: self._trace_flows,
            cmd.SendNotice: self._send_notice,
            cmd.AskHost: self._ask_host,
            cmd.Escalate: self._escalate,
        }

    def _set_group(self, command: cmd.SetGroup) -> ev.Event:
        started_s = self.clock.now_s()
        self.removed.discard(f"group {command.group}")
        self.members[command.group] = command.uplinks
        try:
            self.routes.set_group(command.group, command.uplinks)
        except OSError as error:
            return ev.GroupFailed(cmd_id=command.cmd_id, group=command.group, why=str(error))
        took_s = self.clock.now_s() - started_s
        return ev.GroupProgrammed(cmd_id=command.cmd_id, group=command.group, took_s=took_s)

    def _set_labels(self, command: cmd.SetLabels) -> ev.Event:
        started_s = self.clock.now_s()
        self.removed.discard(f"labels {command.peer}")
        try:
            if ":" in command.peer:
                self.labels.set_labels(command.peer, command.labels)
            elif self.tunnels is not None:
                self.tunnels.set_labels(command.peer, command.labels)
            elif command.labels:
                raise RuntimeError("there are no tunnels here")
        except (OSError, RuntimeError) as error:
            return ev.LabelsFailed(cmd_id=command.cmd_id, peer=command.peer, why=str(error))
        took_s = self.clock.now_s() - started_s
        return ev.LabelsProgrammed(cmd_id=command.cmd_id, peer=command.peer, took_s=took_s)

    def _move_flows(self, command: cmd.MoveFlows) -> ev.Event | None:
        if self.moves is None:
            return ev.FlowsStay(cmd_id=command.cmd_id, uplink=command.uplink, why="queue pairs cannot be moved here")
        return self.moves.leave(command)

    def _set_probes(self, command: cmd.SetProbes) -> None:
        if self.probes is not None:
            self.probes.set_probes(command)

    def _trace(self, command: cmd.TraceLabels) -> ev.Event | None:
        if self.traces is None:
            why = "nothing is probed here"
            return ev.TraceFailed(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, why=why)
        self._start(self.traces.trace(command))
        return None

    def _resolve(self, command: cmd.ResolveUplinks) -> ev.Event | None:
        """Ask the kernel; where it is too old to answer for a label (before 6.14), trace to the first hop. Some of
        those look at the label when they route anew what we have relabelled (6.12.95), others do not (6.1)."""
        try:
            found = self.routes.uplink_of(command.peer, self.address, command.labels)
        except OSError as error:
            if self.traces is not None and (":" in command.peer or not self.relabels):
                self._start(self.traces.resolve(command, several=self._several(command.peer)))
                return None
            if self.relabels:
                return self._resolve_blind(command)
            return ev.ResolveFailed(cmd_id=command.cmd_id, peer=command.peer, why=str(error))
        return ev.UplinksResolved(cmd_id=command.cmd_id, peer=command.peer, uplink_of=found)

    def _several(self, peer: str) -> bool:
        """Whether the kernel has more than one uplink to pick from."""
        ours = self.members.get(peer) or self.members.get("all")
        return not ours or len(ours) > 1

    def _resolve_blind(self, command: cmd.ResolveUplinks) -> ev.Event:
        try:
            uplink = self.routes.blind_uplink(command.peer, self.address)
        except OSError as error:
            return ev.ResolveFailed(cmd_id=command.cmd_id, peer=command.peer, why=str(error))
        found = dict.fromkeys(command.labels, uplink)
        return ev.UplinksResolved(cmd_id=command.cmd_id, peer=command.peer, uplink_of=found, blind=True)

    def _compare(self, command: cmd.CompareFlows) -> None:
        if self.traces is not None and self.sockets is not None:
            self._start(self.traces.compare(command, self.sockets.flows(command.peer)))

    def _trace_flows(self, command: cmd.TraceFlows) -> ev.Event | None:
        if self.traces is None:
            why = "nothing is probed here"
            return ev.FlowsUntraced(cmd_id=command.cmd_id, peer=command.peer, uplink=command.uplink, why=why)
        self._start(self.traces.trace_flows(command))
        return None

    def _send_notice(self, command: cmd.SendNotice) -> None:
        if self.probes is not None:
            self.probes.send_notice(command)

    def _ask_host(self, command: cmd.AskHost) -> ev.Event | None:
        if self.echoes is None:
            return ev.HostAskFailed(cmd_id=command.cmd_id, peer=command.peer, why="kernels are not asked here")
        self._start(self.echoes.ask(command))
        return None

    def _escalate(self, command: cmd.Escalate) -> None:
        async def tell() -> None:
            self.submit(await self.hook.escalate(command))

        self._start(tell())

    def tell(self, command: cmd.Record, said_s: float) -> None:
        """Words of the core, said at `said_s`: to the journal and the log."""
        self.journal.write(command, said_s, self.clock.wall(said_s))
        log = logger.warning if command.level == "warning" else logger.info
        log(command.what, why=command.why, cause=command.cause, rung=command.rung)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except (OSError, RuntimeError, ValueError) as error:
                logger.warning("a question to the fabric failed", error=repr(error))

        self.spawn(guarded())
