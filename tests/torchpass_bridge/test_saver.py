"""The threads that write a process's part of snapshots: what is told is what has become of the latest one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_members import FIT

from torchpass_bridge.core.duty import Save
from torchpass_bridge.trainer.saving import Held, Saver, Taken
from torchpass_bridge.trainer.settings import Settings

# As in the module itself, whose filter counts outside of pytest.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")

HELD = Held(0, "l", {"w": torch.ones(3)})


class Slow:
    """What an earlier snapshot has to write: it comes once `go` is set, and fails then if it is to."""

    def __init__(self, *, fails: bool) -> None:
        self.fails, self.asked, self.go = fails, threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Held]:
        self.asked.set()
        assert self.go.wait(60)
        if self.fails:
            raise OSError("the disk is full")
        yield HELD


@pytest.mark.parametrize("fails", [False, True])
def test_an_earlier_one_that_is_written_late_does_not_hide_the_latest(tmp_path: Path, fails: bool) -> None:
    told: dict[str, Any] = {}
    done = threading.Event()

    def tell(**news: Any) -> None:
        told.update(news)
        if told["saved"][0] == 2 and told["saved"][2]:
            done.set()

    settings = Settings("", "j", b"key", 0, 1, "m0", "h0", "", snapshots=str(tmp_path))
    saver, slow = Saver(settings, tell), Slow(fails=fails)
    saver.begin(Save(1, 0, 7, "asked for", (0, 1)), lambda: Taken(0, FIT, slow, {}))  # type: ignore[arg-type]
    (first,) = [thread for thread in threading.enumerate() if thread.name == "torchpass-save"]
    assert slow.asked.wait(60)
    saver.begin(Save(2, 0, 7, "asked for", (0, 1)), lambda: Taken(0, FIT, (HELD,), {}))
    assert done.wait(60)
    latest = dict(told)
    slow.go.set()
    first.join(60)
    assert not first.is_alive()
    assert told == latest
    assert "unsaved" not in told
