"""A host with two uplinks to a switch behind which its peers live, in namespaces, for the kernel edges' contract tests.

    host fd02:ff::1 - eth1 ------ p1 \\
                      eth2 ------ p2 / far: fd02:ff::2, fd02:ff::3, and fd02:ee::2 outside the prefix

The host's own route to the peers is one of equal-cost ways, as a routing daemon would leave it; the same in IPv4."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lab.netns import namespace

PREFIX6, PREFIX4 = "fd02:ff::/64", "10.253.0.0/24"
OWN6, OWN4 = "fd02:ff::1", "10.253.0.1"
PEER6, PEER4 = "fd02:ff::2", "10.253.0.2"
OTHER6 = "fd02:ff::3"
OUTSIDE6 = "fd02:ee::2"
UPLINKS = ("eth1", "eth2")
METRIC = 1024


class TwoUplinks:
    """`up` makes the namespaces, `down` removes them."""

    def __init__(self, tag: str = "") -> None:
        self.host = f"te-{os.getpid()}{tag}h"
        self.far = f"te-{os.getpid()}{tag}f"

    def up(self) -> None:
        for name in (self.host, self.far):
            os.close(namespace.create(name))
            with namespace.inside(name):
                for path, value in (
                    ("ipv6/conf/default/accept_dad", 0),
                    ("ipv6/conf/all/forwarding", 1),
                    ("ipv4/ip_forward", 1),
                ):
                    with open(f"/proc/sys/net/{path}", "w") as file:
                        file.write(str(value))
        far = ["link set lo up"]
        host = ["link set lo up", f"addr add {OWN6}/128 dev lo nodad", f"addr add {OWN4}/32 dev lo"]
        self.ip(self.host, *(f"link add eth{n} up type veth peer name p{n} netns {self.far}" for n in range(1, 3)))
        for number, uplink in enumerate(UPLINKS, start=1):
            host += [
                f"addr add fd02:1:{number}::a/64 dev {uplink} nodad",
                f"addr add 10.125.{number}.0/31 dev {uplink}",
            ]
            far += [
                f"addr add fd02:1:{number}::b/64 dev p{number} nodad",
                f"addr add 10.125.{number}.1/31 dev p{number}",
            ]
        far += [f"addr add {address}/128 dev lo nodad" for address in (PEER6, OTHER6, OUTSIDE6)]
        far += [
            f"addr add {PEER4}/32 dev lo",
            f"route add {OWN6}/128 nexthop via fd02:1:1::a nexthop via fd02:1:2::a",
            f"route add {OWN4}/32 src {PEER4} nexthop via 10.125.1.0 nexthop via 10.125.2.0",
        ]
        ways = "nexthop via fd02:1:1::b dev eth1 nexthop via fd02:1:2::b dev eth2"
        host += [
            f"route add {PREFIX6} metric {METRIC} src {OWN6} {ways}",
            f"route add fd02:ee::/64 metric {METRIC} src {OWN6} {ways}",
            f"route add {PREFIX4} metric {METRIC} src {OWN4}"
            " nexthop via 10.125.1.1 dev eth1 nexthop via 10.125.2.1 dev eth2",
        ]
        self.ip(self.far, *(f"link set p{n} up" for n in range(1, 3)))
        self.settled()
        self.ip(self.far, *far)
        self.ip(self.host, *host)

    def settled(self) -> None:
        """Wait until both uplinks have their carrier, at both ends: the kernel tells itself of it a moment later."""
        until_s = time.monotonic() + 30
        for name in (self.host, self.far):
            while "NO-CARRIER" in (shown := self.show(name, "link")) or shown.count("state UP") < 2:
                assert time.monotonic() < until_s, shown

    def down(self) -> None:
        for name in (self.host, self.far):
            namespace.remove(name)

    @staticmethod
    def ip(name: str, *lines: str) -> None:
        """Lines of `ip -batch` in a namespace."""
        subprocess.run(["ip", "-n", name, "-batch", "-"], input="\n".join(lines), text=True, check=True)

    @staticmethod
    def show(name: str, *words: str) -> str:
        return subprocess.run(["ip", "-n", name, *words], text=True, check=True, capture_output=True).stdout

    def on_host(self) -> AbstractContextManager[None]:
        return namespace.inside(self.host)

    def on_far(self) -> AbstractContextManager[None]:
        return namespace.inside(self.far)

    def carrier(self, uplink: str, *, up: bool) -> None:
        """Take an uplink's carrier away, or give it back, without touching the host's own state."""
        self.ip(self.far, f"link set p{UPLINKS.index(uplink) + 1} {'up' if up else 'down'}")

    @contextmanager
    def server(self, address: str = PEER6) -> Iterator[socket.socket]:
        """A listening TCP socket of the peers, on a port of the kernel's choice."""
        with self.on_far():
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            server = socket.create_server((address, 0), family=family)
        with server:
            yield server

    def connect(self, server: socket.socket) -> socket.socket:
        """A connection from the host's own address to a server of the peers."""
        address = server.getsockname()[:2]
        with self.on_host():
            return socket.create_connection(address, 30, source_address=(OWN6 if ":" in address[0] else OWN4, 0))
