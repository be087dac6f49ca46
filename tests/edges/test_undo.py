"""The journal of changes to be undone: what a start finds after any end of the run before."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.edges.undo import COMPACT_LINES, JournalBusyError, Plain, UndoJournal


@pytest.fixture
def journal(tmp_path: Path) -> UndoJournal:
    return UndoJournal(tmp_path)


def reopened(journal: UndoJournal) -> UndoJournal:
    again = UndoJournal(journal.path.parent)
    again.open()
    return again


def test_a_change_waits_until_it_is_undone(journal: UndoJournal) -> None:
    journal.open()
    first, second = journal.note("sysctl", [{"path": "a", "old": 1}, {"path": "b", "old": 2}])
    journal.done([first])
    journal.close()
    again = reopened(journal)
    assert again.pending("sysctl") == {second: {"path": "b", "old": 2}}
    assert again.note("sysctl", [{"path": "c", "old": 3}])[0] > second
    again.close()


def test_a_journal_without_changes_leaves_no_file(journal: UndoJournal) -> None:
    journal.open()
    journal.done(journal.note("sysctl", [{"old": 1}]))
    journal.close()
    assert list(journal.path.parent.iterdir()) == []


def test_what_a_killed_daemon_wrote_is_there(tmp_path: Path) -> None:
    code = f"""
import os, signal
from linkpass.edges.undo import UndoJournal
journal = UndoJournal({str(tmp_path)!r})
journal.open()
journal.note("a", [{{"old": 1}}], sync=False)
journal.note("b", [{{"old": 2}}])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    journal = UndoJournal(tmp_path)
    journal.open()
    assert list(journal.pending("a").values()) == [{"old": 1}] and list(journal.pending("b").values()) == [{"old": 2}]
    journal.close()


def test_changes_of_an_earlier_boot_are_void(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    journal = UndoJournal(tmp_path / "j", boot_id=boot)
    journal.open()
    journal.note("sysctl", [{"old": 1}])
    journal.close()
    boot.write_text("two\n")
    journal.open()
    assert journal.pending("sysctl") == {}
    journal.close()


def test_one_daemon_at_a_time(journal: UndoJournal) -> None:
    journal.open()
    with pytest.raises(JournalBusyError, match="another linkpass"):
        UndoJournal(journal.path.parent).open()
    journal.close()
    reopened(journal).close()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        UndoJournal(tmp_path / "file").open()


def test_a_full_disk_refuses_before_the_change(journal: UndoJournal) -> None:
    journal.open()
    journal.note("sysctl", [{"old": 1}])
    size = journal.path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))  # the kernel writes 10 bytes of it, then none
    try:
        with pytest.raises(OSError):
            journal.note("sysctl", [{"old": 2}])
        with pytest.raises(OSError):
            journal.note("sysctl", [{"old": 2}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert journal.path.stat().st_size == size
    journal.note("sysctl", [{"old": 3}])
    journal.close()
    again = reopened(journal)
    assert [change["old"] for change in again.pending("sysctl").values()] == [1, 3]
    again.close()


def test_it_stays_small(journal: UndoJournal) -> None:
    journal.open()
    (kept,) = journal.note("sysctl", [{"old": 0}])
    biggest = 0
    for number in range(2 * COMPACT_LINES + 100):
        journal.done(journal.note("sysctl", [{"old": number}], sync=False))
        biggest = max(biggest, journal.path.read_bytes().count(b"\n"))
    assert COMPACT_LINES < biggest < 3 * COMPACT_LINES
    with pytest.raises(JournalBusyError):  # the rewritten file is locked as the first was
        UndoJournal(journal.path.parent).open()
    journal.close()
    again = reopened(journal)
    assert again.pending("sysctl") == {kept: {"old": 0}}
    again.close()


def test_undone_in_the_reverse_order_and_what_is_left_is_said(journal: UndoJournal) -> None:
    journal.open()
    journal.note("a", [{"old": 1}, {"old": 2}])
    journal.note("b", [{"old": 3}])
    journal.note("c", [{"old": 4}])
    seen: list[Plain] = []

    def restore(changes: Sequence[Plain]) -> list[bool]:
        seen.extend(changes)
        return [change["old"] == 2 for change in changes]

    def fails(changes: Sequence[Plain]) -> list[bool]:
        raise PermissionError(1, "not allowed")

    left = journal.restore_all({"a": restore, "b": fails})
    assert seen == [{"old": 2}, {"old": 1}]
    assert left == [
        "1 change(s) of kind a: not undone",
        "1 change(s) of kind b: not allowed",
        "1 change(s) of kind c: nobody here can undo them",
    ]
    journal.close()
    again = reopened(journal)
    assert again.kinds() == {"a", "b", "c"} and list(again.pending("a").values()) == [{"old": 1}]
    again.close()


def read_old(change: Plain) -> int:
    return int(change["old"])


def test_an_entry_that_cannot_be_read_is_named_and_kept_and_nobody_is_asked_to_undo_it(journal: UndoJournal) -> None:
    journal.open()
    journal.note("a", [{"old": 1}, {"other": 2}, {"old": "three"}])
    journal.note("b", [{"other": 4}])
    journal.close()
    for start in range(2):
        again = UndoJournal(journal.path.parent, readers={"a": read_old})
        again.open()
        assert again.pending("a") == ({1: {"old": 1}} if start == 0 else {})
        assert again.pending("b") == ({4: {"other": 4}} if start == 0 else {})
        assert [why.split(": ", 1)[1] for why in again.unread] == [
            "entry 2 (a) cannot be read, nor undone: KeyError: 'old'",
            "entry 3 (a) cannot be read, nor undone: ValueError: invalid literal for int() with base 10: 'three'",
        ]
        assert again.note("a", [{"old": 5}])[0] > 4
        again.done([1, 4, *again.pending("a")])
        again.close()
    last = reopened(journal)  # one that can read them
    assert last.pending("a") == {2: {"other": 2}, 3: {"old": "three"}}
    last.close()


def test_a_line_that_is_none_is_named_once(journal: UndoJournal) -> None:
    journal.open()
    journal.note("a", [{"old": 1}])
    journal.close()
    with journal.path.open("ab") as file:
        file.write(b'\xff\xfe\n{"id": "x"}\n')
    journal.open()
    assert journal.unread == [f"{journal.path}: 2 line(s) cannot be read and are left out"]
    assert list(journal.pending("a").values()) == [{"old": 1}]
    journal.close()
    journal.open()
    assert journal.unread == []
    journal.close()


def test_what_is_not_to_wait_for_the_disk_never_does(journal: UndoJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.open()
    journal.note("sysctl", [{"old": 0}])
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    inode = journal.path.stat().st_ino
    for number in range(COMPACT_LINES + 1):
        journal.done(journal.note("sysctl", [{"old": number}], sync=False))
    assert journal.path.stat().st_ino != inode, "written anew"
    assert waited == []
    journal.close()


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), garbage=st.binary(max_size=40))
def test_a_cut_or_spoilt_end_costs_only_what_it_hit(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    journal = UndoJournal(tmp_path_factory.mktemp("j"))
    journal.open()
    journal.note("sysctl", [{"old": number} for number in range(6)], sync=False)
    journal.close()
    whole = journal.path.read_bytes()
    kept = whole[: max(len(whole) - cut, 0)]
    journal.path.write_bytes(kept + garbage.replace(b"\n", b"\0"))
    journal.open()
    complete = kept.count(b"\n") if garbage or kept.endswith(b"\n") else kept.count(b"\n") + (cut == 1)
    found = [change["old"] for change in journal.pending("sysctl").values()]
    assert found[:complete] == list(range(complete)) and len(found) <= complete + 1
    later = journal.note("sysctl", [{"old": 99}], sync=False)
    journal.close()
    again = reopened(journal)
    assert again.pending("sysctl")[later[0]] == {"old": 99}  # what comes after a spoilt end is not lost
    again.close()
    os.unlink(again.path)
