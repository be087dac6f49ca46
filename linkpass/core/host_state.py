"""What is known of hosts as hosts, apart from their paths: state that the room `linkpass.core.hosts` keeps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from linkpass.core.events import HostAnswered, Severity

NEVER_S = float("-inf")


@dataclass(slots=True)
class Slowness:
    """How a host lets probes wait. `score`: windows in which it was late, by which they outnumber the others."""

    score: int = 0
    at_s: float = NEVER_S
    """When it was last late."""
    until_s: float | None = None
    """Slow until then, if it is not late again; None: it is not slow."""
    hold_s: float = 0.0
    """How long it has to be in time; doubles when it is soon slow again."""
    ended_at_s: float = NEVER_S
    cause: str = ""
    why: str = ""


@dataclass(slots=True)
class HostState:
    """Of one peer. What belongs to a silence is forgotten with it (`fresh`)."""

    echoes: bool | None = None
    """Whether its kernel answered an echo while its daemon was heard: only then does a missing echo say anything."""
    holds_port: bool | None = None
    """Whether the port of its daemon was held while it was heard: only then does a closed port say anything."""
    known_at_s: float = NEVER_S
    """When that was last asked."""
    said: str = ""
    """What it last said of itself; empty: nothing, or that it is well."""
    failing: bool = False
    """It said so of the whole host."""
    said_until_s: float = NEVER_S
    word_seq: int = -1
    named_until_s: float = NEVER_S
    """Localisation names it though it is heard: until when that is not said again."""
    stood_at_s: float = NEVER_S
    """When a queue pair with it was last told to stand."""
    slowness: Slowness = field(default_factory=Slowness)
    answered_s: dict[str, float] = field(default_factory=dict)
    """Peers that asked whether it is heard -> until when they are not answered again."""
    # of the present silence
    ask_at_s: float | None = None
    """When to ask its kernel, its leaf and other daemons; a while before `judge_at_s` of the peer."""
    asked_at_s: float = NEVER_S
    """When they were last asked."""
    from_id: int = 0
    """Commands with this id and later ones were sent in this silence."""
    answer: HostAnswered | None = None
    stands: Literal["", "shut", "unacked"] = ""
    """How its data stands."""
    data_doubted: bool = False
    """Its data flowed when it was to be judged, and may have stopped since the last look."""
    votes: dict[str, tuple[bool, float]] = field(default_factory=dict)
    """Peer -> whether that one hears it, and until when its word counts."""
    behind: tuple[str, ...] = ()
    """The switches that explain its silence."""
    pause_s: float = 0.0
    """Until it is judged again; grows while the answer stays the same."""
    verdict: tuple[str, ...] = ()
    """What localisation holds against it."""
    meaning: str = ""
    """What its silence means, for people; empty: not said yet, or not silent."""

    @property
    def slow(self) -> bool:
        """It lets probes wait for long, and has done so for a while."""
        return self.slowness.until_s is not None

    def fresh(self, next_id: int) -> None:
        """A silence begins, or is over."""
        self.ask_at_s, self.asked_at_s, self.from_id, self.answer = None, NEVER_S, next_id, None
        self.votes, self.behind, self.pause_s, self.verdict, self.meaning = {}, (), 0.0, (), ""
        self.data_doubted = False


@dataclass(slots=True)
class Ailment:
    """One piece of evidence against this host itself."""

    severity: Severity
    why: str
    since_s: float
    cause: str
    until_s: float | None = None


@dataclass(slots=True)
class Handover:
    """One escalation, until the hook has taken it."""

    host: str
    accelerator: str
    evidence: tuple[str, ...]
    cause: str
    since_s: float
    """Since when the host is silent, or its evidence stands."""
    tries: int = 0
    again_s: float | None = None
    """When to run the hook again; None: it is under way."""


@dataclass(slots=True)
class HostBook:
    """Of all hosts together, this one included."""

    own: dict[tuple[str, str, str], Ailment] = field(default_factory=dict)
    """(source, accelerator, what) -> what this host's own sources hold against it."""
    handed_over: dict[str, str] = field(default_factory=dict)
    """Accelerators of this host (empty: the whole) that were escalated -> the cause."""
    again_s: float | None = None
    """When to try again what the budget did not allow."""
    tell_at_s: float | None = None
    """When to tell peers of this host's state again."""
    told: str = ""
    """What they were told last; empty: that all is well, or nothing."""
    late_s: float = 0.0
    """How late this daemon has run of late; halves with time."""
    late_at_s: float = NEVER_S
    escalated_at_s: deque[float] = field(default_factory=deque)
    """Of the last hour."""
    over_budget: bool = False
    pending: dict[int, Handover] = field(default_factory=dict)
    """Escalations under way, by their commands."""
    refused: dict[tuple[str, str], Handover] = field(default_factory=dict)
    """(host, accelerator) -> an escalation that the hook has not taken, and that is tried again."""
    seen: dict[str, int] = field(default_factory=dict)
    """Node -> id of the newest trace that it answered."""
    traced_s: dict[frozenset[str], float] = field(default_factory=dict)
    """Switches -> when a host behind them was last traced to see whether they live."""
    vouched_s: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Switch -> when a host behind it last answered an echo, and which."""
    blamed: set[str] = field(default_factory=set)
    """Switches that localisation names now."""
