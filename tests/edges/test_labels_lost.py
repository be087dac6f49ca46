"""Somebody else's hand in our nftables table: told at once, by name, put back only when it is asked for."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable

import pytest
from kernel_lab import KernelLab, inside

from linkpass.core.events import Event, SteeringLost
from linkpass.edges.kernel import tablewatch
from linkpass.edges.kernel.labels import BUCKETS, LabelEdge
from linkpass.edges.kernel.sock import KernelRefusedError

pytestmark = pytest.mark.netns
_DELETE = ("delete", "table", "ip6", "linkpass")
ONE, TWO = "fd00:ff::2", "fd00:ff::7"


class Watched:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.edge = LabelEdge(probe_port=3785, emit=self.told.append)

    def lost(self) -> dict[str, str]:
        return {event.what: event.by for event in self.told if isinstance(event, SteeringLost)}

    async def until_lost(self, *peers: str) -> str:
        """Who it was."""
        await until(lambda: set(self.lost()) >= {f"labels {peer}" for peer in peers})
        assert set(self.lost()) == {f"labels {peer}" for peer in peers}
        return next(iter(self.lost().values()))


@pytest.fixture
async def watched(lab: KernelLab) -> AsyncIterator[Watched]:
    made = Watched()
    made.edge.open()
    yield made
    made.edge.close()


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.002)


def nft(*words: str) -> str:
    return subprocess.run(["nft", *words], check=True, capture_output=True, text=True).stdout


def labels(number: int) -> tuple[int, ...]:
    return (number,) * BUCKETS


def elements() -> int:
    return nft("list", "map", "ip6", "linkpass", "labels").count(" : ") - 1


@pytest.mark.parametrize(
    ("hand", "what"),
    [
        (("delete", "table", "ip6", "linkpass"), "table"),
        (("flush", "ruleset"), "table"),
        (("flush", "chain", "ip6", "linkpass", "output"), "rule"),
        (("flush", "map", "ip6", "linkpass", "labels"), "map"),
    ],
)
async def test_every_peer_s_labels_are_lost_by_name_and_put_back_on_demand(
    watched: Watched, hand: tuple[str, ...], what: str
) -> None:
    watched.edge.set_labels(ONE, labels(1))
    watched.edge.set_labels(TWO, labels(2))
    whole = nft("-s", "list", "table", "ip6", "linkpass")
    nft(*hand)
    by = await watched.until_lost(ONE, TWO)
    assert by.startswith("nft (pid ") and by.endswith(f"({what})")
    watched.edge.refresh()  # does not fight
    watched.told.clear()
    watched.edge.set_labels(ONE, labels(1))
    assert elements() == BUCKETS
    watched.edge.set_labels(TWO, labels(2))
    assert nft("-s", "list", "table", "ip6", "linkpass") == whole
    await asyncio.sleep(0.05)
    assert watched.told == []  # what we have done ourselves


async def test_one_peer_s_elements_are_that_peer_s_loss(watched: Watched) -> None:
    watched.edge.set_labels(ONE, labels(1))
    watched.edge.set_labels(TWO, labels(2))
    nft("delete", "element", "ip6", "linkpass", "labels", "{", ONE, ".", "3", "}")
    await watched.until_lost(ONE)
    watched.edge.set_labels(ONE, labels(9))
    assert elements() == 2 * BUCKETS


async def test_our_own_changes_and_others_tables_are_nobody_s_loss(watched: Watched) -> None:
    nft("add", "table", "ip6", "theirs")
    watched.edge.set_labels(ONE, labels(1))
    watched.edge.set_labels(ONE, labels(2))
    watched.edge.refresh()
    watched.edge.set_labels(ONE, ())
    watched.edge.set_labels(ONE, labels(3))
    nft("delete", "table", "ip6", "theirs")
    nft("add", "table", "ip", "linkpass")  # another family
    nft("delete", "table", "ip", "linkpass")
    await asyncio.sleep(0.05)
    assert watched.told == []


async def test_a_loss_that_is_met_before_it_is_read_is_told_and_counted(watched: Watched) -> None:
    watched.edge.set_labels(ONE, labels(1))
    watched.edge.set_labels(TWO, labels(2))
    nft("delete", "table", "ip6", "linkpass")
    with pytest.raises(KernelRefusedError, match="table ip6 linkpass"):
        watched.edge.set_labels(ONE, labels(3))
    assert set(watched.lost()) == {f"labels {ONE}", f"labels {TWO}"}
    watched.edge.set_labels(ONE, labels(3))
    assert elements() == BUCKETS


async def test_a_refresh_finds_out_as_well(watched: Watched) -> None:
    watched.edge.set_labels(ONE, labels(1))
    nft("delete", "table", "ip6", "linkpass")
    with pytest.raises(KernelRefusedError, match="table ip6 linkpass"):
        watched.edge.refresh()
    assert set(watched.lost()) == {f"labels {ONE}"}
    watched.edge.refresh()


async def test_withdrawing_from_a_table_that_is_gone_is_done_already(watched: Watched) -> None:
    watched.edge.set_labels(ONE, labels(1))
    nft("delete", "table", "ip6", "linkpass")
    watched.edge.set_labels(ONE, ())
    assert nft("list", "tables") == ""


async def test_an_overflow_is_followed_by_a_look_at_what_is_left(
    lab: KernelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablewatch, "RECEIVE_BYTES", 4096)
    watched = Watched()
    watched.edge.open()
    watched.edge.set_labels(ONE, labels(1))
    nft(*(word for number in range(400) for word in ("add", "table", "ip6", f"t{number}", ";")), *_DELETE)
    await watched.until_lost(ONE)
    watched.edge.set_labels(ONE, labels(1))
    assert elements() == BUCKETS
    watched.edge.close()


async def test_the_table_is_made_anew_where_it_was_whatever_the_thread_s_namespace(lab: KernelLab) -> None:
    watched = Watched()
    watched.edge.open()
    watched.edge.set_labels(ONE, labels(1))
    nft("delete", "table", "ip6", "linkpass")
    await watched.until_lost(ONE)
    with inside(lab.router):
        watched.edge.set_labels(ONE, labels(1))
        assert nft("list", "tables") == ""
    assert elements() == BUCKETS
    watched.edge.close()


async def test_our_own_floods_do_not_wake_the_watch(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty-two messages a peer and refresh are turned away in the kernel."""
    watch = watched.edge._watch
    assert watch is not None and watch._socket is not None
    for number in range(50):
        watched.edge.set_labels(f"fd00:ff::{number:x}", labels(1))
    watched.edge.refresh()
    with pytest.raises(BlockingIOError):
        watch._socket.recv(1, socket.MSG_PEEK)
