"""The job in the lab: one rank of `lab/train_gpt.py` on every host, its logs read while it runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from lab import steps
from lab.errors import LabError
from lab.steps import RankLog, Stall

SCRIPT = Path(__file__).with_name("train_gpt.py")
PORT = 29500
POLL_S = 0.02
STOP_MARGIN = 40
"""Steps between the one known last and the one to stop at: no rank can have passed it when it looks."""


class Place(Protocol):
    """Where ranks run: a lab, or this machine's loopback."""

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]: ...

    def address(self, host: str, family: int = 6) -> str: ...

    def interface(self, family: int = 6) -> str: ...


class Loopback:
    """The job without a fabric, for the undisturbed run that others are compared with: sums do not depend on it."""

    def popen(self, node: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        del node  # all are this machine
        return subprocess.Popen(list(argv), **options)

    def address(self, host: str, family: int = 6) -> str:
        del host, family
        return "127.0.0.1"

    def interface(self, family: int = 6) -> str:
        del family
        return "lo"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to train. `steps`: the last step at most; `family`: of the addresses that Gloo's sockets use."""

    preset: Literal["bench", "demo"] = "bench"
    steps: int = 500
    seed: int = 0
    hash_every: int = 50
    family: Literal[4, 6] = 6
    extra: tuple[str, ...] = ()


class Job:
    """One rank a host, rank numbers in the order of `hosts`. Nothing runs before `start()`.

    Logs lie in `run_dir` as `rank0.jsonl`, what a rank says on stderr in `rank0.err`. All times are monotonic."""

    def __init__(self, place: Place, hosts: Sequence[str], run_dir: Path, spec: JobSpec | None = None) -> None:
        self.place = place
        self.hosts = tuple(hosts)
        self.run_dir = run_dir
        self.spec = spec or JobSpec()
        self.ranks = [RankLog(rank) for rank in range(len(self.hosts))]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._read = [0] * len(self.hosts)

    def start(self) -> Job:
        """Start all ranks; returns at once (torch needs seconds to load: `wait_steps(1)`)."""
        if self.processes:
            raise LabError("this job was started already")
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._stop_file.unlink(missing_ok=True)
        for rank in range(len(self.hosts)):
            self._log_path(rank).unlink(missing_ok=True)
            self._slow_path(rank).unlink(missing_ok=True)
        on_loopback = isinstance(self.place, Loopback)
        master = self.place.address(self.hosts[0], self.spec.family)
        shared = {
            "WORLD_SIZE": str(len(self.hosts)), "MASTER_ADDR": master,
            "MASTER_PORT": str(_free_port() if on_loopback else PORT), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self.place.interface(self.spec.family), "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        for rank, host in enumerate(self.hosts):
            self.processes.append(self._start_rank(rank, host, shared))
        return self

    def update(self) -> None:
        """Read what the ranks have written since the last call."""
        for rank, log in enumerate(self.ranks):
            try:
                with open(self._log_path(rank), "rb") as stream:
                    stream.seek(self._read[rank])
                    data = stream.read()
            except FileNotFoundError:  # the rank still loads torch
                continue
            self._read[rank] += len(data)
            log.feed(data)

    @property
    def steps(self) -> int:
        """Steps that every rank has finished, as of the last `update()`."""
        return min(len(log.ends_s) for log in self.ranks)

    @property
    def finished(self) -> bool:
        return all(log.done is not None for log in self.ranks)

    def check(self) -> None:
        """LabError when a rank has died, with its last words."""
        for rank, process in enumerate(self.processes):
            status = process.poll()
            if status not in (None, 0) or self.ranks[rank].error:
                words = self.ranks[rank].error or self._last_words(rank)
                raise LabError(f"rank {rank} on {self.hosts[rank]} died (status {status}): {words}",
                               f"see {self._error_path(rank)}")  # fmt: skip

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Read logs until the condition holds. LabError when a rank dies or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.update()
            if condition():
                return
            self.check()
            if time.monotonic() > deadline_s:
                raise LabError(f"the job did not {what} within {timeout_s:g} s (at step {self.steps})",
                               f"logs in {self.run_dir}")  # fmt: skip
            time.sleep(POLL_S)

    def wait_steps(self, count: int, timeout_s: float = 60.0) -> None:
        self.wait_for(lambda: self.steps >= count or self.finished, timeout_s, f"reach step {count}")

    def wait(self, timeout_s: float = 600.0) -> None:
        """Until every rank is done and gone."""
        self.wait_for(lambda: self.finished, timeout_s, "end")
        for process in self.processes:
            process.wait(timeout=30)

    def stop(self, timeout_s: float = 60.0, multiple_of: int = 1) -> int:
        """End at a step that all ranks agree on, a multiple of `multiple_of`; returns that number of steps."""
        self.update()
        newest = max(len(log.ends_s) for log in self.ranks)
        at = min(-(-(newest + STOP_MARGIN) // multiple_of) * multiple_of, self.spec.steps)
        scratch = self._stop_file.with_suffix(".new")
        scratch.write_text(str(at))
        scratch.replace(self._stop_file)
        self.wait(timeout_s)
        return self.steps

    def slow(self, rank: int, seconds: float) -> None:
        """A rank loses so much time in each step from its next one on; 0: it is as fast as the others again."""
        scratch = self._slow_path(rank).with_suffix(".new")
        scratch.write_text(str(seconds))
        scratch.replace(self._slow_path(rank))

    def close(self) -> None:
        """End what still runs, at once."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # figures
    def median_step_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float:
        """Of the run so far; the first steps, in which DDP builds its buckets, hardly weigh in a median."""
        return steps.median_step_s(self.ranks, since_s, until_s)

    def stall(self, since_s: float, until_s: float) -> Stall:
        """The longest stall that reaches into a window; one that goes on counts up to now."""
        self.update()
        return steps.longest_stall(self.ranks, since_s, until_s, self.median_step_s(), time.monotonic())

    def settle(self, after_s: float, timeout_s: float) -> bool:
        """Read until every rank has ended two steps after the moment `after_s`: the job runs again. False: it does not.

        A rank that died raises LabError."""
        try:
            self.wait_for(
                lambda: self.finished or all(len(r.ends_s) > 1 and r.ends_s[-2] > after_s for r in self.ranks),
                timeout_s,
                "go on",
            )
        except LabError:
            self.check()
            return False
        return True

    def _start_rank(self, rank: int, host: str, shared: Mapping[str, str]) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable, str(SCRIPT), "--preset", self.spec.preset, "--steps", str(self.spec.steps),
            "--seed", str(self.spec.seed), "--hash-every", str(self.spec.hash_every),
            "--log", str(self._log_path(rank)), "--stop-file", str(self._stop_file),
            "--slow-file", str(self._slow_path(rank)), *self.spec.extra,
        ]  # fmt: skip
        with open(self._error_path(rank), "wb") as errors:
            return self.place.popen(
                host, argv, env={**os.environ, **shared, "RANK": str(rank)},
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def _last_words(self, rank: int) -> str:
        lines = [line for line in self._error_path(rank).read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"

    @property
    def _stop_file(self) -> Path:
        return self.run_dir / "stop"

    def _log_path(self, rank: int) -> Path:
        return self.run_dir / f"rank{rank}.jsonl"

    def _slow_path(self, rank: int) -> Path:
        return self.run_dir / f"rank{rank}.slow"

    def _error_path(self, rank: int) -> Path:
        return self.run_dir / f"rank{rank}.err"


def undisturbed(run_dir: Path, ranks: int, spec: JobSpec, timeout_s: float = 900.0) -> list[RankLog]:
    """Run the job without a fabric and without faults; its logs are the reference for weights."""
    with Job(Loopback(), [f"rank{rank}" for rank in range(ranks)], run_dir, spec) as job:
        job.start().wait(timeout_s)
        return job.ranks


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
