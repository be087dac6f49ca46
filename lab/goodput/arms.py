"""The four ways: how each starts the job, what an event does to it, who brings back what is gone.

Every arm is set up as well as it can be: torchrun looks at its workers ten times a second and its checkpoint interval
is the best one for the schedule; torchft's processes are started again the moment they end, its lighthouse's timeouts
are a tenth of the documented ones. Neither knows of a host that is to be left: for them a planned event is a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab.errors import LabError
from lab.goodput.schedule import THAW_S, Event
from lab.goodput.story import Reader

WORLD: Final = 4
SPARES: Final = 2
NICE: Final = 19
"""Of a spare that is being prepared: it stands for a host of its own, and must not take the job's processor time."""
TORCHFT_TIMEOUT_S: Final = 10.0
MIN_REPLICAS: Final = 3
START_S: Final = 120.0


class Arm:
    """One run of the job. `folder`: of its logs."""

    name = ""

    def __init__(self, folder: Path, steps: int, told: Mapping[str, str] | None = None) -> None:
        self.folder, self.steps = folder, steps
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """By host."""
        self.reader = Reader(folder, WORLD)
        self._told = dict(told or {})
        self._due: list[tuple[float, int]] = []
        """(when, pid): to be killed, for it was stopped."""

    def start(self) -> None:
        for rank in range(WORLD):
            self.run(f"h{rank}", RANK=str(rank))

    def strike(self, event: Event) -> None:
        """What is asked of, or done to, who holds the rank now; nothing, where nothing is to happen."""

    def turn(self) -> None:
        """Often: what this arm's own helpers do."""
        now_s = time.monotonic()
        for due in [due for due in self._due if due[0] <= now_s]:
            self._due.remove(due)
            _signal(due[1], signal.SIGKILL)

    def over(self) -> bool:
        """Every rank has told its end."""
        return len(self.reader.update().hashes) == WORLD

    def check(self) -> None:
        """LabError when it can come to no end any more."""

    def close(self) -> None:
        for host, process in self.processes.items():
            _signal(process.pid, signal.SIGCONT)
            if host == "store":  # it has a child of its own, and ends it
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10.0)
            process.kill()
            process.wait()

    def run(self, host: str, *, argv: tuple[str, ...] = ("-m", "lab.goodput.train"), nice: int = 0, **told: str) -> int:
        """Start a process of Python on a host; its pid."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ, "GOODPUT_ARM": self.name, "GOODPUT_LOG": str(self.folder), "GOODPUT_STEPS": str(self.steps),
            "WORLD_SIZE": str(WORLD), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))),
            "GLOO_SOCKET_IFNAME": "lo", **self._told, **told,
        }  # fmt: skip
        with open(self.folder / f"{host}.err", "ab") as said:
            process = subprocess.Popen(
                [sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
            )
        if nice:
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        self.processes[host] = process
        return process.pid

    def hurt(self, pid: int, event: Event) -> None:
        """planned, crash: it is gone. freeze: it stands still, until somebody makes an end of it."""
        if event.kind == "freeze":
            self._due.append((time.monotonic() + THAW_S, pid))
            _signal(pid, signal.SIGSTOP)
        else:
            _signal(pid, signal.SIGKILL)

    def said(self) -> str:
        """The last words of those that ended badly."""
        words = []
        for path in sorted(self.folder.glob("*.err")):
            lines = path.read_text(errors="replace").strip().splitlines()
            words += [f"{path.stem}: {lines[-1]}"] if lines else []
        return "; ".join(words) or "nobody said anything"


class Undisturbed(Arm):
    """Stock DDP, and nothing happens to it."""

    name = "none"

    def start(self) -> None:
        self._told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        super().start()

    def check(self) -> None:
        if any(process.poll() not in (None, 0) for process in self.processes.values()):
            raise LabError(f"the job without faults ended: {self.said()}", f"see {self.folder}")


class Restarted(Arm):
    """torchrun: when one worker is gone all begin again, from the latest checkpoint."""

    name = "restart"

    def start(self) -> None:
        self.run(
            "torchrun", MASTER_ADDR="127.0.0.1",
            argv=(
                "-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={WORLD}", "--max-restarts=1000",
                "--monitor-interval=0.1", "--shutdown-timeout=1", "-m", "lab.goodput.train",
            ),
        )  # fmt: skip

    def strike(self, event: Event) -> None:
        pid = self._worker(event.rank)
        if pid is not None:
            self.hurt(pid, event)

    def _worker(self, rank: int) -> int | None:
        """The process that is rank `rank` now; None while all are started again."""
        parent = self.processes["torchrun"].pid
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            try:
                environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RANK={rank}".encode() in environment:
                return int(child)
        return None

    def check(self) -> None:
        if self.processes["torchrun"].poll() is not None and not self.over():
            raise LabError(f"torchrun ended: {self.said()}", f"see {self.folder}")

    def close(self) -> None:
        workers = [pid for rank in range(WORLD) if (pid := self._worker(rank)) is not None]
        super().close()
        for pid in workers:
            _signal(pid, signal.SIGKILL)


class Torchft(Arm):
    """A replica group a rank; whoever ends is started again at once."""

    name = "torchft"

    def over(self) -> bool:
        """Who comes back when the others have done all steps finds no quorum any more: there is nothing left to do."""
        done = self.reader.update().hashes
        return len(done) == WORLD or (len(done) >= MIN_REPLICAS and self._ended(done))

    def _ended(self, done: Mapping[int, str]) -> bool:
        return all(self.processes[f"h{rank}"].poll() is not None for rank in done)

    def start(self) -> None:
        port = free_port()
        self._told |= {
            "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "GOODPUT_TIMEOUT_S": str(TORCHFT_TIMEOUT_S),
        }  # fmt: skip
        arguments = (
            "--bind", f"[::]:{port}", "--min_replicas", str(MIN_REPLICAS), "--quorum_tick_ms", "50",
            "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000",
        )  # fmt: skip
        self.run("lighthouse", argv=(str(Path(sys.executable).with_name("torchft_lighthouse")), *arguments))
        super().start()

    def strike(self, event: Event) -> None:
        self.hurt(self.processes[f"h{event.rank}"].pid, event)

    def turn(self) -> None:
        super().turn()
        for rank in range(WORLD):
            if self.processes[f"h{rank}"].poll() is not None and rank not in self.reader.story.hashes:
                self.run(f"h{rank}", RANK=str(rank))


class Linkpass(Arm):
    """torchpass: a store, a coordinator, two warm spares, and a new one for each that is used up."""

    name = "linkpass"

    def __init__(
        self, folder: Path, steps: int, told: Mapping[str, str] | None = None, *, spares: int = SPARES
    ) -> None:
        super().__init__(folder, steps, told)
        self._ready = spares
        self._spares = 0
        self._preparing: dict[str, int] = {}
        self._asked = 0

    def start(self) -> None:
        port = free_port()
        main = ("-c", "from torchpass_bridge.cli import main; main()")
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self.folder / "key"
        key.write_text(secrets.token_hex(16))
        self.run("store", argv=(*main, "store", "--folder", str(self.folder / "store"), "--port", str(port)))
        until_s = time.monotonic() + START_S
        while "store at " not in (said := (self.folder / "store.err").read_text()):
            if time.monotonic() > until_s or self.processes["store"].poll() is not None:
                raise LabError(f"no store: {self.said()}", f"see {self.folder}")
            time.sleep(0.05)
        self._url = said.split("store at ", 1)[1].split()[0]
        self._told |= {"TORCHPASS_STORE": self._url, "TORCHPASS_JOB": "goodput", "TORCHPASS_KEY_FILE": str(key)}
        self.run("coordinator", argv=(*main, "coordinator", "goodput"))
        for _ in range(self._ready):
            self._spare()
        for rank in range(WORLD):
            self.run(f"h{rank}", RANK=str(rank), TORCHPASS_HOST=f"h{rank}")

    def _spare(self, nice: int = 0) -> None:
        host = f"s{self._spares}"
        self._spares += 1
        pid = self.run(host, TORCHPASS_SPARE="1", TORCHPASS_HOST=host, nice=nice)
        if nice:
            self._preparing[host] = pid

    def strike(self, event: Event) -> None:
        host = asyncio.run(self._holder(event))
        if host is not None and event.kind != "planned":
            self.hurt(self.processes[host].pid, event)
        self._spare(NICE)

    async def _holder(self, event: Event) -> str | None:
        """The host that holds the rank; a planned event is asked for in the same breath."""
        from torchpass_bridge.store.records import Records
        from torchpass_bridge.wire import Ask

        async with await Records.connect(self._url, "goodput") as records:
            held = await records.job("goodput")
            if held is None:
                return None
            host = held.value.members[event.rank].host
            if event.kind == "planned":
                self._asked += 1
                answer = await records.ask(
                    "goodput", Ask(f"planned-{self._asked}", "migrate", host, unlimited=True), 10.0
                )
                if not answer.taken:
                    raise LabError(f"{host} is not left: {answer.why}", "")
            return host

    def turn(self) -> None:
        super().turn()
        for host, pid in list(self._preparing.items()):
            if self._waits(host):
                with contextlib.suppress(ProcessLookupError):
                    for task in Path(f"/proc/{pid}/task").iterdir():
                        os.setpriority(os.PRIO_PROCESS, int(task.name), 0)
                del self._preparing[host]

    def _waits(self, host: str) -> bool:
        """It has done its step for practice, and is offered."""
        return "waits as a spare" in (self.folder / f"{host}.err").read_text(errors="replace")

    def check(self) -> None:
        for host in ("store", "coordinator"):
            if self.processes[host].poll() is not None:
                raise LabError(f"the {host} ended: {self.said()}", f"see {self.folder}")


ARMS: Final[dict[str, type[Arm]]] = {arm.name: arm for arm in (Undisturbed, Restarted, Torchft, Linkpass)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
