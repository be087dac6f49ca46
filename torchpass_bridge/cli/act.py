"""Commands that ask for moves, and take them back."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import (
    TroubleError,
    job_named,
    job_option,
    json_option,
    phases,
    print_json,
    store_option,
    with_records,
)  # fmt: skip

if TYPE_CHECKING:
    from torchpass_bridge.asking import Asked
    from torchpass_bridge.store.records import Records
    from torchpass_bridge.wire import Entry, Job

WORDS = {
    "moved": "moved", "cancelled": "cancelled: the job trains on where it was",
    "stopped": "the job was stopped, for want of a spare",
    "lost": "the job is lost, nobody has its state: start it again from its latest snapshot (torchpass restore)",
}  # fmt: skip

accelerator_option = click.option("--accelerator", default="", help="Only its ranks. [all of the host]")
cause_option = click.option("--cause", default="", help="Why, for the ledger and for people.")
wait_option = click.option("--wait/--no-wait", default=False, help="Follow it to its end; the exit status says how.")


@click.command(epilog="Examples: torchpass migrate host7 --wait · torchpass migrate host7 --accelerator 0000:3b:00.0")
@click.argument("host")
@accelerator_option
@job_option
@cause_option
@wait_option
@store_option
@json_option
def migrate(
    *, host: str, accelerator: str, job: str | None, cause: str, wait: bool, store_url: str | None, as_json: bool
) -> None:
    """Move the ranks that are on HOST to spares, while the job trains.

    HOST is a name as `torchpass status` shows it, or an address. Nothing is paused before a spare is ready. It waits
    for one that fits, a minute by default (torchpass coordinator --planned-wait-s); when none has come, the job trains
    on. An operator's request is outside the hourly budget.
    """
    _move(host, accelerator, job, cause, store_url, wait=wait, as_json=as_json)


@click.command(epilog="Example: torchpass drain host7 --cause 'new firmware'")
@click.argument("host")
@cause_option
@store_option
@json_option
def drain(*, host: str, cause: str, store_url: str | None, as_json: bool) -> None:
    """Empty HOST for maintenance: spares on it are sent away, and it is not lent any more; then all ranks of all jobs
    move. It waits for the end."""
    _move(host, "", None, cause or "maintenance", store_url, wait=True, as_json=as_json, spares=True)


@click.command(epilog="Example: torchpass withdraw host7 --cause 'the sensor was wrong'")
@click.argument("host")
@job_option
@cause_option
@store_option
@json_option
def withdraw(*, host: str, job: str | None, cause: str, store_url: str | None, as_json: bool) -> None:
    """Take back what was asked about HOST: a move that has not moved anybody yet is given up."""

    async def work(records: Records) -> list[Asked]:
        from torchpass_bridge.asking import ask_all

        return await ask_all(records, await _jobs(records, host, "", job), "withdraw", host, cause=cause)

    asked = with_records(store_url, work)
    if as_json:
        print_json([_told(one) for one in asked])
    for one in [] if as_json else asked:
        click.echo(f"{one.job}: {one.answer.why}")
    if not any(one.answer.taken for one in asked):
        raise TroubleError("nothing was taken back", "see what is under way: torchpass status")


def _move(
    host: str, accelerator: str, job: str | None, cause: str, store_url: str | None,
    *, wait: bool, as_json: bool, spares: bool = False,
) -> None:  # fmt: skip
    async def work(records: Records) -> list[tuple[Asked, Entry | None]]:
        import asyncio

        from torchpass_bridge.asking import ask_all

        sent, loans = await _send_away(records, host) if spares else (0, 0)
        jobs = await _jobs(records, host, accelerator, job, none_is_fine=spares)
        if sent and not as_json:
            click.echo(f"{sent} spares on {host} were sent away")
        if loans and not as_json:
            click.echo(f"{host} is not lent any more")
        asked = await ask_all(records, jobs, "migrate", host, accelerator, cause=cause, unlimited=True)
        taken = [one for one in asked if one.answer.taken]
        ends: dict[str, Entry | None] = {}
        if wait and taken:
            with nullcontext() if as_json else phases() as progress:
                found = await asyncio.gather(*(_to_its_end(records, one, progress) for one in taken))
            ends = {one.ask.id: entry for one, entry in zip(taken, found, strict=True)}
        return [(one, ends.get(one.ask.id)) for one in asked]

    asked = with_records(store_url, work)
    if as_json:
        print_json([_told(one, entry) for one, entry in asked])
    bad = [one.job for one, entry in asked if not one.answer.taken or (wait and not (entry and _moved(entry)))]
    if not as_json:
        if not asked:
            click.echo(f"no rank is on {host}")
        for one, entry in asked:
            click.echo(f"{one.job}: {_end(entry) if entry else one.answer.why}")
    if bad:
        raise TroubleError(f"not moved: {', '.join(bad)}", "" if as_json else "see: torchpass status, torchpass ledger")


async def _jobs(
    records: Records, host: str, accelerator: str, job: str | None, *, none_is_fine: bool = False
) -> list[Job]:
    """TroubleError when no rank is there."""
    from torchpass_bridge.asking import jobs_on

    if job:
        await job_named(records, job)
    jobs = await jobs_on(records, host, accelerator, job)
    if not jobs and not none_is_fine:
        place = f"{host}, accelerator {accelerator}" if accelerator else host
        raise TroubleError(f"no rank{f' of {job}' if job else ''} is on {place}", "see the hosts: torchpass status")
    return jobs


async def _send_away(records: Records, host: str) -> tuple[int, int]:
    """Spares on the host that are free are refused from now on, and loans of it: no rank comes to it. How many."""
    import msgspec

    from torchpass_bridge.core.places import on_host
    from torchpass_bridge.store.records import Conflict

    sent = 0
    for held in (await records.spares()).values():
        spare = held.value
        if on_host(spare.member, host) and not spare.claimed_by and not spare.refused:
            try:
                await records.put_spare(msgspec.structs.replace(spare, refused=f"{host} is drained"), held.revision)
            except Conflict:
                continue  # claimed this moment: as a rank it is moved
            sent += 1
    loans = 0
    for loan_id in await records.loans():
        while (one := await records.loan(loan_id)) is not None and one.value.host == host and not one.value.refused:
            try:
                await records.put_loan(msgspec.structs.replace(one.value, refused=f"{host} is drained"), one.revision)
            except Conflict:
                continue  # its keeper wrote something: it is to know of this all the same
            loans += 1
    return sent, loans


async def _to_its_end(records: Records, asked: Asked, progress: Any) -> Entry | None:
    from torchpass_bridge.asking import follow

    task = progress.add_task(asked.job, phase=asked.answer.why, total=None) if progress else None
    async for seen in follow(records, asked):
        if progress:
            progress.update(task, phase=seen.phase or (_end(seen.entry) if seen.entry else "taken back"))
        if seen.entry is not None:
            return seen.entry
    return None


def _moved(entry: Entry) -> bool:
    return entry.outcome == "moved"


def _end(entry: Entry) -> str:
    words = WORDS[entry.outcome]
    if entry.outcome == "moved":
        words += f" to {', '.join(entry.spares) or 'the same members'}, pause {entry.pause_s:.2f} s"
    return f"{words}; {entry.why}" if entry.why else words


def _told(asked: Asked, entry: Entry | None = None) -> dict[str, Any]:
    import msgspec

    return {
        "job": asked.job, "host": asked.ask.host, "accelerator": asked.ask.accelerator, "taken": asked.answer.taken,
        "why": asked.answer.why, "entry": msgspec.to_builtins(entry) if entry else None,
    }  # fmt: skip
