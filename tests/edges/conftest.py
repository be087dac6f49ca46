"""Namespaces that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import probe_lab
import pytest
from kernel_lab import KernelLab, inside
from probe_hosts import heal
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


@pytest.fixture(scope="module")
def fabric() -> Iterator[probe_lab.Fabric]:
    """Two hosts with two uplinks each and the switches between them, for all tests of a module."""
    with probe_lab.standing() as made:
        yield made


@pytest.fixture
def healed(fabric: probe_lab.Fabric) -> Iterator[None]:
    """The switches' faults end with the test."""
    yield
    heal()
