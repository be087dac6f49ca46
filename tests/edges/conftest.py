"""Namespaces that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
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
