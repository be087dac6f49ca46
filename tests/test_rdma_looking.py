"""The daemon's own loop around the looking at queue pairs: nothing that one look stumbles over ends it."""

from __future__ import annotations

import asyncio

import pytest

from linkpass.app.rdma import Rdma
from linkpass.config import Config
from linkpass.config.model import Rdma as Wanted
from linkpass.edges.clock import Clock

RUNGS = {"1": {"armed": False, "why": "off"}, "2": {"armed": False, "why": "off"}}


@pytest.fixture
def rdma() -> Rdma:
    wanted = Wanted(counters=False, ethernet=False, events=False)
    return Rdma(Config(rdma=wanted), Clock(), lambda _: None, list)


async def test_the_looking_goes_on_after_what_nobody_has_thought_of(
    rdma: Rdma, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    edge = rdma.queue_pairs
    assert edge is not None
    assert rdma.view(RUNGS, lambda _: ())["flows_age_s"] is None
    real, failures = edge.poll, [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")] * 2

    def poll(now_s: float) -> float:
        if failures:
            raise failures.pop()
        looked.set()
        return real(now_s)

    monkeypatch.setattr(edge, "poll", poll)
    rdma.open()  # the first look fails already, at the start of the daemon
    assert rdma.view(RUNGS, lambda _: ())["flows_why"].startswith("RDMA flows are not looked at: UnicodeDecodeError")
    await asyncio.wait_for(looked.wait(), 10)
    shown = rdma.view(RUNGS, lambda _: ())
    assert (shown["flows"], shown["flows_failures"]) == ([], 2)
    first, second = ([line for lines in rdma.poll() for line in lines] for _ in range(2))
    assert len(first) == 1 and second == []
    rdma.close()
