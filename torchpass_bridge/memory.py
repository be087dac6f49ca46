"""Lets glibc keep memory that is freed in one step for the next one, where nobody has told it what to do.

Gradients and an optimizer's temporary tensors are freed in each step, and asked for again in the next. By glibc's own
rule (mallopt(3), M_TRIM_THRESHOLD) whether they go back to the kernel meanwhile depends on which large block was freed
first in this process: where they do, each of their pages is faulted in and zeroed in every step, and in a collective
all ranks wait for the slowest one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

SWITCH = "TORCHPASS_MALLOC"
"""0: glibc is left as it is."""
TOLD = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_ARENA_MAX")
"""By which glibc is told otherwise; in GLIBC_TUNABLES it is "glibc.malloc."."""
KEPT_BYTES = 1 << 30
"""So much free memory at the end of a heap is kept."""
MMAP_BYTES = 32 << 20
"""The largest that glibc takes: what is larger is mapped by itself, and goes back when it is freed."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed(told: Mapping[str, str]) -> str:
    """Empty when it is done; else why not. `told`: the environment."""
    if told.get(SWITCH, "1") in ("", "0"):
        return f"{SWITCH} is 0"
    given = [name for name in TOLD if told.get(name)] + ["GLIBC_TUNABLES"] * (
        "glibc.malloc." in told.get("GLIBC_TUNABLES", "")
    )
    if given:
        return f"{', '.join(given)} is set"
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return "this system's C library has no mallopt"
    done = mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return "" if done else "mallopt refuses it"
