"""Hosts of a lab as guests, on the same wire and behind the same switches as hosts that are namespaces.

A guest's host keeps its namespace, as a patch panel: what comes in at a port goes to a tap, what comes out of the tap
goes to the port. QEMU runs inside that namespace, so freezing, killing and taking down a host mean the guest.

    leaf - wire - [ eth1 = tap ] - guest's eth1      in brackets: the host's namespace

Inside, several uplinks belong to the VRF device `vrf0`, which has the host's addresses and carries the soft-RoCE
device: only on a VRF do its queue pairs follow the kernel's routes to another uplink. A host with a single uplink needs
none, and has its addresses and soft-RoCE on that: rdma_cm does not work over a VRF (the device that it finds for a
route is the uplink, the GIDs are the VRF's; drivers/infiniband/core/addr.c, cma_validate_port).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyroute2 import IPRoute

from lab.addressing import Plan, forwarding
from lab.errors import LabError
from lab.netns.build import MTU
from lab.netns.connections import asking
from lab.netns.nft import Nft
from lab.qemu.guest import Guest, Nic
from lab.qemu.kernel import Kernel
from lab.qemu.tap import open_tap
from topology.model import Fabric

if TYPE_CHECKING:
    from lab.netns.lab import NetnsLab

VRF: Final = "vrf0"
VRF_TABLE: Final = 100
RXE: Final = "rxe0"
CONFIGURE_S: Final = 60.0


def tap_name(device: str) -> str:
    return f"q-{device}"[:15]


def boot(lab: NetnsLab, kernel: Kernel, hosts: Sequence[str], started: list[Guest]) -> None:
    """Start the hosts' guests, all at once, and give them their addresses and routes. Raises LabError.

    `started`: takes each guest as soon as it runs, for whoever has to end it."""
    guests = {}
    for host in hosts:
        guests[host] = _start(lab, kernel, host)
        started.append(guests[host])
    _together([lambda g=guest, h=host: _bring_up(lab, g, h) for host, guest in guests.items()])  # type: ignore[misc]


def guest_of(lab: NetnsLab, host: str) -> Guest:
    """A host's guest, not connected yet."""
    return Guest(host, lab.host_dir(host) / "guest")


def repair(lab: NetnsLab, host: str) -> int:
    """Put back what a guest's kernel has deleted with a carrier; how many lines were run."""
    lines = list(routes(lab.fabric, lab.plan, host))
    with talking(lab, host) as guest:
        guest.sh("\n".join(lines))
    return len(lines)


@contextmanager
def talking(lab: NetnsLab, host: str) -> Iterator[Guest]:
    """A host's guest, connected: over the connection that this process has, or one for the moment."""
    guest = lab.talking.get(host)
    if guest is not None:
        yield guest
        return
    guest = lab.talking[host] = guest_of(lab, host).connect()
    try:
        yield guest
    finally:
        del lab.talking[host]
        guest.close()


def network(fabric: Fabric, plan: Plan, host: str) -> str:
    """The script that makes a guest this host: names, addresses, neighbours, VRF, next hops, routes, soft-RoCE."""
    carrier = carrier_of(plan, host)
    script = [*_names(plan, host), *_settings(), *(_vrf() if carrier == VRF else ()), *_addresses(plan, host, carrier)]
    return "\n".join([*script, *routes(fabric, plan, host), f"rdma link add {RXE} type rxe netdev {carrier}"])


def carrier_of(plan: Plan, host: str) -> str:
    """The device that has a host's addresses and its soft-RoCE device: the VRF, or the only uplink."""
    devices = [wire.end(host).device for wire in plan.wires_of(host)]
    return devices[0] if len(devices) == 1 else VRF


def routes(fabric: Fabric, plan: Plan, host: str) -> Iterator[str]:
    """Next hops, groups and routes, in the VRF's table if there is one. What is there already is replaced, so the same
    lines put back what the kernel has deleted with a carrier."""
    table = f" table {VRF_TABLE}" if carrier_of(plan, host) == VRF else ""
    wanted = forwarding(fabric, plan, host)
    for hop in wanted.hops:
        yield f"ip {_family(hop.family)} nexthop replace id {hop.id} via {hop.gateway} dev {hop.device} || true"
    for group in wanted.groups:
        members = "/".join(map(str, group.members))
        yield f"ip nexthop replace id {group.id} group {members}"
    for route in wanted.routes:
        yield f"ip {_family(route.family)} route replace {route.prefix} nhid {route.group} src {route.source}{table}"


def _family(family: int) -> str:
    return f"-{family}"


def _names(plan: Plan, host: str) -> Iterator[str]:
    """The kernel numbers cards as it finds them; a port is known by its address."""
    cases = " ".join(f"{wire.end(host).mac}) n={wire.end(host).device};;" for wire in plan.wires_of(host))
    yield "i=0; for d in /sys/class/net/eth*; do ip link set dev ${d##*/} name x-$i; i=$((i+1)); done"
    yield f"for d in /sys/class/net/x-*; do n=; case $(cat $d/address) in {cases} esac;"
    yield f'[ -z "$n" ] || ip link set dev ${{d##*/}} name $n mtu {MTU}; done'


def _settings() -> Iterator[str]:
    for key, value in (
        ("net.ipv6.conf.default.accept_dad", 0), ("net.ipv6.conf.all.accept_dad", 0),
        ("net.ipv6.conf.default.accept_ra", 0), ("net.ipv6.conf.all.accept_ra", 0),
        ("net.ipv4.conf.all.rp_filter", 0), ("net.ipv4.conf.default.rp_filter", 0),
        ("net.ipv6.fib_multipath_hash_policy", 0), ("net.ipv4.fib_multipath_hash_policy", 1),
        ("net.ipv4.udp_l3mdev_accept", 1), ("net.ipv4.tcp_l3mdev_accept", 1), ("net.ipv4.raw_l3mdev_accept", 1),
    ):  # fmt: skip
        yield f"sysctl -qw {key}={value}"


def _vrf() -> Iterator[str]:
    yield f"ip link add {VRF} type vrf table {VRF_TABLE}"
    # Soft-RoCE takes its path MTU from here, and IPv6 does not fragment what turns out to be too long for the wire.
    yield f"ip link set {VRF} mtu {MTU} up"
    for family in (4, 6):  # for programs that know of no VRF
        yield f"ip {_family(family)} rule add pref 500 lookup {VRF_TABLE}"


def _addresses(plan: Plan, host: str, carrier: str) -> Iterator[str]:
    node = plan.nodes[host]
    ends = [wire.both_ways()[wire.b.node == host] for wire in plan.wires_of(host)]
    for near, _ in ends:  # a port that joins a VRF loses its IPv6 addresses: first join, then address
        if carrier == VRF:
            yield f"ip link set {near.device} master {VRF}"
        yield f"ip link set {near.device} up"
    yield f"ip addr add {node.v6}/128 dev {carrier} nodad"
    yield f"ip addr add {node.v4}/32 dev {carrier}"
    for near, far in ends:
        yield f"ip addr add {near.v6}/64 dev {near.device} nodad"
        yield f"ip addr add {near.v4}/31 dev {near.device}"
        for address in (far.v6, far.v4):
            yield f"ip neigh replace {address} lladdr {far.mac} dev {near.device} nud permanent"


def _start(lab: NetnsLab, kernel: Kernel, host: str) -> Guest:
    guest = guest_of(lab, host)
    guest.run_dir.mkdir(parents=True, exist_ok=True)
    ends = [wire.end(host) for wire in lab.plan.wires_of(host)]
    with lab.in_netns(host):
        taps = [open_tap(lab.namespace(host), tap_name(end.device)) for end in ends]
        guest.start(kernel, [Nic(end.device, tap, end.mac) for end, tap in zip(ends, taps, strict=True)])
    lab.adopt(host, guest.pid, ["qemu-system-x86_64"])
    lab.ask(host, _taps_up, [tap_name(end.device) for end in ends])
    panel = "\n".join(
        f' chain {a} {{\n  type filter hook ingress device "{a}" priority 0;\n  fwd to "{b}"\n }}'
        for end in ends
        for a, b in ((end.device, tap_name(end.device)), (tap_name(end.device), end.device))
    )
    nft = Nft(lab.namespace_fd(host)).open()
    try:
        nft.run(f"table netdev panel {{\n{panel}\n}}\n")
    finally:
        nft.close()
    return guest


def _taps_up(route: IPRoute, names: Iterable[str]) -> None:
    for name in names:
        with asking(f"tap {name} up"):
            (index,) = route.link_lookup(ifname=name)
            route.link("set", index=index, mtu=MTU, state="up")


def _bring_up(lab: NetnsLab, guest: Guest, host: str) -> None:
    guest.connect()
    try:
        guest.sh(network(lab.fabric, lab.plan, host), timeout_s=CONFIGURE_S)
    finally:
        guest.close()


def _together(work: Sequence[Callable[[], None]]) -> None:
    """Do everything at the same time; the first LabError is raised when all have ended."""
    failed: list[LabError] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except LabError as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
