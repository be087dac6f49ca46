"""Questions as packets: frames pinned to an uplink, or segments that the kernel's own routes send."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from linkpass.wire import bpf, probe
from linkpass.wire.frame import ACK, ETHERNET_BYTES, RST, TCP, Headers, Template
from linkpass.wire.vxlan import End, Tunnelled

_IPV6_FLOWINFO_SEND: Final = 33
_IPV6_FLOWLABEL_MGR: Final = 32
_IPV6_HOPLIMIT: Final = 52


class Question(NamedTuple):
    """Who is at this hop? `uplink` "": wherever the kernel's routes lead."""

    uplink: str
    label: int
    hop: int
    sport: int
    dport: int
    copy: bool = False
    """A copy of a data flow's header, not a probe's."""


class UnanswerableError(Exception):
    """A trace cannot be made: the message says why."""


class _Uplink(msgspec.Struct):
    ifindex: int
    mac: bytes
    gateway_mac: bytes
    socket: socket.socket
    usable: bool = True

    @property
    def ready(self) -> bool:
        return self.usable and bool(self.gateway_mac)


class Sender:
    """Sockets are made in the network namespace of the thread that calls `open` and `set_uplink`."""

    def __init__(self, own: bytes, protocol: int, dscp: int, device: bytes) -> None:
        self._own, self._protocol, self._dscp, self._device = own, protocol, dscp, device
        self._six = len(own) == 16
        self._uplinks: dict[str, _Uplink] = {}
        self._names: dict[int, str] = {}
        self._routed: socket.socket | None = None
        self._leased: set[tuple[bytes, int]] = set()
        self.rerouted = False
        """Whether routed questions are to take the way of the job's relabelled packets. netfilter looks up the route of
        a packet that it has changed without its protocol (ip6_route_me_harder): another hash than the first lookup's.
        They leave with one hop too many, which the label edge's rule takes away."""
        self.end_of: Callable[[bytes], End | None] = lambda dst: None
        """Where a host takes packets out of tunnels."""

    def open(self) -> None:
        """OSError when raw sockets are not permitted."""
        self._routed = self._open_routed()

    def _open_routed(self) -> socket.socket:
        """For packets that the kernel's routes send: a raw socket of the probes' protocol that receives nothing."""
        out = socket.socket(socket.AF_INET6 if self._six else socket.AF_INET, socket.SOCK_RAW, self._protocol)
        try:
            out.setblocking(False)
            if self._device:
                out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._device + b"\0")
            nothing = bpf.Filter(bpf.nothing())
            out.setsockopt(socket.SOL_SOCKET, bpf.SO_ATTACH_FILTER, nothing.fprog)
            if self._six:
                out.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
            out.bind((_text(self._own), 0))
        except OSError:
            out.close()
            raise
        return out

    def close(self) -> None:
        """Safe to call twice."""
        for known in self._uplinks.values():
            known.socket.close()
        self._uplinks.clear()
        self._names.clear()
        if self._routed is not None:
            self._routed.close()
            self._routed = None
            self._leased.clear()

    def set_uplink(self, name: str, ifindex: int, mac: bytes, gateway_mac: bytes = b"") -> None:
        """As of the probe edge: MACs are 6 bytes, b"" while the gateway's is not known."""
        known = self._uplinks.get(name)
        if known is not None and (known.ifindex, known.mac) == (ifindex, mac):
            known.gateway_mac, known.usable = gateway_mac, True
            return
        if known is not None:
            self._names.pop(known.ifindex, None)
            self._uplinks.pop(name).socket.close()
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # protocol 0 receives nothing
        try:
            out.setblocking(False)
            out.bind((name, 0))
        except BaseException:
            out.close()
            raise
        self._uplinks[name] = _Uplink(ifindex, mac, gateway_mac, out)
        self._names[ifindex] = name

    def set_neighbour(self, name: str, gateway_mac: bytes) -> None:
        if name in self._uplinks:
            self._uplinks[name].gateway_mac = gateway_mac

    def drop_uplink(self, name: str) -> None:
        """Nothing is sent over it until `set_uplink`. The socket stays: closing one takes 10 ms (an RCU grace period),
        and this is called when the loop has to move traffic."""
        if name in self._uplinks:
            self._uplinks[name].usable = False

    def ready(self) -> list[str]:
        """The uplinks over which questions can be asked."""
        return [name for name, known in self._uplinks.items() if known.ready]

    def uplink(self, ifindex: int) -> str:
        """The name of the uplink with that interface number; empty: none of ours."""
        return self._names.get(ifindex, "")

    def template(self, dst: bytes, question: Question) -> Template:
        known = self._uplinks.get(question.uplink)
        if question.uplink and (known is None or not known.ready):
            raise UnanswerableError(f"{question.uplink} is not usable")
        end = None
        if self.in_tunnel(question):
            end = self.end_of(dst)
            if end is None:
                raise UnanswerableError("it has no end of the tunnels any more")
        headers = Headers(
            known.mac if known else bytes(6),
            known.gateway_mac if known else bytes(6),
            self._own,
            dst,
            TCP if question.copy else self._protocol,
            question.sport,
            question.dport,
            label=question.label,
            hop_limit=question.hop,
            dscp=self._dscp,
            flags=ACK if question.copy else RST,
            spoil=question.copy,
        )
        return Template(headers) if end is None else Tunnelled(headers, end, question.label)

    def in_tunnel(self, question: Question) -> bool:
        """IPv4 has no labels but the tunnels' source ports."""
        return bool(question.label) and not self._six

    def send(self, template: Template, question: Question, token: int) -> None:
        # the version byte tells a peer's daemon that a packet which came too far is a trace's
        frame = template.frame(bytes((probe.TRACE_VERSION, 0, 0, 0)) + token.to_bytes(4, "big"), token)
        try:
            if question.uplink:
                known = self._uplinks.get(question.uplink)
                if known is None or not known.usable:
                    raise UnanswerableError(f"{question.uplink} is not usable")
                known.socket.send(frame)
            else:
                self._send_routed(frame[ETHERNET_BYTES:], template.headers)
        except BlockingIOError:
            pass  # the queue is full: the question is asked again
        except OSError as error:
            raise UnanswerableError(f"{question.uplink or 'routed trace'}: {error.strerror}") from error

    def _send_routed(self, packet: bytes, headers: Headers) -> None:
        """Let the kernel's routes choose the uplink, by the same fields as for the job's flows.

        While any socket of the namespace holds a label exclusively, other labels must be leased first (EINVAL)."""
        if self._routed is None:
            raise UnanswerableError("the edge is closed")
        where = _text(headers.dst)
        if not self._six:
            limit = [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("=i", headers.hop_limit))]
            self._routed.sendmsg([packet[20:]], limit, 0, (where, 0))
            return
        hops = headers.hop_limit + self.rerouted
        limit = [(socket.IPPROTO_IPV6, _IPV6_HOPLIMIT, struct.pack("=i", hops))]
        place = (where, 0, headers.label, 0)
        try:
            self._routed.sendmsg([packet[40:]], limit, 0, place)
        except OSError as error:
            if error.errno != errno.EINVAL or (headers.dst, headers.label) in self._leased:
                raise
            self._lease(headers)
            self._routed.sendmsg([packet[40:]], limit, 0, place)

    def _lease(self, headers: Headers) -> None:
        """struct in6_flowlabel_req: get, shared by anyone, create. The lease ends with the socket."""
        assert self._routed is not None
        request = headers.dst + struct.pack("!I", headers.label) + struct.pack("=BBHHHI", 0, 255, 1, 0, 0, 0)
        self._routed.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWLABEL_MGR, request)
        self._leased.add((headers.dst, headers.label))


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET6 if len(address) == 16 else socket.AF_INET, address)
