"""How much of a loop's time something that blocks may take.

An address handle is made by the kernel, which may wait a second for a neighbour's link-layer address
(`rdma_addr_find_l2_eth_by_grh` of drivers/infiniband/core/addr.c). A thread would not help: pyverbs keeps the
interpreter's lock meanwhile (`AH.__init__` of pyverbs/addr.pyx calls `ibv_create_ah` without `nogil`), and everything
else in the process waits with it. So it is bounded over time: what took long is followed by a pause that is as much
longer.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 1 / 20
"""Of the time."""
AT_ONCE_S: Final = 0.05
"""What may be taken at once after a time without."""


class Allowance:
    """Times by any clock that does not go back, in seconds. With a share of a twentieth one second taken is a pause of
    19 s; handles that take 0.1 ms each are made 500 at once and 500 a second."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._left_s = AT_ONCE_S
        self._at_s: float | None = None

    def left(self, now_s: float) -> bool:
        """Whether there is any. What is begun may take more than is left: the debt is waited for."""
        if self._at_s is not None:
            self._left_s = min(AT_ONCE_S, self._left_s + (now_s - self._at_s) * self._share)
        self._at_s = now_s
        return self._left_s > 0

    def spend(self, begun_s: float, ended_s: float) -> None:
        self._left_s -= ended_s - begun_s
