"""An RDMA program across a lab: the writer of `lab.rdma_writer` in two guests, and what became of it."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lab.capture import Flow, Sightings
from lab.errors import LabError
from lab.qemu.guest import Guest

WRITER: Final = Path(__file__).with_name("rdma_writer.py")
ROOT: Final = Path(__file__).parents[1]
ROCE_PORT: Final = 4791
START_S: Final = 90.0
END_S: Final = 45.0
Kind = Literal["send", "write", "read"]
KINDS: Final[tuple[Kind, ...]] = ("send", "write", "read")
PAUSE_S: Final = 0.02
"""Shorter pauses are not written down."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Between two completions, by our clock."""

    at_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """`error`: the completion status that ended the sender, empty when it ended in order."""

    sent: int
    completed: int
    received: int
    payload_errors: int
    error: str

    @property
    def whole(self) -> bool:
        """Everything arrived, once, in order and unharmed."""
        return not self.error and not self.payload_errors and self.sent == self.completed == self.received


class RdmaJob:
    """One sender and one receiver. `start()` returns when messages flow; `stop()` ends both in order."""

    def __init__(self, sender: Guest, receiver: Guest, address: str, *, kind: Kind = "send", rate: float = 25.0,
                 timeout: int = 14, retries: int = 6) -> None:  # fmt: skip
        """`address`: the receiver's; `kind`: of the program (`lab.rdma_writer`); `timeout`: exponent of 4.096 us x
        2^timeout; `retries`: 7 is for ever on rxe."""
        self._guests = {"send": sender, "serve": receiver}
        self._address = address
        self._options = [
            "--kind", kind, "--size", "1024", "--rate", str(rate), "--timeout", str(timeout), "--retries", str(retries),
        ]  # fmt: skip
        self._pids: dict[str, int] = {}
        self._logs: dict[str, Path] = {}
        self._offset_s = 0.0

    def start(self) -> RdmaJob:
        """Raises LabError when one of them ends or does not begin in time."""
        self._offset_s, _ = self._guests["send"].clock_offset_s()
        # Both at once: under emulation each takes seconds to come up. The sender waits for the other end.
        self._spawn("serve", "--listen")
        self._spawn("send", "--connect")
        for what, word in (("serve", "listening"), ("send", "ready")):
            self._wait_for(what, word)
        return self

    def _spawn(self, what: str, option: str) -> None:
        guest = self._guests[what]
        name = f"writer-{what}-{time.monotonic_ns()}"
        self._logs[what] = guest.share / name
        argv = ["nice", "-n", "10", sys.executable, str(WRITER), what, option, self._address, *self._options]
        self._pids[what] = guest.spawn(argv, name, env={"PYTHONPATH": str(ROOT)})

    def _wait_for(self, what: str, word: str) -> None:
        guest = self._guests[what]
        until_s = time.monotonic() + START_S
        while not any(word in line for line in self._lines(what)):
            if guest.wait(self._pids[what], 0) is not None or time.monotonic() > until_s:
                said = self._logs[what].read_text(errors="replace").strip().splitlines()[-1:]
                raise LabError(f"the RDMA writer did not begin to {what}: {' '.join(said)}", f"see {self._logs[what]}")
            time.sleep(0.1)

    @property
    def alive(self) -> bool:
        """The sender still runs."""
        return self._guests["send"].wait(self._pids["send"], 0) is None

    def pauses(self) -> list[Pause]:
        """Those of more than PAUSE_S so far; the one that ended with an error counts to its end."""
        found = []
        for line in self._lines("send"):
            if "pause_s" in line:
                found.append(Pause(line["at_s"] - self._offset_s, line["pause_s"]))
            elif line.get("error"):
                found.append(Pause(line["last_s"] - self._offset_s, line["at_s"] - line["last_s"]))
        return found

    def stop(self) -> Result:
        """Raises LabError when they do not end."""
        sender, receiver = self._guests["send"], self._guests["serve"]
        if self.alive:
            sender.signal(self._pids["send"], signal.SIGTERM)
        for what, guest in (("send", sender), ("serve", receiver)):
            if guest.wait(self._pids[what], END_S) is None:
                guest.signal(self._pids[what], signal.SIGKILL)
                raise LabError(f"the RDMA writer that should {what} did not end", f"see {self._logs[what]}")
        sent = next((line for line in self._lines("send") if "completed" in line), {})
        got = next((line for line in self._lines("serve") if "received" in line), {})
        if not sent or not got:
            raise LabError("the RDMA writer ended without a result", f"see {self._logs['send']}")
        return Result(sent["sent"], sent["completed"], got["received"], got["payload_errors"], sent["error"])

    def close(self) -> None:
        """Whatever still runs is ended."""
        for what, pid in self._pids.items():
            if self._guests[what].wait(pid, 0) is None:
                self._guests[what].signal(pid, signal.SIGKILL)
                self._guests[what].wait(pid, 5)

    def _lines(self, what: str) -> list[dict[str, Any]]:
        found = []
        for line in self._logs[what].read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # half a line, or a traceback
        return found


def longest_pause_s(pauses: list[Pause], since_s: float, until_s: float) -> float:
    """Of those that touch a span; PAUSE_S stands for none that was written down."""
    return max((p.seconds for p in pauses if p.at_s < until_s and p.at_s + p.seconds > since_s), default=PAUSE_S)


def way_of(seen: Sightings, source: str, target: str) -> list[str]:
    """The directions that carried most of the RoCE packets from one address to another, by their names."""
    flows = roce_flows(seen, source, target)
    count: dict[str, int] = {}
    for one in seen.seen:
        if one.flow in flows:
            count[one.direction] = count.get(one.direction, 0) + one.packets
    most = max(count.values(), default=0)
    return sorted(direction for direction, packets in count.items() if packets > most / 2)


def roce_flows(seen: Sightings, source: str, target: str) -> set[Flow]:
    ends = (source, target, ROCE_PORT)
    return {one.flow for one in seen.seen if (one.flow.source, one.flow.target, one.flow.target_port) == ends}
