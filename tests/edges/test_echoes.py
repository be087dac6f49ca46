"""Questions to a peer's kernel: a real one, behind two uplinks, with and without somebody on the daemon's port."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from two_uplinks import OWN4, OWN6, PEER4, PEER6, UPLINKS, TwoUplinks

from linkpass.core.commands import AskHost
from linkpass.core.events import Event, HostAnswered, HostAskFailed
from linkpass.core.settings import CoreSettings
from linkpass.edges.echoes import EchoEdge, _closed

pytestmark = pytest.mark.netns
LABELS = (0x1234, 0x4321)


def ask(peer: str, *uplinks: str) -> AskHost:
    ways = tuple((uplink, label if ":" in peer else 0) for uplink in uplinks for label in LABELS)
    return AskHost(cmd_id=7, cause="", peer=peer, ways=ways)


class Asker:
    def __init__(self, two: TwoUplinks, own: str) -> None:
        self.said: list[Event] = []
        self.edge = EchoEdge(CoreSettings(host="h", address=own), self.said.append)
        self._two = two

    async def ask(self, peer: str, *uplinks: str) -> HostAnswered:
        self.said.clear()
        await self.edge.ask(ask(peer, *uplinks))
        (answer,) = self.said
        assert isinstance(answer, HostAnswered) and answer.cmd_id == 7
        return answer


@asynccontextmanager
async def asker(two: TwoUplinks, own: str) -> AsyncIterator[Asker]:
    made = Asker(two, own)
    with two.on_host():
        made.edge.open()
        for uplink in UPLINKS:
            made.edge.set_uplink(uplink, socket.if_nametoindex(uplink))
    try:
        yield made
    finally:
        made.edge.close()
        made.edge.close()


@contextmanager
def holding(two: TwoUplinks, peer: str) -> Iterator[None]:
    """Somebody holds the daemon's port there."""
    with two.on_far():
        held = socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM)
    with held:
        held.bind((peer, 3785))
        yield


def filtered(two: TwoUplinks, rule: str) -> None:
    with two.on_far():
        subprocess.run(["nft", rule], check=True)


@pytest.mark.parametrize(("own", "peer"), [(OWN6, PEER6), (OWN4, PEER4)])
async def test_a_kernel_answers_over_each_uplink_and_says_whether_its_port_is_held(
    two: TwoUplinks, own: str, peer: str
) -> None:
    async with asker(two, own) as one:
        with holding(two, peer):
            answer = await one.ask(peer, *UPLINKS)
            assert (answer.asked, set(answer.echoed), answer.closed) == (UPLINKS, set(UPLINKS), False)
        answer = await one.ask(peer, *UPLINKS)
        assert (set(answer.echoed), answer.closed) == (set(UPLINKS), True)


@pytest.mark.parametrize(("own", "peer"), [(OWN6, PEER6), (OWN4, PEER4)])
async def test_each_echo_takes_its_own_uplink(two: TwoUplinks, own: str, peer: str) -> None:
    """Replies to what came over one of them are dropped on the way in: that uplink alone goes unanswered."""
    family, kind = ("ip6", "icmpv6 type echo-request") if ":" in own else ("ip", "icmp type echo-request")
    rule = f"table {family} t {{ chain c {{ type filter hook input priority 0; iifname p2 {kind} drop\n }}\n }}"
    filtered(two, rule)
    async with asker(two, own) as one:
        answer = await one.ask(peer, *UPLINKS)
        assert answer.asked == UPLINKS and answer.echoed == ("eth1",)


async def test_nobody_answers_where_nobody_is(two: TwoUplinks) -> None:
    async with asker(two, OWN6) as one:
        two.ip(two.far, f"addr del {PEER6}/128 dev lo")
        answer = await one.ask(PEER6, *UPLINKS)
        assert (answer.asked, answer.echoed, answer.closed) == (UPLINKS, (), False)


async def test_what_cannot_be_asked_is_said(two: TwoUplinks) -> None:
    async with asker(two, OWN6) as one:
        for uplink in UPLINKS:
            one.edge.drop_uplink(uplink)
        await one.edge.ask(ask(PEER6, *UPLINKS))
        with two.on_host():
            one.edge.set_uplink("eth1", 77)
        await one.edge.ask(ask(PEER4, "eth1"))
        whys = [event.why for event in one.said if isinstance(event, HostAskFailed)]
        assert len(whys) == 2 and whys[0] == "no usable uplink"


def test_an_error_from_somebody_on_the_way_closes_nobodys_port() -> None:
    """struct sock_extended_err with its offender, as the kernel appends it."""
    peer = socket.inet_pton(socket.AF_INET6, PEER6)
    router = socket.inet_pton(socket.AF_INET6, "fd02:1:1::b")

    def error(kind: int, code: int, offender: bytes) -> bytes:
        head = (111).to_bytes(4, "little") + bytes((3, kind, code, 0)) + bytes(8)
        return head + bytes(8) + offender + bytes(4)

    assert _closed(error(1, 4, peer), peer)
    assert not _closed(error(1, 4, router), peer)  # a filter that rejects
    assert not _closed(error(1, 0, peer), peer)
    assert not _closed(b"", peer)
