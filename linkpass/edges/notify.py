"""sd_notify: telling the service manager READY, STATUS and WATCHDOG over a datagram socket (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Tells the service manager how the daemon is. Without one every call does nothing."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s
        """How often the manager wants to hear from us; None: it does not watch. Tell it at half that interval."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Notifier:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. A watchdog meant for another process is not ours."""
        environment = os.environ if environment is None else environment
        usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
        watched = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(environment.get("NOTIFY_SOCKET") or None, int(usec) / 1e6 if watched else None)

    def ready(self, status: str = "") -> bool:
        return self._tell("READY=1", f"MAINPID={os.getpid()}", *self._status(status))

    def status(self, status: str) -> bool:
        return self._tell(*self._status(status))

    def watchdog(self) -> bool:
        return self._tell("WATCHDOG=1")

    def stopping(self, status: str = "") -> bool:
        return self._tell("STOPPING=1", *self._status(status))

    def _status(self, text: str) -> list[str]:
        return [f"STATUS={' '.join(text.split())}"] if text.strip() else []

    def _tell(self, *lines: str) -> bool:
        """True when the manager's socket took it. A manager that is gone is no reason to stop."""
        if not self._address or not lines:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as out:
            try:
                out.sendto("\n".join(lines).encode(), address)
            except OSError:
                return False
        return True
