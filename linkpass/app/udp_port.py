"""Another UDP source port for one queue pair of a running program, by hand: the daemon does not do it by itself.

For whoever has mlx5 hardware and wants to see whether it does there what its published interface says."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Literal

import msgspec

from linkpass.app.rdma import steering_off
from linkpass.app.undoing import undo_journal
from linkpass.config import Config
from linkpass.core.commands import Record
from linkpass.edges import moves
from linkpass.edges.clock import Clock
from linkpass.edges.journal import JournalEdge
from linkpass.edges.undo import UndoJournal
from rdma.borrowed import device_number
from rdma.flows import Flow, FlowTable
from rdma.mlx5 import next_port
from rdma.nldev import Nldev, RdmaNetlinkError
from rdma.remote_qp import RefusedError, RemoteQp, Target
from rdma.sysfs import ROOT


class Changed(msgspec.Struct, frozen=True):
    """UDP source ports: `before`, `asked` for, and what the device `told` of it afterwards (0: nothing)."""

    flow: str
    peer: str
    before: int
    asked: int
    told: int


def change(config: Config, pid: int, qpn: int, port: int = 0, root: Path = ROOT) -> Changed:
    """Give it this port, or any other than it has; what came of it is in the journal. RefusedError, RdmaNetlinkError;
    OSError, JournalBusyError while a daemon runs."""
    if why := steering_off(config):
        raise RefusedError(why)
    undo, journal = (
        undo_journal(config.journal.dir),
        JournalEdge(config.journal.dir, max_bytes=config.journal.max_bytes),
    )
    undo.open()
    journal.open()
    what = f"another UDP source port for queue pair {qpn} of process {pid}, by hand"
    try:
        done = _change(undo, config, pid, qpn, port, root)
    except (RefusedError, RdmaNetlinkError) as error:
        _tell(config, journal, f"{what}: refused", str(error), "warning")
        raise
    else:
        _tell(
            config,
            journal,
            f"{what}: {done.before} -> {done.asked}",
            f"the device tells {done.told or 'none'} then",
        )
        return done
    finally:
        journal.close()
        undo.close()


def _change(undo: UndoJournal, config: Config, pid: int, qpn: int, port: int, root: Path) -> Changed:
    with Nldev() as kernel:
        table = FlowTable(kernel, root)
        flow = pick(table.look(time.monotonic()), pid, qpn)
        family, number = table.family(flow.qp.device), device_number(flow.qp.device, root)
    if number is None:
        raise RefusedError(f"{flow.qp.device} has no uverbs device")
    target = Target.of(flow, family, number, "port", unproven=config.rdma.steer.unproven)
    before = RemoteQp(target).present_port()
    target, asked = msgspec.structs.replace(target, port=before), port or next_port(before)
    note(undo, target)
    return Changed(flow.name, flow.peer, before, asked, RemoteQp(target).udp_port(asked))


def _tell(
    config: Config, journal: JournalEdge, what: str, why: str, level: Literal["info", "warning"] = "info"
) -> None:
    clock, cause = Clock(), f"{config.host or socket.gethostname().split('.')[0]}-1"
    journal.write(Record(cmd_id=1, cause=cause, what=what, why=why, rung=1, level=level), clock.now_s(), clock.wall())


def pick(flows: list[Flow], pid: int, qpn: int) -> Flow:
    """RefusedError unless exactly one is meant: two devices may use one number."""
    found = [flow for flow in flows if (flow.qp.pid, flow.qp.lqpn) == (pid, qpn)]
    if len(found) != 1:
        what = f"{len(found)} connected queue pairs" if found else "no connected queue pair"
        raise RefusedError(f"process {pid} has {what} of number {qpn}")
    return found[0]


def note(undo: UndoJournal, target: Target) -> None:
    """Once for a queue pair: the port to go back to is the one that it had at first."""
    there = (moves.target_of(change) for change in undo.pending(moves.KIND).values())
    if not any(one is not None and same(one, target) for one in there):
        undo.note(moves.KIND, [moves.plain(target)])


def same(one: Target, other: Target) -> bool:
    return msgspec.structs.replace(one, port=0, to=other.to) == msgspec.structs.replace(other, port=0)
