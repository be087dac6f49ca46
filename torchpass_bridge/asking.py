"""Asking coordinators: for all jobs that are meant, and following what comes of it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from torchpass_bridge.core.places import meant, on_host, same_host
from torchpass_bridge.store.records import Records
from torchpass_bridge.wire import Answer, Ask, Entry, Job

ANSWER_S = 3.0
"""A coordinator answers within some hundredths of a second: when the record has it."""


class Asked(msgspec.Struct, frozen=True):
    """`before`: the number of the last incident that was over when it was asked."""

    job: str
    ask: Ask
    answer: Answer
    before: int


class Seen(msgspec.Struct, frozen=True):
    """A moment of what was asked for. `entry`: how it ended; `phase` is empty then, and begins with "waits" before it
    begins."""

    phase: str
    entry: Entry | None = None


async def jobs_on(records: Records, host: str, accelerator: str = "", job: str | None = None) -> list[Job]:
    """Jobs that have not ended and have a rank there. `job`: only this one."""
    held = [await records.job(job)] if job else list(await records.jobs())
    return [one.value for one in held if one and not one.value.ended and meant(one.value, host, accelerator)]


async def handed_over(records: Records, host: str, since_unix_s: float) -> Entry | None:
    """The incident since then by which ranks have left the host, when there was one."""
    # An address is known of those that were there: a rank's seat tells it.
    seats = [held.value for held in (await records.all_seats()).values()]
    names = {host, *(member.host for member in seats if on_host(member, host))}
    for entry in reversed(await records.entries(since_unix_s)):
        if entry.outcome != "cancelled" and any(same_host(left, name) for left in entry.hosts for name in names):
            return entry
    return None


async def ask_all(
    records: Records,
    jobs: list[Job],
    what: Literal["migrate", "failed", "withdraw"],
    host: str,
    accelerator: str = "",
    *,
    cause: str = "",
    evidence: tuple[str, ...] = (),
    unlimited: bool = False,
    trigger: str = "operator",
) -> list[Asked]:
    """One request a job and place. NoCoordinator, StoreAway."""
    asked = []
    for job in jobs:
        for place, part in meant(job, host, accelerator) or [(host, accelerator)]:
            ask = Ask(secrets.token_hex(8), what, place, part, cause, evidence, unlimited, trigger)
            before = job.incidents - (job.incident is not None)
            asked.append(Asked(job.name, ask, await records.ask(job.name, ask, ANSWER_S), before))
    return asked


async def follow(records: Records, asked: Asked) -> AsyncIterator[Seen]:
    """What comes of a request that was taken, to its end. It ends without an entry when it was taken back before it
    began, or when the job ended before."""
    number = 0
    async for held in records.watch_job(asked.job):
        job = held.value
        incident = job.incident
        if not number and incident is not None and _is(incident.hosts, incident.number, asked):
            number = incident.number
        if number and incident is not None and incident.number == number:
            yield Seen(incident.phase)
            continue
        waiting = next((ask for ask in job.waiting if ask.host == asked.ask.host), None)
        if waiting is not None:
            yield Seen(f"waits: {waiting.waits}" if waiting.waits else "waits")
            continue
        entries = [
            entry
            for entry in await records.entries(0.0, asked.job)
            if (entry.number == number if number else _is(entry.hosts, entry.number, asked))
        ]
        if entries:
            yield Seen("", entries[0])
            return
        if incident is None or job.ended:
            yield Seen("")
            return


def _is(hosts: tuple[str, ...], number: int, asked: Asked) -> bool:
    """Whether an incident is what was asked for; one that was under way already is."""
    return asked.ask.host in hosts and number > asked.before
