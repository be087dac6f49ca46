"""A few of the random faults of `live_chaos`; it takes any number."""

from __future__ import annotations

import pytest
from live_chaos import chaos

from torchpass_bridge.store.records import Records
from torchpass_bridge.store.server import Server


@pytest.mark.parametrize("seed", range(2))
async def test_random_faults_leave_a_job_that_goes_on(server: Server, records: Records, seed: int) -> None:
    told = await chaos(server, records, seed, events=5)
    assert len(told) == 5
