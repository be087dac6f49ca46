"""What making address handles may cost the loop. The kernel that waits for a neighbour is played: it takes a second
of a clock that is a number. With real devices: test_ud_guests.py."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from rdma.allowance import AT_ONCE_S, SHARE, Allowance
from rdma.ud import BYTES, NO_WAY_MAX_S, NO_WAY_S, TRY_AGAIN_SHARE, Route, UdPort


class RefusedError(Exception):
    pass


class Kernel:
    """Makes handles; `waits_s`: how long for one of a peer that is not `answering`."""

    def __init__(self) -> None:
        self.now_s, self.waits_s, self.takes_s = 1000.0, 1.0, 0.0001
        self.answering: set[str] = set()
        self.made: list[str] = []
        self.blocked_s = 0.0

    def handle(self, pd: object, attr: Any) -> Any:
        peer = attr.gr.dgid
        self.made.append(peer)
        fine = peer in self.answering
        took_s = self.takes_s if fine else self.waits_s
        self.now_s += took_s
        self.blocked_s += took_s
        if not fine:
            raise RefusedError
        return SimpleNamespace(close=lambda: None)

    def port(self) -> UdPort:
        port = UdPort("rxe0", clock=lambda: self.now_s)
        keep = SimpleNamespace
        addr = keep(GlobalRoute=lambda **of: keep(**of), GID=str, AHAttr=lambda **of: keep(**of), AH=self.handle)
        port._pyverbs = keep(addr=addr, pyverbs_error=keep(PyverbsError=RefusedError))
        port._memory = keep(write=lambda *_: None)
        port._pair = keep(post_send=lambda _: None)
        port._sends = [keep(set_wr_ud=lambda *_: None)] * 4096
        port._free.extend(range(4096))
        return port


def peer(number: int) -> str:
    return f"fd00:00ff:0000:0000:0000:0000:0000:{number:04x}"


def send(port: UdPort, number: int) -> bool:
    return port.send(bytes(BYTES), Route(peer(number), 3), 17, 99) is not None


def test_a_silent_switch_costs_the_loop_a_small_share_of_its_time_whatever_the_number_of_peers_and_flaps() -> None:
    kernel = Kernel()
    port = kernel.port()
    for tick in range(200):
        before_s = kernel.blocked_s
        for number in range(500):
            assert not send(port, number)
        assert kernel.blocked_s - before_s <= 2 * kernel.waits_s  # one new one, one tried again
        if tick % 10 == 0:
            port.forget_routes()  # its addresses have moved
        kernel.now_s += 1.0
    assert kernel.blocked_s <= (SHARE + TRY_AGAIN_SHARE) * (kernel.now_s - 1000.0) + 2 * kernel.waits_s


def test_peers_that_answer_have_theirs_at_once_and_keep_them_beside_one_that_does_not() -> None:
    kernel = Kernel()
    kernel.answering = {peer(number) for number in range(1, 500)}
    port = kernel.port()
    for _ in range(3):
        for number in range(1, 500):
            send(port, number)
        kernel.now_s += 1.0
    assert sorted(kernel.made) == sorted(kernel.answering)
    assert not send(port, 0)
    assert all(send(port, number) for number in range(1, 500))


def test_peers_without_a_way_that_are_asked_first_do_not_keep_the_others_from_theirs() -> None:
    kernel = Kernel()
    kernel.answering = {peer(number) for number in range(5, 20)}
    port = kernel.port()
    for _ in range(300):
        sent = [send(port, number) for number in range(20)]
        kernel.now_s += 1.0
    assert sent == [False] * 5 + [True] * 15


def test_a_route_without_a_way_is_tried_ever_more_rarely_and_from_the_beginning_once_it_has_one() -> None:
    kernel = Kernel()
    kernel.waits_s = 0.0  # refused at once: no address of ours
    port = kernel.port()
    tries = []
    while len(tries) < 9:
        before = len(kernel.made)
        send(port, 1)
        tries += [kernel.now_s] * (len(kernel.made) - before)
        kernel.now_s += 1.0
    pauses = [later - before for before, later in itertools.pairwise(tries)]
    assert pauses == [min(NO_WAY_S * 2**n, NO_WAY_MAX_S) for n in range(8)]
    kernel.answering = {peer(1)}
    kernel.now_s += NO_WAY_MAX_S
    assert send(port, 1)
    assert port._no_way == {}


def test_what_was_not_used_is_not_saved_up() -> None:
    allowance = Allowance()
    assert allowance.left(0.0)
    allowance.spend(0.0, 1.0)
    assert not allowance.left(1.0) and not allowance.left(18.9)
    assert allowance.left(1.0 + (1.0 - AT_ONCE_S) / SHARE + 0.001)
    assert allowance.left(5000.0)
    allowance.spend(5000.0, 5000.0 + AT_ONCE_S)
    assert not allowance.left(5000.0)
    assert allowance.left(5000.0 + 0.1)


@pytest.mark.parametrize("fault", [MemoryError, TypeError])
def test_a_fault_in_the_making_is_paid_for_too(fault: type[Exception]) -> None:
    kernel = Kernel()
    port = kernel.port()

    def broken(pd: object, attr: Any) -> Any:
        kernel.now_s += 1.0
        raise fault

    port._pyverbs.addr.AH = broken
    with pytest.raises(fault):
        send(port, 1)
    assert not send(port, 2)
