"""Build a lab's namespaces, links and routes: some five hundred kernel requests, batched by namespace.

Order matters. The wire side of a link comes up with its pair, so that a node's port has carrier as soon as the node
sets it up; next hops need that carrier (net/ipv4/nexthop.c refuses a device that is down); and nobody speaks before
everybody can hear.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from lab.addressing import LOOPBACK_DEVICE, Forwarding, NodePlan, Plan, Wire, forwarding
from lab.errors import LabError
from lab.netns import messages, namespace, offload
from lab.netns.effects import base_ruleset
from lab.netns.nft import Nft
from lab.netns.session import KernelError, Request, Session
from topology.model import Fabric

MTU = 1500
WIRE = "-wire"
"""The wire's part in the place of a node's name (containerlab's names do not begin with a dash)."""

_SEED = "net/ipv4/fib_multipath_hash_seed"
_NO_IPV6 = "net/ipv6/conf/all/disable_ipv6"
_CONGESTION = ("cubic", "reno")


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
    """Builds one lab. Holds descriptors of its namespaces and one netlink session in each until `close()`."""

    def __init__(self, lab: str, fabric: Fabric, plan: Plan, kernel: Kernel) -> None:
        self._lab = lab
        self._fabric = fabric
        self._plan = plan
        self._kernel = kernel
        self._stack = ExitStack()
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def build(self) -> None:
        """Everything, in order. Raises LabError or KernelError; the caller takes down what was made so far."""
        namespace.prepare()
        fds = {name: self._create(name) for name in (*self._plan.nodes, WIRE)}
        for name, fd in fds.items():
            self._configure(name, fd)
        self._pull_wires(fds)
        nft = Nft(fds[WIRE]).open()
        try:
            nft.run(base_ruleset(self._plan))
        finally:
            nft.close()
        index = {name: self._devices(fd) for name, fd in fds.items()}
        for name in self._plan.nodes:
            ports = [wire.end(name).device for wire in self._plan.wires_of(name)]
            up = (messages.link_up(index[name][port], up=True, what=f"device {port} of {name} up") for port in ports)
            self._sessions[name].apply(list(up))
        for name, node in self._plan.nodes.items():
            with namespace.inside(fds[name]):
                Path("/proc/sys", _NO_IPV6).write_text("0")
            self._address(node, index[name])
        for name, fd in fds.items():
            with namespace.inside(fd):
                offload.switch_off(device for device in index[name] if device not in ("lo", LOOPBACK_DEVICE))
        for node in self._plan.nodes.values():
            hops = forwarding(self._fabric, self._plan, node.name)
            requests = forwarding_requests(
                hops, index[node.name], buckets(node, hops, hash_seed=self._kernel.hash_seed)
            )
            self._sessions[node.name].apply(requests)

    def _create(self, name: str) -> int:
        try:
            fd = namespace.create(namespace_name(self._lab, name))
        except FileExistsError:
            full = namespace_name(self._lab, name)
            raise LabError(
                f"namespace {full} is there already", "take the lab down first, or give another --name"
            ) from None
        self._stack.callback(os.close, fd)
        self._sessions[name] = self._stack.enter_context(Session(fd))
        return fd

    def _configure(self, name: str, fd: int) -> None:
        if name == WIRE:
            settings = [(_NO_IPV6, "1")]
        else:
            settings = list(sysctls(self._plan.nodes[name], self._kernel))
        with namespace.inside(fd):
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
        self._sessions[name].apply([messages.link_up(1, up=True, what="device lo up")])
        if name != WIRE:
            self._add_loopback(name)

    def _add_loopback(self, name: str) -> None:
        for kind in (self._kernel.loopback_kind,) if self._kernel.loopback_kind else ("dummy", "ifb"):
            try:
                self._sessions[name].apply([messages.add_device(LOOPBACK_DEVICE, kind)])
            except KernelError:
                continue
            if not self._kernel.loopback_kind:
                self._kernel.loopback_kind = kind
                self._kernel.notes.append(f"loopback device {LOOPBACK_DEVICE} is of kind {kind}")
            return
        raise LabError("the kernel has neither dummy nor ifb devices", "modprobe dummy")

    def _pull_wires(self, fds: Mapping[str, int]) -> None:
        self._sessions[WIRE].apply(
            [
                messages.add_veth(end.wire_device, end.device, fds[end.node], end.mac, MTU)
                for wire in self._plan.wires
                for end in (wire.a, wire.b)
            ]
        )

    @staticmethod
    def _devices(fd: int) -> dict[str, int]:
        with namespace.inside(fd):
            return {name: number for number, name in socket.if_nameindex()}

    def _address(self, node: NodePlan, index: Mapping[str, int]) -> None:
        loopback = index[LOOPBACK_DEVICE]
        requests = [messages.add_address(loopback, node.v6, 128, 6), messages.add_address(loopback, node.v4, 32, 4)]
        for wire in self._plan.wires_of(node.name):
            requests += port_requests(wire, node.name, index)
        self._sessions[node.name].apply(requests)


def port_requests(wire: Wire, node: str, index: Mapping[str, int]) -> list[Request]:
    """A port's addresses; its neighbour is permanent, so that no neighbour discovery betrays a blackhole."""
    near, far = wire.both_ways()[wire.b.node == node]
    port = index[near.device]
    return [
        messages.add_address(port, near.v6, 64, 6),
        messages.add_address(port, near.v4, 31, 4),
        messages.add_neighbour(port, far.v6, far.mac, 6),
        messages.add_neighbour(port, far.v4, far.mac, 4),
    ]


def buckets(node: NodePlan, hops: Forwarding, *, hash_seed: bool) -> int:
    """Buckets of a node's resilient groups, or 0 for groups that pick by the hash's threshold.

    The kernel fills 2^k buckets in blocks and takes hash mod 2^k: the choice hangs on the top bits of those k. Four
    bits apart, tiers with up to 16 next hops choose independently; hosts, by threshold, use the top of the hash."""
    if hash_seed or node.host:
        return 0
    widest = max((len(group.members) for group in hops.groups), default=1)
    return 1 << max({1: 12, 2: 8}.get(node.tier, 4), (widest - 1).bit_length())


def forwarding_requests(hops: Forwarding, index: Mapping[str, int], resilient: int) -> list[Request]:
    """Next hops, then groups, then routes."""
    return [
        *(messages.add_nexthop(hop.id, index[hop.device], hop.gateway) for hop in hops.hops),
        *(messages.add_group(group.id, group.members, resilient) for group in hops.groups),
        *(messages.add_route(route.prefix, route.group, route.source) for route in hops.routes),
    ]
