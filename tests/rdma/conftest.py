"""Two guests that tests share: booted once (40 to 60 s), and put in order for each module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from guest_pair import Pair


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Last: guests that nobody uses any more take processor time from those that are measured."""
    items.sort(key=lambda item: "pair" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(f"te-{os.getpid()}-guests", tmp_path_factory.mktemp("guests"))
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def pair(booted: Pair) -> Pair:
    booted.tidy()
    return booted
