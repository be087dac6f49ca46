"""One host with two uplinks, each to a router of its own, for the contract tests of the kernel edges.

    te-PID-h  eth1 - a  te-PID-r      fd00:1:1::1 - ::2   10.127.1.0 - .1
              eth2 - b                fd00:1:2::1 - ::2   10.127.2.0 - .1

Routes to `fd00:ff::/64` and `10.255.0.0/24` go over both, with the host's loopback address as source; the router owns
`fd00:ff::2` and `10.255.0.2`. The far end of a link is set down to take the host's carrier away."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2 import IPRoute, netns

HOST6, HOST4 = "fd00:ff::1", "10.255.0.1"
PEER6, PEER4 = "fd00:ff::2", "10.255.0.2"
PREFIX6, PREFIX4 = "fd00:ff::/64", "10.255.0.0/24"
GATEWAY6 = {"eth1": "fd00:1:1::2", "eth2": "fd00:1:2::2"}
GATEWAY4 = {"eth1": "10.127.1.1", "eth2": "10.127.2.1"}
FAR_END = {"eth1": "a", "eth2": "b"}
BOTH = tuple(FAR_END)
OWN_PROTOCOL, KERNEL_METRIC = 76, 1024
NODAD = 0x02
"""IFA_F_NODAD: usable as a source at once, not when the kernel gets round to it."""

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread is in a namespace within the block."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        _setns(there)
        yield
    finally:
        _setns(home)
        os.close(there)
        os.close(home)


def ip(*words: str) -> str:
    """The `ip` program in this thread's namespace: somebody else's hand, and a second opinion."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class KernelLab:
    def __init__(self) -> None:
        self.host = f"te-{os.getpid()}-h"
        self.router = f"te-{os.getpid()}-r"

    def up(self) -> None:
        for name in (self.host, self.router):
            netns.create(name)
            with inside(name):
                for key in ("accept_dad", "accept_ra", "router_solicitations"):
                    with open(f"/proc/sys/net/ipv6/conf/default/{key}", "w") as file:
                        file.write("0")
        with IPRoute(netns=self.host) as host, IPRoute(netns=self.router) as router:
            for handle, six, four in ((host, HOST6, HOST4), (router, PEER6, PEER4)):
                handle.link("set", index=1, state="up")
                handle.addr("add", index=1, address=six, prefixlen=128, flags=NODAD)
                handle.addr("add", index=1, address=four, prefixlen=32)
            for number, (near, far) in enumerate(FAR_END.items(), start=1):
                host.link("add", ifname=near, kind="veth", peer={"ifname": far, "net_ns_fd": self.router})
                for handle, name, side in ((host, near, 1), (router, far, 2)):
                    (index,) = handle.link_lookup(ifname=name)
                    handle.link("set", index=index, state="up")
                    handle.addr("add", index=index, address=f"fd00:1:{number}::{side}", prefixlen=64, flags=NODAD)
                    handle.addr("add", index=index, address=f"10.127.{number}.{side - 1}", prefixlen=31)
            hops6 = [
                {"gateway": f"fd00:1:{n}::1", "oif": router.link_lookup(ifname=d)[0]} for n, d in ((1, "a"), (2, "b"))
            ]
            self._settled(host, BOTH)
            self._settled(router, tuple(FAR_END.values()))
            router.route("add", dst=f"{HOST6}/128", multipath=hops6, prefsrc=PEER6)
        self.restore_routes()

    @staticmethod
    def _settled(handle: IPRoute, devices: tuple[str, ...]) -> None:
        """Until the kernel has told itself of their carriers: it drops what is sent before."""
        until_s = time.monotonic() + 30
        for device in devices:
            while (state := handle.get_links(ifname=device)[0].get_attr("IFLA_OPERSTATE")) != "UP":
                assert time.monotonic() < until_s, f"{device} is {state}"

    def down(self) -> None:
        for name in (self.host, self.router):
            netns.remove(name)

    def index(self, device: str) -> int:
        with inside(self.host):
            return socket.if_nametoindex(device)

    def restore_routes(self) -> None:
        """What a routing daemon does when a carrier has come back."""
        for prefix, source, gateways in ((PREFIX6, HOST6, GATEWAY6), (PREFIX4, HOST4, GATEWAY4)):
            hops = [word for device, gateway in gateways.items() for word in ("nexthop", "via", gateway, "dev", device)]
            family = "-6" if ":" in prefix else "-4"
            with inside(self.host):
                ip(family, "route", "replace", prefix, "src", source, "metric", str(KERNEL_METRIC), *hops)

    def carrier(self, device: str, *, on: bool) -> None:
        with inside(self.router):
            ip("link", "set", "dev", FAR_END[device], "up" if on else "down")
