"""One guest: its QEMU process, and the agent in it that does what it is asked.

    with Guest("host1", run_dir) as guest:
        guest.start(kernel, [Nic("eth1", open_tap("namespace", "tap1"), "02:4c:50:00:00:0a")]).connect()
        guest.run(["ip", "link"])

Network cards sit on taps of the lab's wire, opened by whoever calls: the guest has no other network. What the agent
says goes over a virtio serial port, so that no fault of the fabric cuts it off.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from lab.errors import LabError
from lab.qemu.kernel import FILES, Kernel

MEMORY_MB: Final = 512
MTU: Final = 9000
"""Cards' MTU at most (`host_mtu`): room for RoCE's 4,096 bytes."""
BOOT_S: Final = 90.0
MODULES: Final = ("virtio_net", "vrf", "rdma_rxe", "ib_uverbs", "rdma_ucm", "nf_tables")
AGENT_PORT: Final = "linkpass.agent"


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card. `tap`: an open descriptor of a tap device; the guest takes it over."""

    name: str
    tap: int
    mac: str


@dataclass(frozen=True, slots=True)
class Done:
    """What a command came to."""

    rc: int
    out: str
    err: str


class Guest:
    """The constructor only stores. `start()` boots a guest; `connect()` finds the agent of one that any process started
    (one at a time). Its files lie in `run_dir`: `console`, `monitor`, `agent`, `share`."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self.name = name
        self.run_dir = run_dir.absolute()
        self.share = self.run_dir / "share"
        """A folder that is `/share` in the guest."""
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._numbers = itertools.count(time.time_ns())  # not those of a client before us, whose answers may still come
        self._dead = False

    # life
    def start(
        self, kernel: Kernel, nics: Sequence[Nic] = (), *, memory_mb: int = MEMORY_MB, modules: Sequence[str] = MODULES
    ) -> Guest:
        """Boot, in this thread's network namespace; returns at once. The taps are taken over."""
        self.share.mkdir(parents=True, exist_ok=True)
        for file in FILES.iterdir():
            if file.name != "init.sh":
                shutil.copy(file, self.share / file.name)
        (self.share / "hostname").write_text(self.name)
        (self.share / "modules").write_text(" ".join(modules))
        (self.share / "python").write_text(os.path.realpath(sys.executable))
        for name in ("agent", "monitor"):
            (self.run_dir / name).unlink(missing_ok=True)
        with open(self.run_dir / "console", "wb") as console:
            self._process = subprocess.Popen(
                self._command(kernel, nics, memory_mb), pass_fds=[nic.tap for nic in nics], stdin=subprocess.DEVNULL,
                stdout=console, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.run_dir,
            )  # fmt: skip
        for nic in nics:
            os.close(nic.tap)
        return self

    def connect(self, seconds: float = BOOT_S) -> Guest:
        """Until the agent answers. LabError, with the console's last line, if it does not."""
        until_s = time.monotonic() + seconds
        while self._socket is None:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                with _short(self.run_dir) as folder:
                    channel.connect(f"{folder}/agent")
            except OSError:
                channel.close()
                if time.monotonic() > until_s or (self._process is not None and self._process.poll() is not None):
                    raise self._not_up() from None
                time.sleep(0.02)
            else:
                self._socket = channel
        self._dead = False
        self._reader = threading.Thread(target=self._read, args=(self._socket,), name=f"guest {self.name}", daemon=True)
        self._reader.start()
        try:
            self.ask(until_s - time.monotonic(), clock=True)
        except LabError:
            self.close()
            raise self._not_up() from None
        return self

    def close(self) -> None:
        """Let go of the agent. The guest goes on."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            if self._reader is not None:
                self._reader.join()
            self._socket.close()
            self._socket = self._reader = None

    def stop(self) -> None:
        """Switch the power off; of a guest that this object has started. Nothing of it is left."""
        self.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Of the QEMU process."""
        if self._process is None:
            raise RuntimeError("Guest.start() was not called")
        return self._process.pid

    # what it is asked
    def run(
        self, argv: Sequence[str], *, timeout_s: float = 30.0, check: bool = True, env: Mapping[str, str] | None = None,
        given: str = "",
    ) -> Done:  # fmt: skip
        """Run a command to its end. LabError when it fails and `check` is set; a timeout ends it with 124."""
        answer = self.ask(timeout_s + 15.0, argv=list(argv), timeout_s=timeout_s, env=dict(env or {}), input=given)
        done = Done(answer["rc"], answer["out"], answer["err"])
        if check and done.rc:
            said = (done.err.strip() or done.out.strip() or "no message").splitlines()[-1]
            raise LabError(f"{self.name}: {' '.join(argv)} ended with {done.rc}: {said}", "")
        return done

    def sh(self, script: str, *, timeout_s: float = 30.0, check: bool = True) -> str:
        """Run a shell script (`set -e`); its output. LabError names the line that failed, as the shell prints it."""
        done = self.run(["sh", "-exc", script], timeout_s=timeout_s, check=False)
        if check and done.rc:
            said = done.err.strip().splitlines()[-2:]
            raise LabError(f"{self.name}: {' '.join(said) or 'no message'} (status {done.rc})", "")
        return done.out

    def spawn(self, argv: Sequence[str], log: str, *, env: Mapping[str, str] | None = None) -> int:
        """Start a command that goes on; its pid in the guest. `log`: a file below `share` for what it says."""
        answer = self.ask(15.0, start=list(argv), log=f"/share/{log}", env=dict(env or {}))
        return int(answer["pid"])

    def wait(self, pid: int, seconds: float) -> int | None:
        """The end of a spawned command: its status, None when it still runs."""
        answer = self.ask(seconds + 15.0, wait=pid, timeout_s=seconds)
        return None if answer["rc"] is None else int(answer["rc"])

    def signal(self, pid: int, number: int) -> None:
        self.ask(15.0, signal=number, pid=pid)

    def http(self, socket_path: str, method: str, url: str, body: str = "") -> tuple[int, bytes]:
        """A request to a unix socket in the guest: (status, body of the answer)."""
        head = f"{method} {url} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n"
        raw = str(self.ask(20.0, unix=socket_path, send=f"{head}\r\n{body}")["out"]).encode()
        first, _, rest = raw.partition(b"\r\n")
        words = first.split()
        if len(words) < 2 or not words[1].isdigit():
            raise LabError(f"{self.name}: {socket_path} does not speak HTTP")
        return int(words[1]), rest.partition(b"\r\n\r\n")[2]

    def clock_offset_s(self, looks: int = 5) -> tuple[float, float]:
        """(the guest's monotonic clock minus ours, half of a question's way there and back): the best of some looks."""
        best = (0.0, float("inf"))
        for _ in range(looks):
            asked_s = time.monotonic()
            there_s = float(self.ask(15.0, clock=True)["monotonic_s"])
            half_s = (time.monotonic() - asked_s) / 2
            if half_s < best[1]:
                best = (there_s - asked_s - half_s, half_s)
        return best

    def ask(self, seconds: float, **request: object) -> dict[str, Any]:
        """One question to the agent. LabError: no answer in time, the guest is gone, or the agent could not do it."""
        if self._socket is None:
            raise RuntimeError("Guest.start() was not called")
        number = next(self._numbers)
        self._socket.sendall(json.dumps({"id": number, **request}).encode() + b"\n")
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers or self._dead, seconds)
            answer = self._answers.pop(number, None)
        if answer is None:
            why = f"is gone: {self._last_words()}" if self._dead else f"did not answer within {seconds:g} s"
            raise LabError(f"guest {self.name} {why}", f"see {self.run_dir}/console")
        if "error" in answer:
            raise LabError(f"{self.name}: {answer['error']}", "")
        return answer

    # the machine
    def set_link(self, nic: str, *, up: bool) -> None:
        """Give a card its carrier, or take it: what pulling the cable does."""
        self.monitor("set_link", name=nic, up=up)

    def monitor(self, command: str, **arguments: object) -> object:
        """A command of QEMU's monitor (QMP); LabError when it is refused."""
        return monitor(self.run_dir, command, **arguments)

    # inside
    def _command(self, kernel: Kernel, nics: Sequence[Nic], memory_mb: int) -> list[str]:
        qemu = shutil.which("qemu-system-x86_64")
        if qemu is None:
            raise LabError("qemu-system-x86_64 is not installed", "apt-get install qemu-system-x86")
        command = [
            qemu, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", f"{memory_mb}M",
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
            "-kernel", str(kernel.vmlinux), "-initrd", str(kernel.initrd),
            "-append", "console=ttyS0 quiet panic=-1 mitigations=off nokaslr",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", "local,id=share,path=share,security_model=none",
            "-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
            "-chardev", "socket,id=agent,path=agent,server=on,wait=off",
            "-device", "virtio-serial-pci", "-device", f"virtserialport,chardev=agent,name={AGENT_PORT}",
            "-qmp", "unix:monitor,server=on,wait=off",
        ]  # fmt: skip
        for nic in nics:
            command += [
                "-netdev", f"tap,id=net-{nic.name},fd={nic.tap},vhost=off",
                "-device", f"virtio-net-pci,id={nic.name},netdev=net-{nic.name},mac={nic.mac},host_mtu={MTU},romfile=",
            ]  # fmt: skip
        return command

    def _read(self, ours: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = ours.recv(65536)
            except OSError:
                data = b""
            if not data:
                with self._changed:
                    self._dead = True
                    self._changed.notify_all()
                return
            *lines, rest = (rest + data).split(b"\n")
            with self._changed:
                for line in lines:
                    answer = json.loads(line)
                    self._answers[answer["id"]] = answer
                self._changed.notify_all()

    def _not_up(self) -> LabError:
        return LabError(f"guest {self.name} did not come up: {self._last_words()}", f"see {self.run_dir}/console")

    def _last_words(self) -> str:
        try:
            lines = (self.run_dir / "console").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].strip() if lines else "its console is empty"


def monitor(run_dir: Path, command: str, **arguments: object) -> object:
    """Ask the monitor of a guest that any process started. LabError: there is none, or it refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(10.0)
        try:
            with _short(run_dir) as folder:
                channel.connect(f"{folder}/monitor")
            with channel.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # its greeting
                for name, given in (("qmp_capabilities", {}), (command, arguments)):
                    stream.write(json.dumps({"execute": name, "arguments": given}) + "\n")
                    stream.flush()
                    answer: dict[str, Any] = {}
                    while not answer.keys() & {"return", "error"}:  # events come in between
                        answer = json.loads(stream.readline() or '{"error": {"desc": "the guest is gone"}}')
                    if "error" in answer:
                        raise LabError(f"the guest's monitor refused {name}: {answer['error']['desc']}", "")
                return answer["return"]
        except OSError as error:
            raise LabError(f"no guest's monitor in {run_dir}: {error.strerror or error}", "is the lab up?") from error


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A short name of a folder: a unix socket's path has 107 bytes at most."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
