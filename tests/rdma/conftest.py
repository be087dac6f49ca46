"""Guests that tests share. Who removes a soft-RoCE device has guests of its own: see `test_device_events_guest.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from guest_pair import Pair, a_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with a_pair(tmp_path_factory.mktemp("guests")) as made:
        for side in (made.a, made.b):
            side.warm_up()
        yield made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share guests come last: the guests would take their part of the machine from all others."""
    items.sort(key=lambda item: "pair" in getattr(item, "fixturenames", ()) and not hasattr(_module(item), "pair"))


def _module(item: pytest.Item) -> object:
    return getattr(item, "module", None)
