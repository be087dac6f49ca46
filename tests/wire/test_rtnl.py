"""rtnetlink as bytes: against pyroute2's own reading where it knows the message, against the kernel elsewhere."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2 import IPRoute, netns
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from linkpass.wire import rtnl

PROTOCOL, IDENT = 76, 0x4C500000
NAME = f"te-{os.getpid()}-w"


# bytes alone
@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_attributes_come_back(items: list[tuple[int, bytes]]) -> None:
    packed = b"".join(rtnl.nla(kind, data) for kind, data in items)
    assert list(rtnl.attributes(packed)) == items
    assert len(packed) % 4 == 0


@given(st.lists(st.tuples(st.integers(16, 120), st.binary(max_size=50)), max_size=6))
def test_messages_of_one_datagram_come_back(items: list[tuple[int, bytes]]) -> None:
    datagram = b"".join(rtnl.message(kind, 5, seq, body) for seq, (kind, body) in enumerate(items))
    assert [(m.kind, m.seq, m.body) for m in rtnl.messages(datagram)] == [(k, i, b) for i, (k, b) in enumerate(items)]


@given(st.binary(max_size=200))
def test_garbage_ends_the_reading_and_raises_nothing(data: bytes) -> None:
    list(rtnl.messages(data))
    list(rtnl.attributes(data))


def test_an_error_is_told_from_an_acknowledgement() -> None:
    (bad, good) = rtnl.messages(
        rtnl.message(rtnl.NLMSG_ERROR, 0, 1, struct.pack("=i16x", -errno.ENOENT))
        + rtnl.message(rtnl.NLMSG_ERROR, 0, 2, struct.pack("=i16x", 0))
    )
    assert (bad.error, good.error) == (errno.ENOENT, 0)


# pyroute2 reads what we write
def _decode(cls: type, kind: int, body: bytes) -> object:
    message = cls(rtnl.message(kind, 0, 1, body))
    message.decode()
    return message


def test_pyroute2_reads_our_route() -> None:
    body = rtnl.route(
        "fd00:ff::/64", protocol=PROTOCOL, metric=70, next_hop_id=IDENT, source="fd00:ff::1", expires_s=60, rto_min_ms=5
    )
    message = _decode(rtmsg, rtnl.RTM_NEWROUTE, body)
    assert (message["family"], message["dst_len"], message["proto"], message["table"]) == (10, 64, PROTOCOL, 254)  # type: ignore[index]
    found = dict(message["attrs"])  # type: ignore[index]
    assert found["RTA_DST"] == "fd00:ff::"
    assert found["RTA_PRIORITY"] == 70
    assert found["RTA_PREFSRC"] == "fd00:ff::1"
    assert dict(found["RTA_METRICS"]["attrs"])["RTAX_RTO_MIN"] == 5
    assert dict(found["RTA_METRICS"]["attrs"])["RTAX_LOCK"] == 1 << 13


def test_an_ipv4_route_has_no_expiry() -> None:
    kinds = dict(
        rtnl.attributes(rtnl.route("10.0.0.0/8", protocol=PROTOCOL, metric=1, next_hop_id=1, expires_s=60), 12)
    )
    assert 23 not in kinds


def test_pyroute2_reads_our_neighbour_request() -> None:
    message = _decode(ndmsg, rtnl.RTM_NEWNEIGH, rtnl.use_neighbour(7, "fe80::1"))
    assert (message["ifindex"], message["family"], message["flags"]) == (7, 10, 1)  # type: ignore[index]
    assert dict(message["attrs"])["NDA_DST"] == "fe80::1"  # type: ignore[index]


# we read what pyroute2 writes
def _encode(message: ifinfmsg | ndmsg | rtmsg) -> bytes:
    message.encode()
    return bytes(message.data[16:])


def test_we_read_a_multipath_route_of_pyroute2() -> None:
    message = rtmsg()
    message.update(family=2, dst_len=24, proto=186, table=254, type=1)
    message["attrs"] = [
        ("RTA_DST", "10.255.0.0"),
        ("RTA_PRIORITY", 20),
        ("RTA_TABLE", 254),
        ("RTA_PREFSRC", "10.255.0.1"),
        (
            "RTA_MULTIPATH",
            [{"oif": 3, "hops": 0, "attrs": [("RTA_GATEWAY", "10.1.0.1")]}, {"oif": 4, "hops": 0, "attrs": []}],
        ),
    ]
    assert rtnl.parse_route(_encode(message)) == rtnl.Route(
        destination="10.255.0.0/24",
        family=2,
        metric=20,
        protocol=186,
        source="10.255.0.1",
        hops=(rtnl.Hop(3, "10.1.0.1"), rtnl.Hop(4, "")),
    )


@pytest.mark.parametrize(
    ("flags", "up", "carrier"),
    [(0x11043, True, True), (0x1003, True, False), (0x1002, False, False), (0x10003, True, False)],
)
def test_carrier_needs_the_driver_and_the_operational_state(flags: int, up: bool, carrier: bool) -> None:
    message = ifinfmsg()
    message.update(index=5, flags=flags)
    message["attrs"] = [("IFLA_IFNAME", "eth1"), ("IFLA_ADDRESS", "02:00:00:00:00:07"), ("IFLA_MTU", 9000)]
    link = rtnl.parse_link(_encode(message))
    assert link == rtnl.Link(5, "eth1", up, carrier, bytes.fromhex("020000000007"), 9000)


@pytest.mark.parametrize(("kind", "table"), [("vrf", 100), ("vlan", 0)])
def test_a_vrf_tells_its_table_and_nothing_else_does(kind: str, table: int) -> None:
    message = ifinfmsg()
    message.update(index=5, flags=0x11043)
    data = {"vrf": [("IFLA_VRF_TABLE", 100)], "vlan": [("IFLA_VLAN_ID", 100)]}[kind]
    info = [("IFLA_INFO_KIND", kind), ("IFLA_INFO_DATA", {"attrs": data})]
    message["attrs"] = [("IFLA_IFNAME", "vrf0"), ("IFLA_LINKINFO", {"attrs": info})]
    assert rtnl.parse_link(_encode(message)).vrf_table == table


def test_a_bridge_entry_is_no_neighbour_of_ours() -> None:
    message = ndmsg()
    message.update(family=socket.AF_BRIDGE, ifindex=3, state=0x80)
    message["attrs"] = [("NDA_LLADDR", "02:00:00:00:00:01")]
    assert rtnl.parse_neighbour(_encode(message)).address == ""


# the kernel reads what we write, and we read what it says
class Kernel:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._socket.settimeout(5)
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def _answers(self, data: bytes) -> Iterator[rtnl.Message]:
        self._socket.send(data)
        while True:
            yield from (m for m in rtnl.messages(self._socket.recv(1 << 17)) if m.seq == self._seq)

    def change(self, kind: int, body: bytes, flags: int = rtnl.F_CREATE | rtnl.F_REPLACE) -> int:
        self._seq += 1
        data = rtnl.message(kind, flags | rtnl.F_REQUEST | rtnl.F_ACK, self._seq, body)
        return next(m.error for m in self._answers(data))

    def ask(self, kind: int, body: bytes) -> rtnl.Message:
        self._seq += 1
        return next(self._answers(rtnl.message(kind, rtnl.F_REQUEST, self._seq, body)))

    def dump(self, kind: int, family: int = 0) -> list[bytes]:
        self._seq += 1
        found = []
        for answer in self._answers(rtnl.dump(kind, self._seq, family)):
            if answer.kind == rtnl.NLMSG_DONE:
                return found
            assert answer.kind != rtnl.NLMSG_ERROR
            found.append(answer.body)
        raise AssertionError


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A namespace with two devices that have carrier; our socket is inside."""
    netns.create(NAME)
    try:
        with IPRoute(netns=NAME) as ip:
            for number in (1, 2):
                ip.link("add", ifname=f"eth{number}", kind="veth", peer=f"far{number}")
                for name in (f"eth{number}", f"far{number}"):
                    ip.link("set", index=ip.link_lookup(ifname=name)[0], state="up")
                (index,) = ip.link_lookup(ifname=f"eth{number}")
                ip.addr("add", index=index, address=f"fd00:1:{number}::1", prefixlen=64, flags=2)
                ip.addr("add", index=index, address=f"10.127.{number}.0", prefixlen=31)
        netns.pushns(NAME)
        try:
            made = Kernel()
        finally:
            netns.popns()
        yield made
        made.close()
    finally:
        netns.remove(NAME)


def _device(kernel: Kernel, name: str) -> rtnl.Link:
    return next(link for link in map(rtnl.parse_link, kernel.dump(rtnl.RTM_GETLINK)) if link.name == name)


def _steer(kernel: Kernel) -> None:
    for number in (1, 2):
        index = _device(kernel, f"eth{number}").index
        body = rtnl.next_hop(IDENT + number, index, f"fd00:1:{number}::2", PROTOCOL)
        assert kernel.change(rtnl.RTM_NEWNEXTHOP, body) == 0
    assert kernel.change(rtnl.RTM_NEWNEXTHOP, rtnl.next_hop_group(IDENT, [IDENT + 1, IDENT + 2], PROTOCOL)) == 0
    route = rtnl.route(
        "fd00:ff::/64",
        protocol=PROTOCOL,
        metric=70,
        next_hop_id=IDENT,
        source="fd00:1:1::1",
        expires_s=60,
        rto_min_ms=5,
    )
    assert kernel.change(rtnl.RTM_NEWROUTE, route) == 0


@pytest.mark.netns
def test_links_of_the_kernel(kernel: Kernel) -> None:
    link = _device(kernel, "eth1")
    assert link.up and link.carrier and len(link.mac) == 6 and link.mtu == 1500 and not link.loopback
    assert _device(kernel, "lo").loopback


@pytest.mark.netns
def test_next_hops_groups_and_routes_go_round(kernel: Kernel) -> None:
    _steer(kernel)
    hops = {hop.id: hop for hop in map(rtnl.parse_next_hop, kernel.dump(rtnl.RTM_GETNEXTHOP))}
    assert hops[IDENT].group == (IDENT + 1, IDENT + 2)
    assert hops[IDENT + 1].gateway == "fd00:1:1::2"
    assert {hop.protocol for hop in hops.values()} == {PROTOCOL}
    routes = map(rtnl.parse_route, kernel.dump(rtnl.RTM_GETROUTE, rtnl.AF_INET6))
    (route,) = [route for route in routes if route.protocol == PROTOCOL]
    assert (route.destination, route.metric, route.next_hop_id) == ("fd00:ff::/64", 70, IDENT)
    assert (route.source, route.rto_min_ms) == ("fd00:1:1::1", 5)
    assert route.expires_s is not None and 55 < route.expires_s <= 60
    assert {hop.gateway for hop in route.hops} == {"fd00:1:1::2", "fd00:1:2::2"}


@pytest.mark.netns
def test_a_route_is_deleted_only_with_our_marks(kernel: Kernel) -> None:
    _steer(kernel)
    foreign = rtnl.route("fd00:ff::/64", protocol=PROTOCOL + 1, metric=70)
    assert kernel.change(rtnl.RTM_DELROUTE, foreign, 0) == errno.ESRCH
    ours = rtnl.route("fd00:ff::/64", protocol=PROTOCOL, metric=70)
    assert kernel.change(rtnl.RTM_DELROUTE, ours, 0) == 0


@pytest.mark.netns
def test_deleting_a_group_takes_its_routes_along(kernel: Kernel) -> None:
    _steer(kernel)
    assert kernel.change(rtnl.RTM_DELNEXTHOP, rtnl.next_hop_id(IDENT), 0) == 0
    routes = map(rtnl.parse_route, kernel.dump(rtnl.RTM_GETROUTE, rtnl.AF_INET6))
    assert not [route for route in routes if route.protocol == PROTOCOL]


@pytest.mark.netns
def test_the_lookup_follows_the_label(kernel: Kernel) -> None:
    _steer(kernel)
    taken = set()
    for label in range(1, 65):
        first, again = (
            rtnl.parse_route(
                kernel.ask(rtnl.RTM_GETROUTE, rtnl.route_lookup("fd00:ff::2", source="fd00:1:1::1", label=label)).body
            ).hops[0]
            for _ in range(2)
        )
        assert first == again
        taken.add(first.gateway)
    assert taken == {"fd00:1:1::2", "fd00:1:2::2"}


@pytest.mark.netns
def test_using_a_neighbour_makes_the_kernel_resolve_it(kernel: Kernel) -> None:
    index = _device(kernel, "eth1").index
    assert kernel.change(rtnl.RTM_NEWNEIGH, rtnl.use_neighbour(index, "fd00:1:1::2"), rtnl.F_CREATE) == 0
    known = map(rtnl.parse_neighbour, kernel.dump(rtnl.RTM_GETNEIGH))
    (entry,) = [entry for entry in known if entry.address == "fd00:1:1::2"]
    assert entry.index == index and not entry.usable


def test_a_bridge_s_message_about_a_port_is_told_from_the_device_s_own() -> None:
    own, bridge = (struct.pack("=BxHiII", family, 1, 5, 0x11043, 0) + rtnl.nla(3, b"eth1\0") for family in (0, 7))
    assert rtnl.parse_link(own).family == 0 and rtnl.parse_link(bridge).family == 7


@pytest.mark.parametrize(
    ("state", "usable", "confirmed"),
    [(0x01, False, True), (0x02, True, True), (0x04, True, False), (0x08, True, True), (0x20, False, False)],
)
def test_a_stale_or_failed_neighbour_is_not_confirmed(state: int, usable: bool, confirmed: bool) -> None:
    body = struct.pack("=BxxxiHBB", 10, 5, state, 0, 0)
    body += rtnl.nla(1, socket.inet_pton(socket.AF_INET6, "fe80::1")) + rtnl.nla(2, bytes(6))
    neighbour = rtnl.parse_neighbour(body)
    assert (neighbour.usable, neighbour.confirmed) == (usable, confirmed)


def test_a_dump_is_narrowed_by_table_and_protocol() -> None:
    (small,) = rtnl.messages(rtnl.dump(rtnl.RTM_GETROUTE, 1, 10, table=254, protocol=76))
    assert small.body == struct.pack("=BBBBBBBBI", 10, 0, 0, 0, 254, 76, 0, 0, 0)
    (large,) = rtnl.messages(rtnl.dump(rtnl.RTM_GETROUTE, 1, 10, table=1000))
    assert large.body[4] == 0 and dict(rtnl.attributes(large.body, 12)) == {15: struct.pack("=I", 1000)}


def test_a_route_s_protocol_is_in_its_header() -> None:
    assert rtnl.route_protocol(rtnl.route("fd00::/64", protocol=76, metric=1)) == 76
    assert rtnl.route_protocol(b"\x0a") == 0
