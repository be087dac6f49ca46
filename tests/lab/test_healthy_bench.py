"""The accounts of processes are the kernel's, and the bench's rows are what they say."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

from lab.bench.healthy import ARMS, Plan, Ran, interval, rows, targets
from lab.bench.shape import Bench, check, machine, missed
from lab.goodput.accounts import Spent, between, book, children

WORK = """
import sys, threading, time, pathlib
def busy(name):
    pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
    sys.stdin.readline()
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    print("done", flush=True)
    time.sleep(100)
threading.Thread(target=busy, args=("torchpass-x",), daemon=True).start()
print("begun", flush=True)
time.sleep(100)
"""


def test_a_thread_is_known_by_its_name_and_what_it_takes_is_its_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        process.stdout.readline()
        assert process.pid in children(os.getpid())
        while len(before := book([process.pid])) < 2 or not any(part == "torchpass" for part, _ in before.values()):
            pass
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        until_s = time.monotonic() + 10
        while (parts := between(before, book([process.pid]))[process.pid])["torchpass"].waits < 1:  # it sleeps soon
            assert time.monotonic() < until_s, parts
        process.kill()
    assert parts.keys() == {"main", "torchpass"}
    assert parts["torchpass"].cpu_ms >= 90 > parts["main"].cpu_ms
    assert book([process.pid]) == {}


def ran(step_s: float, faults: float, hash_: str = "x") -> Ran:
    parts = {"main-threads": Spent(100.0, faults, 3, 4), "beside-threads": Spent(2.0), "other-threads": Spent(50.0)}
    return Ran(step_s, step_s, parts | {"coordinator": Spent(1.0), "store": Spent(1.0)}, (1, 2, 3, 4), hash_)


def test_rows_have_their_shape_and_a_single_round_is_not_judged() -> None:
    one = {"linkpass": ran(0.303, 10), "stock": ran(0.32, 20_000), "stock-kept": ran(0.3, 10)}
    assert set(one) == set(ARMS)
    for rounds, judged in (([one], []), ([one, one], ["step: longer_than_kept_at_most_ratio is 0.01, wanted ≤ 0.005"])):
        made = check(Bench("healthy", "", machine(), 0, tuple(rows(rounds, Plan(len(rounds))))))
        assert missed(made, targets(made)) == judged
        found = {row.case: row for row in made.rows}
        assert found["main-threads"].without["stock"]["faults"] == 20_000
        assert found["job"].metrics["cpu_ms"].p50 == 154.0  # type: ignore[union-attr]
        assert math.isclose(found["store"].metrics["core_ratio"], 0.0033)  # type: ignore[arg-type]


def test_the_interval_is_students() -> None:
    mean, half = interval([1.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(12.71))
