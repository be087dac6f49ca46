"""A job in lock-step on paper: when each rank writes how much to which other, and every host's looks at it.

A ring as Gloo and NCCL run it: a rank opens by a word to both neighbours when it has computed, then hands on one part a
round, and can begin a round only when it has done the last one and its left neighbour has, too. A tree: parts go up to
the parent when all children's have come, and down again from the root."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from linkpass.core.events import PaceTold
from linkpass.core.pace import PaceMeter
from linkpass.core.settings import CoreSettings, Stragglers
from linkpass.core.stragglers import StragglerDesk
from linkpass.core.world import Tray, World

HOP_S = 0.0002
OPENER, PART = 56, 14_000
LOOK_S = 0.010
SEGMENT = 1428

Message = tuple[float, int, int, int]
"""When, from, to, bytes."""


def ring(arrivals: list[float], one_way: bool = False) -> tuple[list[Message], float]:
    """One step; and when it ends."""
    count = len(arrivals)
    said: list[Message] = []
    begun = list(arrivals)
    for rank, at_s in enumerate(arrivals):
        if not one_way:
            said += [(at_s, rank, (rank + 1) % count, OPENER), (at_s, rank, (rank - 1) % count, OPENER)]
    for _ in range(2 * (count - 1)):
        said += [(at_s, rank, (rank + 1) % count, PART) for rank, at_s in enumerate(begun)]
        begun = [max(begun[rank], begun[rank - 1] + HOP_S) + HOP_S for rank in range(count)]
        if not one_way:
            said += [(at_s, rank, (rank - 1) % count, OPENER) for rank, at_s in enumerate(begun)]
    return said, max(begun)


def tree(arrivals: list[float]) -> tuple[list[Message], float]:
    """A binary heap: the children of rank k are 2k + 1 and 2k + 2."""
    count = len(arrivals)
    said: list[Message] = []
    ready = list(arrivals)
    for rank in reversed(range(count)):
        children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < count]
        ready[rank] = max([arrivals[rank], *(ready[child] + HOP_S for child in children)])
        if rank:
            said.append((ready[rank], rank, (rank - 1) // 2, PART))
    down = list(ready)
    for rank in range(1, count):
        down[rank] = down[(rank - 1) // 2] + HOP_S
        said.append((down[rank] - HOP_S, (rank - 1) // 2, rank, PART))
    return said, max(down)


@dataclass
class Sock:
    """Both directions of one pair as one host sees them."""

    cookie: int
    peer: str
    written_bytes: int = 0
    received_bytes: int = 0
    queued_bytes: int = 0
    segment_bytes: int = SEGMENT
    sent_at_s: float = -1e9
    received_at_s: float = -1e9
    now_s: float = 0.0
    retransmitted: int = 0
    blocked_s: float = 0.0

    @property
    def since_sent_s(self) -> float:
        return round((self.now_s - self.sent_at_s) * 250) / 250  # the kernel counts in ticks

    @property
    def since_received_s(self) -> float:
        return round((self.now_s - self.received_at_s) * 250) / 250

    def frozen(self, now_s: float) -> Sock:
        return Sock(
            self.cookie, self.peer, self.written_bytes, self.received_bytes, self.queued_bytes, self.segment_bytes,
            self.sent_at_s, self.received_at_s, now_s, self.retransmitted, self.blocked_s,
        )  # fmt: skip


def address(rank: int) -> str:
    return f"fd00:ff::{rank + 1:x}"


@dataclass
class Host:
    rank: int
    settings: Stragglers
    sockets: dict[int, Sock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.meter = PaceMeter(self.settings)
        self.world = World(CoreSettings(host=f"host{self.rank + 1}", address=address(self.rank),
                                        stragglers=self.settings))  # fmt: skip
        self.tray = Tray()
        self.desk = StragglerDesk(self.world, self.tray)

    def sock(self, other: int) -> Sock:
        if other not in self.sockets:
            self.sockets[other] = Sock(self.rank * 1000 + other, address(other))
        return self.sockets[other]


class PaceSim:
    """`computes(step, rank)`: seconds that a rank computes. Every host looks each LOOK_S, and tells all others what it
    claims each `TELL_S`."""

    TELL_S = 0.1

    def __init__(
        self, ranks: int, computes: Callable[[int, int], float],
        collective: Callable[[list[float]], tuple[list[Message], float]] = ring, settings: Stragglers | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings or Stragglers(enabled=True)
        self.hosts = [Host(rank, self.settings) for rank in range(ranks)]
        self.computes, self.collective = computes, collective
        self.now_s = 100.0
        self.step = 0
        self.first_named: dict[str, int] = {}
        """Host -> step in which anybody first named it."""
        self.lies: Callable[[int, PaceTold], PaceTold] = lambda rank, told: told
        self._look_s, self._tell_s = self.now_s, self.now_s
        self.silent: set[int] = set()
        """Ranks whose daemons say nothing."""

    def run(self, steps: int) -> PaceSim:
        for _ in range(steps):
            arrivals = [self.now_s + self.computes(self.step, rank) for rank in range(len(self.hosts))]
            said, end_s = self.collective(arrivals)
            self._play(sorted(said), end_s + HOP_S)
            self.step += 1
        return self

    def named(self) -> set[str]:
        """By anybody, now: `host2 compute`."""
        return {
            f"{host.world.title(one.host) if one.host == host.world.settings.address else _title(one.host)} {one.cause}"
            for host in self.hosts
            for one in host.world.stragglers.values()
        }

    def _play(self, said: Iterable[Message], end_s: float) -> None:
        wires = sorted([(at_s, 0, a, b, size) for at_s, a, b, size in said]
                       + [(at_s + HOP_S, 1, a, b, size) for at_s, a, b, size in said])  # fmt: skip
        for at_s, came, a, b, size in wires:
            self._look_until(at_s)
            if came:
                sock = self.hosts[b].sock(a)
                sock.received_bytes, sock.received_at_s = sock.received_bytes + size, at_s
            else:
                sock = self.hosts[a].sock(b)
                sock.written_bytes, sock.sent_at_s = sock.written_bytes + size, at_s
        self._look_until(end_s)
        self.now_s = end_s

    def _look_until(self, at_s: float) -> None:
        while self._look_s <= at_s:
            now_s = self._look_s
            for host in self.hosts:
                host.meter.look(now_s, [sock.frozen(now_s) for sock in host.sockets.values()], LOOK_S)
                if min(host.desk.deadlines(), default=now_s + 1) <= now_s:
                    host.desk.tick(now_s)
                    for one in host.world.stragglers.values():
                        self.first_named.setdefault(_title(one.host), self.step)
            if now_s >= self._tell_s:
                self._tell_s = now_s + self.TELL_S
                self._talk(now_s)
            self._look_s += LOOK_S

    def _talk(self, now_s: float) -> None:
        for speaker in self.hosts:
            claims = speaker.meter.claims()
            for host in self.hosts if claims else ():
                own = host is speaker
                if own:
                    host.desk.told(PaceTold(claims=claims), now_s)
                elif speaker.rank not in self.silent:
                    told = PaceTold(peer=address(speaker.rank), claims=claims)
                    host.desk.told(self.lies(speaker.rank, told), now_s)


def _title(host: str) -> str:
    return f"host{int(host.rpartition(':')[2], 16)}"


def noisy(seed: int, mean_s: float, spread_s: float) -> Callable[[int, int], float]:
    """Computing times around a mean, exponential on top, each rank and step on its own."""
    chance = random.Random(seed)
    return lambda step, rank: mean_s + chance.expovariate(1 / spread_s)
