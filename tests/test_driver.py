"""The pump: what an edge's fault does to the commands beside it, and to those that come later."""

from __future__ import annotations

import asyncio
import time

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.driver import Driver


def test_a_fault_in_one_command_keeps_no_other_from_its_edge() -> None:
    said: list[str] = []
    told_of_failure = asyncio.Event()

    def broken(command: cmd.SetGroup) -> ev.Event | None:
        raise ValueError("a fault of the edge")

    def record(command: cmd.Record) -> None:
        said.append(command.what)
        if "could not program" in command.what:
            told_of_failure.set()

    async def story() -> int:
        core = Core(CoreSettings(host="host1", address="fd00:ff::1", mode="act"))
        driver = Driver(core, {cmd.SetGroup: broken, cmd.Record: record}, time.monotonic)
        driver.open()
        for name in ("eth1", "eth2"):
            driver.submit(ev.UplinkState(uplink=name, usable=True))
        async with asyncio.timeout(20):
            await told_of_failure.wait()  # its timer is armed all the same: the outcome is missed in time
        driver.close()
        return driver.faults

    assert asyncio.run(story()) >= 1
    assert said[0] == "put traffic on eth1, eth2"
