"""Hands traffic back when the daemon dies. The kernel lets our IPv6 routes expire, but who has kept one goes on with it
(`bundle.renewal`), and it knows no expiry for IPv4 ones.

While routes of ours lie in the kernel a shell waits at the end of a pipe, in a session of its own, a megabyte of
memory. A daemon that ends in order says so and it goes. A daemon that is killed leaves the pipe closed: the shell waits
as long as IPv6 routes live, then runs this module, which sweeps what carries our marks, unless another daemon has taken
over meanwhile: that one holds a name (an abstract unix socket, whose names belong to the network namespace and end with
their holder).

Under systemd the shell is ended with the rest of the service, and ExecStopPost=linkpass cleanup does the same at once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from linkpass.edges.kernel.egress import EgressEdge
from linkpass.edges.kernel.routes import EXPIRES_S, RouteEdge
from linkpass.edges.kernel.space import Space

NAME = "\0linkpass-steers"
SHELL = "/bin/sh"
SCRIPT = """trap '' HUP INT
if read -r word; then exit 0; fi
sleep "$1"
shift
exec "$@"
"""
END_S = 2.0


class Guardian:
    """One network namespace's. Nothing is started before routes are laid (`watch`)."""

    def __init__(self, *, wait_s: float = EXPIRES_S, vrf: str = "") -> None:
        self._wait_s, self._vrf = wait_s, vrf
        self._space = Space()
        self._name: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._wanted = False

    def open(self) -> None:
        """Take the name in this thread's namespace, so that an earlier daemon's guardian leaves our routes alone."""
        self._space.open()
        self._name = take_name()

    def watch(self, *, laid: bool) -> None:
        """Routes of ours lie in the kernel now, or no longer. Raises OSError when no process can be started."""
        if self._space.fd < 0:
            return
        self._wanted = laid
        if laid:
            self.check()
        else:
            self._end()

    def check(self) -> None:
        """Start the guardian that is wanted and does not live, and take the name if it was not free. Raises OSError."""
        if self._space.fd < 0:
            return
        with self._space.inside():
            self._name = self._name or take_name()
            if self._wanted and (self._process is None or self._process.poll() is not None):
                self._abandon()
                self._start()

    def close(self, *, swept: bool = True) -> None:
        """Dismiss it. Not `swept`: our routes could not be removed, so it stays and tries again later."""
        if swept:
            self._end()
        else:
            self._abandon()
        if self._name is not None:
            self._name.close()
            self._name = None
        self._space.close()

    @property
    def pid(self) -> int:
        """0: none."""
        return self._process.pid if self._process is not None else 0

    def _start(self) -> None:
        near, self._pipe = os.pipe()
        then = [sys.executable, "-m", __name__, self._vrf]
        try:
            self._process = subprocess.Popen(
                [SHELL, "-c", SCRIPT, "linkpass-guardian", f"{self._wait_s:g}", *then],
                stdin=near,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(near)

    def _end(self) -> None:
        """Say goodbye, and wait for it to go."""
        process = self._process
        if process is not None:
            try:
                os.write(self._pipe, b"\n")
                process.wait(END_S)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
        self._abandon()

    def _abandon(self) -> None:
        """Without a word: if it lives, it takes us for dead."""
        self._process = None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def take_name() -> socket.socket | None:
    """Hold the name of the daemon that steers in this thread's namespace; None: another one does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(NAME)
    except OSError:
        sock.close()
        return None
    return sock


def main() -> None:
    """What is left of a daemon that has died goes, unless another one is there."""
    name = take_name()
    if name is None:
        return
    with name:
        edge = RouteEdge([], metric=0, vrf=sys.argv[1] if len(sys.argv) > 1 else "")
        edge.open()
        try:
            edge.sweep()
            EgressEdge().sweep()
        finally:
            edge.close()


if __name__ == "__main__":
    main()
