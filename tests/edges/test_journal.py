"""The journal of decisions: stories, restarts, rotation, crashes, full disks."""

from __future__ import annotations

from pathlib import Path

from face_desk import record

from linkpass.edges.journal import JournalEdge, read_journal


def opened(folder: Path, **more: int) -> JournalEdge:
    journal = JournalEdge(folder, **more)
    journal.open()
    return journal


def test_stories_by_cause_and_by_element(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.write(record("h-1", "down", element="a>b"), 1.0, "w")
    journal.write(record("h-2", "other", element="c>d"), 2.0, "w")
    journal.write(record("h-1", "moved", rung=2), 3.0, "w")
    assert [entry.what for entry in journal.why("h-1")] == ["down", "moved"]
    assert [entry.what for entry in journal.why("a>b")] == ["down", "moved"]
    assert journal.why("h-9") == []
    assert journal.causes() == ["h-1", "h-2"]
    assert [entry.seq for entry in journal.since(1)] == [2, 3]
    assert [entry.seq for entry in journal.since(0, limit=1)] == [3]
    journal.close()
    assert [entry.rung for entry in read_journal(tmp_path / "journal.jsonl")] == [0, 0, 2]


def test_ids_of_an_earlier_start_are_another_story(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(record("h-1", "before", element="a>b"), 50.0, "w")
    first.close()
    second = opened(tmp_path)
    assert [entry.what for entry in second.why("h-1")] == ["before"]
    entry = second.write(record("h-1", "after"), 1.0, "w")
    assert (entry.seq, entry.run) == (2, 2)
    assert [entry.what for entry in second.why("h-1")] == ["after"]
    assert [entry.what for entry in second.why("a>b")] == ["before"]
    second.close()


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(record("h-1", "whole"), 1.0, "w")
    first.close()
    with first.path.open("ab") as file:
        file.write(b'{"seq": 2, "run"')
    second = opened(tmp_path)
    second.write(record("h-2", "next"), 2.0, "w")
    second.close()
    assert [entry.what for entry in read_journal(first.path)] == ["whole", "next"]


def test_rotation_bounds_the_disk(tmp_path: Path) -> None:
    journal = opened(tmp_path, max_bytes=4096, keep=10)
    for number in range(200):
        journal.write(record(f"h-{number}", "x" * 50), float(number), "w")
    journal.close()
    sizes = [path.stat().st_size for path in (journal.path, journal.older)]
    assert max(sizes) <= 2048
    assert len(journal.since(0)) == 10
    kept = [entry.seq for path in (journal.older, journal.path) for entry in read_journal(path)]
    assert kept == list(range(kept[0], 201))


def test_a_disk_that_fails_is_counted_and_memory_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = opened(tmp_path / "file" / "below")
    assert journal.write_errors == 1
    assert "Not a directory" in journal.last_error
    journal.write(record("h-1", "kept"), 1.0, "w")
    assert [entry.what for entry in journal.why("h-1")] == ["kept"]
    journal.close()


def test_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    journal = opened(tmp_path)
    journal.write(record("h-1", "kept"), 1.0, "w")
    assert journal.write_errors == 1
    assert "No space left" in journal.last_error
    assert journal.causes() == ["h-1"]
    journal.close()
