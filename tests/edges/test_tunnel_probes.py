"""Probes inside tunnels: they prove what the data will meet, and peers tell each other where tunnels end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
from roomy_fabric import FIRST_PORT, PACKET_BYTES, UDP_PORT, VNI, ip, make_room, roomy, ways

from lab.netns.lab import NetnsLab
from linkpass.core import events as ev
from linkpass.core.commands import ProbeTarget, SetProbes
from linkpass.core.settings import CoreSettings, Detection, Probing
from linkpass.edges.kernel.tunnels import END_NAME, TunnelEdge, sweep_tunnels
from linkpass.edges.probes import ProbeEdge
from linkpass.wire.vxlan import End, mac_of

pytestmark = pytest.mark.netns
END = End(UDP_PORT, VNI)
HERE, THERE = "host1", "host3"
PORTS = (FIRST_PORT, FIRST_PORT + 1, FIRST_PORT + 2, FIRST_PORT + 3)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    made = roomy(tmp_path_factory.mktemp("lab"), "p")
    try:
        made.up()
        make_room(made)
        yield made
    finally:
        made.down()


class Host:
    """A host's probes and tunnels, as the daemon would wire them; what it is told."""

    def __init__(self, lab: NetnsLab, name: str, peer: str, protocol: str) -> None:
        self.lab, self.name, self.peer = lab, name, lab.address(peer, 4)
        self.told: list[ev.Event] = []
        self.ends: list[End | None] = []
        settings = CoreSettings(
            host=name, address=lab.address(name, 4), probing=Probing(protocol=protocol),  # type: ignore[arg-type]
            detection=Detection(grace_s=0.05),
        )  # fmt: skip
        self.probes = ProbeEdge(settings, b"0123456789abcdef", self.told.append)
        self.tunnels = TunnelEdge(settings.address, END, first_port=FIRST_PORT, per_uplink=2)

    def open(self, *, tunnels: bool = True) -> None:
        with self.lab.in_netns(self.name):
            self.probes.open()
            self.probes.on_end(self._on_end)
            for name, way in ways(self.lab, self.name).items():
                with self.lab.in_netns(self.name):
                    wire = next(one for one in self.lab.plan.wires_of(self.name) if one.end(self.name).device == name)
                    near, far = wire.both_ways()[wire.b.node == self.name]
                    macs = [bytes.fromhex(end.mac.replace(":", "")) for end in (near, far)]
                    self.probes.set_uplink(name, way.device, *macs)
            if tunnels:
                self.open_tunnels()
        targets = [ProbeTarget(self.peer, name, 0, 0.01) for name in ("eth1", "eth2")]
        targets += [ProbeTarget(self.peer, "eth1" if port < PORTS[2] else "eth2", port, 0.01) for port in PORTS]
        self.probes.set_probes(SetProbes(cmd_id=1, cause="", targets=tuple(targets)))

    def open_tunnels(self) -> None:
        with self.lab.in_netns(self.name):
            self.tunnels.open()
            self.tunnels.set_ways(ways(self.lab, self.name), PACKET_BYTES)
            self.probes.set_tunnels({port: (one.name, one.mark) for port, one in self.tunnels.tunnels.items()})
            self.probes.set_end(END, END_NAME, self.tunnels.end_index)
            self.tunnels.set_peer(self.peer, self.probes.end_of(self.peer))

    def close(self) -> None:
        self.probes.close()
        self.tunnels.close()
        with self.lab.in_netns(self.name):
            sweep_tunnels()

    def _on_end(self, peer: str, end: End | None) -> None:
        self.ends.append(end)
        if self.tunnels.tunnels:
            self.tunnels.set_peer(peer, end)

    def evidence(self) -> dict[int, set[str]]:
        """Label -> what was last said of its paths."""
        last = {(one.uplink, one.label): one.evidence for one in self.told if isinstance(one, ev.PathEvidence)}
        found: dict[int, set[str]] = {}
        for (_, label), evidence in last.items():
            found.setdefault(label, set()).add(evidence)
        return found


@asynccontextmanager
async def hosts(lab: NetnsLab, protocol: str = "tcp", *, far: bool = True) -> AsyncIterator[tuple[Host, Host]]:
    made = Host(lab, HERE, THERE, protocol), Host(lab, THERE, HERE, protocol)
    with ExitStack() as stack:
        for host in made:
            stack.callback(host.close)
        made[0].open()
        made[1].open(tunnels=far)
        yield made


async def until(true: Callable[[], bool]) -> None:
    for _ in range(6000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


ALL_GOOD = {0: {"good"}, **{port: {"good"} for port in PORTS}}


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
async def test_each_tunnel_is_proved_by_probes_inside_it(fabric: NetnsLab, protocol: str) -> None:
    async with hosts(fabric, protocol) as (here, there):
        await until(lambda: here.evidence() == there.evidence() == ALL_GOOD)
        assert here.ends[-1] == there.ends[-1] == END


async def test_what_a_peer_has_no_end_for_is_never_good_and_never_bad(fabric: NetnsLab) -> None:
    async with hosts(fabric, far=False) as (here, there):
        await until(lambda: here.evidence() == {0: {"good"}})
        await asyncio.sleep(0.3)
        assert here.evidence() == {0: {"good"}} and END not in here.ends
        there.open_tunnels()
        await until(lambda: here.evidence() == there.evidence() == ALL_GOOD)
        there.probes.set_end(None)
        await until(lambda: here.ends[-1] is None)


def stop(lab: NetnsLab, where: str, peer: str) -> Callable[[], None]:
    """Break something that the data in tunnels meets; what puts it right again."""
    if where == "end":
        with lab.in_netns(THERE):
            ip("link", "del", END_NAME)
    elif where == "forwarding entry":
        mac = mac_of(socket.inet_aton(peer)).hex(":")
        with lab.in_netns(HERE):
            for port in PORTS:
                subprocess.run(["bridge", "fdb", "del", mac, "dev", f"linkpass-{port}"], check=True)
    else:
        host, hook = (HERE, "output") if where.startswith("sender") else (THERE, "input")
        chain = f"chain c {{\n type filter hook {hook} priority 0;\n udp dport {UDP_PORT} drop\n }}"
        with lab.in_netns(host):
            subprocess.run(["nft", "-f", "-"], input=f"table ip t {{\n {chain}\n}}\n", text=True, check=True)

        def undo() -> None:
            with lab.in_netns(host):
                subprocess.run(["nft", "delete", "table", "ip", "t"], check=True)

        return undo
    return lambda: None


@pytest.mark.parametrize("where", ["sender's filter", "receiver's filter", "forwarding entry", "end"])
async def test_what_stops_the_data_stops_the_probes(fabric: NetnsLab, where: str) -> None:
    """A probe meets all that a packet in the tunnel would: it is put in by the kernel, and heard where it comes out."""
    async with hosts(fabric) as (here, _):
        await until(lambda: here.evidence() == ALL_GOOD)
        undo = stop(fabric, where, here.peer)
        try:
            await until(lambda: here.evidence() == {0: {"good"}, **{port: {"blackhole"} for port in PORTS}})
        finally:
            undo()
