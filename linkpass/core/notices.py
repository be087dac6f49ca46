"""Words between hosts: a port that went down, a drain. They make peers faster and are never needed.

A peer's word changes only which of its own paths this host prefers, is taken for a soft verdict (a share of the
paths at most, never the last), and ends by itself. A word about a port is believed only of a link that ends at its
speaker; a drain of a fabric link is an operator's order and may name any link.
"""

from __future__ import annotations

from typing import Literal

from linkpass.core.commands import SendNotice
from linkpass.core.events import DrainRequested, Notice, NoticeHeard, NoticeKind, UndrainRequested
from linkpass.core.world import Drain, Told, Tray, World, names_of

DRAIN_TTL_S = 600.0
"""A drain is told again three times in this span; a peer forgets it when its origin has been gone that long."""


class NoticeDesk:
    """Sends and takes notices. Sequence numbers tell a later word from an earlier one that arrives late."""

    def __init__(self, world: World, tray: Tray) -> None:
        self._world = world
        self._tray = tray
        self._seq = 0
        self._heard: dict[tuple[str, str], int] = {}
        self._down: dict[str, float] = {}

    def deadlines(self) -> list[float]:
        told = [word.until_s for words in self._world.told.values() for word in words.values()]
        return [*told, *self._down.values(), *(drain.tell_at_s for drain in self._world.drains.values())]

    def port(self, uplink: str, *, usable: bool, cause: str, now_s: float) -> None:
        """One of our own ports changed: peers should not send to us over it, or may again."""
        hop = self._world.table.first_hop(uplink)
        if hop is None or not self._world.acting:
            return
        link = f"{hop}>{self._world.settings.host}"
        if usable:
            self._down.pop(link, None)
            self._tell("port_up", link, cause, self._world.settings.limits.notice_ttl_s)
        else:
            self._down[link] = now_s + self._world.settings.limits.notice_ttl_s / 3
            self._tell("port_down", link, cause, self._world.settings.limits.notice_ttl_s)

    def drain(self, event: DrainRequested, now_s: float) -> None:
        world = self._world
        cause = world.new_cause()
        world.drains[event.link] = Drain(event.everywhere, cause, now_s)
        scope = "on every host" if event.everywhere else "on this host and for its peers"
        self._tray.record(cause, f"{event.link} is drained", f"asked for {scope}", element=event.link)
        self._refresh(now_s)
        world.decide_soon(now_s)

    def undrain(self, event: UndrainRequested, now_s: float) -> None:
        world = self._world
        drain = world.drains.pop(event.link, None)
        cause = drain.cause if drain else world.new_cause()
        for words in world.told.get(event.link, {}), *(world.told.get(name, {}) for name in self._alike(event.link)):
            for origin in [origin for origin, word in words.items() if word.kind == "drain"]:
                del words[origin]
        self._tray.record(cause, f"{event.link} is undrained", "asked for", element=event.link)
        if drain is not None and self._concerns_peers(event.link, drain):
            self._tell("undrain", event.link, cause, DRAIN_TTL_S)
        world.decide_soon(now_s)

    def heard(self, event: NoticeHeard, now_s: float) -> None:
        """Take a peer's word, or refuse it with the reason in the journal."""
        world, notice = self._world, event.notice
        key = (event.peer, notice.link)
        if notice.seq <= self._heard.get(key, -1):
            return
        self._heard[key] = notice.seq
        peer = world.table.peer(event.peer)
        speaker = peer.title()
        if notice.kind in ("port_down", "port_up") and speaker not in notice.link.split(">"):
            why = "a host may speak of its own ports only"
            self._tray.record(world.new_cause(), f"ignored {notice.kind} {notice.link} from {speaker}", why)
            return
        words = world.told.setdefault(notice.link, {})
        if notice.kind in ("port_up", "undrain"):
            word = words.pop(event.peer, None)
            cause = word.cause if word else world.new_cause()
            fact = "is up" if notice.kind == "port_up" else "is undrained"
        else:
            known = words.get(event.peer)
            cause = known.cause if known else world.incident(now_s)
            kind: Literal["port_down", "drain"] = "drain" if notice.kind == "drain" else "port_down"
            words[event.peer] = Told(kind, speaker, now_s + min(notice.ttl_s, DRAIN_TTL_S), cause)
            fact = "is drained" if kind == "drain" else "is down"
            if known is not None and known.kind == kind:
                return
        self._tray.record(cause, f"{speaker} says that {notice.link} {fact}", "notice", element=notice.link)
        world.decide_soon(now_s)

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
        for link in [link for link, again_s in self._down.items() if again_s <= now_s]:
            self._down[link] = now_s + world.settings.limits.notice_ttl_s / 3
            self._tell("port_down", link, "", world.settings.limits.notice_ttl_s)
        self._refresh(now_s)

    def _refresh(self, now_s: float) -> None:
        for link, drain in self._world.drains.items():
            if drain.tell_at_s <= now_s:
                drain.tell_at_s = now_s + DRAIN_TTL_S / 3
                if self._concerns_peers(link, drain):
                    self._tell("drain", link, drain.cause, DRAIN_TTL_S)

    def _concerns_peers(self, link: str, drain: Drain) -> bool:
        return drain.everywhere or link in self._own_links()

    def _own_links(self) -> set[str]:
        world = self._world
        hops = {name: world.table.first_hop(name) for name in world.uplinks}
        return {name for hop in hops.values() if hop for name in names_of(f"{hop}>{world.settings.host}")}

    def _alike(self, link: str) -> list[str]:
        return [name for name in self._world.told if link in names_of(name)]

    def _tell(self, kind: NoticeKind, link: str, cause: str, ttl_s: float) -> None:
        peers = tuple(self._world.table.peers)
        if not peers:
            return
        self._seq += 1
        notice = Notice(kind=kind, link=link, origin=self._world.settings.host, seq=self._seq, ttl_s=ttl_s)
        self._tray.put(SendNotice(cmd_id=self._tray.take_id(), cause=cause, notice=notice, peers=peers))
