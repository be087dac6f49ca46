"""What each driver lets be done to a live queue pair. A table, read from their sources: nothing is ever tried out.

A wrong step kills the connection it should save. What a table does not allow is refused, and where nothing is written,
the answer is no.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Ability = Literal["tried", "published", "no", "not known"]
"""`tried`: done on such a device (docs/rdma.md says what the tests prove); `published`: the interface says so, not yet
run on such hardware."""


class Driver(msgspec.Struct, frozen=True):
    """One driver. `label`: its packets pass the kernel's output hook, so that the flow label can be rewritten there.
    `route`: they follow the kernel's routes (under a VRF). `drain_move`: RTS, SQD, a new address, RTS, from the kernel
    `move_since` on. `doorbell`: what was posted while the queue stood is sent only after its doorbell is rung.
    `udp_port`: the UDP source port can be changed in RTS (`rdma.mlx5`). `never_gives_up`: the retry count that this
    driver takes for "for ever", None if there is none."""

    name: str
    label: Ability
    route: Ability
    drain_move: Ability
    udp_port: Ability
    why: str
    source: str
    doorbell: bool = False
    never_gives_up: int | None = None
    move_since: tuple[int, int] = (0, 0)

    def refuses_move(self, kernel: str = os.uname().release) -> str:
        """Why a queue pair of it must not be moved by `drain_move`; empty when it may. `kernel`: as uname(1) says."""
        if self.drain_move != "tried":
            return f"{self.name}: a planned move is {self.drain_move!r} in the table of drivers: {self.why}"
        if _numbers(kernel) < self.move_since:
            least = ".".join(map(str, self.move_since))
            return (
                f"{self.name} of Linux {kernel}: a queue may drain for ever there, {least} is the first that was tried"
            )
        return ""

    def refuses_port(self, *, unproven: bool) -> str:
        """Why a queue pair of it must not be given another UDP source port; empty when it may. `unproven`: the operator
        allows what no hardware has been seen to do."""
        if self.udp_port == "published" and not unproven:
            return f"{self.name}: another UDP source port was never tried on hardware: rdma.steer.unproven allows it"
        if self.udp_port in ("tried", "published"):
            return ""
        if self.udp_port == "no":
            return f"{self.name}: takes no other UDP source port while it runs"
        return f"{self.name}: whether it takes another UDP source port is not known"


def _numbers(kernel: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", kernel)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _hardware(name: str, drain_move: Ability, udp_port: Ability, why: str, source: str) -> Driver:
    return Driver(name, "no", "no", drain_move, udp_port, f"its packets do not pass the kernel; {why}", source)


DRIVERS: Final[Mapping[str, Driver]] = {
    one.name: one
    for one in (
        Driver("rxe", "tried", "tried", "tried", "no",
               "software: its packets are the kernel's; an address is changed only when nothing is outstanding",
               "drivers/infiniband/sw/rxe/rxe_qp.c, rxe_comp.c (the retransmit timer runs on in SQD), rxe_net.c",
               doorbell=True, never_gives_up=7, move_since=(6, 12)),
        _hardware("mlx5", "no", "published", "RTS to SQD is not in its state table, the UDP source port can be changed "
                  "in RTS", "drivers/infiniband/hw/mlx5/qp.c; rdma-core, mlx5dv_modify_qp_udp_sport(3)"),
        _hardware("mlx4", "not known", "no", "RTS to SQD exists, a change of address there was never tried",
                  "drivers/net/ethernet/mellanox/mlx4/qp.c"),
        _hardware("bnxt_re", "not known", "not known", "nothing was tried", "drivers/infiniband/hw/bnxt_re/ib_verbs.c"),
        _hardware("irdma", "not known", "not known", "nothing was tried", "drivers/infiniband/hw/irdma/verbs.c"),
        _hardware("efa", "no", "no", "its transport spreads over paths by itself", "drivers/infiniband/hw/efa"),
        _hardware("hfi1", "not known", "no", "no Ethernet", "drivers/infiniband/hw/hfi1"),
    )
}  # fmt: skip
UNKNOWN: Final = Driver(
    "unknown", "not known", "not known", "not known", "not known", "this driver is in no table", "rdma/drivers.py"
)


def of(name: str) -> Driver:
    """By the name of the RDMA driver (`rdma.counters.table.FAMILIES`)."""
    return DRIVERS.get(name, UNKNOWN)
