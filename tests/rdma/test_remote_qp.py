"""What must not be steered is refused before anything is touched. Real steps: `test_rxe_guest.py`."""

from __future__ import annotations

import os

import msgspec
import pytest

from rdma import drivers
from rdma.borrowed import start_ticks
from rdma.flows import Flow, Place
from rdma.nldev import QueuePair
from rdma.remote_qp import RefusedError, RemoteQp, Target
from rdma.uverbs import Address, Queried

TO = Address("fd00:ff::2", 1)
KNOWN = Flow(
    qp=QueuePair("rxe0", 1, 17, 71, "RC", "RTS", 5, 5, os.getpid()), program="writer",
    started=start_ticks(os.getpid()) or 0,
    to=Queried(TO, 71, 5, 5, "RTS", 1024, False, 12, 1, 14, 6, 7), place=Place(0, 4),
)  # fmt: skip


def remote(flow: Flow, family: str = "rxe") -> RemoteQp:
    return RemoteQp(Target.of(flow, family, os.makedev(231, 192)))


@pytest.mark.parametrize("family", ["mlx5", "mlx4", "bnxt_re", "brand_new"])
def test_a_driver_that_does_not_allow_it_or_is_not_known_is_refused(family: str) -> None:
    with pytest.raises(RefusedError, match="in the table of drivers"):
        remote(KNOWN, family)


@pytest.mark.parametrize(
    ("kernel", "refused"), [("6.1.0-40-amd64", True), ("6.12.95+deb12-amd64", False), ("7.3.4", False)]
)
def test_a_kernel_whose_queues_drain_for_ever_is_refused(kernel: str, refused: bool) -> None:
    assert bool(drivers.of("rxe").refuses_move(kernel)) == refused


def test_a_queue_pair_that_is_not_certain_is_refused() -> None:
    unsure = msgspec.structs.replace(KNOWN, place=None, why="another queue pair of its program looks the same")
    with pytest.raises(RefusedError, match="queue pair 17 of writer: another queue pair"):
        remote(unsure)


def test_a_program_that_is_another_one_now_is_refused() -> None:
    with pytest.raises(RefusedError, match="is another one than before"):
        remote(msgspec.structs.replace(KNOWN, started=KNOWN.started - 1)).stop()


def test_a_program_that_has_closed_its_device_is_refused() -> None:
    for step in (
        lambda one: one.stop(),
        lambda one: one.address(TO.gid, TO.gid),
        lambda one: one.resume(),
        lambda one: one.back(),
    ):
        with pytest.raises(RefusedError, match="has no such queue pair any more"):
            step(remote(KNOWN))


MLX5 = msgspec.structs.replace(KNOWN, qp=QueuePair("mlx5_0", 1, 17, 71, "RC", "RTS", 5, 5, os.getpid()))


def port_of(flow: Flow, family: str = "mlx5", *, unproven: bool = True) -> RemoteQp:
    target = Target.of(flow, family, os.makedev(231, 192), "port", unproven=unproven)
    return RemoteQp(msgspec.structs.replace(target, port=0xC123))


def test_what_no_hardware_was_seen_to_do_is_refused_unless_the_operator_allows_it() -> None:
    with pytest.raises(RefusedError, match=r"never tried on hardware: rdma\.steer\.unproven allows it"):
        port_of(MLX5, unproven=False)
    port_of(MLX5)


@pytest.mark.parametrize("family", ["rxe", "mlx4", "bnxt_re", "irdma", "efa", "hfi1", "brand_new"])
def test_another_port_is_for_mlx5_alone(family: str) -> None:
    with pytest.raises(
        RefusedError,
        match=r"takes no other UDP source port|takes another UDP source port is not known",
    ):
        port_of(MLX5, family)


@pytest.mark.parametrize("kind", ["XRC_INI", "XRC_TGT", "UD", "DRIVER"])
def test_only_rc_and_uc_take_another_port(kind: str) -> None:
    with pytest.raises(RefusedError, match=f"{kind} does not take another UDP source port"):
        port_of(msgspec.structs.replace(MLX5, qp=msgspec.structs.replace(MLX5.qp, type=kind)))


def test_a_queue_pair_that_is_not_certain_keeps_its_port() -> None:
    with pytest.raises(RefusedError, match="another queue pair of its program looks the same"):
        port_of(msgspec.structs.replace(MLX5, place=None, why="another queue pair of its program looks the same"))


def test_a_program_that_is_another_one_now_keeps_its_port() -> None:
    other = port_of(msgspec.structs.replace(MLX5, started=MLX5.started - 1))
    for step in (lambda: other.present_port(), lambda: other.udp_port(0xC124), lambda: other.back()):
        with pytest.raises(RefusedError, match="is another one than before"):
            step()


def test_without_a_port_to_go_back_to_none_is_changed() -> None:
    target = Target.of(MLX5, "mlx5", os.makedev(231, 192), "port", unproven=True)
    with pytest.raises(RefusedError, match="the port to go back to was not written down"):
        RemoteQp(target).udp_port(0xC124)


def test_what_was_found_fit_for_one_step_does_not_take_the_other() -> None:
    """mlx5 knows no way from RTS to SQD."""
    moved, ported = remote(KNOWN), port_of(MLX5)
    for step in (lambda: ported.stop(), lambda: ported.address(TO.gid, TO.gid), lambda: ported.resume()):
        with pytest.raises(RefusedError, match="fit for a port, not a move"):
            step()
    with pytest.raises(RefusedError, match="fit for a move, not a port"):
        moved.present_port()


def test_a_target_written_down_by_an_older_daemon_is_for_a_move() -> None:
    target = Target.of(KNOWN, "rxe", os.makedev(231, 192))
    plain = msgspec.to_builtins(target)
    del plain["step"], plain["port"]
    assert msgspec.convert(plain, Target) == target
