"""A fabric of network namespaces on this machine: one namespace per node, one more that all links run through.

    lab = NetnsLab(fabric, name="try", run_dir=Path("build/lab/try"))
    lab.up()
    fault = lab.fault(parse("blackhole:leaf1-spine1", fabric))
    fault.undo()
    lab.down()

Namespaces are called `lp-NAME-NODE`. Another process gets at the same lab with `NetnsLab.load(name)`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyroute2 import IPRoute

from lab.addressing import LOOPBACK_DEVICE, LOOPBACK_LABEL4, Forwarding, Plan, forwarding, plan
from lab.errors import LabError, near
from lab.faults import AnyFault
from lab.netns import build, namespace, processes, relay, repair, shaper, state, traffic
from lab.netns.breaker import ActiveFault, Breaker, Wire
from lab.netns.connections import Connections
from lab.netns.effects import TABLE
from lab.netns.nft import Nft
from lab.netns.removal import check_name, clear_the_way, need_root, remove
from lab.netns.session import Session
from lab.netns.state import RUNS, ActiveRecord, State, StoredFabric
from lab.qemu import hosts
from lab.qemu.guest import Guest
from lab.qemu.kernel import prepare
from topology.model import Fabric

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UpReport:
    """How long building took, how much was built, and what the lab found out about this kernel."""

    seconds: float
    nodes: int
    links: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WirePort:
    """Where a direction can be watched: what a device of the wire's namespace *receives* is what the sender sent."""

    namespace: str
    device: str
    index: int


class NetnsLab:
    """One lab. The constructor only stores; `up()` builds, `load()` finds one that is up."""

    def __init__(
        self, fabric: Fabric, *, name: str | None = None, run_dir: Path | None = None, hash_seed: bool | None = None,
        guests: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`hash_seed=False` builds as on a kernel without `fib_multipath_hash_seed` in a namespace. `guests`: hosts
        that are QEMU guests with a kernel of their own (`lab.qemu.hosts`)."""
        self.fabric = fabric
        self.guests = tuple(guests)
        self.name = name or fabric.name
        self.run_dir = (run_dir or RUNS / self.name).absolute()
        self._hash_seed = hash_seed
        self._stack = ExitStack()
        self._connections = Connections()
        self._fds: dict[str, int] = {}
        self._sessions: dict[str, Session] = {}
        self._wanted: dict[str, Forwarding] = {}
        self._lock = threading.RLock()
        self.talking: dict[str, Guest] = {}
        """Guests whose agents this process talks to; an agent serves one at a time."""
        self._booted: list[Guest] = []
        """Guests that this process has started and has to wait for."""

    def __enter__(self) -> NetnsLab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # life
    def up(self) -> UpReport:
        """Build the lab. What a crashed builder of the same name has left is taken away first.

        Raises LabError: not root, a lab of that name is up, a fabric or the kernel does not fit."""
        check_name(self.name)
        if not self.fabric.links:
            hint = "links to a host, a bridge of the machine or a tunnel are not built; `linkpass topology FILE` tells"
            raise LabError(f"{self.fabric.name} has no link between two of its nodes", hint)
        need_root()
        started = time.perf_counter()
        notes = list(clear_the_way(self.name, self.run_dir))
        kernel = build.probe_kernel(hash_seed=self._hash_seed)
        names = tuple(build.namespace_name(self.name, node) for node in (*self.plan.nodes, build.WIRE))
        own = (os.getpid(), processes.start_time(os.getpid()) or 0)
        stored = State(
            name=self.name, phase="building", builder=own, namespaces=names, fabric=StoredFabric.of(self.fabric)
        )
        state.make_lock(self.run_dir)
        self._save(stored)
        state.register(self.name, self.run_dir)
        try:
            with build.Builder(self.name, self.fabric, self.plan, kernel, self.guests) as builder:
                builder.build()
            if self.guests:
                hosts.boot(self, prepare(), self.guests, self._booted)
        except BaseException:
            self.down()
            raise
        seconds = time.perf_counter() - started
        notes += [*self.plan.notes, *kernel.notes]
        self._save(
            State(
                name=self.name,
                phase="up",
                builder=own,
                namespaces=names,
                fabric=stored.fabric,
                notes=tuple(notes),
                seconds=seconds,
                hash_seed=kernel.hash_seed,
                guests=self.guests,
            )
        )
        return UpReport(seconds, len(self.plan.nodes), len(self.plan.wires), tuple(notes))

    @classmethod
    def load(cls, lab: str | Path) -> NetnsLab:
        """The lab of that name, or of that run directory. LabError when there is none, or it was never finished."""
        run_dir = lab if isinstance(lab, Path) else state.find(lab) or RUNS / lab
        stored = state.read(run_dir / "state.json", State)
        if stored is None:
            known = state.labs()
            hint = f"labs here: {', '.join(known)}" if known else "build one: linkpass lab up FILE"
            raise LabError(f"no lab {str(lab)!r} is up", hint)
        if stored.phase != "up":
            raise LabError(f"lab {stored.name} was never finished", "clear it away: linkpass lab down FILE")
        found = cls(
            stored.fabric.fabric(), name=stored.name, run_dir=run_dir, hash_seed=stored.hash_seed, guests=stored.guests
        )
        for name in stored.namespaces:
            if namespace.inode_of(name) is None:
                raise LabError(
                    f"lab {stored.name} is damaged: namespace {name} is gone", "clear it away: linkpass lab down FILE"
                )
        return found

    def down(self) -> None:
        """Take everything of this lab away: processes, namespaces, state. No error when there is nothing."""
        self.close()
        remove(self.name, self.run_dir)
        for guest in self._booted:
            guest.stop()
        self._booted.clear()

    def close(self) -> None:
        """Let go of descriptors and sockets. The lab stays up; flaps that this process drives end."""
        if "_breaker" in self.__dict__:
            self._breaker.close()
            del self.__dict__["_breaker"]
        self._connections.close()
        with self._lock:
            self.__dict__.pop("_wire_index", None)
            self._fds.clear()
            self._sessions.clear()
            self._stack.close()

    # who and where
    @cached_property
    def plan(self) -> Plan:
        return plan(self.fabric)

    @property
    def names(self) -> dict[str, str]:
        """Loopback address, IPv6 and IPv4 -> node name."""
        return self.plan.names

    @property
    def notes(self) -> tuple[str, ...]:
        stored = state.read(self.run_dir / "state.json", State)
        return stored.notes if stored else ()

    def address(self, node: str, family: int = 6) -> str:
        """A node's loopback address."""
        self._check(node)
        return self.plan.nodes[node].v6 if family == 6 else self.plan.nodes[node].v4

    def interface(self, family: int = 6) -> str:
        """The name under which a program finds a node's loopback address of that family (GLOO_SOCKET_IFNAME)."""
        return LOOPBACK_DEVICE if family == 6 else LOOPBACK_LABEL4

    def uplinks(self, host: str) -> tuple[str, ...]:
        """Device names of a host's ports, in the order of the file."""
        self._check(host)
        return tuple(wire.end(host).device for wire in self.plan.wires_of(host))

    def namespace(self, node: str) -> str:
        return build.namespace_name(self.name, self._check(node))

    def host_dir(self, host: str) -> Path:
        """Where a host's daemon keeps its configuration, socket, journal and recording."""
        return self.run_dir / self._check(host)

    def wire_port(self, direction: str) -> WirePort:
        """Where all packets of a direction can be captured, before any fault takes them."""
        _, sender, _ = self.plan.direction(direction)
        device = sender.wire_device
        return WirePort(build.namespace_name(self.name, build.WIRE), device, self._wire_index[device])

    @contextmanager
    def in_netns(self, node: str) -> Iterator[None]:
        """Run a block with this thread inside a node's namespace. Its sockets stay there; do not await in it."""
        with namespace.inside(self.namespace_fd(self._check(node))):
            yield

    # processes
    def popen(self, node: str, argv: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside a node's namespace; `options` as for `subprocess.Popen`. `down` ends it.

        The child inherits the namespace of the thread that forks it, so this costs no more than any start. `/sys` is
        the machine's own: a program that reads `/sys/class/net` wants `python -m lab.netns.enter NAMESPACE -- …`.
        Of a host that is a guest this is its outside: `hosts.guest_of(lab, host)` reaches its inside."""
        with self.in_netns(node):
            child: subprocess.Popen[Any] = subprocess.Popen(argv, **options)
        self.adopt(node, child.pid, argv)
        return child

    def adopt(self, node: str, pid: int, argv: Sequence[str | os.PathLike[str]] = ()) -> None:
        """Record a process as this lab's (it is ended by `down`, stopped and killed by faults of its host)."""
        processes.record(self.run_dir, pid, node, tuple(os.fspath(word) for word in argv))

    def processes(self, node: str | None = None) -> list[processes.Process]:
        """Recorded processes that still run, of one node or of all."""
        return [one for one in processes.recorded(self.run_dir) if node in (None, one.node)]

    # faults
    def fault(self, fault: AnyFault) -> ActiveFault:
        """Put a fault in force now."""
        return self._breaker.inject(fault)

    def fault_elsewhere(self, fault: AnyFault, driver: Callable[[int], tuple[int, int]]) -> ActiveFault:
        """The same, but a flapping link is driven by a process that `driver` starts (fault id -> pid, start time)."""
        return self._breaker.inject(fault, elsewhere=driver)

    def faults(self) -> tuple[ActiveRecord, ...]:
        return self._breaker.active()

    def dropped(self) -> dict[int, int]:
        """Packets dropped so far by each fault in force."""
        return self._breaker.dropped()

    def undo(self, number: int) -> bool:
        """Take a fault off by its id; False when it is not in force."""
        return self._breaker.undo(number)

    def undo_all(self) -> int:
        """Take all faults off; how many there were."""
        return self._breaker.undo_all()

    def drive_flap(self, number: int) -> None:
        """Drive a flapping link that another process has put in force, until it is undone or over."""
        self._breaker.take_over(number)

    def repair_routes(self, node: str) -> int:
        """Put back the kernel's own next hops, groups and routes that carrier loss has deleted; how many requests.

        What linkpass has made is not looked at."""
        if node in self.guests:
            return hosts.repair(self, node)
        wanted = self._forwarding(node)
        with self._lock:
            session = self._session(node)
            requests = repair.missing(session, self._ports(node), wanted, self._buckets(node))
            session.apply(requests)
        return len(requests)

    def carriers(self, node: str) -> dict[str, bool]:
        """Which of a node's devices have carrier, its loopbacks included."""
        return {device: up for device, (_, up) in self._ports(self._check(node)).items()}

    # measuring
    def counters(self) -> traffic.Counters:
        """Packets and bytes of every direction since the lab was built."""
        return self.ask(build.WIRE, traffic.read_counters, self._wire_index, self.plan, time.monotonic())

    def carrying(self, over_s: float = 0.1, at_least_bps: float = 1e6) -> dict[str, float]:
        """Directions that carry traffic now: direction -> bits/s over the next `over_s` seconds, busiest first."""
        before = self.counters()
        time.sleep(over_s)
        now = self.counters().since(before)
        rates = {name: count.bytes * 8 / now.at_s for name, count in now.directions.items()}
        return {name: bps for name, bps in sorted(rates.items(), key=lambda item: -item[1]) if bps >= at_least_bps}

    def retransmits(self) -> dict[str, int]:
        """TCP segments retransmitted by each host since the lab was built."""
        return {host: count.segments for host, count in self.sent_again().items()}

    def sent_again(self) -> dict[str, traffic.SentAgain]:
        """The same, with how many of them were needless. Guests are not asked."""
        found = {}
        for host in self.fabric.hosts:
            if host.name not in self.guests:
                with self.in_netns(host.name):
                    found[host.name] = traffic.sent_again()
        return found

    # inside
    @cached_property
    def _breaker(self) -> Breaker:
        nft = Nft(self.namespace_fd(build.WIRE)).open()
        self._stack.callback(nft.close)
        nft.counters(TABLE)  # the first call reads the whole table: not in the first fault's time
        wire = Wire(
            self._stack.enter_context(Session(self.namespace_fd(build.WIRE))),
            nft,
            self._shape,
            self._wire_index,
            self._pull,
            self._relay,
        )
        return Breaker(self.run_dir, self.fabric, self.plan, wire, self._members, self._repair)

    @cached_property
    def _wire_index(self) -> Mapping[str, int]:
        with namespace.inside(self.namespace_fd(build.WIRE)):
            return {name: number for number, name in socket.if_nameindex()}

    def _pull(self, node: str, device: str, up: bool) -> None:  # noqa: FBT001 - a callback of three plain values
        if node in self.guests:
            hosts.guest_of(self, node).set_link(device, up=up)

    def _relay(self, number: int, pairs: list[tuple[str, str]], by_s: float) -> tuple[int, int]:
        def adopt(pid: int, argv: list[str]) -> None:
            self.adopt("", pid, argv)

        return relay.start(self.namespace_fd(build.WIRE), pairs, by_s, self.run_dir / f"relay-{number}.log", adopt)

    def _shape(self, device: str, bps: int | None) -> None:
        self.ask(build.WIRE, shaper.shape, self._wire_index[device], bps)

    def _ports(self, node: str) -> dict[str, tuple[int, bool]]:
        return self.ask(node, repair.ports)

    def ask(self, node: str, question: Callable[Concatenate[IPRoute, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something with the pyroute2 connection into a node's namespace, or the wire's."""
        fd = self.namespace_fd(node)
        return self._connections.run(lambda: question(self._connections.to(fd), *args, **kwargs))

    def _repair(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self.repair_routes(node)

    def _members(self, node: str) -> list[tuple[int, int]]:
        """Processes of a node: those recorded and whoever else runs in its namespace (children that they forked)."""
        found = {(one.pid, one.started) for one in self.processes(node)}
        if (inode := namespace.inode_of(self.namespace(node))) is not None:
            found.update(processes.in_namespaces([inode])[inode])
        return sorted(found)

    def _forwarding(self, node: str) -> Forwarding:
        if self._check(node) not in self._wanted:
            self._wanted[node] = forwarding(self.fabric, self.plan, node)
        return self._wanted[node]

    def _buckets(self, node: str) -> int:
        hash_seed = build.probe_kernel(hash_seed=self._hash_seed).hash_seed
        return build.buckets(self.plan.nodes[node], self._forwarding(node), hash_seed=hash_seed)

    def _check(self, node: str) -> str:
        if node not in self.plan.nodes:
            raise LabError(f"no node {node!r} in lab {self.name}; {near(node, self.plan.nodes)}")
        return node

    def namespace_fd(self, node: str) -> int:
        """An open descriptor of a node's namespace, or the wire's; it stays the lab's."""
        with self._lock:
            if node not in self._fds:
                path = namespace.path_of(build.namespace_name(self.name, node))
                try:
                    self._fds[node] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise LabError(f"lab {self.name} is not up ({path} is missing)", "linkpass lab up FILE") from None
                self._stack.callback(os.close, self._fds[node])
            return self._fds[node]

    def _session(self, node: str) -> Session:
        if node not in self._sessions:
            self._sessions[node] = self._stack.enter_context(Session(self.namespace_fd(node)))
        return self._sessions[node]

    def _save(self, stored: State) -> None:
        state.write(self.run_dir / "state.json", stored)
