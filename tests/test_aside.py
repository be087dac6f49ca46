"""Readings beside the event loop: done in order, and never waited for when a program ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sysfs_tree import Tree

from linkpass.aside import Aside

ENDS_S = 60
"""A program that waits for a pipe into which nobody writes takes longer than any of this."""

HOST = """
import sys, time
from pathlib import Path
from linkpass.edges.host import HostEdge, Watched
from linkpass.edges.host.check import FileCheck
edge = HostEdge(None, [Watched(FileCheck(sys.argv[1]), 1.0, 0.0, 0.0)], {}, lambda one: None)
edge.poll(0.0)
edge.close()
print("closed")
"""
COUNTERS = """
import sys
from pathlib import Path
from linkpass.edges.counters import CounterEdge
from rdma.counters.evidence import Thresholds
edge = CounterEdge(Thresholds(), lambda: 1.0, Path(sys.argv[1]))
edge.poll()
edge.close()
print("closed")
"""


@pytest.fixture
def stands(tmp_path: Path) -> Path:
    """A file whose reader waits without an end."""
    path = tmp_path / "stands"
    os.mkfifo(path)
    return path


def ends(program: str, path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, timeout=ENDS_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"closed\n", b"")


def test_a_source_that_hangs_keeps_no_daemon_from_ending(stands: Path) -> None:
    ends(HOST, stands)


def test_counters_that_hang_keep_no_daemon_from_ending(tmp_path: Path, stands: Path) -> None:
    tree = Tree(tmp_path / "sys")
    tree.device("mlx5_0", driver="mlx5_core")
    tree.port("mlx5_0")
    (state,) = tree.root.rglob("state")
    state.unlink()
    stands.rename(state)
    ends(COUNTERS, tree.root)


def test_one_thing_is_done_after_another_and_nothing_after_the_end() -> None:
    aside, free, done = Aside("one"), threading.Event(), []
    first = aside.submit(free.wait, 20)
    futures = [aside.submit(done.append, number) for number in range(5)]
    dropped = aside.submit(done.append, "dropped")
    wrong = aside.submit(lambda: 1 // 0)
    assert dropped.cancel() and done == []
    free.set()
    aside.shutdown()
    assert first.result() is True and all(one.done() for one in futures) and done == [0, 1, 2, 3, 4]
    assert isinstance(wrong.exception(), ZeroDivisionError)
    with pytest.raises(RuntimeError, match="one: nothing more is taken"):
        aside.submit(int)
