"""A small fabric of namespaces for the contract tests of probes and traces.

    h1 eth1 - l1 - s1 - l2 - eth1 h2        two equal-cost paths from l1 on, by flow label
                 \\ s2 /
    h1 eth2 ------- x1 ------- eth2 h2      one path of one hop

Loopback addresses are on `lo`; every switch answers with its own (`fd01:ff:1::n`)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator

from pyroute2 import IPRoute

PREFIX = f"tp-{os.getpid()}-"
CLONE_NEWNET = 0x40000000
HOSTS = {"h1": "fd01:ff::1", "h2": "fd01:ff::2"}
HOSTS4 = {"h1": "10.254.0.1", "h2": "10.254.0.2"}
SWITCHES = {
    "l1": "fd01:ff:1::1",
    "l2": "fd01:ff:1::2",
    "s1": "fd01:ff:1::3",
    "s2": "fd01:ff:1::4",
    "x1": "fd01:ff:1::5",
}
LINKS = [
    ("h1", "eth1", "l1", "h"), ("l1", "s1", "s1", "l1"), ("l1", "s2", "s2", "l1"), ("s1", "l2", "l2", "s1"),
    ("s2", "l2", "l2", "s2"), ("h2", "eth1", "l2", "h"), ("h1", "eth2", "x1", "h1"), ("h2", "eth2", "x1", "h2"),
]  # fmt: skip

DEVICES = {
    "h2": {"h1": ("eth1", "eth2"), "l1": ("s1", "s2"), "s1": ("l2",), "s2": ("l2",), "l2": ("h",), "x1": ("h2",)},
    "h1": {"h2": ("eth1", "eth2"), "l2": ("s1", "s2"), "s1": ("l1",), "s2": ("l1",), "l1": ("h",), "x1": ("h1",)},
}
"""Towards a host, the devices that each node's equal-cost route uses."""

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(node: str) -> Iterator[None]:
    """This thread is in the node's network namespace within the block."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{PREFIX}{node}", os.O_RDONLY)
    try:
        if _libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {node}")
        yield
    finally:
        _libc.setns(home, CLONE_NEWNET)
        os.close(there)
        os.close(home)


def sysctl(node: str, **values: int) -> None:
    with inside(node):
        for name, value in values.items():
            with open("/proc/sys/net/" + name.replace("__", "/"), "w") as file:
                file.write(str(value))


def nft(node: str, rules: str, hook: str = "forward", kind: str = "filter") -> None:
    """Replace the node's rules. Rules of one chain, one a line; empty: none."""
    text = "flush ruleset\n"
    if rules:
        chain = f"chain c {{\n type {kind} hook {hook} priority 0; policy accept;\n{rules}\n }}"
        text += f"table inet fault {{\n {chain}\n}}\n"
    with inside(node):
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def _netlink(node: str) -> IPRoute:
    """A socket made in the namespace: pyroute2's own way forks, which takes too long on a busy machine."""
    with inside(node):
        return IPRoute()


def _namespaces() -> list[str]:
    return os.listdir("/run/netns") if os.path.isdir("/run/netns") else []


class Fabric:
    def __init__(self) -> None:
        self.mac: dict[tuple[str, str], bytes] = {}
        self.ifindex: dict[tuple[str, str], int] = {}

    def up(self) -> None:
        self.down()
        nodes = [*HOSTS, *SWITCHES]
        for node in nodes:
            subprocess.run(["ip", "netns", "add", PREFIX + node], check=True)
            sysctl(
                node, ipv6__conf__default__accept_dad=0, ipv6__conf__default__accept_ra=0,
                ipv6__conf__default__router_solicitations=0, ipv6__icmp__ratelimit=0, ipv4__icmp_msgs_per_sec=100000,
                ipv4__icmp_msgs_burst=100000, ipv4__icmp_ratelimit=0,
                ipv4__fib_multipath_hash_seed=len(node) * 7919 + nodes.index(node),
            )  # fmt: skip
            if node in SWITCHES:
                sysctl(node, ipv6__conf__all__forwarding=1, ipv4__ip_forward=1)
        ip = {node: _netlink(node) for node in nodes}
        try:
            for node in nodes:
                ip[node].link("set", index=1, state="up")
                ip[node].addr("add", index=1, address=(HOSTS | SWITCHES)[node], prefixlen=128)
            for node, address in HOSTS4.items():
                ip[node].addr("add", index=1, address=address, prefixlen=32)
            for number, (a, a_name, b, b_name) in enumerate(LINKS):
                ip[a].link("add", ifname=a_name, kind="veth", peer={"ifname": b_name, "net_ns_fd": PREFIX + b})
                for side, (node, name) in enumerate(((a, a_name), (b, b_name))):
                    (link,) = ip[node].get_links(ifname=name)
                    self.mac[node, name] = bytes.fromhex(link.get_attr("IFLA_ADDRESS").replace(":", ""))
                    self.ifindex[node, name] = link["index"]
                    ip[node].link("set", index=link["index"], state="up")
                    ip[node].addr("add", index=link["index"], address=f"fd01:1:{number}::{'ab'[side]}", prefixlen=64)
                    ip[node].addr("add", index=link["index"], address=f"10.127.{number}.{side}", prefixlen=31)
            for number, (a, a_name, b, b_name) in enumerate(LINKS):
                # neighbours are known for good: their discovery is not what is tested
                for (node, name), other, side in (((a, a_name), (b, b_name), 1), ((b, b_name), (a, a_name), 0)):
                    mac = self.mac[other].hex(":")
                    for address in (f"fd01:1:{number}::{'ab'[side]}", f"10.127.{number}.{side}"):
                        ip[node].neigh("add", dst=address, lladdr=mac, ifindex=self.ifindex[node, name], state=0x80)
            until_s = time.monotonic() + 30
            for node, name in self.ifindex:  # the kernel drops what is sent before it has told itself of a carrier
                while (state := ip[node].get_links(ifname=name)[0].get_attr("IFLA_OPERSTATE")) != "UP":
                    assert time.monotonic() < until_s, f"{name} of {node} is {state}"
            for node in nodes:
                for target in HOSTS:
                    self._route(ip[node], node, target)
        finally:
            for handle in ip.values():
                handle.close()

    def _route(self, ip: IPRoute, node: str, target: str) -> None:
        hops = [self._gateway(node, name) for name in DEVICES[target].get(node, ())]
        if not hops:
            return
        source = (HOSTS | SWITCHES)[node]
        ip.route(
            "add", dst=HOSTS[target] + "/128", multipath=[{"gateway": g, "oif": i} for g, _, i in hops], prefsrc=source
        )
        source4 = {"prefsrc": HOSTS4[node]} if node in HOSTS4 else {}
        ip.route("add", dst=HOSTS4[target] + "/32", multipath=[{"gateway": g, "oif": i} for _, g, i in hops], **source4)

    def _gateway(self, node: str, name: str) -> tuple[str, str, int]:
        """IPv6 and IPv4 address at the other end of a device, and the device's number."""
        for number, (a, a_name, b, b_name) in enumerate(LINKS):
            for end, other in (((a, a_name), 1), ((b, b_name), 0)):
                if end == (node, name):
                    return f"fd01:1:{number}::{'ab'[other]}", f"10.127.{number}.{other}", self.ifindex[end]
        raise KeyError(name)

    def gateway_mac(self, node: str, name: str) -> bytes:
        for a, a_name, b, b_name in LINKS:
            if (a, a_name) == (node, name):
                return self.mac[b, b_name]
            if (b, b_name) == (node, name):
                return self.mac[a, a_name]
        raise KeyError(name)

    def down(self) -> None:
        """Remove ours, and what a run left behind that was killed."""
        for name in _namespaces():
            owner = name.split("-")[1] if name.startswith("tp-") else ""
            if owner.isdigit() and (int(owner) == os.getpid() or not os.path.exists(f"/proc/{owner}")):
                subprocess.run(["ip", "netns", "del", name], check=True)


@contextlib.contextmanager
def standing() -> Iterator[Fabric]:
    made = Fabric()
    try:
        made.up()
        yield made
    finally:
        made.down()
