"""The escalation hook: a program that takes over when a host itself fails and no path can help."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from linkpass.core.commands import Escalate
from linkpass.core.events import Escalated, EscalateFailed

STDERR_BYTES = 2000


class HookEdge:
    """Runs `argv` with `{"host", "accelerator", "evidence", "cause", "since"}` as JSON on standard input, for at
    most `timeout_s` (`accelerator` is empty when it is the whole host). It is run by each daemon that gives a host up,
    and again after it has failed: see docs/hosts.md.

    Exit status 0 means taken over. The program gets a process group of its own, which is ended as a
    whole when the time is over; what it leaves behind after a success is its own affair."""

    def __init__(self, argv: Sequence[str], timeout_s: float = 10.0) -> None:
        self._argv = tuple(argv)
        self._timeout_s = timeout_s

    async def escalate(self, command: Escalate) -> Escalated | EscalateFailed:
        """Run the hook and say how it ended. Without a hook the journal alone is the answer: taken over."""
        why = await self._run(command) if self._argv else ""
        if why:
            return EscalateFailed(cmd_id=command.cmd_id, host=command.host, why=why, accelerator=command.accelerator)
        return Escalated(cmd_id=command.cmd_id, host=command.host, accelerator=command.accelerator)

    async def _run(self, command: Escalate) -> str:
        """Empty on success, else what went wrong in one line."""
        story = {
            "host": command.host, "accelerator": command.accelerator, "evidence": command.evidence,
            "cause": command.cause, "since": _utc(command.since_s),
        }  # fmt: skip
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=null, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            return f"{self._argv[0]}: {error.strerror}"
        try:
            async with asyncio.timeout(self._timeout_s):
                _, said = await asyncio.gather(_feed(process, msgspec.json.encode(story)), _tail(process))
                status = await process.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            _end_group(process.pid)
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise
            return f"{self._argv[0]}: not done after {self._timeout_s:g} s, ended"
        return f"{self._argv[0]}: exit status {status}{': ' + said if said else ''}" if status else ""


def _utc(at_s: float) -> str:
    """ISO 8601 of a moment of the monotonic clock."""
    moment = datetime.now(UTC) - timedelta(seconds=time.monotonic() - at_s)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data + b"\n")
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it need not read
    finally:
        process.stdin.close()


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The end of what it says on standard error, in one line; the rest is read and dropped."""
    assert process.stderr is not None
    kept = b""
    while chunk := await process.stderr.read(4096):
        kept = (kept + chunk)[-STDERR_BYTES:]
    return " ".join(kept.decode(errors="replace").split())


def _end_group(pid: int) -> None:
    """End the program's own process group: its number cannot be another's while it has a member."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
