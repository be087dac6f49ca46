"""A thread beside the training one. Debuggers, `top -H` and the kernel's accounts show it by its name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX = "torchpass-"
NAME_BYTES = 15
"""So much of a thread's name the kernel keeps."""


class Aside(threading.Thread):
    """Runs `run(*told)`; it does not keep the process from ending. Started with `start`."""

    def __init__(self, name: str, run: Callable[..., Any], *told: Any) -> None:
        super().__init__(target=run, args=told, name=f"{PREFIX}{name}", daemon=True)

    def run(self) -> None:
        try:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(self.name.encode()[:NAME_BYTES])
        except OSError:
            pass  # a container may hide it: the name is for people
        super().run()
