"""The UDP source port that the kernel gives a queue pair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rdma.udp_port import FIRST, given_port


def test_what_was_seen_on_the_wire() -> None:
    """Two queue pairs of soft-RoCE, both of number 18: docs/capture.md."""
    assert given_port(0, 18, 18) == 49476


def test_a_label_is_folded_into_fourteen_bits() -> None:
    """rdma_flow_label_to_udp_sport: the upper six bits are laid over the lower fourteen."""
    assert given_port(0x00001, 9, 9) == 0xC001
    assert given_port(0x04000, 9, 9) == 0xC001
    assert given_port(0xFFFFF, 9, 9) == 0xC000 | 0x3FFF ^ 0x3F


@given(st.integers(0, (1 << 20) - 1), st.integers(0, (1 << 24) - 1), st.integers(0, (1 << 24) - 1))
def test_it_is_the_same_from_both_ends_and_in_the_range(label: int, qpn: int, remote: int) -> None:
    port = given_port(label, qpn, remote)
    assert FIRST <= port <= 0xFFFF
    assert port == given_port(label, remote, qpn)
