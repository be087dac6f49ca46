"""Traffic with chosen flow labels between hosts of a lab, and bounded waiting for the real kernel."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable

from lab.netns import namespace
from lab.netns.lab import NetnsLab

_IPV6_FLOWINFO_SEND = 33


def left_of(name: str) -> list[str]:
    return [entry for entry in os.listdir(namespace.NETNS_DIR) if entry.startswith(f"lp-{name}-")]


def until(true: Callable[[], bool], patience_s: float = 30.0) -> bool:
    """Poll a real kernel until something holds."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


class Talk:
    """UDP from one host to another with a flow label of the sender's choice; the label travels in the payload too."""

    def __init__(self, lab: NetnsLab, source: str, target: str, family: int = 6) -> None:
        self.family = socket.AF_INET6 if family == 6 else socket.AF_INET
        self.to = lab.address(target, family)
        with lab.in_netns(source):
            self.out = socket.socket(self.family, socket.SOCK_DGRAM)
        with lab.in_netns(target):
            self.into = socket.socket(self.family, socket.SOCK_DGRAM)
        self.into.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        self.into.bind((self.to, 0))
        self.into.setblocking(False)
        self.port = self.into.getsockname()[1]
        if family == 6:
            self.out.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
        self.heard: Counter[int] = Counter()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.out.close()
        self.into.close()

    def say(self, labels: Iterable[int], times: int = 1) -> int:
        """Send; how many datagrams the kernel took."""
        sent = 0
        for label in labels:
            for _ in range(times):
                try:
                    if self.family == socket.AF_INET6:
                        self.out.sendto(struct.pack("=I", label), (self.to, self.port, label, 0))
                    else:
                        self.out.sendto(struct.pack("=I", label), (self.to, self.port))
                except OSError:
                    continue  # an ICMP error for an earlier datagram, or no route
                sent += 1
        return sent

    def hear(self, expected: int = 1 << 30, patience_s: float = 0.3) -> int:
        """Receive until that many have come in all, or nothing more comes; how many have come since the start."""
        while self.heard.total() < expected and select.select([self.into], [], [], patience_s)[0]:
            try:
                while True:
                    self.heard[struct.unpack("=I", self.into.recv(100))[0]] += 1
            except BlockingIOError:
                continue
        return self.heard.total()
