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
        remote(msgspec.structs.replace(KNOWN, started=KNOWN.started - 1)).stop(1.0)


def test_a_program_that_has_closed_its_device_is_refused() -> None:
    for step in (
        lambda one: one.stop(1.0),
        lambda one: one.address(TO.gid, TO.gid),
        lambda one: one.resume(),
        lambda one: one.back(),
    ):
        with pytest.raises(RefusedError, match="has closed its device"):
            step(remote(KNOWN))
