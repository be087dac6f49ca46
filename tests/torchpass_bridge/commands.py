"""The console script, as a process of its own where it stays, and in a thread where it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from torchpass_bridge.cli import cli

MAIN = (sys.executable, "-c", "from torchpass_bridge.cli import main; main()")


async def torchpass(*arguments: str, store: str = "", stdin: str = "") -> Result:
    """Its end. In a thread: this loop goes on meanwhile. One at a time: the runner takes the process's output."""
    env = {"TORCHPASS_STORE": store or None, "COLUMNS": "200"}
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, input=stdin, env=env)


def told(result: Result) -> Any:
    """What it printed, as JSON."""
    return json.loads(result.stdout)


@asynccontextmanager
async def staying(*arguments: str, store: str = "") -> AsyncIterator[tuple[dict[str, Any], asyncio.subprocess.Process]]:
    """A command that stays, once it has told in its first line (--json) that it is there."""
    env = {**os.environ, "TORCHPASS_STORE": store}
    process = await asyncio.create_subprocess_exec(
        *MAIN, *arguments, "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=env
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(30):
            first = await process.stdout.readline()
            assert first, (await process.stderr.read()).decode()
        yield json.loads(first), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.communicate()
