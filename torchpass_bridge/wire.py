"""What members of a job, spares and coordinators say to one another: values, their bytes, the names they go under.

The kinds of records, all JSON:

- `Job`: one key of the store a job. Changed only by compare-and-set, so any coordinator can go on with what another one
  began; everybody else watches it and does what it says (`core.duty`). It is the only truth.
- `Spare`: one key a spare. It is given away by compare-and-set on that key: never twice. `Loan` is the same for a host
  of a preemptible job, on which a spare of another one may be started.
- `Status`: what a member is doing. Not stored: said again every `BEAT_S`, and at once when it changes, so that one who
  comes late, or takes over, knows all after one beat.

`Ask` is a request to a coordinator, answered with `Answer` when the job's record holds it.

Steps are counted as *applied*: a member at step 7 has applied 7 optimizer steps, and is in or before its eighth.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal, TypeVar

import msgspec

BUCKET = "torchpass"
"""Of the store, for jobs and spares."""
BEAT_S = 0.2
"""Between two statuses of a member that has nothing new to say. Half of it would be noticed no sooner: a silence is
counted from the last word on. It would cost a healthy step twice as much."""

ATTEMPTS = 1 << 20
"""More than any incident has."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Fit(msgspec.Struct, frozen=True):
    """What must be alike in two processes for one to take the other's place, bit for bit.

    `model`, `optimizer`: digests of names, shapes, types and options; `threads`: a sum's order depends on it;
    `state_bytes`: what is copied; `loop`: of the trainer's own settings (bucket sizes, backend)."""

    torch: str
    device: str
    model: str
    optimizer: str
    state_bytes: int
    threads: int
    loop: str = ""
    world: int = 0
    """Of how many ranks the job is made: gradients are divided by it, and data is dealt out by it."""
    shards: int = 1
    """Into how many parts the state is dealt out: rank r holds part r % shards, and `state_bytes` are a part's."""
    buddies: bool = False
    """Sharded state: each rank leaves copies of its part with another one (`core.places.keeper_of`)."""

    def misfits(self, other: Fit) -> str:
        """Why `other` cannot take this one's place; empty when it can."""
        said = {
            "torch": "torch version", "device": "kind of device", "model": "model", "optimizer": "optimizer",
            "threads": "number of threads", "loop": "settings of the trainer", "world": "world size",
            "shards": "number of shards", "buddies": "copies kept by buddies",
        }  # fmt: skip
        wrong = [
            f"{words} {getattr(other, name) or 'unknown'} instead of {getattr(self, name) or 'unknown'}"
            for name, words in said.items()
            if getattr(self, name) != getattr(other, name)
        ]
        if not wrong and self.state_bytes != other.state_bytes:
            wrong = [f"{other.state_bytes} bytes of state instead of {self.state_bytes}"]
        return "; ".join(wrong)


class Member(msgspec.Struct, frozen=True):
    """One run of one process: it may hold a rank, or be a spare. Its `id` is never used again.

    `address`: "host:port" where it gives its state; `domain`: what fails together with it beyond its host (a leaf, a
    rack), empty: not known."""

    id: str
    host: str
    pid: int
    address: str
    fit: Fit
    accelerator: str = ""
    domain: str = ""
    snapshots: str = ""
    """The folder, shared by all hosts, where it writes its part of a snapshot; empty: none is named to it."""
    begins: str = ""
    """The snapshot that it begins with, by name; empty: at the start."""
    lent_from: str = ""
    """The loan that its host is had by (`Loan.name`); empty: the host is the job's own."""


class Spare(msgspec.Struct, frozen=True):
    """A warm process that waits. `job`: which it was built for; `claimed_by`: "job/incident", empty: free.

    `proof` shows that it knows the job's key."""

    member: Member
    job: str
    proof: str = ""
    claimed_by: str = ""
    refused: str = ""
    """Why it will never be taken (written by a coordinator): it ends, and says so."""


GIVEN_BACK = "it is not needed any more: its host goes back to the job that has lent it"
"""Why a spare on a lent host is refused that could serve."""


class Loan(msgspec.Struct, frozen=True):
    """A host on which `lender`, a preemptible job, runs; it may be had for a spare of `job`. `id`: of the process that
    keeps it (`lending`), which says a `Status` under it as long as it lives.

    offered: the lender may run · called: a coordinator of `job` wants it, and the lender is to be stopped · lent: the
    lender has stopped, and does not start again before it is offered once more."""

    id: str
    job: str
    lender: str
    host: str
    domain: str = ""
    proof: str = ""
    """As a spare's."""
    state: Literal["offered", "called", "lent"] = "offered"
    called_by: str = ""
    """"job/incident" that has called it, or had: the same one does not call it twice."""
    why: str = ""
    """Why it could not be had, or served for nothing, the last time."""
    refused: str = ""
    """Why it is not called any more (its host is drained): its keeper ends once the host is the lender's."""

    @property
    def name(self) -> str:
        """How a member on the host tells of it."""
        return f"{self.lender}/{self.id}"


class Copy(msgspec.Struct, frozen=True):
    """The member that holds rank `to` in the next generation takes state from those that hold `sources` in this one.

    All sources hold the same bytes, and each gives a part of them. `own`: who gives what belongs to the rank alone
    (generators, data position): the one that leaves; None: nobody has it, it follows from seed, step and rank.
    `kept`: they give a copy that they keep of its part, and not their own state: one that goes back by a step takes it
    from itself."""

    to: int
    sources: tuple[int, ...]
    own: int | None = None
    kept: bool = False


Phase = Literal["requested", "preparing", "quiescing", "moving", "resuming", "saving"]
Kind = Literal["planned", "crash"]


class Incident(msgspec.Struct, frozen=True):
    """One migration under way. `leaving`: ranks whose holders go; `claims`: who takes them; `attempt` is counted up
    whenever the next group's members change, so that no group is ever built half of old and half of new ones."""

    number: int
    kind: Kind
    leaving: tuple[int, ...]
    hosts: tuple[str, ...]
    """Of those that leave."""
    cause: str
    evidence: tuple[str, ...] = ()
    trigger: str = "silence"
    failing: bool = False
    """Planned: the host is said to have failed, so that silence of what is on it is believed sooner."""
    phase: Phase = "requested"
    attempt: int = 0
    claims: tuple[tuple[int, Member], ...] = ()
    cut: int = -1
    """Planned: the number of applied steps at which all stand still; -1: not chosen yet."""
    copies: tuple[Copy, ...] = ()
    at_step: int = -1
    """What every member has applied when it goes on."""
    newest: int = -1
    """Sharded state, crash: the newest step that any member is known to have applied. `at_step` may be an older one."""
    bad: tuple[str, ...] = ()
    """Spares that said what keeps them from it: none of them is claimed again for this incident."""
    shaky: tuple[str, ...] = ()
    """Spares that were gone, or too slow, once: the last ones to be claimed again."""
    digests: tuple[tuple[int, str], ...] = ()
    """By rank, of what was verified."""
    detection_s: float = 0.0
    """Crash: from the last word of who is gone to the incident's begin, the longest of them: no less than it took."""
    began_unix_s: float = 0.0
    phase_unix_s: tuple[tuple[str, float], ...] = ()
    """When each phase was entered first, for the ledger."""


Outcome = Literal["moved", "cancelled", "stopped", "lost"]


class Entry(msgspec.Struct, frozen=True):
    """A closed incident, as the ledger keeps it. `pause_s`: from the last step before to the first one after.

    `steps_lost`: applied steps that have to be done again: of a job that ended, those since its latest snapshot; of
    sharded state also the one that not all parts of the state had reached;
    `outcome`: moved · cancelled (planned: nobody left, the job trained on) · stopped (no spare: the job ended) · lost
    (nobody had the state any more). `rung`: 3, ranks leave a host; links and paths (1, 2) are the daemons' own."""

    job: str
    number: int
    kind: Kind
    cause: str
    evidence: tuple[str, ...]
    trigger: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    spares: tuple[str, ...]
    outcome: Outcome
    why: str
    began_unix_s: float
    ended_unix_s: float
    pause_s: float
    steps_lost: int
    world: int
    attempts: int
    phase_unix_s: tuple[tuple[str, float], ...] = ()
    detection_s: float = 0.0
    rung: int = 3


class Saving(msgspec.Struct, frozen=True):
    """A snapshot of the whole job under way: each of `writers` writes its part of what is so when `at_step` steps are
    applied, beside training; when all parts are there, the first writer publishes them.

    `tensors`: the writers that hold that step, and share its tensors out among them; the others have only what belongs
    to them alone, and the copies of others' parts that they keep. `attempt` is counted up when somebody had passed the
    step before it heard of it."""

    number: int
    cause: str
    last: bool = False
    """The job ends with it."""
    attempt: int = 0
    at_step: int = -1
    """-1: not chosen yet."""
    writers: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()
    kept: tuple[tuple[int, int], ...] = ()
    """A writer, and the part of a sharded state of which it writes the copy that it keeps: nobody holds it any more."""
    parts: tuple[tuple[int, str], ...] = ()
    """By rank, the digest of its part, once all are written."""
    began_unix_s: float = 0.0


class Saved(msgspec.Struct, frozen=True):
    """How a snapshot ended. `path`: of the published one; empty: there is none, and `why` says it."""

    number: int
    step: int
    path: str
    why: str
    unix_s: float


class Ask(msgspec.Struct, frozen=True):
    """A request: move what is on a host away (`migrate`), the host has failed (`failed`), neither is so after all
    (`withdraw`); or save the whole job and let it train on (`snapshot`), or end (`stop`), whatever the host.

    `accelerator`: only the ranks on that one; `unlimited`: an operator's, outside the hourly budget."""

    id: str
    what: Literal["migrate", "failed", "withdraw", "snapshot", "stop"]
    host: str
    accelerator: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()
    unlimited: bool = False
    trigger: str = "operator"
    waits: str = ""
    """In a job's record: why no spare can be had for it, when it was looked at first. It waits for one, for a while."""


class Answer(msgspec.Struct, frozen=True):
    """`taken`: it is in the job's record. `why`: what follows, or why it is refused."""

    taken: bool
    why: str


Ended = Literal["", "finished", "stopped", "lost", "refused"]


class Job(msgspec.Struct, frozen=True):
    """`members` by rank. `fenced`: ids that can never take part again. `waiting`: requests whose turn comes later.

    `ended`: empty while it trains; then finished · stopped (for want of a spare, though some have its state) · lost ·
    refused (it never began: `why` says what is not alike in those that wanted to start it)."""

    name: str
    world: int
    generation: int
    members: tuple[Member, ...]
    attempt: int = 0
    """With which the present group was built."""
    fenced: tuple[str, ...] = ()
    incident: Incident | None = None
    incidents: int = 0
    waiting: tuple[Ask, ...] = ()
    moved_unix_s: tuple[float, ...] = ()
    """When migrations within the budget were begun; those of the last hour."""
    saving: Saving | None = None
    snapshots: int = 0
    """How many were begun."""
    saved: tuple[Saved, ...] = ()
    """How the latest ones ended, the newest last."""
    ended: Ended = ""
    why: str = ""
    """Of `ended`, for people."""
    unheard_unix_s: float = 0.0
    """Since when none of its members has been heard, though the store answers; 0: some are. They may all be gone, or
    may train where the store is not reached: that cannot be told apart, and is left to who starts all ranks anew."""

    @property
    def over(self) -> bool:
        """Whether a new run of it may begin once all ranks of that are there."""
        return bool(self.ended) or self.unheard_unix_s > 0

    def rank_of(self, member_id: str) -> int | None:
        """Its rank in the present generation."""
        return next((rank for rank, m in enumerate(self.members) if m.id == member_id), None)

    def knew(self, member_id: str) -> bool:
        """Whether it takes part, or did."""
        return member_id in self.fenced or any(m.id == member_id for m in self.members)

    def next_members(self) -> tuple[Member, ...]:
        """By rank, once the incident is over."""
        claims = dict(self.incident.claims) if self.incident else {}
        return tuple(claims.get(rank, m) for rank, m in enumerate(self.members))

    def next_group(self) -> tuple[int, int]:
        """(generation, attempt) of the group that is built for the time after the incident. Never the same for two
        incidents: one may have been cancelled when its group stood already, with other members."""
        return self.generation + 1, self.incident.number * ATTEMPTS + self.incident.attempt if self.incident else 0


Doing = Literal["training", "paused", "stopped", "left", "waiting"]
"""training: in a step or between two · paused: stands still at the cut · stopped: out of a broken collective, stands
still · left: has done all its steps · waiting: a spare."""


class Status(msgspec.Struct, frozen=True):
    """What a member is doing. `step`: applied; `generation`: of the group that it trains in, or did last."""

    member: str
    sequence: int
    doing: Doing
    generation: int = 0
    step: int = 0
    built: tuple[int, int] = (0, 0)
    """The group for the time after, when it stands."""
    holds: tuple[int, int, str] = (0, 0, "")
    """The group for which the state was taken over and verified, and its digest."""
    trouble: str = ""
    """What keeps it from doing what the job's record asks; for the ledger and for people."""
    peer_gone: bool = False
    """Its collective broke, or found a connection closed: somebody is gone, whoever it is."""
    pause_s: float = 0.0
    """From the end of its last step before the latest incident to the end of its first one after."""
    saved: tuple[int, int, str] = (0, 0, "")
    """Of a snapshot, its number and attempt: that this member's part is taken, and once it is written its digest."""
    published: tuple[int, int, str] = (0, 0, "")
    """The same: where it is, once all of it is there."""
    unsaved: tuple[int, int, str] = (0, 0, "")
    """The same: why it could not be written, or published."""
    keeps: tuple[tuple[int, int], ...] = ()
    """Sharded state: (part, applied steps) of the copies that it could give."""


T = TypeVar("T", Job, Spare, Loan, Status, Ask, Answer, Entry)


def encode(value: Job | Spare | Loan | Status | Ask | Answer | Entry) -> bytes:
    return msgspec.json.encode(value)


def decode(data: bytes, kind: type[T]) -> T:
    """ValueError (msgspec.DecodeError is one) when the bytes are no such record."""
    return msgspec.json.decode(data, type=kind)


def check_name(name: str) -> str:
    """A job's or a member's name as it may stand in keys and subjects; ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: a name is 1 to 64 letters, digits, '_' and '-'")
    return name


def job_key(job: str) -> str:
    return f"job.{check_name(job)}"


def seat_key(job: str, rank: int) -> str:
    """Where the process that starts as a rank puts its `Member`: created once, never overwritten."""
    return f"seat.{check_name(job)}.{rank}"


def spare_key(member_id: str) -> str:
    return f"spare.{check_name(member_id)}"


def loan_key(loan_id: str) -> str:
    return f"loan.{check_name(loan_id)}"


def entry_key(job: str, number: int) -> str:
    return f"ledger.{check_name(job)}.{number}"


def status_subject(job: str) -> str:
    return f"torchpass.{check_name(job)}.status"


def ask_subject(job: str) -> str:
    return f"torchpass.{check_name(job)}.ask"


def prove(key: bytes, job: str, member_id: str) -> str:
    """That who offers a spare, or asks for state, knows the job's key."""
    return hmac.new(key, f"{job}/{member_id}".encode(), hashlib.sha256).hexdigest()


def proved(key: bytes, job: str, member_id: str, proof: str) -> bool:
    return hmac.compare_digest(prove(key, job, member_id), proof)
