"""The sockets on which daemons talk of moves, and what an earlier run has left in the undo journal."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from linkpass.edges.metrics import exposition
from linkpass.edges.moves import KIND, Leftovers, plain
from linkpass.edges.moves.talk import AT_ONCE, Talk
from linkpass.edges.undo import UndoJournal
from linkpass.wire.probe import Signer
from rdma.borrowed import start_ticks
from rdma.remote_qp import Target
from rdma.uverbs import Address
from rdma.words import Word, encode

KEY = b"k" * 32
HERE, THERE = "127.0.0.1", "127.0.0.2"
TARGET = Target(
    os.getpid(), start_ticks(os.getpid()) or 0, os.makedev(231, 192), 0, 4, "rxe", 17, 71, Address("fd00::2", 1)
)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


@pytest.fixture
def port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HERE, 0))
        found: int = sock.getsockname()[1]
        return found


def talk(port: int, into: list[tuple[str, str, Word]], key: bytes = KEY) -> Talk:
    return Talk(Signer(key), lambda own, peer, word: into.append((own, peer, word)), port=port)


async def test_a_signed_word_is_heard_with_its_addresses_and_another_key_is_not_believed(port: int) -> None:
    heard: list[tuple[str, str, Word]] = []
    here, there, stranger = talk(port, heard), talk(port, []), talk(port, [], b"x" * 32)
    for one, addresses in ((here, {HERE}), (there, {THERE}), (stranger, {"127.0.0.3"})):
        one.open()
        one.listen(addresses, keep=False)
    stranger.send("127.0.0.3", HERE, Word("check", 7))
    there.send(THERE, HERE, Word("check", 7, 41, step=2))
    await until(lambda: bool(heard) and here.refused == 1)
    assert heard == [(HERE, THERE, Word("check", 7, 41, step=2))]
    for one in (here, there, stranger):
        one.close()


async def test_a_word_cannot_be_sent_back_or_on(port: int) -> None:
    """Its signature names both addresses."""
    heard: list[tuple[str, str, Word]] = []
    here = talk(port, heard)
    here.open()
    here.listen({HERE}, keep=False)
    body = encode(Word("check", 7))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((THERE, port))
        packed = socket.inet_aton(HERE) + socket.inet_aton(THERE)
        sock.sendto(body + Signer(KEY).mac(packed + body), (HERE, port))
    await until(lambda: here.refused == 1)
    assert heard == []
    here.close()


async def test_who_floods_the_port_has_not_the_loop_for_himself(port: int) -> None:
    here = talk(port, [])
    here.open()
    here.listen({HERE}, keep=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(3 * AT_ONCE):
            sock.sendto(b"noise" * 10, (HERE, port))
        turns: list[int] = []
        while here.refused < 3 * AT_ONCE:
            await asyncio.sleep(0)
            turns.append(here.refused)
    assert all(after - before <= AT_ONCE for before, after in zip([0, *turns], turns, strict=False))
    here.close()


def test_what_was_left_of_a_queue_pair_that_is_gone_is_struck_out(tmp_path: Path) -> None:
    """This process has no RDMA device open. A line that cannot be read is struck out, too."""
    undo = UndoJournal(tmp_path)
    undo.open()
    undo.note(KIND, [plain(TARGET), plain(TARGET, decided=True), {"target": "{"}])
    assert Leftovers(undo).again()[1] == []
    assert undo.pending(KIND) == {}
    undo.close()


def test_moves_are_counted_for_prometheus() -> None:
    view = {"rdma": {"moves": {"open": 1, "stopped": 2, "moved": 5, "kept": 3, "words_refused": 7}}}
    text = exposition(lambda: view).decode()
    for line in (
        "linkpass_rdma_queue_pairs_stopped 2.0", 'linkpass_rdma_moves_total{outcome="kept"} 3.0',
        "linkpass_rdma_move_words_refused_total 7.0",
    ):  # fmt: skip
        assert line in text
    assert "rdma_moves" not in exposition(lambda: {"rdma": {"moves": None}}).decode()
