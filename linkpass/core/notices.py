"""Words between hosts: a port that went down, a drain. They make peers faster and are never needed.

A peer's word changes only which of its own paths this host prefers, is taken for a soft verdict (a share of the
paths at most, never the last), and ends by itself. It counts only upon a link that ends at its speaker. A drain of any
other link is an operator's order, and is taken from the hosts that the configuration names for it alone.

An observer tells its peers nothing: they might act on it.
"""

from __future__ import annotations

from typing import Literal

from linkpass.core import hosts
from linkpass.core.commands import SendNotice
from linkpass.core.events import DrainRequested, Notice, NoticeHeard, NoticeKind, UndrainRequested
from linkpass.core.world import Drain, Told, Tray, World, names_of

SUSPECT_TTL_S = 10.0
DRAIN_TTL_S = 600.0
"""A drain is told again three times in this span; a peer forgets it when its origin has been gone that long."""
MOST_SUSPECTS = 16
"""Elements that one peer may name at a time."""
MOST_WORDS = 64
"""Links that one peer may speak of at a time: what it says is kept in memory and journal."""


class NoticeDesk:
    """Sends and takes notices. Sequence numbers tell a later word from an earlier one that arrives late."""

    def __init__(self, world: World, tray: Tray) -> None:
        self._world = world
        self._tray = tray
        self._heard: dict[str, dict[str, int]] = {}
        """peer -> link -> sequence of its newest word"""
        self._down: dict[str, float] = {}
        """Our own links that are down -> when to say so again."""
        self._overruled: set[tuple[str, str]] = set()
        """(peer, link): its drain was lifted here by the operator."""

    def deadlines(self) -> list[float]:
        told = [word.until_s for words in self._world.told.values() for word in words.values()]
        return [*told, *self._down.values(), *(drain.tell_at_s for drain in self._world.drains.values())]

    # our own words
    def port_down(self, uplink: str, cause: str, now_s: float) -> None:
        """One of our own ports went down: peers should not send to us over it."""
        hop = self._world.table.first_hop(uplink)
        if hop is not None:
            link = f"{hop}>{self._world.settings.host}"
            self._down[link] = now_s + self._world.settings.limits.notice_ttl_s / 3
            self._tell("port_down", link, cause, self._world.settings.limits.notice_ttl_s, now_s)

    def port_up(self, uplink: str, cause: str, now_s: float) -> None:
        """It has earned its return: peers may use it again. Said no sooner, or a flapping port would move them too."""
        hop = self._world.table.first_hop(uplink)
        link = f"{hop}>{self._world.settings.host}"
        if self._down.pop(link, None) is not None:
            self._tell("port_up", link, cause, self._world.settings.limits.notice_ttl_s, now_s)

    def drain(self, event: DrainRequested, now_s: float) -> None:
        world = self._world
        known = world.drains.get(event.link)
        cause = known.cause if known else world.new_cause()
        world.drains[event.link] = Drain(event.everywhere, cause, now_s)
        scope = "on this host, and of those that take orders from it" if event.everywhere else "on this host"
        self._tray.record(cause, f"{event.link} is drained", f"asked for {scope}", element=event.link)
        self._repeat_drains(now_s)
        world.decide_soon(now_s)

    def undrain(self, event: UndrainRequested, now_s: float) -> None:
        """Lift our own drain, and here also those that peers have told of: they repeat them, so that is remembered."""
        world = self._world
        lifted = [name for name in world.drains if event.link in names_of(name)]
        cause = next((world.drains[name].cause for name in lifted), "") or world.new_cause()
        drains = [world.drains.pop(name) for name in lifted]
        for link in [name for name in world.told if event.link in names_of(name)]:
            for origin in [origin for origin, word in world.told[link].items() if word.kind == "drain"]:
                del world.told[link][origin]
                self._overruled.add((origin, link))
        self._tray.record(cause, f"{event.link} is undrained", "asked for", element=event.link)
        told = sorted({drain.told_as for drain in drains if drain.told_as})
        for name in told or ([self.fabric_name(event.link)] if event.everywhere else []):
            self._tell("undrain", name, cause, DRAIN_TTL_S, now_s)
        world.decide_soon(now_s)

    def newcomer(self, now_s: float) -> None:
        """A peer that has not heard our drains yet."""
        for drain in self._world.drains.values():
            drain.tell_at_s = min(drain.tell_at_s, now_s)

    def suspect(self, element: str, cause: str, now_s: float) -> None:
        """Our diagnosis names an element."""
        self._tell("suspect", element, cause, SUSPECT_TTL_S, now_s)

    def unsuspect(self, element: str, cause: str, now_s: float) -> None:
        """It names it no longer: the word is told once more, and ends at once."""
        self._tell("suspect", element, cause, 0.0, now_s)

    # peers' words
    def forget_order(self, peer: str) -> None:
        """A peer that was away may count from the beginning again."""
        self._heard.pop(peer, None)

    def heard(self, event: NoticeHeard, now_s: float) -> None:
        """Take a peer's word, or refuse it with the reason in the journal."""
        world, notice = self._world, event.notice
        if notice.kind == "goodbye":
            hosts.on_goodbye(world, self._tray, event.peer, now_s)
            return
        if notice.kind in hosts.WORDS:
            hosts.on_word(world, self._tray, event.peer, notice, now_s)
            return
        order = self._heard.setdefault(event.peer, {})
        if notice.seq <= order.get(notice.link, -1):
            return
        order.pop(notice.link, None)
        order[notice.link] = notice.seq
        if len(order) > 4 * MOST_WORDS:
            del order[next(iter(order))]
        speaker = world.table.peer(event.peer).title()
        if notice.kind in ("port_down", "port_up") and speaker not in notice.link.split(">"):
            self._refuse(event, speaker, "a host may speak of its own ports only")
        elif notice.kind == "drain" and not (event.peer in world.settings.operators or _ends_at(notice.link, speaker)):
            self._refuse(event, speaker, "a host may drain its own links only; `operators` names those that may more")
        elif notice.kind == "suspect":
            self._take_suspicion(event, speaker, now_s)
        elif notice.kind in ("port_up", "undrain"):
            self._take_back(event, speaker, now_s)
        elif (event.peer, notice.link) not in self._overruled or notice.kind == "port_down":
            self._take(event, speaker, now_s)

    def _refuse(self, event: NoticeHeard, speaker: str, why: str) -> None:
        said = self._world.table.peer(event.peer).said
        if said.get("notice") != why:
            said["notice"] = why
            what = f"ignored {event.notice.kind} {event.notice.link} from {speaker}"
            self._tray.record(self._world.new_cause(), what, why, level="warning")

    def _take_back(self, event: NoticeHeard, speaker: str, now_s: float) -> None:
        link = event.notice.link
        self._overruled.discard((event.peer, link))
        words = self._world.told.get(link, {})
        word = words.pop(event.peer, None)
        if word is not None:
            if not words:
                del self._world.told[link]
            fact = "is up" if event.notice.kind == "port_up" else "is undrained"
            self._tray.record(word.cause, f"{speaker} says that {link} {fact}", "notice", element=link)
            self._world.decide_soon(now_s)

    def _take_suspicion(self, event: NoticeHeard, speaker: str, now_s: float) -> None:
        """A hint for our own diagnosis and nothing more: it is no word upon a link, and moves nothing."""
        suspected, element = self._world.suspected, event.notice.link
        for name, words in list(suspected.items()):
            for origin in [origin for origin, word in words.items() if word.until_s <= now_s]:
                del words[origin]
            if not words:
                del suspected[name]
        mine = sum(event.peer in words for name, words in suspected.items() if name != element)
        if mine < MOST_SUSPECTS:
            until_s = now_s + max(0.0, min(SUSPECT_TTL_S, event.notice.ttl_s))
            suspected.setdefault(element, {})[event.peer] = Told("suspect", speaker, until_s, "")

    def _take(self, event: NoticeHeard, speaker: str, now_s: float) -> None:
        world, notice = self._world, event.notice
        words = world.told.get(notice.link, {})
        known = words.get(event.peer)
        if known is None and sum(event.peer in others for others in world.told.values()) >= MOST_WORDS:
            self._refuse(event, speaker, f"it speaks of {MOST_WORDS} links already")
            return
        cause = known.cause if known else world.incident(now_s)
        kind: Literal["port_down", "drain"] = "drain" if notice.kind == "drain" else "port_down"
        ttl_s = max(0.0, min(DRAIN_TTL_S, notice.ttl_s))
        ordered = event.peer in world.settings.operators
        world.told[notice.link] = {**words, event.peer: Told(kind, speaker, now_s + ttl_s, cause, ordered)}
        if known is None or known.kind != kind:
            fact = "is drained" if kind == "drain" else "is down"
            self._tray.record(cause, f"{speaker} says that {notice.link} {fact}", "notice", element=notice.link)
            world.decide_soon(now_s)

    # time
    def tick(self, now_s: float) -> None:
        """Forget words that have ended, repeat our own."""
        world = self._world
        for link, words in list(world.told.items()):
            for origin in [origin for origin, word in words.items() if word.until_s <= now_s]:
                self._tray.record(words[origin].cause, f"the word of {words[origin].origin} on {link} has ended", "age")
                del words[origin]
                world.decide_soon(now_s)
            if not words:
                del world.told[link]
        ttl_s = world.settings.limits.notice_ttl_s
        for link in [link for link, again_s in self._down.items() if again_s <= now_s]:
            self._down[link] = now_s + ttl_s / 3
            self._tell("port_down", link, "", ttl_s, now_s)
        self._repeat_drains(now_s)

    def _repeat_drains(self, now_s: float) -> None:
        for link, drain in self._world.drains.items():
            if drain.tell_at_s <= now_s:
                drain.tell_at_s = now_s + DRAIN_TTL_S / 3
                name = self.fabric_name(link)
                if drain.everywhere or name in self._own_links():
                    drain.told_as = name
                    self._tell("drain", name, drain.cause, DRAIN_TTL_S, now_s)

    def fabric_name(self, link: str) -> str:
        """`eth1` or `host1:eth1` is the host's own name for a link that peers call `leaf1-host1`."""
        host = self._world.settings.host
        hop = self._world.table.first_hop(link.removeprefix(f"{host}:"))
        return f"{hop}-{host}" if hop is not None else link

    def _own_links(self) -> set[str]:
        world = self._world
        hops = {name: world.table.first_hop(name) for name in world.uplinks}
        return {name for hop in hops.values() if hop for name in names_of(f"{hop}>{world.settings.host}")}

    def _tell(self, kind: NoticeKind, link: str, cause: str, ttl_s: float, now_s: float) -> None:
        """Tell all peers that can be told, if this host acts."""
        if not self._world.acting:
            return
        own = self._world.settings.address
        peers = tuple(peer.address for peer in self._world.table.peers.values() if peer.probed_from(own))
        if not peers:
            return
        seq = self._world.take_notice_seq(now_s)
        notice = Notice(kind=kind, link=link, origin=self._world.settings.host, seq=seq, ttl_s=ttl_s)
        self._tray.put(SendNotice(cmd_id=self._tray.take_id(), cause=cause, notice=notice, peers=peers))


def _ends_at(link: str, node: str) -> bool:
    """Whether it may. Names may have dashes in them: which links it is in truth, `World.words_on` knows."""
    return node in link.split(">") or link.startswith(f"{node}-") or link.endswith(f"-{node}")
