"""The whole loop: a daemon finds that a host fails and hands it over; its rank goes on in a spare, with the same bits.

Six hosts of a fabric of namespaces: ranks on four, spares on the other two, store and coordinator on the last. The
tests go on with one another's job.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running_job import run_stock

from lab.daemons import Daemons, DaemonSpec
from lab.faults import parse
from lab.netns.lab import NetnsLab
from topology.generate import leaf_spine
from torchpass_bridge.exits import OVER
from torchpass_bridge.store.records import Records
from torchpass_bridge.wire import Entry, Job

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

TRAINERS = Path(__file__).parent
ROOT = Path(__file__).parents[2]
RANKS, SPARES, BESIDE = ("host1", "host2", "host3", "host4"), ("host5", "host6"), "host6"
PLAN = {"steps": 400, "sleep_s": 0.03}
PATIENCE_S = 120.0
MAIN = (sys.executable, "-c", "from torchpass_bridge.cli import main; main()")


class Loop:
    """Fabric, daemons, store, coordinator, ranks and a spare."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = NetnsLab(leaf_spine(6), name=f"tl{os.getpid()}", run_dir=folder / "lab")
        self.place = folder / "store-place"
        self.key = folder / "key"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        hook = [*MAIN, "escalate", "--store", str(self.place)]
        extra: dict[str, Any] = {
            "escalate": {"hook": hook},
            "health": {"kernel_log": False, "sensors": False, "nvml": False},
            "health.check": {"file": "health", "interval_s": 1.0},
        }
        self.daemons = Daemons(self.lab, DaemonSpec(mode="act", tcp_timers=True, realtime=True, extra=extra))

    def up(self) -> None:
        self.lab.up()
        self.key.write_text(secrets.token_hex(16))
        address = self.lab.address(BESIDE)
        self.run("store", BESIDE, *MAIN, "store", "--folder", str(self.folder / "store"), "--host", address)
        self.until(lambda: "store at" in self.said("store"), "the store")
        self.place.write_text(self.said("store").split("store at ", 1)[1].split()[0])
        self.run("coordinator", BESIDE, *MAIN, "coordinator", "--silent-s", "1.5", "--store", str(self.place),
                 "--key-file", str(self.key))  # fmt: skip
        for host in SPARES:
            self.train(host, TORCHPASS_SPARE="1")
        self.daemons.start().wait_ready(PATIENCE_S)
        for host in SPARES:
            self.until(lambda host=host: "waits as a spare" in self.told_by(host, ".log"), "a spare")  # type: ignore[misc]
        for rank, host in enumerate(RANKS):
            self.train(host, RANK=str(rank))
        self.until(lambda: self.step() >= 5, "the first steps")

    def down(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.daemons.close()
        self.lab.down()

    def train(self, host: str, **told: str) -> None:
        environment = {
            "TORCHPASS_STORE": str(self.place), "TORCHPASS_JOB": "j", "TORCHPASS_KEY_FILE": str(self.key),
            "TORCHPASS_HOST": host, "TORCHPASS_ADDRESS": self.lab.address(host), "WORLD_SIZE": str(len(RANKS)),
            "PLAN": json.dumps(PLAN), **told,
        }  # fmt: skip
        code = (
            "import json, sys; from pathlib import Path; from job_script import protected; "
            "protected(json.loads(sys.argv[1]), Path(sys.argv[2]))"
        )
        self.run(host, host, sys.executable, "-c", code, json.dumps(environment), str(self.folder / f"{host}.json"))

    def run(self, name: str, host: str, *argv: str) -> None:
        told = {"PYTHONPATH": f"{TRAINERS}:{ROOT}", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{name}.out", "ab") as out:
            self.processes[name] = self.lab.popen(
                host, argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **told}
            )

    def told_by(self, name: str, suffix: str) -> str:
        path = self.folder / f"{name}{suffix}"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, name: str) -> str:
        return self.told_by(name, ".out")

    def until(self, true: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < until_s, f"waited for {what}\n{self.story()}"
            time.sleep(0.05)

    def story(self) -> str:
        paths = [path for path in sorted(self.folder.glob("*.*")) if path.suffix in (".out", ".log")]
        logs = [f"--- {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in paths]
        lines = [f"{e.now_s:9.2f} {e.host} {e.what} | {e.why}" for e in self.daemons.journal(0.0)][-60:]
        return "\n".join([*lines, *logs])

    # the store, from beside it
    def ask(self, question: Callable[[Records], Any]) -> Any:
        async def work() -> Any:
            async with await Records.connect(self.place.read_text(), "test") as records:
                return await question(records)

        with self.lab.in_netns(BESIDE):
            return asyncio.run(work())

    def step(self) -> int:
        async def heard(records: Records) -> int:
            try:
                async with asyncio.timeout(0.5):
                    async for status in records.statuses("j"):
                        if status.doing == "training":
                            return status.step
            except TimeoutError:
                pass
            return -1

        return int(self.ask(heard))

    def job(self) -> Job:
        async def read(records: Records) -> Job:
            held = await records.job("j")
            assert held is not None
            return held.value

        found: Job = self.ask(read)
        return found

    def entries(self) -> list[Entry]:
        found: list[Entry] = self.ask(lambda records: records.entries(0.0))
        return found

    def finished(self) -> list[dict[str, Any]]:
        """By rank, what each told at its end."""
        self.until(lambda: bool(self.job().ended), "the job's end")
        assert self.job().ended == "finished", self.story()
        hosts = [member.host for member in self.job().members]
        for host in hosts:
            assert self.processes[host].wait(30) == 0, self.said(host)
        return [json.loads((self.folder / f"{host}.json").read_text()) for host in hosts]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    made = Loop(tmp_path_factory.mktemp("loop"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def moved(loop: Loop, number: int) -> tuple[Entry, str]:
    """The incident, once it is over, and the spare that took the rank."""
    loop.until(lambda: len(loop.entries()) >= number, "the move")
    entry = loop.entries()[number - 1]
    (rank,) = entry.ranks
    host = loop.job().members[rank].host
    assert host in SPARES
    print(f"{entry.kind}: detected {entry.detection_s:.2f} s, pause {entry.pause_s:.2f} s")
    return entry, host


def test_a_host_that_says_it_fails_is_left_while_the_job_trains(loop: Loop) -> None:
    loop.daemons.path("host2", "health").write_text("failing 91 degrees\n")
    entry, _ = moved(loop, 1)
    assert (entry.kind, entry.outcome, entry.trigger, entry.hosts) == ("planned", "moved", "daemon", ("host2",))
    assert any("91 degrees" in words for words in (entry.cause, *entry.evidence))
    assert loop.processes["host2"].wait(30) == OVER


def test_a_host_that_freezes_is_found_out_and_its_rank_goes_on_elsewhere(loop: Loop) -> None:
    """All that runs there stands still, its daemon too: the others' daemons know it by its kernel, which answers."""
    loop.lab.fault(parse("freeze:host3", loop.lab.fabric))
    entry, _ = moved(loop, 2)
    assert (entry.kind, entry.outcome, entry.ranks, entry.hosts) == ("crash", "moved", (2,), ("host3",))
    loop.until(
        lambda: any(e.what == "verdict host: host3 fails" for e in loop.daemons.journal(0.0)), "the daemons' verdict"
    )


def test_the_bits_are_those_of_stock_training_that_nothing_happened_to(loop: Loop, tmp_path: Path) -> None:
    told = loop.finished()
    stock = run_stock(tmp_path, len(RANKS), {**PLAN, "sleep_s": 0.0})
    assert [(t["hash"], t["own"]) for t in told] == [(t["hash"], t["own"]) for t in stock]
