"""Looks at real connections of a job in lock-step: who is awaited, who is late, what is followed, and at what cost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from two_uplinks import OTHER6, OWN6, PEER6, PREFIX6, TwoUplinks

from linkpass.core.events import Event, PaceClaim, PaceTold, StepArrived
from linkpass.core.settings import Stragglers
from linkpass.edges.pace import MOST_ARRIVALS, MOST_SOCKETS, PaceEdge
from linkpass.edges.sockets import SocketEdge

pytestmark = pytest.mark.netns

COMPUTE_S, LAG_S = 0.1, 0.2
SETTINGS = Stragglers(enabled=True, cpu_ratio=1.0)


class Rig:
    """A host whose job talks to two peers, its socket table, and the edge that looks."""

    def __init__(self, two: TwoUplinks, stack: ExitStack, settings: Stragglers = SETTINGS) -> None:
        self.said: list[Event] = []
        self.told: list[tuple[tuple[PaceClaim, ...], list[StepArrived]]] = []
        self.ours: dict[str, socket.socket] = {}
        self.theirs: dict[str, socket.socket] = {}
        for peer in (PEER6, OTHER6):
            server = stack.enter_context(two.server(peer))
            self.ours[peer] = stack.enter_context(two.connect(server))
            self.theirs[peer] = stack.enter_context(server.accept()[0])
        self.table = stack.enter_context(closing(SocketEdge(lambda _: None, [PREFIX6], OWN6, lambda *_: None)))
        self.edge = stack.enter_context(closing(PaceEdge(
            settings, self.said.append, lambda claims, came: self.told.append((claims, came)))))  # fmt: skip
        with two.on_host():
            self.table.open()
            self.edge.open()

    def follow(self) -> None:
        self.table.poll(0.0)
        self.edge.follow(self.table.connections())

    def everybody(self, size: int = 2000) -> None:
        """Each end of each connection writes."""
        for one in (*self.ours.values(), *self.theirs.values()):
            one.sendall(b"x" * size)

    async def steps(self, count: int, step: Callable[[], Awaitable[None]]) -> None:
        for _ in range(count):
            await asyncio.sleep(COMPUTE_S)
            await step()

    async def healthy(self) -> None:
        self.everybody()

    def hits(self, kind: str, about: str) -> int:
        claim = self.claims().get((kind, about))
        return claim.hits if claim is not None else 0

    def claims(self) -> dict[tuple[str, str], PaceClaim]:
        last = next((event for event in reversed(self.said) if isinstance(event, PaceTold)), PaceTold())
        return {(claim.kind, claim.about): claim for claim in last.claims}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


async def started(two: TwoUplinks, stack: ExitStack, settings: Stragglers = SETTINGS) -> Rig:
    rig = Rig(two, stack, settings)
    rig.follow()
    assert rig.edge.view()["connections"] == 0  # whether they carry anything is not known yet
    rig.everybody()
    rig.follow()
    assert rig.edge.view()["connections"] == 2
    await rig.steps(10, rig.healthy)
    return rig


async def test_the_peer_that_answers_late_is_awaited(two: TwoUplinks, stack: ExitStack) -> None:
    rig = await started(two, stack)

    async def step() -> None:
        for one in (*rig.ours.values(), rig.theirs[OTHER6]):
            one.sendall(b"x" * 2000)
        await asyncio.sleep(LAG_S)
        rig.theirs[PEER6].sendall(b"x" * 2000)

    await rig.steps(12, step)
    await asyncio.sleep(0.15)
    awaited = rig.claims()["awaits", PEER6]
    assert awaited.hits >= 4 and awaited.lag_s > LAG_S / 2
    assert rig.claims()["late", ""].hits < awaited.hits > rig.hits("awaits", OTHER6)
    assert rig.told[-1][0] == rig.said[-1].claims  # type: ignore[attr-defined]
    assert rig.edge.view()["error"] == ""


async def test_who_answers_late_says_so_itself(two: TwoUplinks, stack: ExitStack) -> None:
    rig = await started(two, stack)

    async def step() -> None:
        for one in rig.theirs.values():
            one.sendall(b"x" * 2000)
        await asyncio.sleep(LAG_S)
        for one in rig.ours.values():
            one.sendall(b"x" * 2000)

    await rig.steps(12, step)
    await asyncio.sleep(0.15)
    late = rig.claims()["late", ""]
    assert late.hits >= 4 and late.lag_s > LAG_S / 2
    assert rig.hits("awaits", PEER6) < late.hits > rig.hits("awaits", OTHER6)


async def test_data_that_is_not_read_is_told(two: TwoUplinks, stack: ExitStack) -> None:
    """The peer's program does not read for most of each step: its window closes, and what is written stands."""
    rig = await started(two, stack)
    ours, theirs = rig.ours[PEER6], rig.theirs[PEER6]
    for one in (ours, theirs):
        one.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)

    async def step() -> None:
        left = ours.send(b"y" * 400_000)
        assert left > 200_000
        await asyncio.sleep(LAG_S)
        loop = asyncio.get_running_loop()
        while left > 0:
            left -= len(await loop.sock_recv(theirs, 1 << 20))
        theirs.sendall(b"z")

    await rig.steps(12, step)
    await asyncio.sleep(0.15)
    unread = rig.claims()["unread", PEER6]
    assert unread.hits >= 4 and unread.hits > rig.hits("slow", PEER6)


async def test_connections_that_carry_nothing_are_not_looked_at(two: TwoUplinks, stack: ExitStack) -> None:
    rig = await started(two, stack)
    with two.server(PEER6) as server, ExitStack() as more:
        for _ in range(MOST_SOCKETS + 5):
            more.enter_context(two.connect(server))
            more.enter_context(server.accept()[0])
        rig.follow()
        assert rig.edge.view()["connections"] == 2
    for one in (*rig.ours.values(), *rig.theirs.values()):
        one.close()
    rig.follow()
    looks = rig.edge.looks
    await asyncio.sleep(0.1)
    assert rig.edge.view()["connections"] == 0 and rig.edge.looks <= looks + 1


async def test_a_connection_that_ends_between_looks_is_an_error_in_words_and_no_fault(
    two: TwoUplinks, stack: ExitStack
) -> None:
    rig = await started(two, stack)
    for one in (*rig.ours.values(), *rig.theirs.values()):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.close()
    await asyncio.sleep(0.1)
    assert "none of 2 connections" in rig.edge.view()["error"] and rig.edge.faults == 0


async def test_looks_become_rarer_where_they_cost_more_than_allowed(two: TwoUplinks, stack: ExitStack) -> None:
    dear = await started(two, stack, Stragglers(enabled=True, cpu_ratio=0.0005))
    assert dear.edge.interval_s > 10 * SETTINGS.interval_s
    looks = dear.edge.looks
    await asyncio.sleep(0.2)
    assert dear.edge.looks - looks < 10


async def test_arrivals_are_told_with_the_next_word_and_without_sockets_at_once(
    two: TwoUplinks, stack: ExitStack
) -> None:
    rig = Rig(two, stack)
    rig.edge.arrived(StepArrived(rank=3, step=7, at_s=1.0))
    assert rig.told == [((), [StepArrived(rank=3, step=7, at_s=1.0)])]
    for step in range(40):
        rig.edge.arrived(StepArrived(rank=3, step=step, at_s=1.0))
    assert len(rig.told) == 1  # a moment ago: these wait
    await asyncio.sleep(0.12)
    rig.follow()
    assert [one.step for one in rig.told[1][1]] == list(range(40 - MOST_ARRIVALS, 40))
