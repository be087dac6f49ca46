"""`linkpass lab udp-port`: what it refuses, and what it writes down before it changes anything."""

from __future__ import annotations

import os
from pathlib import Path

import click.testing
import msgspec
import pytest

from linkpass.app.udp_port import change, note, pick
from linkpass.cli import cli
from linkpass.config import Config
from linkpass.config.model import Journal, Rdma, RdmaSteer
from linkpass.edges import moves
from linkpass.edges.journal import NAME, read_journal
from linkpass.edges.undo import JournalBusyError, UndoJournal
from rdma import drivers
from rdma.borrowed import start_ticks
from rdma.flows import Flow, Place
from rdma.nldev import QueuePair, RdmaNetlinkError
from rdma.remote_qp import RefusedError, Target
from rdma.steering import Setting, rungs
from rdma.uverbs import Address, Queried

STARTED = start_ticks(os.getpid()) or 0
QP = QueuePair("mlx5_0", 1, 17, 71, "RC", "RTS", 5, 5, os.getpid())
SEEN = Queried(Address("::ffff:10.9.0.2", 3), 71, 5, 5, "RTS", 1024, False, 12, 1, 14, 6, 7)
FLOW = Flow(QP, "trainer", STARTED, SEEN, Place(0, 4))
TARGET = Target.of(FLOW, "mlx5", os.makedev(231, 192), "port", unproven=True)
ALLOWED = Setting("", "", "", {}, "", lambda _: (), unproven=True)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Config(mode="act"), "rdma.steer.live_qps is off"),
        (Config(rdma=Rdma(steer=RdmaSteer(live_qps=True, unproven=True))), "mode is observe"),
        (Config(mode="act", rdma=Rdma(flows=False, steer=RdmaSteer(live_qps=True))), "rdma.flows is off"),
    ],
)
def test_nothing_is_looked_at_unless_the_configuration_allows_it(config: Config, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        change(config, os.getpid(), 17)


def test_what_is_refused_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "try.toml"
    file.write_text('mode = "act"\n[rdma.steer]\nlive_qps = false\nunproven = true\n')
    ran = click.testing.CliRunner().invoke(cli, ["lab", "udp-port", "1", "17", "--config", str(file)])
    assert ran.exit_code == 1
    assert "refused: rdma.steer.live_qps is off" in ran.stderr
    too_low = click.testing.CliRunner().invoke(cli, ["lab", "udp-port", "1", "17", "--port", "4791"])
    assert too_low.exit_code == 2


@pytest.mark.netns  # needs root
def test_every_attempt_is_in_the_journal(tmp_path: Path) -> None:
    """Here there is no RDMA, or no such process: refused before anything is looked at."""
    config = Config(
        mode="act", journal=Journal(dir=str(tmp_path)), rdma=Rdma(steer=RdmaSteer(live_qps=True, unproven=True))
    )
    with pytest.raises((RefusedError, RdmaNetlinkError)) as refused:
        change(config, 2**22 - 1, 17)
    (entry,) = read_journal(tmp_path / NAME)
    assert entry.what == f"another UDP source port for queue pair 17 of process {2**22 - 1}, by hand: refused"
    assert (entry.why, entry.level) == (str(refused.value), "warning")
    assert {file.name for file in tmp_path.iterdir()} == {NAME}  # there is nothing to undo


@pytest.mark.netns
def test_while_a_daemon_runs_nothing_is_done_by_hand(tmp_path: Path) -> None:
    config = Config(mode="act", journal=Journal(dir=str(tmp_path)), rdma=Rdma(steer=RdmaSteer(live_qps=True)))
    daemon = UndoJournal(tmp_path)
    daemon.open()
    with pytest.raises(JournalBusyError):
        change(config, os.getpid(), 17)
    daemon.close()


def test_a_queue_pair_is_named_by_its_process_and_number() -> None:
    elsewhere = msgspec.structs.replace(FLOW, qp=msgspec.structs.replace(QP, device="mlx5_1"))
    other = msgspec.structs.replace(FLOW, qp=msgspec.structs.replace(QP, lqpn=18))
    assert pick([other, FLOW], os.getpid(), 17) == FLOW
    with pytest.raises(RefusedError, match=f"process {os.getpid()} has no connected queue pair of number 19"):
        pick([other, FLOW], os.getpid(), 19)
    with pytest.raises(RefusedError, match="has 2 connected queue pairs of number 17"):
        pick([FLOW, elsewhere], os.getpid(), 17)


def test_the_port_to_go_back_to_is_the_one_that_it_had_at_first(tmp_path: Path) -> None:
    undo = UndoJournal(tmp_path)
    undo.open()
    for port in (0xC111, 0xC222):
        note(undo, msgspec.structs.replace(TARGET, port=port))
    note(undo, msgspec.structs.replace(TARGET, port=0xC333, qpn=18, handle=5))
    undo.close()
    undo.open()
    found = [moves.target_of(one) for one in undo.pending(moves.KIND).values()]
    assert [(one.qpn, one.step, one.port) for one in found] == [(17, "port", 0xC111), (18, "port", 0xC333)]
    undo.close()


def test_what_was_written_down_of_a_program_that_is_gone_is_struck_out(tmp_path: Path) -> None:
    """This process holds no RDMA device open: for the journal its queue pair has ended."""
    undo = UndoJournal(tmp_path)
    undo.open()
    note(undo, msgspec.structs.replace(TARGET, port=0xC111))
    assert moves.restore(undo) == (1, [])
    assert undo.pending(moves.KIND) == {}
    undo.close()


@pytest.mark.parametrize(
    ("flow", "setting", "why"),
    [
        (FLOW, msgspec.structs.replace(ALLOWED, unproven=False), "mlx5: another UDP source port was never tried on"),
        (FLOW, msgspec.structs.replace(ALLOWED, live_qps="mode is observe"), "mode is observe"),
        (msgspec.structs.replace(FLOW, place=None, why="not permitted"), ALLOWED, "not permitted"),
        (msgspec.structs.replace(FLOW, qp=msgspec.structs.replace(QP, state="RTR")), ALLOWED, "it only answers"),
        (msgspec.structs.replace(FLOW, qp=msgspec.structs.replace(QP, type="XRC_INI")), ALLOWED, "XRC_INI does not"),
        (FLOW, ALLOWED, "by hand only: linkpass lab udp-port"),
    ],
)
def test_status_says_why_the_daemon_gives_no_other_port(flow: Flow, setting: Setting, why: str) -> None:
    shown = rungs(flow, drivers.of("mlx5"), setting)
    assert shown["port"].startswith(why)
    assert shown["planned"].startswith("mlx5: a planned move is 'no' in the table of drivers")
