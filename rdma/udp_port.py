"""The UDP source port of RoCEv2 that a fabric hashes on, as the kernel gives it to a queue pair."""

from __future__ import annotations

from typing import Final

FIRST: Final = 0xC000
_LABEL: Final = 0xFFFFF


def given_port(label: int, qpn: int, remote_qpn: int) -> int:
    """By the flow label of its address (20 bits), or where that is 0 by both queue pair numbers (rdma_get_udp_sport,
    include/rdma/ib_verbs.h; soft-RoCE takes it whenever it is given an address, rxe_verbs.c, rxe_modify_qp)."""
    if not label:
        mixed = qpn * remote_qpn
        mixed ^= mixed >> 20
        label = (mixed ^ mixed >> 40) & _LABEL
    return (label & 0x3FFF ^ label >> 14) | FIRST
