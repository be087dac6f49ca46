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

    def record(command: cmd.Record, _said_s: float) -> None:
        said.append(command.what)
        if "could not program" in command.what:
            told_of_failure.set()

    async def story() -> int:
        core = Core(CoreSettings(host="host1", address="fd00:ff::1", mode="act"))
        driver = Driver(core, {cmd.SetGroup: broken}, time.monotonic, tell=record)
        driver.open()
        for name in ("eth1", "eth2"):
            driver.submit(ev.UplinkState(uplink=name, usable=True))
        async with asyncio.timeout(20):
            await told_of_failure.wait()  # its timer is armed all the same: the outcome is missed in time
        driver.close()
        return driver.faults

    assert asyncio.run(story()) >= 1
    assert said[0] == "put traffic on eth1, eth2"


def test_words_are_told_when_all_of_a_moment_is_done_and_say_when_it_was() -> None:
    """A journal that takes its time, or fails, holds up no command."""
    order: list[str] = []
    told_s: list[float] = []

    async def story() -> tuple[int, float]:
        spread, moved = asyncio.Event(), asyncio.Event()

        def program(command: cmd.SetGroup) -> ev.Event | None:
            order.append(f"group of {len(command.uplinks)}")
            return ev.GroupProgrammed(cmd_id=command.cmd_id, group=command.group, took_s=0.0)

        def tell(word: cmd.Record, said_s: float) -> None:
            order.append(word.what)
            told_s.append(said_s)
            for word_of, event in (("put traffic", spread), ("moved traffic", moved)):
                if word_of in word.what:
                    event.set()
            raise OSError("the disk is full")

        core = Core(CoreSettings(host="host1", address="fd00:ff::1", mode="act"))
        driver = Driver(core, {cmd.SetGroup: program}, time.monotonic, tell=tell)
        driver.open()
        for name in ("eth1", "eth2"):
            driver.submit(ev.UplinkState(uplink=name, usable=True))
        async with asyncio.timeout(20):
            await spread.wait()
        order.clear()
        told_s.clear()
        begun_s = time.monotonic()
        driver.submit(ev.UplinkState(uplink="eth2", usable=False, why="no carrier"))
        async with asyncio.timeout(20):
            await moved.wait()
        driver.close()
        return driver.faults, begun_s

    faults, begun_s = asyncio.run(story())
    assert order[0] == "group of 1" and "eth2 is down" in order[1], order
    assert faults >= 2
    assert told_s == sorted(told_s) and told_s[0] >= begun_s


def test_the_loop_has_its_turn_between_questions_and_before_words() -> None:
    """A peer's probe that comes in with a decision is answered before the decision is told of, however much there is
    to ask and to tell; what is asked hands its outcome back."""
    order: list[str] = []

    def program(command: cmd.SetGroup) -> ev.Event | None:
        order.append("steer")
        asyncio.get_running_loop().call_soon(order.append, "the loop")
        return ev.GroupProgrammed(cmd_id=command.cmd_id, group=command.group, took_s=0.0)

    def ask(command: cmd.Command) -> ev.Event | None:
        order.append("ask")
        asyncio.get_running_loop().call_soon(order.append, "the loop")
        if not isinstance(command, cmd.ResolveUplinks):
            return None
        return ev.ResolveFailed(cmd_id=command.cmd_id, peer=command.peer, why="the kernel is too old")

    async def story() -> int:
        told = asyncio.Event()

        def tell(word: cmd.Record, _said_s: float) -> None:
            order.append("tell")
            if "cannot" in word.what or "the kernel is too old" in word.why:
                told.set()

        core = Core(CoreSettings(host="host1", address="fd00:ff::1", mode="act"))
        questions = (cmd.SetProbes, cmd.ResolveUplinks, cmd.TraceLabels, cmd.AskHost)
        carriers = {cmd.SetGroup: program, **dict.fromkeys(questions, ask)}
        driver = Driver(core, carriers, time.monotonic, tell=tell)
        driver.open()
        for name in ("eth1", "eth2"):
            driver.submit(ev.UplinkState(uplink=name, usable=True))
        driver.submit(ev.PeerKnown(peer="fd00:ff::2"))
        async with asyncio.timeout(20):
            await told.wait()
        driver.close()
        return driver.faults

    assert asyncio.run(story()) == 0
    assert order[0] == "steer", order
    asked = [at for at, what in enumerate(order) if what == "ask"]
    assert asked and asked[0] < order.index("tell"), order
    assert all(order[at + 1] == "the loop" for at in asked), order
