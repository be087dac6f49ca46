"""State over TCP between a giver and a taker in one process: real sockets, real tensors."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
from small_model import Net

from torchpass_bridge.core.places import buddy_of
from torchpass_bridge.trainer import channel, taking
from torchpass_bridge.trainer import giving as giving_module
from torchpass_bridge.trainer.chunks import Chunks, digest
from torchpass_bridge.trainer.copies import Copies
from torchpass_bridge.trainer.giving import Giver, Kept, Offer
from torchpass_bridge.trainer.keeper import Keeper, Wanted
from torchpass_bridge.trainer.own import sealed
from torchpass_bridge.trainer.settings import Settings, Times
from torchpass_bridge.trainer.state import State
from torchpass_bridge.trainer.taking import NotTaken, Sources
from torchpass_bridge.wire import Fit, Member

KEY = b"a key of sixteen"
GROUP = (2, 1000)
FIT = Fit("2", "cpu", "m", "o", 1, 1)
SETTINGS = Settings(
    store="", job="j", key=KEY, rank=None, world=2, id="taker", host="here", address="127.0.0.1",
    times=Times(connect_s=2.0, stall_s=5.0),
)  # fmt: skip


def net_of(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net(width=512, layers=2)


def chunks_of(net: Net) -> Chunks:
    return Chunks(State([net], []).pieces(), 64 << 10)


class Giving:
    """`count` members that hold the same state, at step 5."""

    def __init__(self, count: int) -> None:
        self.givers = [Giver("127.0.0.1", KEY, 0.3, lambda member, rank: True) for _ in range(count)]
        self.nets = [net_of(0) for _ in range(count)]
        for giver, net in zip(self.givers, self.nets, strict=True):
            giver.start()
            giver.gate.open(Offer(GROUP, 5, chunks_of(net), b"own"))

    def members(self) -> list[Member]:
        return [Member(f"g{n}", f"h{n}", n, giver.address, FIT) for n, giver in enumerate(self.givers)]

    def sources(
        self, step: int = 5, settings: Settings = SETTINGS, wanted: Callable[[], bool] = lambda: True
    ) -> Sources:
        return Sources(settings, self.members(), GROUP, step, wanted)


@pytest.fixture
def giving() -> Iterator[Giving]:
    made = Giving(2)
    yield made
    for giver in made.givers:
        giver.stop()


def same(a: Net, b: Net) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_state_comes_from_several_at_once(giving: Giving) -> None:
    net = net_of(1)
    chunks = chunks_of(net)
    with giving.sources() as sources:
        assert sources.layouts() == {chunks.layout}
        told = sources.take(chunks)
        assert sources.own(giving.members()[0]) == b"own"
    assert same(net, giving.nets[0])
    with giving.sources() as sources:
        assert sources.take(chunks) == told


def test_nothing_is_given_of_another_step(giving: Giving) -> None:
    with giving.sources(step=6) as sources, pytest.raises(NotTaken, match="step 6 is not offered"):
        sources.layouts()


def test_nobody_gets_or_gives_state_without_the_key(giving: Giving) -> None:
    stranger = msgspec.structs.replace(SETTINGS, key=b"another one of 16")
    with pytest.raises(NotTaken), giving.sources(settings=stranger):
        pass
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            sock, _ = listener.accept()
            with sock:
                channel.send(sock, channel.Challenge(b"n" * 16))
                channel.receive(sock, channel.Hello)
                channel.send(sock, channel.Hello("", b"", b"p" * 32))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(channel.ChannelError, match="does not know the job's key"):
            channel.connect(f"127.0.0.1:{listener.getsockname()[1]}", KEY, "taker", 0.5, 0.5)
        thread.join()


def test_what_is_sent_while_the_giver_goes_on_is_not_used(giving: Giving) -> None:
    for giver in giving.givers:
        offer = giver.gate.wait(GROUP, 5, 0.0)
        assert offer is not None
        giver.gate.close()
        giver.gate.holds = lambda offer: False  # type: ignore[method-assign]
        giver.gate.open(offer)
    net = net_of(1)
    with giving.sources() as sources, pytest.raises(NotTaken, match="went on before all was sent"):
        sources.take(chunks_of(net))


class Damaging:
    """Between a taker and a giver: changes a byte far behind, as often as asked. `cut_after`: then it closes."""

    def __init__(self, to: str, damages: int = 0, cut_after: int = 0) -> None:
        self._to, self.damages, self._cut_after = to, damages, cut_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            host, _, port = self._to.rpartition(":")
            there = socket.create_connection((host, int(port)))
            threading.Thread(target=self._pass, args=(sock, there, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(there, sock, True), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket, damage: bool) -> None:
        passed = 0
        try:
            while data := bytearray(a.recv(1 << 16)):
                passed += len(data)
                if damage and self.damages and len(data) > 1000 and passed > 5000:
                    data[len(data) // 2] ^= 1
                    self.damages -= 1
                if damage and self._cut_after and passed > self._cut_after:
                    break
                b.sendall(data)
        except OSError:
            pass
        for sock in (a, b):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def test_a_damaged_chunk_comes_again_from_another_one(
    giving: Giving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two chunks do not match what is said of them, whoever is asked first."""
    told = itertools.count()
    monkeypatch.setattr(giving_module, "digest", lambda parts: "damaged" if next(told) < 2 else digest(parts))
    net = net_of(1)
    with giving.sources() as sources:
        sources.take(chunks_of(net))
    assert same(net, giving.nets[0])
    assert caplog.text.count("did not arrive from") == 2


def test_one_source_that_goes_is_made_up_for_by_the_other(giving: Giving) -> None:
    first, second = giving.members()
    members = [msgspec.structs.replace(first, address=Damaging(first.address, cut_after=300_000).address), second]
    net = net_of(1)
    with Sources(SETTINGS, members, GROUP, 5, lambda: True) as sources:
        sources.take(chunks_of(net))
    assert same(net, giving.nets[0])


def test_no_source_is_left(giving: Giving) -> None:
    members = [
        msgspec.structs.replace(m, address=Damaging(m.address, cut_after=300_000).address) for m in giving.members()
    ]
    with (
        Sources(SETTINGS, members, GROUP, 5, lambda: True) as sources,
        pytest.raises(NotTaken, match="closed by the other end"),
    ):
        sources.take(chunks_of(net_of(1)))


def test_a_source_that_damages_everything_is_given_up(giving: Giving) -> None:
    member = giving.members()[0]
    members = [msgspec.structs.replace(member, address=Damaging(member.address, damages=1000).address)]
    with Sources(SETTINGS, members, GROUP, 5, lambda: True) as sources, pytest.raises(NotTaken):
        sources.take(chunks_of(net_of(1)))


def test_it_stops_when_it_is_not_wanted_any_more(giving: Giving) -> None:
    """A giver that does not answer holds nobody up then."""
    for giver in giving.givers:
        giver.gate.close()
    asked = iter([True] * 3)
    with pytest.raises(NotTaken, match="not wanted"), giving.sources(wanted=lambda: next(asked, False)) as sources:
        sources.layouts()


def test_a_long_frame_before_the_hello_is_not_read(giving: Giving) -> None:
    host, _, port = giving.givers[0].address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        channel.receive(sock, channel.Challenge)
        sock.sendall(b"\x7f\xff\xff\xff")
        assert sock.recv(1) == b""


def test_what_is_kept_of_a_rank_is_the_newest_that_is_not_too_new(giving: Giving) -> None:
    kept = giving.givers[1].kept
    for step in range(9):
        kept.keep(0, step, sealed(KEY, 0, step, b"%d" % step))
    giving.givers[0].kept.keep(0, 5, sealed(KEY, 0, 5, b"5"))
    assert taking.kept_of(SETTINGS, giving.members(), 0, 7) == (7, b"7")
    assert taking.kept_of(SETTINGS, giving.members(), 0, 6) == (5, b"5")  # enough: the others are not asked
    assert taking.kept_of(SETTINGS, giving.members(), 0, 20) == (8, b"8")
    assert taking.kept_of(SETTINGS, giving.members(), 1, 20) is None
    kept.keep(1, 3, b"x" * 40)
    assert taking.kept_of(SETTINGS, giving.members(), 1, 20) is None  # without the job's mark


def test_only_a_few_steps_are_kept() -> None:
    kept = Kept()
    for step in range(10):
        kept.keep(0, step, b"")
    assert kept.newest(0, 5) is None
    assert kept.newest(0, 6) == (6, b"")


def test_a_buddy_is_on_another_host_and_in_another_domain_if_there_is_one() -> None:
    def member(name: str, host: str, domain: str = "") -> Member:
        return Member(name, host, 1, "", FIT, domain=domain)

    assert buddy_of([member("a", "h0"), member("b", "h0"), member("c", "h1")], 0) == member("c", "h1")
    leaf = [member("a", "h0", "l0"), member("b", "h1", "l0"), member("c", "h2", "l1")]
    assert buddy_of(leaf, 0) == leaf[2]
    assert buddy_of([member("a", "h"), member("b", "h")], 1) == member("a", "h")
    assert buddy_of([member("a", "h")], 0) is None


def test_a_part_is_left_with_a_buddy_and_taken_from_there() -> None:
    """What was kept of rank 3's part, with what belonged to the rank alone then."""
    buddy = Giver("127.0.0.1", KEY, 0.3, lambda member, rank: (member, rank) == ("taker", 3))
    buddy.start()
    to = Member("g0", "h0", 0, buddy.address, FIT)
    keeper = Keeper(SETTINGS, Copies(), 4)
    keeper.start()
    net = net_of(0)
    state = State([net], [])
    keeper.begin(Wanted(5, 1, 3, to), state.pieces, b"own")
    keeper.ready(lambda: False)
    assert buddy.copies.keeps() == ((3, 5),)
    other = net_of(1)
    with Sources(SETTINGS, [to], GROUP, 5, lambda: True, part=3) as sources:
        chunks = Chunks(State([other], []).pieces())
        assert sources.layouts() == {chunks.layout}
        assert sources.own_of_copy(3) == b"own"
        assert sources.own_of_copy(2) is None
        sources.take(chunks)
    assert same(net, other)
    with Sources(SETTINGS, [to], GROUP, 4, lambda: True, part=3) as sources, pytest.raises(NotTaken, match="no copy"):
        sources.layouts()
    kept = keeper.kept(5)
    assert kept is not None
    assert keeper.restore(kept, State([third := net_of(2)], []))
    assert same(net, third)
    buddy.stop()


def test_a_buddy_keeps_nothing_of_one_that_does_not_hold_the_rank_and_is_not_waited_for_again() -> None:
    buddy = Giver("127.0.0.1", KEY, 0.3, lambda member, rank: False)
    buddy.start()
    settings = msgspec.structs.replace(SETTINGS, times=Times(connect_s=0.2, stall_s=0.3))
    keeper = Keeper(settings, Copies(), 4)
    keeper.start()
    to, state = Member("g0", "h0", 0, buddy.address, FIT), State([net_of(0)], [])
    for step in (5, 6):
        keeper.begin(Wanted(step, 1, 3, to), state.pieces, b"own")
        keeper.ready(lambda: False)
    assert buddy.copies.keeps() == ()
    assert 0.3 <= keeper.waited_s < 0.6
    buddy.stop()
