"""The undo journal with what the app knows of its kinds: who can read an entry of each."""

from __future__ import annotations

from pathlib import Path

from linkpass.edges import moves, tcp_timers
from linkpass.edges.undo import Plain, UndoJournal


def _queue_pair(change: Plain) -> None:
    if moves.target_of(change) is None:
        raise ValueError("it names no queue pair")


READERS = {moves.KIND: _queue_pair, tcp_timers.KIND: tcp_timers.read}


def undo_journal(folder: str | Path) -> UndoJournal:
    """Not open yet. Entries that nobody can read will be set aside: no restorer sees them."""
    return UndoJournal(folder, readers=READERS)
