"""A snapshot's folder: published whole or not at all, checked, found, and tidied up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sim_members import FIT

from torchpass_bridge import snapshot
from torchpass_bridge.cli import cli
from torchpass_bridge.snapshot import NotWhole, OwnNote, Part, Tensors


def written(root: Path, rank: int, *, tensors: bool = True, layout: str = "l") -> tuple[int, str]:
    """A part as a writer leaves it, and what it says of it."""
    folder = root / f"part-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").write_bytes(bytes(range(100)) * (rank + 1))
    (root / f"own-{rank}").write_bytes(b"sealed")
    files = snapshot.measured(root, [f"part-{rank}/data", f"own-{rank}"])
    held = (Tensors(folder.name, 0, layout, (f"model.{rank}",)),) if tensors else ()
    part = Part(rank, f"m{rank}", FIT, held, (OwnNote(rank, 7, f"own-{rank}"),), files)
    return rank, snapshot.write_part(root, part)


def published(folder: Path, step: int = 7, number: int = 1, unix_s: float = 1000.0) -> Path:
    root = snapshot.partial(folder, "j", step, number, 0)
    parts = [written(root, rank) for rank in range(2)]
    return snapshot.publish(root, "j", step, number, "asked for", parts, unix_s, 2)


def test_it_has_its_name_once_all_of_it_is_there(tmp_path: Path) -> None:
    path = published(tmp_path)
    assert path == tmp_path / "j" / "step-00000007-1"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    manifest = snapshot.read(path)
    assert (manifest.step, manifest.world, manifest.bytes) == (7, 2, 100 + 200 + 12)
    assert [why for _, why in snapshot.check(path, manifest)] == [""] * 4
    assert manifest.own_of(1) == OwnNote(1, 7, "own-1")
    assert manifest.own_of(2) is None


def test_publishing_once_more_changes_nothing(tmp_path: Path) -> None:
    path = published(tmp_path)
    before = (path / "manifest.json").read_bytes()
    root = snapshot.partial(tmp_path, "j", 7, 1, 0)
    assert snapshot.publish(root, "j", 7, 1, "again", [], 2000.0, 2) == path
    assert (path / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("damage", ["missing", "other", "short", "kinds"])
def test_what_is_not_there_as_its_writer_said_is_not_published(tmp_path: Path, damage: str) -> None:
    root = snapshot.partial(tmp_path, "j", 7, 1, 0)
    parts = [written(root, 0), written(root, 1, layout="other" if damage == "kinds" else "l")]
    if damage == "missing":  # on a disk of its own, where the publisher is not
        (root / "part-1.json").unlink()
    elif damage == "other":
        written(root, 1, tensors=False)
    elif damage == "short":
        (root / "part-1" / "data").write_bytes(b"x")
    said = {"missing": "shared by all hosts", "other": "shared by all", "short": "part-1/data", "kinds": "different"}
    with pytest.raises(NotWhole, match=said[damage]):
        snapshot.publish(root, "j", 7, 1, "asked for", parts, 1000.0, 2)
    assert snapshot.newest(tmp_path / "j") is None


def test_the_latest_is_the_one_that_was_taken_last(tmp_path: Path) -> None:
    """A job that was restored from an older one may be behind what it had reached before."""
    published(tmp_path, step=400, number=2, unix_s=1000.0)
    later = published(tmp_path, step=300, number=3, unix_s=2000.0)
    assert snapshot.newest(tmp_path / "j") == later
    assert snapshot.find(tmp_path / "j") == later == snapshot.find(later)
    with pytest.raises(NotWhole):
        snapshot.find(tmp_path)


def test_old_ones_and_what_was_left_behind_go_and_nothing_else(tmp_path: Path) -> None:
    paths = [published(tmp_path, step=number, number=number, unix_s=1000.0 + number) for number in range(1, 6)]
    left = snapshot.partial(tmp_path, "j", 9, 4, 1)
    written(left, 0)
    running = snapshot.partial(tmp_path, "j", 12, 6, 0)
    written(running, 0)
    mine = tmp_path / "j" / "notes"
    mine.mkdir()
    gone = snapshot.tidy(tmp_path / "j", 2, 5, running.stat().st_mtime)
    assert sorted(gone) == sorted([*paths[:3], left])
    assert sorted(p.name for p in (tmp_path / "j").iterdir()) == sorted(
        [paths[3].name, paths[4].name, running.name, mine.name]
    )
    assert snapshot.tidy(tmp_path / "j", 0, 5, running.stat().st_mtime) == []


def test_restore_shows_what_is_there_and_tells_what_is_damaged(tmp_path: Path) -> None:
    path = published(tmp_path)
    shown = CliRunner().invoke(cli, ["restore", str(tmp_path / "j")])
    assert shown.exit_code == 0
    assert "7 applied" in shown.output and f"torchpass restore {path} -- COMMAND" in shown.output
    with open(path / "part-1" / "data", "r+b") as file:
        file.write(b"!")
    damaged = CliRunner().invoke(cli, ["restore", str(path), "--json"])
    assert damaged.exit_code == 1
    assert json.loads(damaged.stdout)["damaged"] == ["part-1/data is not as it was written"]
    (path / "own-0").unlink()
    assert "No such file" in CliRunner().invoke(cli, ["restore", str(path), "--json"]).stdout
    nothing = CliRunner().invoke(cli, ["restore", str(tmp_path)])
    assert nothing.exit_code == 2
    assert "no snapshot" in nothing.stderr


def test_restore_runs_a_rank_that_begins_with_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = published(tmp_path)
    code = "import os; print(os.environ['TORCHPASS_RESTORE'], os.environ['RANK'])"
    main = [sys.executable, "-c", "from torchpass_bridge.cli import main; main()"]
    done = subprocess.run(
        [*main, "restore", str(tmp_path / "j"), "--", sys.executable, "-c", code], capture_output=True, text=True,
        env={"RANK": "3"}, check=True,
    )  # fmt: skip
    assert done.stdout == f"{path} 3\n"
