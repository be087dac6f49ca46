"""What a coordinator knows: the job's record, and what it has heard itself. Only the record survives it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchpass_bridge.wire import BEAT_S, Answer, Ask, Entry, Job, Loan, Member, Spare, Status

PROGRESS = 256
"""Of the latest steps it is known when they were done."""


class Limits(msgspec.Struct, frozen=True):
    """`silent_s`: without a status for so long a member is gone; `gone_s`: the same when another member has found a
    connection closed; `overdue_s`: the same when the host is said to have failed.

    `phase_s`: for a member to do what a phase asks; `cut_s`: how far ahead the step is at which all stand still, no
    less than what is known of members may be old."""

    silent_s: float = 0.7
    gone_s: float = 0.35
    overdue_s: float = 2 * BEAT_S
    phase_s: float = 20.0
    cut_s: float = BEAT_S
    spare_wait_s: float = 30.0
    """For a spare after a crash; then the job ends."""
    planned_wait_s: float = 60.0
    """For a spare before a planned move: to prepare one takes some seconds, or a minute with a device and kernels to
    compile. The job trains on meanwhile; whoever asked has to know some time."""
    lend_wait_s: float = 180.0
    """The same from when a preemptible job's host was called for: that job is saved first."""
    give_back_s: float = 60.0
    """A lent host goes back when it could for so long."""
    lost_s: float = 60.0
    """Without a word of any survivor, while spares are heard, a crashed job is lost."""
    attempts: int = 8
    """After so many attempts within one incident a planned migration is cancelled and a crashed job ends."""
    save_s: float = 900.0
    """For all to write their parts of a snapshot, and for it to be published."""
    per_hour: int = 6
    """Planned migrations that nobody asked for in person."""


class Put(msgspec.Struct, frozen=True):
    """Write the job's record, if it still is the one that was decided on."""

    job: Job


class Close(msgspec.Struct, frozen=True):
    """Write the ledger's entry (it may be there already: another coordinator wrote it and died), then the record."""

    entry: Entry
    job: Job


class Claim(msgspec.Struct, frozen=True):
    """Write the spare's record with its claim, if it still is the one that was seen."""

    spare: Spare


class Free(msgspec.Struct, frozen=True):
    spare: Spare


class Refuse(msgspec.Struct, frozen=True):
    """Write the spare's record with the reason why it is never taken, before anybody needs it."""

    spare: Spare


class Drop(msgspec.Struct, frozen=True):
    """Delete a spare's record: it is none any more."""

    spare: Spare


class Call(msgspec.Struct, frozen=True):
    """Write a loan's record, if it still is the one that was seen: it is wanted, or is not any more."""

    loan: Loan


class Forget(msgspec.Struct, frozen=True):
    """Delete a loan's record: who kept it is gone."""

    loan: Loan


class Reply(msgspec.Struct, frozen=True):
    ask: Ask
    answer: Answer


Action = Put | Close | Claim | Free | Refuse | Drop | Call | Forget | Reply


class Heard(msgspec.Struct):
    status: Status
    at_s: float
    """When the latest status came, by the coordinator's clock."""
    changed_s: float
    """When it last said something new."""
    step_s: float = 0.0
    """How long its steps take; 0: not known."""
    steps_since: tuple[int, float] = (0, 0.0)


class Scene:
    """Soft knowledge of one job. What is not in the record may be forgotten without harm."""

    def __init__(self, job: Job, limits: Limits, now_s: float, key: bytes = b"") -> None:
        """`key`: of the job, which spares have to know; empty: they need not."""
        self.limits = limits
        self.key = key
        self.heard: dict[str, Heard] = {}
        self.spares: dict[str, Spare] = {}
        """Set by `see_spares`."""
        self.loans: dict[str, Loan] = {}
        """Set by `see_loans`."""
        self._offered_s: dict[str, float] = {}
        self._loans_s: dict[tuple[str, str], float] = {}
        """When each loan was seen first with this call."""
        self.asks: list[Ask] = []
        self._waiting_s: dict[str, float] = {}
        """When each waiting request was looked at first."""
        self.taking_back: set[str] = set()
        """Requests to withdraw something that was there to withdraw."""
        self.refused: dict[str, str] = {}
        """Why a spare is not taken, by its id."""
        self.job = job
        self.began_s = now_s
        """When watching began, or began again: nobody is silent who had no time to speak."""
        self.heard_s = now_s
        """When anybody was heard last."""
        self._progress: list[tuple[float, int]] = []
        """When the newest step of the members grew, and to what; the latest ones."""
        self.phase_since_s = now_s
        self.incident_since_s = now_s
        self.saving_since_s = now_s
        self.calm_since_s = now_s
        """When an incident was under way, or a snapshot, the last time."""

    def see_job(self, job: Job, now_s: float) -> None:
        old, new = self.job.incident, job.incident
        if (old and (old.number, old.phase, old.attempt)) != (new and (new.number, new.phase, new.attempt)):
            self.phase_since_s = now_s
        if (old and old.number) != (new and new.number):
            self.incident_since_s = now_s
        waiting = {ask.id for ask in job.waiting}
        self._waiting_s = {ask_id: at_s for ask_id, at_s in self._waiting_s.items() if ask_id in waiting}
        if old or new or job.saving or self.job.saving:
            self.calm_since_s = now_s
        if _under_way(self.job) != _under_way(job):
            self.saving_since_s = now_s
        self.job = job

    def see_spares(self, spares: dict[str, Spare], now_s: float) -> None:
        """All of them, by id."""
        self._offered_s = {member_id: self._offered_s.get(member_id, now_s) for member_id in spares}
        self.spares = spares

    def see_loans(self, loans: dict[str, Loan], now_s: float) -> None:
        """All of them, by id."""
        calls = {(loan.id, loan.called_by) for loan in loans.values()}
        self._loans_s = {call: self._loans_s.get(call, now_s) for call in calls}
        self.loans = loans

    def hear(self, status: Status, now_s: float) -> bool:
        """Take a status in; True when it says something new. Older ones than the latest are dropped."""
        if now_s - self.heard_s > self.limits.overdue_s:
            self.began_s = now_s  # the store was away, or this coordinator stood still: that was nobody's silence
        self.heard_s = now_s
        if status.doing != "waiting" and (not self._progress or status.step > self._progress[-1][1]):
            self._progress = [*self._progress[-PROGRESS:], (now_s, status.step)]
        known = self.heard.get(status.member)
        if known is None:
            self.heard[status.member] = Heard(status, now_s, now_s, 0.0, (status.step, now_s))
            return True
        if status.sequence <= known.status.sequence:
            return False
        new = msgspec.structs.replace(status, sequence=0) != msgspec.structs.replace(known.status, sequence=0)
        step, since_s = known.steps_since
        if status.step - step >= 4 or now_s - since_s > 1.0:
            if status.step > step:
                known.step_s = (now_s - since_s) / (status.step - step)
            known.steps_since = (status.step, now_s)
        known.status, known.at_s = status, now_s
        if new:
            known.changed_s = now_s
        return new

    def listen_anew(self, now_s: float) -> None:
        """Nothing could be heard until now, through no fault of anybody's."""
        self.began_s = now_s

    def silent(self, member: Member, now_s: float, limit_s: float) -> bool:
        """A spare that was offered since has had no time to speak either."""
        return now_s - self.heard_at_s(member) > limit_s

    def heard_at_s(self, member: Member) -> float:
        """When it was heard last, or could have been."""
        known = self.heard.get(member.id)
        at_s = known.at_s if known else self._offered_s.get(member.id, self.began_s)
        return max(at_s, self.began_s)

    def waits_since_s(self, ask: Ask, now_s: float) -> float:
        """Of a waiting request: since when it could begin but for a spare."""
        return self._waiting_s.setdefault(ask.id, now_s)

    def offered_s(self, spare: Spare) -> float:
        """Since when it is known to be offered."""
        return max(self._offered_s.get(spare.member.id, self.began_s), self.began_s)

    def called_s(self, loan: Loan) -> float:
        """Since when its record is known with the call that it has."""
        return max(self._loans_s.get((loan.id, loan.called_by), self.began_s), self.began_s)

    def kept(self, loan: Loan, now_s: float, limit_s: float) -> bool:
        """Whether who keeps it was heard for so long at least, or has had no time to speak."""
        known = self.heard.get(loan.id)
        return now_s - max(known.at_s if known else self.called_s(loan), self.began_s) <= limit_s

    def deaf(self, now_s: float) -> bool:
        """Nobody at all is heard: that says nothing about anybody."""
        return now_s - self.heard_s > self.limits.overdue_s

    def needed(self, member: Member, now_s: float) -> bool:
        """Whether the job has made steps since it was heard last. Steps are made in lock-step: two of them after its
        last word are its own word that it lives, and only its way to the store is broken. That holds as long as steps
        are made: once the group is broken, or for long nothing has got on, it is as silent as any other."""
        if not self._progress:
            return False
        said = [s for m in self.job.members if (s := self.status(m)) and s.generation == self.job.generation]
        broken = any(s.peer_gone or s.doing == "stopped" for s in said)
        if now_s - self._progress[-1][0] > (self.limits.silent_s if broken else self.limits.lost_s):
            return False
        known = self.heard.get(member.id)
        since_s = max(known.at_s if known else self.began_s, self.began_s) + 1.5 * BEAT_S
        later = [step for at_s, step in self._progress if at_s > since_s]
        before = [step for at_s, step in self._progress if at_s <= since_s]
        return bool(later) and later[-1] >= (before[-1] if before else later[0]) + 2

    def status(self, member: Member) -> Status | None:
        known = self.heard.get(member.id)
        return known.status if known else None

    def by_rank(self, ranks: Iterator[int] | range | tuple[int, ...]) -> Iterator[tuple[int, Member, Status | None]]:
        for rank in ranks:
            member = self.job.members[rank]
            yield rank, member, self.status(member)

    def staying(self) -> tuple[int, ...]:
        """Ranks whose holders stay."""
        incident = self.job.incident
        leaving = incident.leaving if incident else ()
        return tuple(rank for rank in range(self.job.world) if rank not in leaving)

    def shards(self) -> int:
        """Into how many parts the job's state is dealt out."""
        return self.job.members[0].fit.shards

    def step_s(self) -> float:
        """How long the job's steps take, as far as known; 0: unknown."""
        return min((h.step_s for m in self.job.members if (h := self.heard.get(m.id)) and h.step_s), default=0.0)

    def newest_step(self) -> int:
        return max((s.step for m in self.job.members if (s := self.status(m))), default=0)


def _under_way(job: Job) -> tuple[int, int] | None:
    return (job.saving.number, job.saving.attempt) if job.saving else None
