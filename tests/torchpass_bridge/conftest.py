"""A real store for each test: a server of its own, on a free port, in the test's folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torchpass_bridge.store.records import Records
from torchpass_bridge.store.server import Server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "store") as server:
        yield server


@pytest.fixture
async def records(server: Server) -> AsyncIterator[Records]:
    async with await Records.connect(server.url, "test") as records:
        yield records
