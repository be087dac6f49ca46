"""Who is at the other end of this host's own ports, as its lldpd hears it: a program that prints lldpctl's JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from topology.sources import lldp
from topology.sources.yamltext import TopologyError

EVERY_S: Final = 60.0
"""Neighbours announce themselves every 30 s."""
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 1 << 20

Heard = Callable[[Mapping[str, str], Mapping[str, str]], None]
"""(port -> node, management address -> node)."""


class NeighbourEdge:
    """Runs `argv` (such as `lldpctl -f json0`) when asked, and tells what it prints. A port at which several neighbours
    are heard tells nothing, nor does an address that several nodes announce."""

    def __init__(self, argv: Sequence[str], host: str, heard: Heard) -> None:
        self._argv, self._host, self._heard = tuple(argv), host, heard
        self._busy = False

    async def look(self) -> str:
        """Empty, or why nothing was learnt, in one line. A look while another goes on does nothing."""
        if self._busy:
            return ""
        self._busy = True
        try:
            return await self._look()
        finally:
            self._busy = False

    async def _look(self) -> str:
        name = self._argv[0]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*self._argv, stdin=null, stdout=pipe, stderr=null)
        except OSError as error:
            return f"{name}: {error.strerror}"
        assert process.stdout is not None
        said = bytearray()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while len(said) <= MOST_BYTES and (chunk := await process.stdout.read(1 << 16)):
                    said += chunk
                if len(said) <= MOST_BYTES:
                    await process.wait()
        except TimeoutError:
            return f"{name}: not done after {TIMEOUT_S:g} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            return f"{name}: exit status {process.returncode}" if len(said) <= MOST_BYTES else f"{name}: says too much"
        try:
            self._heard(*neighbours(said.decode("utf-8", "replace"), self._host))
        except TopologyError as error:
            return f"{name}: {error}"
        return ""


def neighbours(text: str, host: str) -> tuple[dict[str, str], dict[str, str]]:
    """(port -> node, management address -> node) of what lldpctl printed. Raises TopologyError."""
    answers = lldp.answers(text, host)
    at: dict[str, set[str]] = {}
    for port, told, _ in answers.heard:
        at.setdefault(port, set()).add(told.node)
    addresses = lldp.addresses([answers])
    return {port: next(iter(nodes)) for port, nodes in at.items() if len(nodes) == 1}, addresses
