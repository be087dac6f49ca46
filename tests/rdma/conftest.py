"""Guests that the tests of a module share.

Not those of the whole run: Linux 6.1's soft-RoCE spoils memory under load once its device was removed and made anew."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from guest_pair import Pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(f"te-{os.getpid()}-guests", tmp_path_factory.mktemp("guests"))
    try:
        made.up()
        yield made
    finally:
        made.down()
