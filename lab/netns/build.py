"""Build a lab's namespaces, links, addresses and neighbours through pyroute2; next hops and routes after them.

Order matters. The wire side of a link comes up with its pair, so that a node's port has carrier as soon as the node
sets it up; next hops need that carrier (net/ipv4/nexthop.c refuses a device that is down); and nobody speaks before
everybody can hear.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pyroute2 import IPRoute

from lab.addressing import LOOPBACK_DEVICE, LOOPBACK_LABEL4, Forwarding, NodePlan, Plan, Wire, forwarding
from lab.errors import LabError
from lab.netns import namespace, nexthops, offload
from lab.netns.connections import Connections, asking
from lab.netns.effects import base_ruleset
from lab.netns.nft import Nft
from lab.netns.session import KernelError, Session
from topology.model import Fabric

MTU = 1500
FIRST_WIRE_INDEX = 10_000
WIRES_S = 10.0
IFF_LOWER_UP = 1 << 16
WIRE = "-wire"
"""The wire's part in the place of a node's name (containerlab's names do not begin with a dash)."""

_SEED = "net/ipv4/fib_multipath_hash_seed"
_NO_IPV6 = "net/ipv6/conf/all/disable_ipv6"
_CONGESTION = ("cubic", "reno")
_NODAD = 0x02
"""IFA_F_NODAD: usable as the source of a route at once, not when a work queue of the kernel has come round to it."""


@dataclass(slots=True)
class Kernel:
    """What this kernel can, found out while building. `notes` says what the lab falls back to."""

    hash_seed: bool
    congestion: str
    loopback_kind: str = ""
    notes: list[str] = field(default_factory=list)


def namespace_name(lab: str, node: str) -> str:
    return f"lp-{lab}-{node}"


def probe_kernel(*, hash_seed: bool | None = None) -> Kernel:
    """Look at what the kernel offers. `hash_seed=False` builds as on a kernel without a seed per namespace."""
    if hash_seed is None:
        hash_seed = Path("/proc/sys", _SEED).exists()
    # A namespace may use only what the machine allows everybody (reno always; others by its administrator).
    offered = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    kernel = Kernel(hash_seed, next((name for name in _CONGESTION if name in offered), ""))
    if kernel.congestion:
        kernel.notes.append(f"TCP congestion control {kernel.congestion}")
    else:
        kernel.notes.append(
            f"TCP congestion control as the machine has it ({' '.join(offered)}): no cubic, no reno here"
        )
    if not hash_seed:
        kernel.notes.append(
            "no fib_multipath_hash_seed (Linux 6.11): switches use resilient next-hop groups, each tier with its own "
            "number of buckets, so that tiers choose by different bits of the common hash"
        )
    return kernel


def sysctls(node: NodePlan, kernel: Kernel) -> Iterator[tuple[str, str]]:
    """Settings of a node's namespace, made before its devices appear (`default` is what those inherit)."""
    yield _NO_IPV6, "1"  # until all ports are up: what a node said before that would be lost on the wire
    yield "net/ipv6/conf/default/accept_dad", "0"
    yield "net/ipv6/conf/default/dad_transmits", "0"
    yield "net/ipv6/conf/default/accept_ra", "0"
    yield "net/ipv6/conf/default/router_solicitations", "0"
    yield "net/ipv6/conf/default/addr_gen_mode", "1"  # no link-local addresses: fewer packets at rest
    # Multicast listeners repeat their report at once, not a second later: the lab is quiet when it is up.
    yield "net/ipv6/conf/default/mldv2_unsolicited_report_interval", "1"
    yield "net/ipv4/conf/all/rp_filter", "0"
    yield "net/ipv4/conf/default/rp_filter", "0"
    if not node.host:
        yield "net/ipv4/ip_forward", "1"
        yield "net/ipv6/conf/all/forwarding", "1"
    # IPv6 hashes source, destination, protocol and flow label; IPv4, which has no label, the ports as well.
    yield "net/ipv6/fib_multipath_hash_policy", "0"
    yield "net/ipv4/fib_multipath_hash_policy", "3"
    yield "net/ipv4/fib_multipath_hash_fields", "0x37"
    if kernel.hash_seed:
        yield _SEED, str(node.hash_seed)  # it serves IPv6 too; one seed for all leaves half of a fabric unused
    yield "net/ipv6/icmp/ratelimit", "0"  # traces ask more than an operator's `traceroute`
    yield "net/ipv4/icmp_ratelimit", "0"
    yield "net/ipv4/icmp_msgs_per_sec", "1000000"
    yield "net/ipv4/icmp_msgs_burst", "100000"
    if kernel.congestion:
        yield "net/ipv4/tcp_congestion_control", kernel.congestion
    yield "net/ipv4/tcp_no_metrics_save", "1"  # one run must not teach the next its round-trip times


OPTIONAL = {"net/ipv4/icmp_msgs_per_sec", "net/ipv4/icmp_msgs_burst"}
"""Before Linux 6.12 these belong to the whole machine and are not seen in a namespace; they are left alone then."""


class Builder:
    """Builds one lab. Holds descriptors of its namespaces and one connection into each until it is left.

    `guests`: hosts that only get their ports here; addresses and routes are their guests' own."""

    def __init__(
        self, lab: str, fabric: Fabric, plan: Plan, kernel: Kernel, guests: Collection[str] = frozenset()
    ) -> None:
        self._guests = frozenset(guests)
        self._lab = lab
        self._fabric = fabric
        self._plan = plan
        self._kernel = kernel
        self._stack = ExitStack()
        self._connections = Connections()
        self._fds: dict[str, int] = {}

    def __enter__(self) -> Builder:
        self._stack.enter_context(self._connections)
        return self

    def __exit__(self, *_: object) -> None:
        # The connections' thread ends first, also when the caller was interrupted while it waited for the build.
        self._connections.close()
        self._stack.close()

    def build(self) -> None:
        """Everything, in order. Raises LabError or KernelError; the caller takes down what was made so far."""
        self._connections.run(self._build)

    def _build(self) -> None:
        for name in (*self._plan.nodes, WIRE):
            self._create(name)
        for name in self._fds:
            self._configure(name)
        self._pull_wires()
        nft = Nft(self._fds[WIRE]).open()
        try:
            nft.run(base_ruleset(self._plan))
        finally:
            nft.close()
        index = {name: self._devices(name) for name in self._fds}
        for name in self._plan.nodes:
            for wire in self._plan.wires_of(name):
                self._set_up(name, wire.end(name).device, index[name])
        settled = {name: node for name, node in self._plan.nodes.items() if name not in self._guests}
        for name, node in settled.items():
            with namespace.inside(self._fds[name]):
                Path("/proc/sys", _NO_IPV6).write_text("0")
            self._address(node, index[name])
        for name, fd in self._fds.items():
            with namespace.inside(fd):
                offload.switch_off(device for device in index[name] if device not in ("lo", LOOPBACK_DEVICE))
        for node in settled.values():
            hops = forwarding(self._fabric, self._plan, node.name)
            resilient = buckets(node, hops, hash_seed=self._kernel.hash_seed)
            with Session(self._fds[node.name]) as session:
                session.apply(nexthops.everything(hops, index[node.name], resilient))
        self._await_wires()

    def _await_wires(self) -> None:
        """Until every device may send. One whose carrier came after it was set up drops everything without a word until
        a work queue of the kernel has come round to it (net/core/link_watch.c, linkwatch_do_dev), which waits for a
        lock that all namespaces share. Its carrier is there meanwhile, its operational state is not."""
        until_s = time.monotonic() + WIRES_S
        for name in self._fds:
            while waiting := sorted(self._waiting(name)):
                if time.monotonic() > until_s:
                    where = "on the wire" if name == WIRE else f"of {name}"
                    hint = "look at the machine's load; then build the lab again"
                    raise LabError(f"device {waiting[0]} {where} does not send {WIRES_S:g} s after it was set up", hint)
                time.sleep(0.005)

    def _waiting(self, name: str) -> Iterator[str]:
        with asking(f"devices of {name}"):
            for link in self._to(name).link("dump"):
                if link["flags"] & IFF_LOWER_UP and link.get("operstate") not in ("UP", "UNKNOWN"):
                    yield link.get("ifname")

    def _to(self, name: str) -> IPRoute:
        return self._connections.to(self._fds[name])

    def _create(self, name: str) -> None:
        full = namespace_name(self._lab, name)
        try:
            fd = namespace.create(full)
        except FileExistsError:
            hint = "take the lab down first, or give another --name"
            raise LabError(f"namespace {full} is there already", hint) from None
        self._stack.callback(os.close, fd)
        self._fds[name] = fd

    def _configure(self, name: str) -> None:
        bare = name == WIRE or name in self._guests
        if bare:
            settings = [(_NO_IPV6, "1")]
        else:
            settings = list(sysctls(self._plan.nodes[name], self._kernel))
        with namespace.inside(self._fds[name]):
            for key, value in settings:
                try:
                    Path("/proc/sys", key).write_text(value)
                except FileNotFoundError:
                    if key not in OPTIONAL:
                        hint = "IPv6 and IP_ROUTE_MULTIPATH are needed (Linux 5.12 for fib_multipath_hash_fields)"
                        raise LabError(f"this kernel has no sysctl {key.replace('/', '.')}", hint) from None
                except OSError as error:
                    hint = "the lab needs a writable /proc/sys (in a container: --privileged)"
                    raise LabError(f"sysctl {key.replace('/', '.')} = {value} is refused: {error}", hint) from error
        self._set_up(name, "lo", {"lo": 1})
        if not bare:
            self._add_loopback(name)

    def _add_loopback(self, name: str) -> None:
        for kind in (self._kernel.loopback_kind,) if self._kernel.loopback_kind else ("dummy", "ifb"):
            try:
                with asking(f"device {LOOPBACK_DEVICE} of kind {kind}"):
                    self._to(name).link("add", ifname=LOOPBACK_DEVICE, kind=kind, state="up")
            except KernelError:
                continue
            if not self._kernel.loopback_kind:
                self._kernel.loopback_kind = kind
                self._kernel.notes.append(f"loopback device {LOOPBACK_DEVICE} is of kind {kind}")
            return
        raise LabError("the kernel has neither dummy nor ifb devices", "modprobe dummy")

    def _pull_wires(self) -> None:
        """A veth pair for each end of a link: up on the wire, its peer a port of the node.

        The ends on the wire have numbers that no port has: for a veth whose peer has its own number the kernel holds
        back news of its carrier, up to a second after the last (net/core/link_watch.c, linkwatch_urgent_event)."""
        ends = (end for wire in self._plan.wires for end in (wire.a, wire.b))
        for number, end in enumerate(ends, FIRST_WIRE_INDEX):
            port = {"ifname": end.device, "address": end.mac, "mtu": MTU, "net_ns_fd": self._fds[end.node]}
            device = {"ifname": end.wire_device, "index": number, "mtu": MTU, "state": "up"}
            with asking(f"veth {end.wire_device} - {end.device}"):
                self._to(WIRE).link("add", kind="veth", **device, peer=port)

    def _devices(self, name: str) -> dict[str, int]:
        with namespace.inside(self._fds[name]):
            return {device: number for number, device in socket.if_nameindex()}

    def _set_up(self, name: str, device: str, index: Mapping[str, int]) -> None:
        with asking(f"device {device} of {name} up"):
            self._to(name).link("set", index=index[device], state="up")

    def _address(self, node: NodePlan, index: Mapping[str, int]) -> None:
        """Addresses of the loopback device and of the ports. The IPv4 one of the loopback has a label of its own:
        programs that look for the first address by a device's name (Gloo) find the IPv6 one by `lo0`."""
        route, loopback = self._to(node.name), index[LOOPBACK_DEVICE]
        with asking(f"addresses of {node.name}"):
            route.addr("add", index=loopback, address=node.v6, prefixlen=128, flags=_NODAD)
            route.addr("add", index=loopback, address=node.v4, prefixlen=32, label=LOOPBACK_LABEL4)
        for wire in self._plan.wires_of(node.name):
            self._address_port(route, wire, node.name, index)

    def _address_port(self, route: IPRoute, wire: Wire, node: str, index: Mapping[str, int]) -> None:
        """A port's addresses; its neighbour is permanent, so that no neighbour discovery betrays a blackhole."""
        near, far = wire.both_ways()[wire.b.node == node]
        port = index[near.device]
        with asking(f"addresses of {node}:{near.device}"):
            route.addr("add", index=port, address=near.v6, prefixlen=64, flags=_NODAD)
            route.addr("add", index=port, address=near.v4, prefixlen=31)
        with asking(f"neighbour {far.node} of {node}:{near.device}"):
            for address in (far.v6, far.v4):
                route.neigh("replace", ifindex=port, dst=address, lladdr=far.mac, state="permanent")


def buckets(node: NodePlan, hops: Forwarding, *, hash_seed: bool) -> int:
    """Buckets of a node's resilient groups, or 0 for groups that pick by the hash's threshold.

    The kernel fills 2^k buckets in blocks and takes hash mod 2^k: the choice hangs on the top bits of those k. Four
    bits apart, tiers with up to 16 next hops choose independently; hosts, by threshold, use the top of the hash."""
    if hash_seed or node.host:
        return 0
    widest = max((len(group.members) for group in hops.groups), default=1)
    return 1 << max({1: 12, 2: 8}.get(node.tier, 4), (widest - 1).bit_length())
