"""What a program's own uverbs files tell of its queue pairs, and which of them is which that the kernel lists.

The kernel's list knows queue pair numbers, a file knows handles. They agree on the peer's number and the state. Where
that fits two, neither is named: a wrong one must never be steered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rdma import uverbs
from rdma.devices import address_of
from rdma.nldev import QueuePair
from rdma.uverbs import GidEntry, Queried

SAME = "another queue pair of its program looks the same from outside"
NOT_SHOWN = "its program's file does not show it as the kernel lists it"
UNCONNECTED = ("RESET", "INIT")


class Place(msgspec.Struct, frozen=True):
    """Where to reach a queue pair: the nth of a program's files on the device, and the handle in it."""

    file: int
    handle: int


class Seen(msgspec.Struct, frozen=True):
    """Of one program on one device: its queue pairs, and the device's GIDs. `refused`: what the kernel said of the
    first that did not answer; empty when all did."""

    queried: dict[Place, Queried]
    gids: tuple[GidEntry, ...] = ()
    refused: str = ""

    def own(self, queried: Queried) -> str:
        """The GID that a queue pair sends from; empty when it is not known."""
        at = queried.to.sgid_index, queried.to.port
        return next((row.gid for row in self.gids if (row.index, row.port) == at), "")

    def peers(self, qp: QueuePair) -> tuple[str, ...]:
        """Addresses that a queue pair may send to whose handle is not certain: of those with its peer's number, else of
        all."""
        every = [one for one in self.queried.values() if one.state not in UNCONNECTED]
        some = [one for one in every if one.dest_qpn == qp.rqpn] or every
        return tuple(sorted({address_of(one.to.gid) for one in some if one.to.is_global}))


def ask(
    files: Sequence[int],
    driver_id: int,
    handles: Callable[[int, int], list[int]] = uverbs.handles,
    query: Callable[[int, int, int], Queried] = uverbs.query,
    gids: Callable[[int, int], list[GidEntry]] = uverbs.gid_table,
) -> Seen:
    """All that these files answer. One that does not is left out: a queue pair may be destroyed since it was listed,
    and a driver may refuse what it has no answer to (mlx5: DCT). Kernels before 5.10 do not tell the GIDs."""
    queried: dict[Place, Queried] = {}
    rows: list[GidEntry] = []
    refused = ""
    for index, fd in enumerate(files):
        try:
            listed = handles(fd, driver_id)
        except OSError as error:
            refused = refused or str(error.strerror or error)
            continue
        for handle in listed:
            try:
                queried[Place(index, handle)] = query(fd, handle, driver_id)
            except OSError as error:
                refused = refused or str(error.strerror or error)
        try:
            rows = rows or gids(fd, driver_id)
        except OSError:
            continue
    return Seen(queried, tuple(rows), refused)


def match(qps: Iterable[QueuePair], seen: Mapping[Place, Queried]) -> dict[int, Place]:
    """Queue pair number -> its handle, of those queue pairs of one program and device that can be told apart."""
    listed = list(qps)
    wanted = Counter((qp.rqpn, qp.state) for qp in listed)
    there = Counter((one.dest_qpn, one.state) for one in seen.values())
    at = {(one.dest_qpn, one.state): place for place, one in seen.items()}
    return {
        qp.lqpn: at[qp.rqpn, qp.state]
        for qp in listed
        if qp.rqpn is not None and wanted[qp.rqpn, qp.state] == 1 and there[qp.rqpn, qp.state] == 1
    }


def why_not(qps: Iterable[QueuePair], seen: Seen) -> dict[int, str]:
    """Queue pair number -> why `match` names no handle of it."""
    there = {(one.dest_qpn, one.state) for one in seen.queried.values()}
    hidden = f"{NOT_SHOWN}: {seen.refused}" if seen.refused else NOT_SHOWN
    return {qp.lqpn: SAME if (qp.rqpn, qp.state) in there else hidden for qp in qps}
