"""Freed memory is kept for the next step, unless the user has said what he wants: real processes, their page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchpass_bridge.memory import KEPT_BYTES, MMAP_BYTES, keep_freed

STEPS, BLOCKS, BLOCK_BYTES = 20, 16, 1 << 20
PAGES = BLOCKS * BLOCK_BYTES // 4096

WORK = f"""
import ctypes, os, resource
from torchpass_bridge.memory import keep_freed
why = keep_freed(os.environ)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def step():
    held = [libc.malloc({BLOCK_BYTES}) for _ in range({BLOCKS})]
    for one in held:
        libc.memset(one, 1, {BLOCK_BYTES})
    for one in held:
        libc.free(one)

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // {STEPS}, why, sep="|")
"""


def faults(**told: str) -> tuple[int, str]:
    """Of a step that takes and frees 16 MB, and why nothing was told to the C library."""
    done = subprocess.run(
        [sys.executable, "-c", WORK], env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **told},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    count, _, why = done.stdout.strip().partition("|")
    return int(count), why


def test_what_is_freed_in_a_step_is_there_in_the_next_one() -> None:
    left, why = faults(TORCHPASS_MALLOC="0")
    assert (left > PAGES // 2, why) == (True, "TORCHPASS_MALLOC is 0"), "glibc gives it back by itself"
    kept, why = faults()
    assert (kept < PAGES // 20, why) == (True, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")],
)
def test_what_the_user_has_said_stands(name: str, value: str) -> None:
    count, why = faults(**{name: value})
    assert (count > PAGES // 2, why) == (True, f"{name} is set")


def test_what_is_told_is_what_glibc_takes() -> None:
    assert MMAP_BYTES <= 32 << 20 < KEPT_BYTES
    assert keep_freed({"MALLOC_ARENA_MAX": "1", "MALLOC_TOP_PAD_": "1"}) == "MALLOC_TOP_PAD_, MALLOC_ARENA_MAX is set"
