"""Added delay where the kernel has no netem, and the same where it has: a process of the lab's own in the packets' way.

Packets of a delayed direction are forwarded to a tap instead of the wire device towards the receiver; the relay reads
them there, waits, and sends them out of that device, shaper included. The tap is the relay's: both are gone when it
ends, and a relay that is killed leaves a direction that carries nothing until the fault is undone.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from lab.errors import LabError
from lab.netns import namespace, processes
from lab.qemu.tap import open_tap

SCRIPT = Path(__file__).with_name("relay_process.py")
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
PATIENCE_S = 2.0


def start(
    where: int | str, pairs: Sequence[tuple[str, str]], by_s: float, log: Path, adopt: Callable[[int, list[str]], None]
) -> tuple[int, int]:
    """Start a relay in a namespace (descriptor or name) for pairs of (its own new device, device to send out of).

    Returns its pid and start time once it holds packets; `adopt` is told of it first. LabError when it cannot."""
    with ExitStack() as stack:
        words, fds = [], []
        for tap, out in pairs:
            read_fd = open_tap(where, tap, header=False)
            stack.callback(os.close, read_fd)
            with namespace.inside(where):
                sender = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                sender.bind((out, 0))
                fcntl.ioctl(sender, _SIOCSIFFLAGS, struct.pack("16sH22x", tap.encode(), _IFF_UP))
            words.append(f"{read_fd}:{sender.fileno()}")
            fds += [read_fd, sender.fileno()]
        argv = [sys.executable, "-I", "-S", str(SCRIPT), f"{by_s:.6f}", *words]
        errors = stack.enter_context(open(log, "wb"))
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, pass_fds=fds, start_new_session=True
        )  # fmt: skip
        assert child.stdout is not None
        with child.stdout:
            adopt(child.pid, argv)
            ready = child.stdout.readline()
        started = processes.start_time(child.pid)
        child.returncode = 0  # it outlives this process if need be; `end` waits for it
    if ready != b"ready\n" or started is None:
        raise LabError(f"the relay that delays packets did not start: see {log}", "is there /dev/net/tun?")
    return child.pid, started


def end(relay: tuple[int, int], by_s: float) -> None:
    """Let a relay send what it holds, and see it gone. No error when it is gone already."""
    processes.send([relay], signal.SIGTERM)
    deadline = time.monotonic() + 2 * by_s + PATIENCE_S
    while processes.start_time(relay[0]) == relay[1] and time.monotonic() < deadline:
        time.sleep(0.002)
    processes.end([relay])
    with suppress(ChildProcessError):  # of another process
        os.waitpid(relay[0], os.WNOHANG)
