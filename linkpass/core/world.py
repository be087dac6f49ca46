"""The state that the parts of the core share, and the tray on which they lay their commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from linkpass.core.blame import Verdict
from linkpass.core.commands import Command, Record, Rung
from linkpass.core.congestion import Congestion
from linkpass.core.crowd import Crowd
from linkpass.core.desired import Wish
from linkpass.core.diagnosis.verdict import Verdict as Finding
from linkpass.core.element import Element
from linkpass.core.events import FlowStands, RoceEvidence
from linkpass.core.host_state import HostBook
from linkpass.core.lagging import Straggler
from linkpass.core.paths import PathTable
from linkpass.core.settings import CoreSettings

GROUP = "group all"
"""Name of the wish for rung 2; those for rung 1 are called `labels ADDRESS`."""
INCIDENT_S = 2.0
"""Bad news this close together is one incident, and gets one causal id."""
GATHER_S = 0.1
"""Returns this close together are one decision: each change of labels re-orders packets of flows."""


@dataclass(slots=True)
class Uplink:
    name: str
    usable: bool
    element: Element
    why: str = ""
    speed_bps: int = 0
    port_err: str = ""
    """What the driver of its RDMA device says against it; empty: nothing."""
    port: str = ""
    """Of which port it says so."""


@dataclass(slots=True)
class Told:
    """A peer's word about a link, with its end."""

    kind: Literal["port_down", "drain", "suspect"]
    origin: str
    until_s: float
    cause: str
    ordered: bool = False
    """An operator's: it may be of any link, else only of one that ends at its origin."""


@dataclass(slots=True)
class Noted:
    """What traces have found out at a hop over an uplink, and to which peers: peer -> traces to it that have not found
    it since."""

    what: str
    why: str
    since_s: float
    nodes: dict[str, None] = field(default_factory=dict)
    peers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Standing:
    """What was last told of a flow that stands, what was said of it (host, path, ...), and under which cause."""

    kind: str
    cause: str
    event: FlowStands
    told_s: float


@dataclass(slots=True)
class Drain:
    everywhere: bool
    cause: str
    tell_at_s: float
    told_as: str = ""
    """The name under which peers were told of it."""


class World:
    """What this host knows and wants. Mutable, private to the core."""

    def __init__(self, settings: CoreSettings) -> None:
        self.settings = settings
        self.table = PathTable(settings)
        self.uplinks: dict[str, Uplink] = {}
        self.links: dict[str, Element] = {}
        self.soft: dict[str, str] = {}
        """Directions that are down for a soft reason (loss), with the reason."""
        self.loss_at_s: dict[str, float] = {}
        """The same directions -> when a probe over them was last lost."""
        self.clean_at_s: dict[str, float] = {}
        """The same directions -> when to look whether they may be acquitted; taken out when looked at."""
        self.told: dict[str, dict[str, Told]] = {}
        """link as named in the notice -> origin -> word."""
        self.suspected: dict[str, dict[str, Told]] = {}
        """element -> origin -> that it has named it."""
        self.drains: dict[str, Drain] = {}
        self.blamed: frozenset[str] = frozenset()
        self.verdicts: tuple[Verdict, ...] = ()
        self.findings: tuple[Finding, ...] = ()
        """What the diagnosis says, most certain first, where there is one."""
        self.in_force: tuple[str, ...] = ()
        """What it has named in the journal and not taken back."""
        self.named: frozenset[tuple[str, str]] = frozenset()
        """(kind, name) of the verdicts in force that the journal knows of."""
        self.wishes: dict[str, Wish] = {}
        self.leads: tuple[str, ...] = ()
        """Uplinks over which our own group's routes lead, as last told; empty: never told."""
        self.away: dict[str, str] = {}
        """Uplinks that decisions have taken traffic from -> the cause: the way back belongs to the same story."""
        self.extra: dict[tuple[str, str, int], float] = {}
        """(peer, uplink, label) of paths that are probed beside those in use for a moment, to tell suspects apart ->
        since when."""
        self.planned: frozenset[tuple[str, str, int]] = frozenset()
        self.stretch = 1.0
        """By what the intervals of the plan are longer than asked, to keep the packet limits."""
        """(peer, uplink, label) of the paths that are being probed now."""
        self.standing: dict[str, Standing] = {}
        """RDMA flows that stand, by name."""
        self.ports: dict[str, tuple[str, float]] = {}
        """Ports of RDMA devices (`device/port`) -> the cause of what was last said of them, and when."""
        self.port_errs: dict[str, str] = {}
        """Those in error -> the cause."""
        self.roce: dict[str, tuple[RoceEvidence, str]] = {}
        """Queues of RDMA devices whose datagrams fail, by name -> what was last said of them, and its cause."""
        self.kept: dict[str, str] = {}
        """RDMA flows that could not be moved -> why, as last said."""
        self.noted: dict[tuple[str, str, int], Noted] = {}
        """(uplink, kind, hop) -> what traces have found out there."""
        self.crowds: dict[tuple[str, str], Crowd] = {}
        """(cause, what is said of several flows) -> how many were named, and how many only counted."""
        self.hosts = HostBook()
        self.stragglers: dict[str, Straggler] = {}
        """Hosts that all others wait for, by their addresses."""
        self.arrivals_refused = 0
        """Words about arrivals at steps that were not believed."""
        self.congestion = Congestion()
        self.moves = 0
        self.move_keys: dict[tuple[str, str], None] = {}
        self.decide_at_s: float | None = None
        self._notice_seq = 0
        self._cause_no = 0
        self._incident = ""
        self._incident_until_s = float("-inf")

    @property
    def acting(self) -> bool:
        return self.settings.mode == "act"

    @property
    def slow_s(self) -> float:
        """What has happened is known after this time of peers that are probed slowly, too."""
        return (self.settings.detection.blackhole_losses + 1) * self.settings.probing.idle_interval_s

    def take_notice_seq(self, now_s: float) -> int:
        """Sequences of notices follow the clock of the machine: they go on where an earlier run of this daemon has
        stopped."""
        self._notice_seq = max(self._notice_seq + 1, int(now_s * 10))
        return self._notice_seq

    def new_cause(self) -> str:
        self._cause_no += 1
        return f"{self.settings.host}-{self._cause_no}"

    def incident(self, now_s: float) -> str:
        """The causal id for bad news at `now_s`: that of the incident still open, else a new one."""
        if now_s >= self._incident_until_s:
            self._incident = self.new_cause()
        self._incident_until_s = now_s + INCIDENT_S
        return self._incident

    @property
    def calm_at_s(self) -> float:
        """When the last incident ends, unless more bad news comes."""
        return self._incident_until_s

    def decide_soon(self, at_s: float) -> None:
        """Decide at `at_s` at the latest. For bad news that is now: when all events of this moment are in, their sum is
        one decision. Good news may wait for its like (GATHER_S)."""
        if self.decide_at_s is None or at_s < self.decide_at_s:
            self.decide_at_s = at_s

    def link(self, direction: str) -> Element:
        element = self.links.get(direction)
        if element is None:
            element = self.links[direction] = Element(direction, self.settings.damping)
        return element

    def wish(self, name: str) -> Wish:
        wish = self.wishes.get(name)
        if wish is None:
            wish = self.wishes[name] = Wish(name)
        return wish

    @property
    def group_members(self) -> tuple[str, ...] | None:
        """Uplinks of our own group as the kernel has it; None: the kernel's own routes are in force."""
        wish = self.wishes.get(GROUP)
        if wish is None or wish.stood_down or wish.programmed is None:
            return None
        return tuple(name for name in wish.programmed if name in self.leads) or wish.programmed

    def title(self, address: str) -> str:
        """A host's name, this one's own too; of a host that is not known its address."""
        if address == self.settings.address:
            return self.settings.host
        known = self.table.peers.get(address)
        return known.title() if known is not None else address

    def usable_uplinks(self) -> list[str]:
        return [uplink.name for uplink in self.uplinks.values() if uplink.usable]

    def words_on(self, direction: str, now_s: float) -> tuple[str, str] | None:
        """(reason, cause) when a drain or a peer's word is upon a direction."""
        for name in names_of(direction):
            drain = self.drains.get(name)
            if drain is not None:
                return f"{name} is drained", drain.cause
            for word in self.told.get(name, {}).values():
                if word.until_s > now_s and (word.ordered or word.origin in direction.split(">")):
                    what = "is drained" if word.kind == "drain" else "is down"
                    return f"{name} {what}, says {word.origin}", word.cause
        return None


def names_of(direction: str) -> tuple[str, str, str]:
    """The names under which people and peers may speak of a direction: itself, and its link from either end."""
    a, _, b = direction.partition(">")
    return direction, f"{a}-{b}", f"{b}-{a}"


@dataclass(slots=True)
class Tray:
    """Collects the commands of one turn; ids grow by one, so that a replay gives the same."""

    next_id: int = 1
    commands: list[Command] = field(default_factory=list)

    def take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def put(self, command: Command) -> None:
        self.commands.append(command)

    def record(
        self,
        cause: str,
        what: str,
        why: str,
        *,
        rung: Rung = 0,
        element: str = "",
        level: Literal["info", "warning"] = "info",
    ) -> None:
        self.put(
            Record(cmd_id=self.take_id(), cause=cause, what=what, why=why, rung=rung, element=element, level=level)
        )

    def empty(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands
