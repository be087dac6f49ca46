"""Every fault, measured by packets on the real kernel: who loses what, who notices, and that undo heals."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from talk import Talk, until

from lab.bucket import bucket_of
from lab.faults import Flap, directions_of, parse
from lab.netns import namespace, processes, repair
from lab.netns.breaker import ActiveFault
from lab.netns.build import WIRE
from lab.netns.lab import NetnsLab
from lab.netns.session import Request, Session
from linkpass.wire import rtnl

pytestmark = pytest.mark.netns

LABELS = range(1, 129)


@contextmanager
def broken(lab: NetnsLab, text: str) -> Iterator[ActiveFault]:
    fault = lab.fault(parse(text, lab.fabric))
    try:
        yield fault
    finally:
        fault.undo()
        assert lab.faults() == ()


def carriers(lab: NetnsLab, node: str) -> dict[str, bool]:
    return {name: up for name, up in lab.carriers(node).items() if name not in ("lo", "lo0")}


def admin_up(lab: NetnsLab, node: str, device: str) -> bool:
    with lab.in_netns(node), open(f"/proc/thread-self/net/dev_snmp6/{device}"):
        return True  # a device that is set down loses its IPv6


def port(lab: NetnsLab, link: str, node: str) -> str:
    return next(wire.end(node).device for wire in lab.plan.wires if wire.link == link)


def loss(lab: NetnsLab, source: str, target: str, times: int = 8) -> float:
    """Share of datagrams that do not arrive, over many labels."""
    with Talk(lab, source, target) as talk:
        sent = talk.say(LABELS, times)
        return 1 - talk.hear(sent) / sent


def healed(lab: NetnsLab) -> bool:
    return all(loss(lab, *pair, times=1) == 0 for pair in (("host1", "host3"), ("host4", "host2")))


def test_blackhole_takes_both_directions_and_nobody_sees_carrier_go(whole: NetnsLab) -> None:
    with broken(whole, "blackhole:leaf1-spine1") as fault:
        assert all(carriers(whole, "leaf1").values()) and all(carriers(whole, "spine1").values())
        before = whole.counters()
        lost = loss(whole, "host1", "host3") + loss(whole, "host3", "host1")
        used = whole.counters().since(before).directions
        for direction in ("leaf1>spine1", "spine1>leaf1"):
            assert used[direction].packets > 100 and used[direction].delivered == 0
        assert 0 <= fault.dropped() - used["leaf1>spine1"].packets - used["spine1>leaf1"].packets <= 4
        assert 0 < lost < 2
    assert healed(whole)


def test_blackhole_one_way_leaves_the_other_way_alone(whole: NetnsLab) -> None:
    with broken(whole, "blackhole:leaf1>spine1"):
        before = whole.counters()
        loss(whole, "host1", "host3"), loss(whole, "host3", "host1")
        used = whole.counters().since(before).directions
        assert used["leaf1>spine1"].delivered == 0 < used["leaf1>spine1"].packets
        assert used["spine1>leaf1"].delivered == used["spine1>leaf1"].packets > 0
    assert healed(whole)


def test_loss_takes_its_share_of_one_direction(whole: NetnsLab) -> None:
    with broken(whole, "loss:leaf1>spine1:20%") as fault:
        before = whole.counters()
        loss(whole, "host1", "host3", times=40)
        used = whole.counters().since(before).directions["leaf1>spine1"]
        assert used.packets > 500
        # Five standard deviations of a binomial: a false alarm in 1.7 million runs.
        margin = 5 * (0.2 * 0.8 / used.packets) ** 0.5
        assert abs(fault.dropped() / used.packets - 0.2) < margin
        assert 0 <= fault.dropped() - (used.packets - used.delivered) <= 4
    assert healed(whole)


@pytest.mark.parametrize("index", [1, 4])
def test_bucket_takes_exactly_the_flows_that_hash_into_it(index: int, whole: NetnsLab) -> None:
    source, target = whole.address("host1"), whole.address("host3")
    with broken(whole, f"bucket:host1-leaf1:{index}/4"), Talk(whole, "host1", "host3") as talk:
        before = whole.counters()
        sent = talk.say(LABELS, 4)
        talk.hear(sent)
        dead = {label for label in LABELS if talk.heard[label] == 0}
        assert all(count == 4 for count in talk.heard.values()), "a flow is dead or whole"
        over = labels_over(whole, "host1>leaf1")
        assert dead == {label for label in over if bucket_of(source, target, label, 4) == index}
        assert 5 < len(dead) < 40
        assert whole.counters().since(before).directions["host1>leaf1"].packets > 0
    assert healed(whole)


def labels_over(lab: NetnsLab, direction: str) -> set[int]:
    found = set()
    with Talk(lab, "host1", "host3") as talk:
        for label in LABELS:
            before = lab.counters()
            talk.say([label], 4)
            if lab.counters().since(before).directions[direction].packets >= 4:
                found.add(label)
    return found


def test_bucket_on_ipv4_goes_by_ports(whole: NetnsLab) -> None:
    with broken(whole, "bucket:host1-leaf1:1/2") as first, broken_too(whole, "bucket:host1-leaf2:1/2") as second:
        arrived = 0
        for _ in range(40):
            with Talk(whole, "host1", "host3", family=4) as talk:
                talk.say([1], 2)
                arrived += talk.hear(2, patience_s=0.1) // 2
        assert 5 < arrived < 35
        # Late arrivals count as lost, and what the kernels say by themselves may fall into a bucket too.
        assert abs(first.dropped() + second.dropped() - 2 * (40 - arrived)) <= 8


@contextmanager
def broken_too(lab: NetnsLab, text: str) -> Iterator[ActiveFault]:
    fault = lab.fault(parse(text, lab.fabric))
    try:
        yield fault
    finally:
        fault.undo()


def test_faults_on_one_direction_add_up_and_come_off_in_any_order(whole: NetnsLab) -> None:
    first = whole.fault(parse("bucket:host1-leaf1:1/2", whole.fabric))
    second = whole.fault(parse("blackhole:host1>leaf1", whole.fabric))
    third = whole.fault(parse("loss:leaf1-spine1:100%", whole.fabric))
    assert len(whole.faults()) == 3
    first.undo()
    first.undo()
    before = whole.counters()
    loss(whole, "host1", "host3")
    used = whole.counters().since(before).directions["host1>leaf1"]
    assert used.packets > 0 == used.delivered and second.dropped() >= used.packets
    assert first.dropped() == 0
    second.undo()
    assert whole.undo_all() == 1
    assert third.dropped() == 0
    assert healed(whole)


def test_rate_holds_a_direction_to_it(whole: NetnsLab) -> None:
    def rate_of(direction: str) -> float:
        stop = threading.Event()
        with whole.in_netns("host1"):
            out = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with out:
            out.setsockopt(socket.IPPROTO_IPV6, 33, 1)

            def flood() -> None:
                while not stop.is_set():
                    for label in LABELS:
                        try:
                            out.sendto(b"x" * 1400, (whole.address("host3"), 9, label, 0))
                        except OSError:
                            continue

            thread = threading.Thread(target=flood)
            thread.start()
            try:
                whole.carrying(over_s=0.1)  # the bucket's burst goes first
                before = whole.counters()
                time.sleep(0.4)
                used = whole.counters().since(before)
            finally:
                stop.set()
                thread.join()
        return used.directions[direction].delivered_bytes * 8 / used.at_s

    free = rate_of("leaf1>spine1")
    with broken(whole, "rate:leaf1>spine1:2mbit"):
        held = rate_of("leaf1>spine1")
        # A sender that stood still for most of it has sent less than it could.
        assert held > 1.2e6 or until(lambda: 1.2e6 < rate_of("leaf1>spine1") < 2.4e6)
    assert held < 2.4e6 < free
    assert until(lambda: healed(whole))


class Sized(Talk):
    """Datagrams of a size, padded; hears how long each was under way (the hosts of a lab share a clock)."""

    def sized(self, size_bytes: int, times: int) -> list[float]:
        delays, padding = [], bytes(size_bytes - 48 - 8)  # of the IPv6 packet: headers and the stamp are in it
        self.out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)
        for label in range(1, times + 1):
            self.out.sendto(struct.pack("=d", time.monotonic()) + padding, (self.to, self.port, label, 0))
        while len(delays) < times and select.select([self.into], [], [], 1.0)[0]:
            stamp = struct.unpack("=d", self.into.recv(2000)[:8])[0]
            delays.append(time.monotonic() - stamp)
        return delays


def test_large_packets_vanish_and_small_ones_pass(whole: NetnsLab) -> None:
    with Sized(whole, "host1", "host3") as there, Sized(whole, "host3", "host1") as back:
        with broken(whole, "large:host1>leaf1:1000") as fault, broken_too(whole, "large:host1>leaf2:1000"):
            assert len(there.sized(1000, 40)) == 40, "not more than the size: it passes"
            assert there.sized(1001, 40) == []
            assert there.sized(1500, 40) == []
            assert len(back.sized(1500, 40)) == 40, "one way"
            assert 0 < fault.dropped() <= 80
        assert len(there.sized(1500, 40)) == 40


def test_delay_is_added_to_every_packet_of_a_direction_and_to_no_other(whole: NetnsLab) -> None:
    with Sized(whole, "host1", "host3") as there, Sized(whole, "host3", "host1") as back:
        with broken(whole, "delay:host1>leaf1:40ms"), broken_too(whole, "delay:host1>leaf2:40ms"):
            delayed, other = there.sized(1500, 60), back.sized(1500, 60)
            assert len(delayed) == len(other) == 60
            assert min(delayed) >= 0.04
            # A machine that stands still delays all that is under way: then they are sent again.
            assert sorted(other)[30] < 0.04 or until(lambda: sorted(back.sized(1500, 60))[30] < 0.04)
            assert sorted(delayed)[30] < 0.4 or until(lambda: 0.04 <= sorted(there.sized(1500, 60))[30] < 0.4)
            relays = [one for one in whole.processes() if "relay_process.py" in " ".join(one.argv)]
            assert len(relays) == 2
        assert until(lambda: sorted(there.sized(1500, 60))[30] < 0.04)
        assert not [one for one in whole.processes() if one in relays]
    assert healed(whole)


def test_delay_both_ways_is_under_way_when_it_is_undone_and_nothing_is_lost(whole: NetnsLab) -> None:
    with Talk(whole, "host1", "host3") as talk:
        with broken(whole, "delay:host1-leaf1:2s"), broken_too(whole, "delay:host1-leaf2:2s"):
            sent = talk.say(LABELS, 2)
            assert talk.hear(1, patience_s=0.0) == 0, "all of it is held"
        assert talk.hear(sent, patience_s=30.0) == sent
    assert "held" not in " ".join(wire_devices(whole))


def test_of_two_delays_the_longer_counts_and_rate_and_loss_go_with_it(whole: NetnsLab) -> None:
    texts = ("delay:host1-leaf1:20ms", "delay:host1>leaf1:60ms", "delay:host1-leaf2:60ms", "rate:host1-leaf1:50mbit")
    faults = [whole.fault(parse(text, whole.fabric)) for text in texts]
    with Sized(whole, "host1", "host3") as there:
        delays = there.sized(500, 60)
        assert len(delays) == 60
        assert min(delays) >= 0.06
        faults[1].undo()
        shorter = there.sized(500, 60)
        assert len(shorter) == 60
        assert min(shorter) >= 0.02 and max(shorter) >= 0.06
        assert min(shorter) < 0.06 or until(lambda: min(there.sized(500, 60)) < 0.06), "one uplink of the two"
        lost = whole.fault(parse("loss:host1>leaf1:100%", whole.fabric))
        assert 0 < len(there.sized(500, 60)) < 60
        assert lost.dropped() > 0
    assert whole.undo_all() == 4
    assert healed(whole)


def test_another_process_can_undo_a_delay_and_a_dead_relay_is_no_obstacle(whole: NetnsLab) -> None:
    fault = whole.fault(parse("delay:host1-leaf1:20ms", whole.fabric))
    other = whole.fault(parse("delay:host1-leaf2:20ms", whole.fabric))
    (dead,) = [record.driver for record in whole.faults() if record.id == other.id]
    assert dead is not None
    processes.end([dead])
    with NetnsLab.load(whole.name) as loaded:
        assert loaded.undo_all() == 2
    assert not whole.undo(fault.id)
    assert healed(whole)


def wire_devices(lab: NetnsLab) -> list[str]:
    with namespace.inside(lab.namespace_fd(WIRE)):
        return [name for _, name in socket.if_nameindex()]


@pytest.mark.parametrize(
    ("text", "blind"),
    [
        ("carrier:leaf1-spine1", {"leaf1", "spine1"}),
        ("carrier:leaf1-spine1@leaf1", {"leaf1"}),
        ("carrier:spine1-leaf1@spine1", {"spine1"}),
    ],
)
def test_carrier_is_lost_where_it_should_and_heals(text: str, blind: set[str], whole: NetnsLab) -> None:
    wanted = {node: whole_tables(whole, node) for node in ("leaf1", "spine1")}
    with broken(whole, text):
        for node in ("leaf1", "spine1"):
            device = port(whole, "leaf1-spine1", node)
            assert carriers(whole, node)[device] is (node not in blind)
            assert admin_up(whole, node, device)
            # The kernel forgets next hops of a port without carrier; that is what a daemon has to live with.
            assert until(lambda node=node: (whole_tables(whole, node) == wanted[node]) is (node not in blind))
    for node in ("leaf1", "spine1"):
        assert whole_tables(whole, node) == wanted[node]
    assert healed(whole)


def test_carrier_of_an_uplink_takes_the_host_off_it_at_once(whole: NetnsLab) -> None:
    with broken(whole, "carrier:host1-leaf1"):
        before = whole.counters()
        assert loss(whole, "host1", "host3") == 0, "the kernel's own group has shrunk to the other uplink"
        used = whole.counters().since(before).directions
        assert used["host1>leaf1"].packets == 0 < used["host1>leaf2"].packets
    before = whole.counters()
    assert healed(whole)
    assert whole.counters().since(before).directions["host1>leaf1"].packets > 0


def test_both_uplinks_lost_and_back(whole: NetnsLab) -> None:
    wanted = whole_tables(whole, "host1")
    one, two = (whole.fault(parse(f"carrier:host1-leaf{n}", whole.fabric)) for n in (1, 2))
    assert until(lambda: whole_tables(whole, "host1")[2] == set())
    one.undo()
    assert whole_tables(whole, "host1")[2] == wanted[2], "routes are back, over one uplink"
    assert healed(whole)
    two.undo()
    assert whole_tables(whole, "host1") == wanted


def whole_tables(lab: NetnsLab, node: str) -> tuple[set[int], object, set[tuple[str, int]]]:
    with Session(lab.namespace(node)) as session:
        return (*repair.objects(session), repair.routes(session))


def test_repair_leaves_foreign_objects_alone(whole: NetnsLab) -> None:
    with whole.in_netns("host1"):
        index = socket.if_nametoindex("eth2")
    with Session(whole.namespace("host1")) as session:
        ours = rtnl.next_hop(0x4C500001, index, whole.plan.wires_of("host1")[1].b.v6, 76)
        session.apply([Request(rtnl.RTM_NEWNEXTHOP, rtnl.F_CREATE, ours, "ours")])
        with broken(whole, "carrier:host1-leaf1"):
            pass
        hops = map(rtnl.parse_next_hop, session.dump(rtnl.RTM_GETNEXTHOP, bytes(8)))
        assert [hop.id for hop in hops if hop.protocol == 76] == [0x4C500001]
        session.apply([Request(rtnl.RTM_DELNEXTHOP, 0, rtnl.next_hop_id(0x4C500001), "delete it")])


@pytest.mark.parametrize("text", ["dead:spine1", "dead:spine1:silent"])
def test_a_dead_spine_carries_nothing(text: str, whole: NetnsLab) -> None:
    with broken(whole, text):
        assert carriers(whole, "leaf1")[port(whole, "leaf1-spine1", "leaf1")] is text.endswith("silent")
        before = whole.counters()
        loss(whole, "host1", "host3"), loss(whole, "host4", "host1")
        used = whole.counters().since(before).directions
        for link in whole.fabric.links_of("spine1"):
            assert all(used[direction].delivered == 0 for direction in link.directions())
        assert used["leaf1>spine2"].delivered > 0
    assert until(lambda: healed(whole))


def test_a_dead_host_is_gone_with_its_processes(whole: NetnsLab) -> None:
    child = whole.popen("host3", ["sleep", "600"])
    other = whole.popen("host4", ["sleep", "600"])
    with broken(whole, "dead:host3"):
        assert child.wait(5) == -signal.SIGKILL and other.poll() is None
        assert carriers(whole, "leaf3")[port(whole, "host3-leaf3", "leaf3")] is False
        assert loss(whole, "host1", "host3", times=1) == 1
    other.kill()
    other.wait()
    assert until(lambda: healed(whole))


def test_a_frozen_host_answers_in_the_kernel_only(whole: NetnsLab) -> None:
    # A shell and its child: the child was never recorded, but runs in the host's namespace.
    shell = whole.popen("host3", ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    with broken(whole, "freeze:host3"):
        assert until(lambda: state_of(shell.pid) == state_of(child) == "T")
        assert loss(whole, "host1", "host3", times=1) == 0
    assert until(lambda: state_of(shell.pid) == state_of(child) == "S")
    started = processes.start_time(child)
    assert started is not None
    processes.end([(child, started)])
    shell.communicate()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("text", ["flap:leaf1-spine1:20hz", "flap:leaf1-spine1:20hz:carrier"])
def test_a_flapping_link_goes_down_and_up_and_heals(text: str, whole: NetnsLab) -> None:
    device = port(whole, "leaf1-spine1", "leaf1")
    seen = set()

    def both() -> bool:
        seen.add(whole.faults()[0].down)
        if text.endswith("carrier"):
            seen.add(("carrier", carriers(whole, "leaf1")[device]))
        return len(seen) == (4 if text.endswith("carrier") else 2)

    with broken(whole, text):
        assert whole.faults()[0].down, "the first half period is down"
        assert until(both), seen
    assert carriers(whole, "leaf1")[device]
    assert healed(whole)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flap")] or until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("flap")]
    )


def test_a_flap_ends_by_itself(whole: NetnsLab) -> None:
    fault = whole.fault(Flap("leaf1-spine1", 50.0, "blackhole", 0.1))
    assert until(lambda: whole.faults() == ())
    fault.undo()
    assert healed(whole)


def test_another_process_can_undo(whole: NetnsLab) -> None:
    whole.fault(parse("blackhole:leaf1-spine1", whole.fabric))
    flap = whole.fault(parse("flap:leaf2-spine1:50hz", whole.fabric))
    with NetnsLab.load(whole.name) as other:
        assert [str(record.fault) for record in other.faults()] == ["blackhole:leaf1-spine1", "flap:leaf2-spine1:50hz"]
        assert other.undo_all() == 2
    assert whole.faults() == ()
    assert not whole.undo(flap.id)
    assert healed(whole)


def test_faults_are_injected_in_about_a_millisecond(whole: NetnsLab) -> None:
    """No limit in time here (the machine is shared): the number is printed, the order of events is asserted."""
    for text in ("blackhole:leaf1-spine1", "carrier:leaf1-spine1", "rate:leaf1-spine1:100mbit", "dead:spine1",
                 "large:leaf1>spine1:1000", "delay:leaf1-spine1:5ms"):  # fmt: skip
        before = time.monotonic()
        with broken(whole, text) as fault:
            after = time.monotonic()
            assert before <= fault.injected_at_s <= fault.injected_at_s + fault.took_s <= after
            print(f"{text}: {fault.took_s * 1e3:.2f} ms, call {1e3 * (after - before):.2f} ms")
    assert directions_of("leaf1-spine1", whole.fabric) == ("leaf1>spine1", "spine1>leaf1")
    assert os.geteuid() == 0


def test_counters_name_the_links_that_carry(whole: NetnsLab) -> None:
    stop = threading.Event()
    with Talk(whole, "host1", "host2") as talk:

        def chatter() -> None:
            while not stop.is_set():
                talk.say([7], 20)
                talk.hear(patience_s=0)

        thread = threading.Thread(target=chatter)
        thread.start()
        try:
            busy = whole.carrying(over_s=0.1, at_least_bps=1e5)
        finally:
            stop.set()
            thread.join()
    assert set(busy) in ({"host1>leaf1", "leaf1>host2"}, {"host1>leaf2", "leaf2>host2"})


def test_retransmissions_are_counted_per_host(whole: NetnsLab) -> None:
    before, needed = whole.retransmits(), whole.sent_again()["host1"].needed
    assert set(before) == {"host1", "host2", "host3", "host4"}
    with broken(whole, "dead:host3:silent"):
        with whole.in_netns("host1"):
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        with sock:
            sock.setblocking(False)
            sock.connect_ex((whole.address("host3"), 5001))
            assert until(lambda: whole.retransmits()["host1"] > before["host1"])
    assert whole.sent_again()["host1"].needed > needed
    assert whole.retransmits()["host2"] == before["host2"]
