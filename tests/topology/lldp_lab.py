"""Nodes that are namespaces, each with an lldpd of its own, cabled as a fabric says."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pyroute2 import netns

from topology.model import Fabric, Link

ETHERTYPE = 0x88CC


class LldpLab:
    def __init__(self, fabric: Fabric) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lldp-"))
        self._folder.chmod(0o755)  # lldpd's other process is no root, and asks whether its socket is taken
        self._names = [node.name for node in fabric.nodes]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            # an order by lldpcli while lldpd starts would lock out that by which it ends its own pause
            (self._folder / "conf").write_text("configure lldp tx-interval 1\n")
            for name in self._names:
                subprocess.run(["ip", "netns", "add", self._space(name)], check=True)
            for link in fabric.links:
                self.cable(link)
            for name in self._names:
                self._start(name)
        except BaseException:
            self.close()
            raise

    def _space(self, name: str) -> str:
        return f"tl-{os.getpid()}-{name}"

    def _start(self, name: str) -> None:
        """In the foreground, with a socket and a host name of its own."""
        daemon = ["lldpd", "-d", "-u", self._socket(name), "-O", str(self._folder / "conf")]
        script = f"hostname {name}; exec {' '.join(daemon)}"
        self._daemons[name] = subprocess.Popen(
            ["ip", "netns", "exec", self._space(name), "unshare", "--uts", "sh", "-c", script],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def _socket(self, name: str) -> str:
        return str(self._folder / f"{name}.sock")

    def asking(self, name: str, *words: str) -> list[str]:
        return ["lldpcli", "-u", self._socket(name), *words]

    def _asks(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.asking(name, *words), capture_output=True, text=True, timeout=60, check=False)

    def told(self, name: str, form: str) -> str:
        """What `lldpctl` prints of the node's neighbours."""
        return self._asks(name, "-f", form, "show", "neighbors", "details").stdout

    def chassis(self, name: str, form: str) -> str:
        return self._asks(name, "-f", form, "show", "chassis").stdout

    def cable(self, link: Link) -> None:
        a, b = (self._space(port.node) for port in (link.a, link.b))
        made = f"link add {link.a.name} netns {a} type veth peer name {link.b.name} netns {b}"
        subprocess.run(["ip", *made.split()], check=True)
        for space, port in ((a, link.a), (b, link.b)):
            subprocess.run(["ip", "-n", space, "link", "set", port.name, "up"], check=True)

    def uncable(self, links: Collection[Link]) -> None:
        for link in links:
            subprocess.run(["ip", "-n", self._space(link.a.node), "link", "del", link.a.name], check=True)

    def frame(self, node: str, port: str) -> bytes:
        """The next LLDP frame that arrives at a port."""
        netns.pushns(self._space(node))
        try:
            # protocol 0 hears nothing: with one, frames of the other ports would queue up before `bind`
            listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        finally:
            netns.popns()
        with listener:
            listener.bind((port, ETHERTYPE))
            listener.settimeout(60)
            while True:
                frame, (_, _, kind, _, _) = listener.recvfrom(2048)
                if kind != socket.PACKET_OUTGOING:  # type: ignore[attr-defined]
                    return frame

    def until(self, true: Callable[[], bool], timeout_s: float = 60) -> None:
        until_s = time.monotonic() + timeout_s
        while not true():
            assert all(daemon.poll() is None for daemon in self._daemons.values()), "an lldpd has ended"
            assert time.monotonic() < until_s, self._story()
            time.sleep(0.05)

    def _story(self) -> str:
        """What every node hears, for the reader of a failure."""
        return "\n".join(f"{name}: {self._asks(name, 'show', 'neighbors', 'summary').stdout}" for name in self._names)

    def close(self) -> None:
        for daemon in self._daemons.values():
            daemon.terminate()  # it ends its unprivileged process itself
        for daemon in self._daemons.values():
            daemon.wait(60)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True)
        shutil.rmtree(self._folder)
