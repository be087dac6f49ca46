"""The leaf-spine fabric with room for tunnels: links carry 1600 bytes, the hosts' IPv4 routes let 1500 through."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.netns import namespace
from lab.netns.build import WIRE, namespace_name
from lab.netns.lab import NetnsLab
from linkpass.edges.kernel.tunnels import TunnelWay
from topology.sources.containerlab import parse

FILE = Path(__file__).parents[1] / "lab/leaf-spine.clab.yml"
LINK_BYTES, PACKET_BYTES = 1600, 1500
UDP_PORT, VNI, FIRST_PORT = 3787, 0x4C50, 52000
PREFIX4 = "10.255.0.0/24"


def roomy(folder: Path, tag: str = "") -> NetnsLab:
    """A lab that is not up yet; `make_room` comes after `up`."""
    return NetnsLab(parse(FILE.read_text(), str(FILE)), name=f"tt{os.getpid()}{tag}", run_dir=folder)


def make_room(lab: NetnsLab, link_bytes: int = LINK_BYTES, packet_bytes: int = PACKET_BYTES) -> None:
    for node in (WIRE, *lab.plan.nodes):
        with namespace.inside(namespace_name(lab.name, node)):
            devices = [name for _, name in socket.if_nameindex() if name not in ("lo", "lo0")]
            ip("-batch", "-", lines=[f"link set {name} mtu {link_bytes}" for name in devices])
            if node in lab.plan.nodes and lab.plan.nodes[node].host:
                routes = [line for line in ip("-4", "route", "show").splitlines() if " nhid " in line]
                names = ("nhid", "proto", "src", "metric")
                for words in (line.split() for line in routes):
                    kept = [part for name in names for part in (name, words[words.index(name) + 1])]
                    ip("route", "replace", words[0], *kept, "mtu", str(packet_bytes))


def ip(*words: str, lines: list[str] | None = None) -> str:
    """The `ip` program in this thread's namespace."""
    text = "\n".join(lines) if lines is not None else None
    return subprocess.run(["ip", *words], input=text, check=True, capture_output=True, text=True).stdout


def ways(lab: NetnsLab, host: str) -> dict[str, TunnelWay]:
    """A host's uplinks as its tunnels need them."""
    found = {}
    with lab.in_netns(host):
        index = {name: number for number, name in socket.if_nameindex()}
        for wire in lab.plan.wires_of(host):
            near, far = wire.both_ways()[wire.b.node == host]
            mtu = int(Path(f"/proc/sys/net/ipv6/conf/{near.device}/mtu").read_text())
            found[near.device] = TunnelWay(index[near.device], mtu, far.v4)
    return found


class Seen:
    """Packets in tunnels as they pass the switches: (switch, outer source port), in the order of their arrival."""

    def __init__(self, lab: NetnsLab) -> None:
        self._sockets: dict[str, socket.socket] = {}
        for switch in lab.fabric.switches:
            with lab.in_netns(switch.name):
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
            sock.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
            sock.setblocking(False)
            self._sockets[switch.name] = sock

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def take(self, source: str) -> list[tuple[str, int]]:
        """What has come from a host in tunnels, and in which switches; source port 0: a packet outside of tunnels."""
        found = []
        wanted = socket.inet_aton(source)
        for name, sock in self._sockets.items():
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, where = sock.recvfrom(64)
                    if where[2] == 4 or data[12:16] != wanted:  # PACKET_OUTGOING
                        continue
                    inside = data[9] == 17 and int.from_bytes(data[22:24], "big") == UDP_PORT
                    found.append((name, int.from_bytes(data[20:22], "big") if inside else 0))
        return found

    def route(self, source: str) -> tuple[set[str], set[int]]:
        """The switches passed, and the source ports seen."""
        found = self.take(source)
        return {name for name, _ in found}, {port for _, port in found}


@contextlib.contextmanager
def talking(lab: NetnsLab, client: str, server: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """An IPv4 TCP connection between the loopback addresses of two hosts: (the client's end, the server's)."""
    with contextlib.ExitStack() as stack:
        with lab.in_netns(server):
            listener = stack.enter_context(socket.create_server((lab.address(server, 4), 0)))
        with lab.in_netns(client):
            ours = socket.create_connection(listener.getsockname(), 30, (lab.address(client, 4), 0))
        theirs = stack.enter_context(listener.accept()[0])
        stack.enter_context(ours)
        for one in (ours, theirs):
            one.settimeout(30)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield ours, theirs


def say(ours: socket.socket, theirs: socket.socket, data: bytes = b"x") -> None:
    """Send, and wait until all of it has arrived."""
    ours.sendall(data)
    left = len(data)
    while left:
        left -= len(theirs.recv(1 << 20))
