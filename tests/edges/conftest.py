"""Namespaces that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_lab import KernelLab, inside
from two_uplinks import TwoUplinks


@pytest.fixture
def two() -> Iterator[TwoUplinks]:
    """A host with two uplinks, fresh for each test."""
    made = TwoUplinks()
    made.down()
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def lab() -> Iterator[KernelLab]:
    """A host with two uplinks and their router; the test runs inside the host's namespace."""
    made = KernelLab()
    try:
        made.up()
        with inside(made.host):
            yield made
    finally:
        made.down()
