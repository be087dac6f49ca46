"""The job's records in the store: what `wire` defines, read, written by compare-and-set, and watched.

Every call raises `StoreAway` when the store does not answer within about a second; nothing is known of what it was to
do then. Watchers wait instead, and go on. Of two that write the same revision, exactly one does; the other gets
`Conflict`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import msgspec
import nats.errors

from torchpass_bridge import wire
from torchpass_bridge.store.bucket import Bucket, Found
from torchpass_bridge.store.link import AWAY, Conflict, Link, StoreAway
from torchpass_bridge.store.scratch import Scratch
from torchpass_bridge.wire import Answer, Ask, Entry, Job, Loan, Member, Spare, Status

__all__ = ["Conflict", "Held", "NoCoordinator", "Records", "StoreAway", "Taken"]

_log = logging.getLogger(__name__)

ALL = "*"
"""In place of a job's name: every job's."""

T = TypeVar("T", Job, Spare, Loan, Member)
Reply = Callable[[Answer], Awaitable[None]]


class Held(msgspec.Struct, Generic[T], frozen=True):
    """A record and its revision, which a write of the next one names."""

    value: T
    revision: int


class Taken(Exception):  # noqa: N818 (as the others of the store: what is so, not that it is bad)
    """The rank has a holder already. `by`: who."""

    def __init__(self, job: str, rank: int, by: Member) -> None:
        super().__init__(
            f"rank {rank} of {job} is taken by process {by.pid} on {by.host} ({by.id}): another run of the job is "
            "under way under this name, or its start has just failed; give this one another name, or wait some seconds"
        )
        self.by = by


class NoCoordinator(Exception):  # noqa: N818
    """Nobody answers for the job."""


class Records:
    """Made by `connect`; ended by `close`, or as a context."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bucket = Bucket(link, wire.BUCKET)
        self._scratch = Scratch(link)

    @classmethod
    async def connect(cls, url: str, name: str = "") -> Records:
        """`url`: nats://[user:password@]host:port, several with commas; `name`: for who looks at the server.

        StoreAway when there is none, or it refuses."""
        records = cls(Link(url, name))
        await records._link.open()
        try:
            await records._bucket.open()
            await records._scratch.open()
        except BaseException:
            await records.close()
            raise
        return records

    async def close(self) -> None:
        await self._link.close()

    async def __aenter__(self) -> Records:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def up(self) -> bool:
        """Whether the store is there now, as far as known."""
        return self._link.up

    @property
    def epoch(self) -> int:
        """Grows after each time away: what is said but not stored may have been missed."""
        return self._link.epoch

    # the job
    async def job(self, name: str) -> Held[Job] | None:
        return _held(await self._bucket.get(wire.job_key(name)), Job)

    async def put_job(self, job: Job, expected: int) -> int:
        """Its revision. `expected`: of the record that was decided on, 0: there is none. Conflict."""
        key, data = wire.job_key(job.name), wire.encode(job)
        return await (self._bucket.put(key, data, expected) if expected else self._bucket.create(key, data))

    async def watch_job(self, name: str) -> AsyncIterator[Held[Job]]:
        """The latest first, then each one, for ever. Nothing comes while there is none. ALL: of all jobs."""
        async for news in self._bucket.changes(f"job.{_job_or_all(name)}"):
            for found in news:
                if (held := _held(found, Job)) is not None:
                    yield held

    async def jobs(self) -> list[Held[Job]]:
        found = await self._bucket.read("job.*")
        return [held for one in found if (held := _held(one, Job)) is not None]

    # its beginning
    async def seat(self, job: str, rank: int, member: Member) -> None:
        """Be the one that starts as a rank. Taken when there is one. From then on `say` what it does: a seat whose
        holder is not heard is cleared."""
        key, data = wire.seat_key(job, rank), msgspec.json.encode(member)
        try:
            await self._bucket.create(key, data)
        except Conflict:
            by = _held(await self._bucket.get(key), Member)
            if by is not None and by.value.id == member.id:
                return
            if by is None or not await self._over(job, by.value):
                raise Taken(job, rank, by.value if by else member) from None
            try:
                await self._bucket.put(key, data, by.revision)
            except Conflict:
                by = _held(await self._bucket.get(key), Member)
                raise Taken(job, rank, by.value if by else member) from None

    async def _over(self, job: str, holder: Member) -> bool:
        """Whether the holder of a seat took part in a run of the job that is over."""
        held = await self.job(job)
        return held is not None and held.value.over and held.value.knew(holder.id)

    async def seats(self, job: str) -> dict[int, Member]:
        found = await self._bucket.read(f"seat.{wire.check_name(job)}.*")
        return {rank: held.value for (_, rank), held in _seats(found).items()}

    async def all_seats(self) -> dict[tuple[str, int], Held[Member]]:
        return _seats(await self._bucket.read("seat.*.*"))

    async def watch_seats(self, job: str = ALL) -> AsyncIterator[dict[tuple[str, int], Held[Member]]]:
        """All that are taken, by job and rank, at each change."""
        picture: dict[str, Found] = {}
        async for news in self._bucket.changes(f"seat.{_job_or_all(job)}.*"):
            picture.update({found.key: found for found in news})
            yield _seats(list(picture.values()))

    async def clear_seat(self, job: str, rank: int, expected: int) -> None:
        """Conflict when another one has taken it."""
        await self._bucket.drop(wire.seat_key(job, rank), expected)

    # spares
    async def offer(self, spare: Spare) -> int:
        """Its revision. Once more changes nothing. Conflict when another one has the id."""
        key = wire.spare_key(spare.member.id)
        try:
            return await self._bucket.create(key, wire.encode(spare))
        except Conflict:
            held = _held(await self._bucket.get(key), Spare)
            if held is None or held.value.member != spare.member:
                raise
            return held.revision

    async def put_spare(self, spare: Spare, expected: int) -> int:
        return await self._bucket.put(wire.spare_key(spare.member.id), wire.encode(spare), expected)

    async def drop_spare(self, spare: Spare, expected: int) -> None:
        await self._bucket.drop(wire.spare_key(spare.member.id), expected)

    async def spares(self) -> dict[str, Held[Spare]]:
        return _spares(await self._bucket.read("spare.*"))

    async def watch_spares(self) -> AsyncIterator[dict[str, Held[Spare]]]:
        """All of them by id, at each change; an empty one first when there are none."""
        async for found in self._picture("spare.*"):
            yield _spares(found)

    async def _picture(self, keys: str) -> AsyncIterator[list[Found]]:
        """All that are there, at each change."""
        picture: dict[str, Found] = {}
        async for news in self._bucket.changes(keys):
            picture.update({found.key: found for found in news})
            picture = {key: found for key, found in picture.items() if found.value is not None}
            yield list(picture.values())

    # loans
    async def put_loan(self, loan: Loan, expected: int) -> int:
        """Its revision. `expected` 0: there is none. Conflict."""
        key, data = wire.loan_key(loan.id), wire.encode(loan)
        return await (self._bucket.put(key, data, expected) if expected else self._bucket.create(key, data))

    async def drop_loan(self, loan_id: str, expected: int | None) -> None:
        """`expected` None: whatever it says. Conflict."""
        await self._bucket.drop(wire.loan_key(loan_id), expected)

    async def loan(self, loan_id: str) -> Held[Loan] | None:
        return _held(await self._bucket.get(wire.loan_key(loan_id)), Loan)

    async def loans(self) -> dict[str, Held[Loan]]:
        return _loans(await self._bucket.read("loan.*"))

    async def watch_loans(self) -> AsyncIterator[dict[str, Held[Loan]]]:
        """As `watch_spares`."""
        async for found in self._picture("loan.*"):
            yield _loans(found)

    # what is said, and not stored
    def say(self, job: str, status: Status) -> None:
        """To whoever listens. Lost while the store is away: it is said again."""
        self._link.say(wire.status_subject(job), wire.encode(status))

    @asynccontextmanager
    async def hearing(self, job: str, hear: Callable[[Status], None]) -> AsyncIterator[None]:
        """All statuses as they come, for as long as this is entered: the cheapest way, for who listens always."""

        def take(data: bytes) -> None:
            if (status := _decoded(data, Status, "a status")) is not None:
                hear(status)

        number = await self._link.hear(wire.status_subject(job), take)
        try:
            yield
        finally:
            await self._link.leave(number)

    async def statuses(self, job: str) -> AsyncIterator[Status]:
        async for message in self._link.listen(wire.status_subject(job)):
            if (status := _decoded(message.data, Status, "a status")) is not None:
                yield status

    async def ask(self, job: str, ask: Ask, timeout_s: float) -> Answer:
        """NoCoordinator when nobody answers; StoreAway when the store is not there."""
        try:
            data = await self._link.request(wire.ask_subject(job), wire.encode(ask), timeout_s)
        except nats.errors.NoRespondersError:
            raise NoCoordinator(
                f"nobody decides for {job}: no coordinator watches it (start one: torchpass coordinator)"
            ) from None
        except (TimeoutError, *AWAY) as error:
            if not self._link.up:
                raise StoreAway(f"the store at {self._link.place} went away while a coordinator was asked") from error
            raise NoCoordinator(f"no coordinator of {job} answered within {timeout_s:g} s") from error
        return wire.decode(data, Answer)

    async def asks(self, job: str) -> AsyncIterator[tuple[Ask, Reply]]:
        """Each with what answers it."""
        async for message in self._link.listen(wire.ask_subject(job)):
            ask = _decoded(message.data, Ask, "a request")
            if ask is not None:
                yield ask, _reply(self._link, message.reply)

    # the ledger
    async def write_entry(self, entry: Entry) -> None:
        """Once: when it is there already, that one stays."""
        try:
            await self._bucket.create(wire.entry_key(entry.job, entry.number), wire.encode(entry))
        except Conflict:
            pass

    async def entries(self, since_unix_s: float, job: str | None = None) -> list[Entry]:
        """Closed incidents that ended since then, oldest first."""
        found = await self._bucket.read(f"ledger.{_job_or_all(job or '*')}.*")
        decoded = [_decoded(one.value, Entry, one.key) for one in found if one.value is not None]
        kept = [entry for entry in decoded if entry is not None and entry.ended_unix_s >= since_unix_s]
        return sorted(kept, key=lambda entry: (entry.ended_unix_s, entry.job, entry.number))

    async def watch_entries(self) -> AsyncIterator[list[Entry]]:
        """Those that are there, then new ones."""
        async for news in self._bucket.changes("ledger.*.*"):
            decoded = [_decoded(one.value, Entry, one.key) for one in news if one.value is not None]
            yield [entry for entry in decoded if entry is not None]

    # for building a process group
    async def scratch_set(self, key: str, value: bytes) -> None:
        """Keys are any text. "PREFIX.REST": what `scratch_drop` of the prefix forgets."""
        await self._scratch.set(key, value)

    async def scratch_get(self, key: str) -> bytes | None:
        return await self._scratch.get(key)

    async def scratch_wait(self, key: str, timeout_s: float) -> bytes:
        """Its value once it is set; TimeoutError."""
        return await self._scratch.wait(key, timeout_s)

    async def scratch_add(self, key: str, amount: int) -> int:
        """The sum after it; no two callers get the same step of it."""
        return await self._scratch.add(key, amount)

    async def scratch_drop(self, prefix: str) -> None:
        await self._scratch.drop(prefix)


def _held(found: Found, kind: type[T]) -> Held[T] | None:
    """None when it is not there, or is nothing that this version reads."""
    if found.value is None:
        return None
    value = _decoded(found.value, kind, found.key)
    return Held(value, found.revision) if value is not None else None


D = TypeVar("D", Job, Spare, Loan, Member, Status, Ask, Entry)


def _decoded(data: bytes, kind: type[D], what: str) -> D | None:
    try:
        return msgspec.json.decode(data, type=kind)
    except ValueError as error:
        _log.warning("%s is not what it should be, and is left out: %s", what, error)
        return None


def _seats(found: list[Found]) -> dict[tuple[str, int], Held[Member]]:
    seats = {}
    for one in found:
        _, job, rank = one.key.split(".")
        if rank.isdecimal() and (held := _held(one, Member)) is not None:
            seats[job, int(rank)] = held
    return dict(sorted(seats.items()))


def _spares(found: list[Found]) -> dict[str, Held[Spare]]:
    held = (_held(one, Spare) for one in found)
    return {one.value.member.id: one for one in held if one is not None}


def _loans(found: list[Found]) -> dict[str, Held[Loan]]:
    held = (_held(one, Loan) for one in found)
    return {one.value.id: one for one in held if one is not None}


def _reply(link: Link, subject: str) -> Reply:
    async def reply(answer: Answer) -> None:
        if subject:
            await link.send(subject, wire.encode(answer))

    return reply


def _job_or_all(job: str) -> str:
    return job if job == ALL else wire.check_name(job)
