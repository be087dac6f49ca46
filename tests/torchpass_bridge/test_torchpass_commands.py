"""`torchpass`: what its commands say and do, with a real store, a coordinator, and members that follow their duty."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from commands import MAIN, staying, told, torchpass
from live_members import KEY, LiveWorld, job_of, running, steps, until
from prometheus_client.parser import text_string_to_metric_families

from linkpass.cli import cli as linkpass
from linkpass.core.commands import Escalate
from linkpass.core.events import Escalated, EscalateFailed
from linkpass.edges.hook import HookEdge
from torchpass_bridge.cli import cli
from torchpass_bridge.cli.group import COMMANDS, LazyGroup
from torchpass_bridge.store.records import Records
from torchpass_bridge.store.server import Server
from torchpass_bridge.wire import Loan

HERE = LazyGroup().list_commands(None)  # type: ignore[arg-type]


# help
def test_help_lists_the_commands_in_their_order() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert [name for name in COMMANDS if f"\n  {name} " in result.output] == HERE
    assert "Exit status: 0 done" in result.output


@pytest.mark.parametrize("command", HERE)
def test_each_command_teaches_by_example(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert f"torchpass {command}" in " ".join(result.output.split("Example", 1)[1].split()).replace('", "', " ")
    assert "--json" in result.output


def test_help_loads_no_more_than_click() -> None:
    heavy = ("nats", "rich", "msgspec", "prometheus_client", "torch", "asyncio", "linkpass")
    code = (
        "import sys\nfrom torchpass_bridge.cli import cli\ncli.main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


# what is missing is said, with the next step
async def test_without_a_store_or_a_coordinator_the_next_step_is_said(server: Server, records: Records) -> None:
    unnamed = await torchpass("status")
    assert unnamed.exit_code == 2 and "set TORCHPASS_STORE" in unnamed.stderr
    async with running(server.url, ranks=2, spares=0) as (_, desks):
        await desks.kill()
        alone = await torchpass("migrate", "h1", store=server.url)
        assert alone.exit_code == 3 and "no coordinator watches it (start one: torchpass coordinator)" in alone.stderr
        shown = await torchpass("status", store=server.url)
        assert "no coordinator answers" in shown.stdout
    await server.stop()
    away = await torchpass("status", store=server.url)
    assert away.exit_code == 3 and "Is it started (torchpass store)" in away.stderr
    assert "password" not in away.stderr.replace("address and password", "") and server.url not in away.stderr


async def test_nothing_is_here_yet(server: Server) -> None:
    shown = await torchpass("status", store=server.url)
    assert (shown.exit_code, shown.stdout) == (0, "no job, and no spare, has ever been here\n")
    one = await torchpass("status", "j", store=server.url)
    assert "j: not begun" in one.stdout
    empty = await torchpass("ledger", store=server.url)
    assert empty.stdout == "no incident in the last 30d\n"
    options = ["ledger", "--store", server.url]
    same = await asyncio.to_thread(CliRunner().invoke, linkpass, options)
    assert (same.exit_code, same.stdout) == (0, empty.stdout)
    wrong = await torchpass("ledger", "--since", "soon", store=server.url)
    assert wrong.exit_code == 2 and "no span of time" in wrong.stderr


# moves
async def test_a_move_is_asked_for_followed_shown_and_kept(server: Server, records: Records) -> None:
    async with running(server.url) as (_, _):
        moved = await torchpass("migrate", "h1", "--wait", "--cause", "maintenance", "--json", store=server.url)
        assert moved.exit_code == 0, moved.output
        assert told(moved)[0]["entry"]["outcome"] == "moved"
        there = await torchpass("status", "--json", store=server.url)
        job = told(there)["jobs"][0]
        assert (job["state"], job["coordinator"], job["generation"]) == ("trains", True, 2)
        assert [rank["host"] for rank in job["ranks"]] == ["h0", "s0", "h2"]
        assert all(rank["doing"] == "training" and rank["step"] > 0 for rank in job["ranks"])
        assert [spare["state"] for spare in job["spares"]] == ["free"]
        for_people = await torchpass("status", store=server.url)
        assert "j: trains, 3 ranks, generation 2" in for_people.stdout and "spare  s1" in for_people.stdout
        nobody = await torchpass("migrate", "h1", store=server.url)
        assert nobody.exit_code == 1 and "no rank is on h1" in nobody.stderr
        ledger = told(await torchpass("ledger", "--json", "--entries", store=server.url))
        assert (ledger["all"]["moved"], ledger["all"]["resolved_ratio"]) == (1, 1.0)
        assert ledger["by_cause"].keys() == {"maintenance"} and ledger["entries"][0]["hosts"] == ["h1"]
        shown = await torchpass("ledger", "--entries", store=server.url)
        assert "100.0% of 1 incidents of the last 30d were resolved" in shown.stdout
        assert "planned, operator: maintenance; ranks 1: moved" in shown.stdout


async def test_a_move_for_which_no_spare_fits_fails_and_says_why(server: Server) -> None:
    async with running(server.url, spares=0) as (_, _):
        result = await torchpass("migrate", "h1", "--wait", store=server.url)
        assert result.exit_code == 1
        assert "cancelled: the job trains on where it was; no spare fits: none is offered for j" in result.stdout


async def test_a_move_waits_for_a_spare_and_the_status_says_for_which(server: Server, records: Records) -> None:
    async with running(server.url, spares=0) as (world, desks):
        desks.all[0][2].desks["j"].scene.limits = msgspec.structs.replace(desks.limits, planned_wait_s=60.0)  # type: ignore[union-attr]
        assert (await torchpass("migrate", "h1", store=server.url)).exit_code == 0

        async def waits() -> bool:
            job = await job_of(records)
            return job.incident is None and any(ask.waits for ask in job.waiting)

        await until(waits, "it waits")
        shown = await torchpass("status", store=server.url)
        assert "waits: migrate h1 (no spare fits: none is offered for j" in shown.stdout
        await world.add_live_spare("s0")

        async def moved() -> bool:
            return [m.host for m in (await job_of(records)).members] == ["h0", "s0", "h2"]

        await until(moved, "it moves")


async def test_loans_are_shown_with_both_jobs(server: Server, records: Records) -> None:
    await records.put_loan(Loan("l1", "j", "low", "a1", why="no folder"), 0)
    await records.put_loan(Loan("l2", "j", "low", "a2", state="lent", called_by="j/1"), 0)
    shown = (await torchpass("status", store=server.url)).stdout
    assert "offered, of low, not heard: no folder" in shown and "lent, of low, not heard" in shown
    assert "a2 is lent: by j/1" not in shown  # it has never been here
    low = told(await torchpass("status", "low", "--json", store=server.url))["jobs"][0]
    assert [(loan["host"], loan["state"]) for loan in low["lends"]] == [("a1", "offered"), ("a2", "lent")]
    assert "a2 is lent: by j/1" in (await torchpass("status", "low", store=server.url)).stdout


async def test_a_drained_host_gets_no_rank(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        first = await torchpass("drain", "s0", store=server.url)
        assert first.exit_code == 0 and "1 spares on s0 were sent away" in first.stdout
        await until(lambda: "s0 is drained" in world.ended.values(), "the spare is told")
        second = await torchpass("drain", "h2", store=server.url)
        assert second.exit_code == 0 and "j: moved to s1" in second.stdout
        assert [m.host for m in (await job_of(records)).members] == ["h0", "h1", "s1"]


async def test_what_is_asked_can_be_taken_back_until_it_is_done(server: Server, records: Records) -> None:
    async with running(server.url, spares=0) as (_, desks):
        nothing = await torchpass("withdraw", "h1", store=server.url)
        assert nothing.exit_code == 1 and "nothing about h1 is under way" in nothing.stdout
        asked = await asyncio.create_subprocess_exec(
            *MAIN, "migrate", "h1", "--wait", "--json", "--store", server.url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def waits() -> bool:
            return bool((await job_of(records)).waiting)

        desks.all[0][2].desks["j"].scene.limits = msgspec.structs.replace(desks.limits, planned_wait_s=60.0)  # type: ignore[union-attr]
        await until(waits, "it waits for a spare")
        back = await torchpass("withdraw", "h1", "--cause", "a mistake", store=server.url)
        assert back.exit_code == 0 and "taken back" in back.stdout
        output, _ = await asked.communicate()
        (told_end,) = json.loads(output)
        assert (asked.returncode, told_end["taken"], told_end["entry"]) == (1, True, None)
        assert (await job_of(records)).waiting == ()


# escalations
async def test_the_daemons_hook_hands_a_host_over(server: Server, records: Records) -> None:
    async with running(server.url) as (_, _):
        hook = HookEdge((*MAIN, "escalate", "--store", server.url), timeout_s=30.0)
        asked = Escalate(cmd_id=1, cause="c7", host="h1", evidence=("nothing is heard from it",))
        assert isinstance(await hook.escalate(asked), Escalated)

        async def over() -> bool:
            return bool(await records.entries(0.0))

        await until(over, "it has moved")
        entry = (await records.entries(0.0))[0]
        assert (entry.trigger, entry.cause, entry.outcome) == ("daemon", "nothing is heard from it", "moved")
        assert "linkpass why c7" in entry.evidence
        # Each daemon that misses the host runs its hook: what is done already is taken over.
        assert isinstance(await hook.escalate(asked), Escalated)
        (first,) = (seat.value for (_, rank), seat in (await records.all_seats()).items() if rank == 1)
        by_address = json.dumps({"host": first.address.partition("]")[0].strip("["), "since": "2020-01-01T00:00:00Z"})
        late = await torchpass("escalate", store=server.url, stdin=by_address)
        assert late.exit_code == 0 and "was handed over already: incident 1 of j" in late.stdout
        newer = json.dumps({"host": "h1", "since": "2999-01-01T00:00:00Z"})
        assert (await torchpass("escalate", store=server.url, stdin=newer)).exit_code == 1
        other = await hook.escalate(Escalate(cmd_id=2, cause="c8", host="h9", evidence=()))
        assert isinstance(other, EscalateFailed) and "no job has a rank on h9" in other.why
        assert len(await records.entries(0.0)) == 1


async def test_a_host_may_be_named_by_its_address(server: Server, records: Records) -> None:
    async with running(server.url) as (world, _):
        member = (await job_of(records)).members[0]
        address = member.address.partition("]")[0].strip("[")
        verdict = json.dumps({"host": address, "evidence": [], "cause": ""})
        result = await torchpass("escalate", "--json", store=server.url, stdin=verdict)
        assert result.exit_code == 0 and told(result)[0]["taken"]
        await until(lambda: world.ended.get(member.id) == "fenced", "the one at that address has left")
        bad = await torchpass("escalate", store=server.url, stdin="h1 failed")
        assert bad.exit_code == 2 and "standard input is no verdict" in bad.stderr


# thresholds
async def test_a_program_that_says_leave_makes_the_host_left(server: Server, records: Records, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text("0")
    check = tmp_path / "check"
    check.write_text(f"#!/bin/sh\necho the fan stands\nexit $(cat {said})\n")
    check.chmod(0o755)
    async with running(server.url) as (_, _):
        options = (
            "--exec",
            str(check),
            "--host",
            "h1",
            "--interval-s",
            "0.02",
            "--stands-s",
            "0.1",
            "--store",
            server.url,
        )
        process = await asyncio.create_subprocess_exec(
            *MAIN, "watch", *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            said.write_text("1")

            async def over() -> bool:
                return bool(await records.entries(0.0))

            await until(over, "it has moved")
        finally:
            process.terminate()
            await process.communicate()
        entry = (await records.entries(0.0))[0]
        assert (entry.trigger, entry.cause, entry.outcome) == ("threshold", "the fan stands", "moved")


# those that stay
async def test_the_store_stays_at_its_address(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    async with staying("store", "--folder", str(folder)) as (first, _):
        async with await Records.connect(first["url"]) as records:
            await records.scratch_set("k", b"v")
        by_folder = await torchpass("status", "--store", str(folder))
        assert by_folder.exit_code == 0
        second = await asyncio.create_subprocess_exec(
            *MAIN, "store", "--folder", str(folder), stderr=asyncio.subprocess.PIPE
        )
        _, error = await second.communicate()
        assert second.returncode == 1 and f"served by process {first['pid']} already" in error.decode()
    async with staying("store", "--folder", str(folder)) as (again, _):
        assert again["url"] == first["url"]


async def test_a_coordinator_that_stands_still_condemns_nobody_and_one_that_is_killed_is_followed_by_another(
    server: Server, records: Records, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY + b"\n")
    options = ("coordinator", "--key-file", str(key), "--metrics-port", "0", "--silent-s", "1")
    world = LiveWorld(server.url)
    try:
        async with staying(*options, store=server.url) as (_, first), staying(*options, store=server.url) as (told_, _):
            for number in range(2):
                await world.add_live_spare(f"s{number}")
            await world.start()
            await until(lambda: steps(world) > 3, "the job trains")
            first.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            await until(
                lambda: time.monotonic() - stopped_s > 1.5, "it stood still for longer than a rank may be silent"
            )
            first.send_signal(signal.SIGCONT)
            at = steps(world)
            await until(lambda: steps(world) > at + 20, "the job goes on")
            assert (await job_of(records)).incidents == 0
            await world.die(world.processes[(await job_of(records)).members[2].id])

            async def under_way() -> bool:
                return (await job_of(records)).incident is not None

            await until(under_way, "an incident is under way")
            first.send_signal(signal.SIGKILL)

            async def over() -> bool:
                return bool(await records.entries(0.0)) and (await job_of(records)).incident is None

            await until(over, "it is over")
            entry = (await records.entries(0.0))[0]
            assert entry.outcome == "moved"
            url = f"http://127.0.0.1:{told_['metrics_port']}/metrics"
            values: dict[str, float] = {}
            scrapes: list[str] = []

            async def scraped() -> bool:
                text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
                values.clear()
                scrapes.append(text)
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
                        values[f"{sample.name} {labels}"] = sample.value
                return "linkpass_ledger_resolved_ratio job=j" in values

            await until(scraped, "the ledger is scraped")
            assert values["linkpass_ledger_resolved_ratio job=j"] == 1.0
            assert values["linkpass_ledger_incidents job=j,kind=crash,outcome=moved,trigger=silence"] == 1.0
            assert values["linkpass_ledger_pause_seconds job=j,percentile=95"] == entry.pause_s
            assert values["torchpass_job_generation job=j"] == 2.0
            assert values["torchpass_job_phase job=j,phase=none"] == 1.0
            assert values["torchpass_loans job=j,state=offered"] == 0.0
            assert values["torchpass_store_up "] == 1.0
            assert_well_formed(scrapes[-1])
            world.sound()
    finally:
        await world.stop()


def assert_well_formed(text: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
