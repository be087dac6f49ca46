"""One `linkpass` daemon on every host of a lab: its files, its start and end, its journal and its control socket.

A host's files lie in `lab.host_dir(host)`: `linkpass.toml`, `key`, `control.sock`, `journal.jsonl`, `recording.jsonl`
and `log`. The daemons know nothing of the lab: they are started as a person would start them.
"""

from __future__ import annotations

import http.client
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import msgspec

from lab import addressing
from lab.errors import LabError
from lab.netns.lab import NetnsLab

POLL_S = 0.02
READY_S = 20.0

PROGRAM = (sys.executable, "-c", "from linkpass.cli import main; main()")
"""What the console script `linkpass` runs, also where that is not on the path."""

Scalar = str | int | float | bool


class Process(Protocol):
    """What is used of `subprocess.Popen`, for a daemon wherever it runs."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class Entry(msgspec.Struct, frozen=True):
    """A line of a daemon's journal, and whose it is. `now_s` is the monotonic time of the decision, by our clock."""

    seq: int
    now_s: float
    cause: str
    what: str
    why: str
    run: int = 1
    rung: int = 0
    element: str = ""
    level: str = "info"
    host: str = ""

    @property
    def is_move(self) -> bool:
        """Traffic was sent another way, on rung 1 or 2 (what a daemon that only observes would do is no move)."""
        return self.what.startswith("moved ")

    @property
    def is_back(self) -> bool:
        """A move that brings traffic back."""
        return self.is_move and self.what.partition(":")[0].endswith(" back")


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """How all daemons of a lab are configured, beside what follows from the lab.

    `family`: of the addresses that the job's sockets use. `topology`: the lab's containerlab file, or None. `extra`:
    more keys by section, as in the configuration file
    (section "" is the top level)."""

    mode: Literal["observe", "act"] = "act"
    rungs: tuple[int, ...] = (1, 2)
    tcp_timers: bool = False
    rto_min_ms: int | None = None
    realtime: bool = False
    family: Literal[4, 6] = 6
    topology: Path | None = None
    record: bool = False
    extra: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)


class Daemons:
    """The daemons of a lab's hosts. Nothing runs before `start()`; `close()` ends what runs."""

    def __init__(self, lab: NetnsLab, spec: DaemonSpec | None = None, hosts: Iterable[str] | None = None) -> None:
        self.lab = lab
        self.spec = spec or DaemonSpec()
        self.hosts = tuple(hosts) if hosts is not None else tuple(host.name for host in lab.fabric.hosts)
        self.processes: dict[str, Process] = {}
        self._key = secrets.token_hex(32)
        self._journals: dict[str, tuple[int, list[Entry]]] = {}

    def start(self, *, fresh: bool = True) -> Daemons:
        """Write every host's files and start its daemon. `fresh`: old journals and recordings are removed first."""
        for host in self.hosts:
            self.write(host, fresh=fresh)
        for host in self.hosts:
            self.start_one(host)
        return self

    def start_one(self, host: str) -> None:
        """Start (again) one host's daemon with the files that it has."""
        with open(self.path(host, "log"), "ab") as log:
            self.processes[host] = self.lab.popen(
                host,
                [*PROGRAM, "run", "--config", str(self.path(host, "linkpass.toml"))],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def write(self, host: str, *, fresh: bool = True) -> Path:
        """Write one host's configuration and key; returns the configuration's path."""
        folder = self.path(host, "")
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for name in ("journal.jsonl", "journal.jsonl.1", "recording.jsonl", "log"):
                (folder / name).unlink(missing_ok=True)
            self._journals.pop(host, None)
        key = folder / "key"
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        key.write_text(self._key + "\n")
        path = folder / "linkpass.toml"
        path.write_text(toml(self._configuration(host)))
        return path

    def path(self, host: str, name: str) -> Path:
        """One of a host's files, from here."""
        return self.lab.host_dir(host) / name

    def inside(self, host: str, name: str) -> Path:
        """The same file as the daemon sees it."""
        return self.path(host, name)

    # asking
    def get(self, host: str, url: str) -> Any:
        """GET from a host's control socket; decoded JSON. LabError when nobody answers or the answer is an error."""
        return self._ask(host, "GET", url)

    def post(self, host: str, url: str, **body: Any) -> Any:
        return self._ask(host, "POST", url, json.dumps(body))

    def view(self, host: str) -> dict[str, Any]:
        """What `linkpass status --json` shows there."""
        found: dict[str, Any] = self.get(host, "/status")
        return found

    def wait_ready(self, timeout_s: float = READY_S) -> float:
        """Until every control socket answers; how long it took. LabError with a daemon's last words otherwise."""
        return self.wait_for(lambda host: True, timeout_s, "answer on its control socket")

    def wait_for(self, true: Callable[[str], bool], timeout_s: float, what: str) -> float:
        """Until a condition holds for every host (a daemon that does not answer yet does not fulfil it)."""
        started_s = time.monotonic()
        for host in self.hosts:
            self.wait_for_one(host, true, timeout_s - (time.monotonic() - started_s), what)
        return time.monotonic() - started_s

    def wait_for_one(self, host: str, true: Callable[[str], bool], timeout_s: float, what: str) -> float:
        """The same for one host."""
        started_s = time.monotonic()
        while True:
            self.check()
            try:
                self.get(host, "/healthz")
                if true(host):
                    return time.monotonic() - started_s
            except LabError:
                pass
            if time.monotonic() - started_s > timeout_s:
                raise LabError(f"the daemon of {host} did not {what} in time: {self._last_words(host)}",
                               f"see {self.path(host, 'log')}")  # fmt: skip
            time.sleep(POLL_S)

    def wait_settled(self, timeout_s: float = 30.0) -> float:
        """Until every daemon finds all planned paths to all other hosts good and owes the kernel nothing."""
        return self.wait_for(self.is_settled, timeout_s, "find all its paths good")

    def is_settled(self, host: str, view: dict[str, Any] | None = None) -> bool:
        """Whether a daemon (by its view, if that is at hand) finds all planned paths to all other hosts good and owes
        the kernel nothing."""
        view = view or self.view(host)
        peers = {peer["address"]: peer for peer in view["peers"]}
        others = {self.lab.address(other, self.spec.family) for other in self.hosts if other != host}
        if not others <= peers.keys():
            return False
        evidence = [peers[address]["evidence"] for address in others]
        good = all(
            counts.get("good") and not any(n for word, n in counts.items() if word != "good") for counts in evidence
        )
        return good and all(one["desired"] == one["programmed"] for one in view["steering"])

    def clear(self) -> None:
        """Forget the damping of every element, everywhere: the next fault meets daemons without a past."""
        for host in self.hosts:
            self.post(host, "/clear", link="*")

    def check(self) -> None:
        """LabError when a daemon has ended by itself."""
        for host, process in self.processes.items():
            if process.poll() is not None:
                raise LabError(f"the daemon of {host} ended (status {process.returncode}): {self._last_words(host)}",
                               f"see {self.path(host, 'log')}")  # fmt: skip

    @property
    def moves(self) -> int:
        """Moves of traffic that all daemons together have made since they started."""
        return sum(int(self.view(host)["moves"]) for host in self.hosts)

    def journal(self, since_s: float = 0.0) -> list[Entry]:
        """Entries of all hosts' journals from a moment on, in the order of time."""
        entries = [entry for host in self.hosts for entry in self._journal_of(host) if entry.now_s >= since_s]
        return sorted(entries, key=lambda entry: entry.now_s)

    def clock_offset_s(self, host: str) -> float:
        """A host's monotonic clock minus ours."""
        return 0.0

    # ending
    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM: the daemons hand traffic back to the kernel. LabError when one does not end."""
        self._end(list(self.processes), timeout_s)

    def stop_one(self, host: str, timeout_s: float = 10.0) -> None:
        """The same for one host."""
        self._end([host], timeout_s)

    def _end(self, hosts: Sequence[str], timeout_s: float) -> None:
        for host in hosts:
            if self.processes[host].poll() is None:
                self.processes[host].send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + timeout_s
        late = []
        for host in hosts:
            process = self.processes.pop(host)
            try:
                process.wait(max(deadline_s - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                late.append(host)
                process.kill()
                process.wait()
        if late:
            raise LabError(f"the daemons of {', '.join(late)} did not end within {timeout_s:g} s of SIGTERM")

    def kill(self, host: str) -> None:
        """SIGKILL one: as a crash would end it."""
        process = self.processes.pop(host)
        process.kill()
        process.wait()

    def close(self) -> None:
        for host in list(self.processes):
            self.kill(host)

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.stop()
        else:
            self.close()

    # inside
    def _configuration(self, host: str) -> dict[str, dict[str, Any]]:
        spec, folder = self.spec, self.inside(host, "")
        wanted: dict[str, dict[str, Any]] = {
            "": {
                "mode": spec.mode, "host": host, "address": self.lab.address(host, spec.family),
                "rungs": list(spec.rungs), "realtime": spec.realtime,
                "prefixes": [addressing.HOSTS6, addressing.HOSTS4],
                "peers": [
                    self.lab.address(other.name, spec.family) for other in self.lab.fabric.hosts if other.name != host
                ],
                "operators": [self.lab.address(self.hosts[0], spec.family)],
            },
            "fabric": {"file": str(spec.topology.absolute())} if spec.topology else {},
            "fabric.names": dict(self.lab.names),
            "auth": {"key_file": str(folder / "key")},
            "tcp_timers": {"enabled": spec.tcp_timers},
            "routes": {"rto_min_ms": spec.rto_min_ms} if spec.rto_min_ms is not None else {},
            "control": {"socket": str(self.inside(host, "control.sock"))},
            "metrics": {"listen": ""},
            "journal": {"dir": str(folder)},
            "recorder": {"file": str(folder / "recording.jsonl")} if spec.record else {},
        }  # fmt: skip
        for section, keys in spec.extra.items():
            wanted.setdefault(section, {}).update(keys)
        return wanted

    def _journal_of(self, host: str) -> list[Entry]:
        offset, entries = self._journals.get(host, (0, []))
        try:
            with open(self.path(host, "journal.jsonl"), "rb") as stream:
                stream.seek(offset)
                whole = stream.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return entries
        for line in whole.splitlines():
            entry = msgspec.json.decode(line, type=Entry)
            entries.append(msgspec.structs.replace(entry, host=host, now_s=entry.now_s - self.clock_offset_s(host)))
        self._journals[host] = (offset + len(whole) + bool(whole), entries)
        return entries

    def _ask(self, host: str, method: str, url: str, body: str | None = None) -> Any:
        try:
            status, said = self.request(host, method, url, body)
            answer = json.loads(said)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LabError(f"the daemon of {host} does not answer: {error}", f"see {self.path(host, 'log')}") from error
        if status >= 400:
            raise LabError(f"the daemon of {host} refuses {url}: {answer.get('error')}", str(answer.get("hint", "")))
        return answer

    def request(self, host: str, method: str, url: str, body: str | None = None) -> tuple[int, bytes]:
        """A request to a host's control socket: (status, body of the answer). OSError, HTTPException."""
        connection = _Connection(self.path(host, "control.sock"))
        try:
            connection.request(method, url, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _last_words(self, host: str) -> str:
        try:
            lines = self.path(host, "log").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return lines[-1][:300] if lines else "it said nothing"


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5.0)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Plain sections of scalars and lists. A JSON string, number, list or boolean is the same in TOML."""
    lines: list[str] = []
    for section, keys in sections.items():
        if section and keys:
            lines += ["", f"[{section}]"]
        lines += [f"{json.dumps(key) if ':' in key or '.' in key else key} = {json.dumps(value)}"
                  for key, value in keys.items()]  # fmt: skip
    return "\n".join(lines) + "\n"
