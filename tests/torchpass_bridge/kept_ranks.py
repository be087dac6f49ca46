"""A real job whose ranks are kept by `torchpass rank`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from commands import MAIN
from running_job import PATIENCE_S, RunningJob

SCRIPT = "import sys, pathlib, job_script; job_script.protected({}, pathlib.Path(sys.argv[1]))"

Told = list[dict[str, Any]]


class Launched:
    """A launcher and its script, as `multiprocessing` has a process."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with log.open("a") as file:
            self._process = subprocess.Popen(
                (*MAIN, *arguments), env={**os.environ, "PYTHONPATH": paths, **environment}, stdout=file, stderr=file
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """In good order, so that no script is left behind."""
        self._process.terminate()

    def join(self) -> None:
        self._process.wait(PATIENCE_S)

    @property
    def exitcode(self) -> int:
        return self._process.returncode


class Preemptible(RunningJob):
    """Its ranks are kept by `torchpass rank`, on hosts a0, a1, …"""

    def start(self, host: str, **told: str) -> None:
        host = host.replace("h", "a")
        arguments = ("rank", "--", sys.executable, "-c", SCRIPT, str(self.folder / f"{host}.json"))
        self.processes[host] = Launched(arguments, self.environment(host, **told), self.folder / f"{host}.launcher.log")

    async def finished(self) -> Told:
        """It is stopped before, and goes on."""
        await self.until(lambda job: job.ended == "finished", "the job to finish")
        return await super().finished()
