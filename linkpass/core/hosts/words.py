"""What daemons tell each other of hosts, and what such a word is worth.

A host's own word about itself (`failing`, `ailing`, `well`) is believed: it shortens the wait once that host is silent,
and does nothing while it is heard. A word about another host (`missing`, `heard`) is a vote. Votes only ever keep a
silent host from being given up, when at least as many hear it as miss it, the judge counted among these; no number of
votes gives up a host that the judge itself hears. So a liar, or many, can do nothing to a healthy host.
"""

from __future__ import annotations

from linkpass.core.commands import SendNotice
from linkpass.core.events import Notice, NoticeKind
from linkpass.core.host_state import NEVER_S
from linkpass.core.hosts.silence import judge_at, patience_s
from linkpass.core.paths import Peer
from linkpass.core.world import Tray, World

WORDS: tuple[NoticeKind, ...] = ("failing", "ailing", "well", "missing", "heard")
VOTE_S = 5.0
"""How long a vote counts."""
OWN_WORD_S = 600.0
"""The longest time that a host's word about itself is believed; it is told again three times in it."""
ANSWER_GAP_S = 0.5
MOST_ASKED = 8
"""Daemons that are asked about a silent host: more would change no majority worth having."""
TEXT_BYTES = 120
"""Of a word about oneself, as it is encoded: it has to fit beside a name (255 bytes on the wire)."""


def tell(
    world: World, tray: Tray, kind: NoticeKind, text: str, peers: tuple[str, ...], cause: str, ttl_s: float,
    now_s: float,
) -> None:  # fmt: skip
    if not peers or not world.acting:
        return
    seq = world.take_notice_seq(now_s)
    notice = Notice(kind=kind, link=text, origin=world.settings.host, seq=seq, ttl_s=ttl_s)
    tray.put(SendNotice(cmd_id=tray.take_id(), cause=cause, notice=notice, peers=peers))


def tell_of_this_host(world: World, tray: Tray, kind: NoticeKind, text: str, cause: str, now_s: float) -> None:
    own = world.settings.address
    heard = (peer for peer in world.table.peers.values() if peer.silent_since_s is None)
    peers = tuple(peer.address for peer in heard if peer.probed_from(own))
    tell(world, tray, kind, cut(text), peers, cause, OWN_WORD_S, now_s)


def cut(text: str) -> str:
    """As much of it as a word takes, never a part of a character."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")


def ask_others(world: World, tray: Tray, peer: Peer, now_s: float) -> None:
    """Tell some of those who are heard that a peer is missing here: who hears it or exchanges data with it answers."""
    if peer.data_flows is True:
        return
    heard = [one for one in world.table.peers.values() if _hears(one) and one is not peer]
    heard.sort(key=lambda one: not one.active)
    asked = tuple(one.address for one in heard[:MOST_ASKED])
    tell(world, tray, "missing", peer.address, asked, peer.cause, VOTE_S, now_s)


def on_word(world: World, tray: Tray, speaker: str, notice: Notice, now_s: float) -> None:
    """Whoever is named as the origin: the word is that of the address which has signed it."""
    if notice.kind in ("missing", "heard"):
        _on_vote(world, tray, speaker, notice, now_s)
    else:
        _on_own_word(world, tray, world.table.peer(speaker), notice, now_s)


def _on_own_word(world: World, tray: Tray, peer: Peer, notice: Notice, now_s: float) -> None:
    host = peer.host
    if notice.seq <= host.word_seq:
        return
    host.word_seq = notice.seq
    said = "" if notice.kind == "well" else cut(notice.link) or notice.kind
    ttl_s = notice.ttl_s if 0 <= notice.ttl_s <= OWN_WORD_S else OWN_WORD_S
    host.said_until_s = now_s + ttl_s
    fails = notice.kind == "failing"
    if said == host.said and fails == host.failing:
        return
    host.said, host.failing = said, fails
    what = {"failing": "that it fails", "ailing": "that it is not well", "well": "that it is well"}[notice.kind]
    cause = peer.cause if peer.silent_since_s is not None and peer.cause else world.incident(now_s)
    tray.record(
        cause,
        f"{peer.title()} says {what}",
        said or "notice",
        element=peer.title(),
        level="info" if notice.kind == "well" else "warning",
    )
    if peer.silent_since_s is not None and peer.judge_at_s is not None:
        sooner_s = max(now_s, peer.silent_since_s + patience_s(world, peer, now_s))
        if sooner_s < peer.judge_at_s:
            judge_at(peer, sooner_s, now_s)


def _on_vote(world: World, tray: Tray, speaker: str, notice: Notice, now_s: float) -> None:
    about = world.table.peers.get(notice.link)
    if about is None or about.address == speaker or speaker not in world.table.peers:
        return
    if about.silent_since_s is not None:
        about.host.votes[speaker] = notice.kind == "heard", now_s + VOTE_S
    lives = _hears(about) or about.data_flows is True
    if notice.kind == "missing" and lives and now_s >= about.host.answered_s.get(speaker, NEVER_S):
        about.host.answered_s[speaker] = now_s + ANSWER_GAP_S
        tell(world, tray, "heard", about.address, (speaker,), "", VOTE_S, now_s)


def count(world: World, peer: Peer, now_s: float) -> tuple[int, int]:
    """How many hear a silent peer, and how many miss it; this host is one of these. The silent have no vote."""
    votes = [
        hears
        for voter, (hears, until_s) in peer.host.votes.items()
        if until_s > now_s and world.table.peer(voter).silent_since_s is None
    ]
    return sum(votes), 1 + len(votes) - sum(votes)


def _hears(peer: Peer) -> bool:
    return peer.silent_since_s is None and any(path.answers for path in peer.used())
