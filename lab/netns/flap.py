"""Drive a flapping link from a process of its own: `python -m lab.netns.flap RUN_DIR FAULT_ID`.

The command line starts it, because the command ends while the link goes on flapping. It ends when the fault is undone,
when its time is over, or with the lab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.netns import processes
from lab.netns.lab import NetnsLab


def start(lab: NetnsLab, number: int) -> tuple[int, int]:
    """Start the driver of a fault and record it as the lab's own; its pid and start time."""
    log = open(lab.run_dir / f"flap-{number}.log", "wb")  # noqa: SIM115
    with log:
        argv = [sys.executable, "-m", "lab.netns.flap", str(lab.run_dir), str(number)]
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    child.returncode = 0  # it outlives this process on purpose; nobody waits for it
    lab.adopt("", child.pid, argv)
    return child.pid, processes.start_time(child.pid) or 0


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or not arguments[1].isdigit():
        print("usage: python -m lab.netns.flap RUN_DIR FAULT_ID", file=sys.stderr)
        return 2
    with NetnsLab.load(Path(arguments[0])) as lab:
        lab.drive_flap(int(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
