"""A lab on the real kernel: every path of every pair, what the kernel was told, and taking it away again."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from talk import Talk, left_of, until

from lab.errors import LabError
from lab.faults import parse
from lab.netns import namespace, nexthops, processes, state
from lab.netns.lab import NetnsLab
from lab.netns.removal import remove
from lab.netns.session import Session
from linkpass.wire import rtnl
from topology.model import Fabric, Node

LAB_FILES = Path(__file__).parents[2] / "lab"

pytestmark = pytest.mark.netns

LABELS = range(1, 129)


def walks(lab: NetnsLab, source: str, target: str) -> set[tuple[str, ...]]:
    """The paths (as sets of directions, in the fabric's order) that 128 flow labels take between two hosts."""
    found = set()
    with Talk(lab, source, target) as talk:
        for label in LABELS:
            before = lab.counters()
            assert talk.say([label], 8) == 8
            talk.hear(8 * label)
            used = lab.counters().since(before).directions
            found.add(tuple(sorted(name for name, count in used.items() if count.packets >= 8)))
        assert talk.hear(8 * len(LABELS)) == 8 * len(LABELS)
    return found


def test_every_pair_talks_over_every_equal_cost_path(whole: NetnsLab) -> None:
    hosts = [host.name for host in whole.fabric.hosts]
    for source in hosts:
        for target in hosts:
            if source != target:
                paths = {tuple(sorted(p.directions)) for p in whole.fabric.equal_cost_paths(source, target)}
                assert walks(whole, source, target) == paths, f"{source} to {target}"


def test_every_pair_talks_over_ipv4(whole: NetnsLab) -> None:
    hosts = [host.name for host in whole.fabric.hosts]
    for source, target in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        with Talk(whole, source, target, family=4) as talk:
            assert talk.say(range(20)) == 20
            assert talk.hear(20) == 20


def test_without_a_hash_seed_resilient_groups_keep_all_paths_in_use(leaf_spine: Fabric, tmp_path: Path) -> None:
    with NetnsLab(leaf_spine, name=f"tls{os.getpid()}", run_dir=tmp_path, hash_seed=False) as lab:
        try:
            report = lab.up()
            assert any("resilient" in note for note in report.notes)
            paths = {tuple(sorted(path.directions)) for path in leaf_spine.equal_cost_paths("host1", "host3")}
            assert walks(lab, "host1", "host3") == paths
        finally:
            lab.down()


def test_rail_fabric_stands_and_all_rails_carry(rail: Fabric, tmp_path: Path) -> None:
    with NetnsLab(rail, name=f"tlr{os.getpid()}", run_dir=tmp_path) as lab:
        try:
            report = lab.up()
            assert (report.nodes, report.links) == (len(rail.nodes), len(rail.links))
            assert len(lab.uplinks("host1")) == 4
            paths = {tuple(sorted(path.directions)) for path in rail.equal_cost_paths("host1", "host2")}
            assert walks(lab, "host1", "host2") == paths
        finally:
            lab.down()


def test_switches_answer_traces_with_their_loopback(whole: NetnsLab) -> None:
    heard = set()
    with whole.in_netns("host1"):
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.IPPROTO_IPV6, 25, 1)  # IPV6_RECVERR
        sock.setsockopt(socket.IPPROTO_IPV6, 33, 1)  # IPV6_FLOWINFO_SEND
        for hops in (1, 2, 3):
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
            for label in range(1, 40):
                try:
                    sock.sendto(b"trace", (whole.address("host3"), 33434, label, 0))
                except OSError:
                    continue  # the answer to an earlier one

        def drained() -> bool:
            try:
                while True:
                    _, ancillary, _, _ = sock.recvmsg(200, 400, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
                    for _, kind, data in ancillary:
                        if kind == 25:
                            heard.add(whole.names[socket.inet_ntop(socket.AF_INET6, data[24:40])])
            except BlockingIOError:
                return {"leaf1", "leaf2", "spine1", "spine2", "leaf3", "leaf4"} <= heard

        assert until(drained), heard


def test_ports_are_plain_ethernet_with_permanent_neighbours(whole: NetnsLab) -> None:
    carrier = whole.carriers("leaf1")
    with Session(whole.namespace("leaf1")) as session:
        neighbours = session.dump(rtnl.RTM_GETNEIGH, bytes(12))
        states = [int.from_bytes(body[8:10], sys.byteorder) for body in neighbours]
    ports = [name for name in carrier if name not in ("lo", "lo0")]
    assert len(ports) == 4 and all(carrier[name] for name in ports), carrier
    assert states.count(0x80) == 8, "one permanent neighbour per port and family"
    with whole.in_netns("leaf1"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for port in ports:
            for question in (0x16, 0x1E, 0x23, 0x2B):  # ETHTOOL_GTXCSUM, GTSO, GGSO, GGRO
                answer = array.array("I", [question, 7])
                fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", port.encode(), answer.buffer_info()[0]))
                assert answer[1] == 0, f"{port}: offload {question:#x}"


def test_processes_start_in_their_namespace_and_end_with_the_lab(leaf_spine: Fabric, tmp_path: Path) -> None:
    with NetnsLab(leaf_spine, name=f"tlp{os.getpid()}", run_dir=tmp_path) as lab:
        try:
            lab.up()
            child = lab.popen("host2", ["sleep", "600"])
            where = os.readlink(f"/proc/{child.pid}/ns/net")
            assert where == f"net:[{namespace.inode_of(lab.namespace('host2'))}]"
            assert [one.pid for one in lab.processes("host2")] == [child.pid]
            with NetnsLab.load(lab.name) as other:
                assert [one.node for one in other.processes()] == ["host2"]
                assert other.fabric.links == leaf_spine.links
        finally:
            lab.down()
        assert child.wait(5) == -signal.SIGKILL
        assert not left_of(lab.name) and state.find(lab.name) is None
        lab.down()


def test_a_pid_that_was_used_again_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        started = processes.start_time(bystander.pid)
        assert started is not None
        processes.end([(bystander.pid, started - 1)])
        assert bystander.poll() is None
        processes.end([(bystander.pid, started)])
        assert bystander.wait(5) == -signal.SIGKILL
    assert processes.start_time(bystander.pid) is None
    process = processes.Process(bystander.pid, started, "host1", boot=processes.boot_id())
    state.write(tmp_path / "pids" / str(bystander.pid), process)
    assert processes.recorded(tmp_path) == [] and not list((tmp_path / "pids").iterdir())


def test_two_labs_stand_beside_each_other(whole: NetnsLab, leaf_spine: Fabric, tmp_path: Path) -> None:
    with NetnsLab(leaf_spine, name=f"{whole.name}-2", run_dir=tmp_path) as other:
        try:
            other.up()
            for lab in (whole, other):
                with Talk(lab, "host1", "host4") as talk:
                    assert talk.say(LABELS) == len(LABELS) == talk.hear(len(LABELS))
            # The name of one begins with the name of the other: taking this one away must leave that one whole.
            other.down()
            assert not [name for name in left_of(whole.name) if name.startswith(f"lp-{other.name}-")]
            with Talk(whole, "host1", "host4") as talk:
                assert talk.say(LABELS) == talk.hear(len(LABELS))
        finally:
            other.down()


def test_the_longer_name_survives_the_end_of_the_shorter(leaf_spine: Fabric, tmp_path: Path) -> None:
    short, long = (
        NetnsLab(leaf_spine, name=name, run_dir=tmp_path / name)
        for name in (f"tla{os.getpid()}", f"tla{os.getpid()}-b")
    )
    try:
        short.up()
        long.up()
        short.down()
        with Talk(long, "host1", "host4") as talk:
            assert talk.say(LABELS) == talk.hear(len(LABELS))
    finally:
        short.down()
        long.down()


def test_a_name_is_used_once(whole: NetnsLab, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="is up already"):
        NetnsLab(whole.fabric, name=whole.name, run_dir=tmp_path).up()
    with pytest.raises(LabError, match="lab name"):
        NetnsLab(whole.fabric, name="a/b", run_dir=tmp_path).up()
    with pytest.raises(LabError, match="no lab 'tl-nobody'"):
        NetnsLab.load("tl-nobody")


def test_nodes_without_links_are_no_fabric(tmp_path: Path) -> None:
    lonely = Fabric("lonely", [Node("a", "host", 0), Node("b", "switch", 1)], [])
    with pytest.raises(LabError, match="lonely has no link between two of its nodes"):
        NetnsLab(lonely, name=f"tln{os.getpid()}", run_dir=tmp_path).up()
    assert not left_of(f"tln{os.getpid()}") and state.find(f"tln{os.getpid()}") is None


BUILD = """
import os, signal, sys
from pathlib import Path
from lab.netns import build
from lab.netns.lab import NetnsLab
from topology.sources.containerlab import parse

name, run_dir, file, method = sys.argv[1:]
original = getattr(build.Builder, method)
def dies(self, *arguments):
    if method not in ("_create", "_configure") or arguments[0] == "leaf3":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments)
setattr(build.Builder, method, dies)
NetnsLab(parse(Path(file).read_text()), name=name, run_dir=Path(run_dir)).up()
"""


@pytest.mark.parametrize("method", ["_create", "_configure", "_pull_wires", "_address"])
@pytest.mark.parametrize("by", ["down", "up", "name"])
def test_what_a_killed_builder_leaves_is_taken_away(method: str, by: str, leaf_spine: Fabric, tmp_path: Path) -> None:
    name = f"tlk{os.getpid()}"
    file = LAB_FILES / "leaf-spine.clab.yml"
    killed = subprocess.run([sys.executable, "-c", BUILD, name, str(tmp_path), str(file), method], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert left_of(name)
    with pytest.raises(LabError, match="never finished"):
        NetnsLab.load(name)
    with NetnsLab(leaf_spine, name=name, run_dir=tmp_path) as lab:
        try:
            if by == "up":
                assert any("earlier build" in note for note in lab.up().notes)
                with Talk(lab, "host1", "host4") as talk:
                    assert talk.say(LABELS) == talk.hear(len(LABELS))
        finally:
            if by == "name":
                remove(name)
            else:
                lab.down()
    assert not left_of(name) and state.find(name) is None


def test_down_needs_only_the_prefix_when_the_state_is_lost(leaf_spine: Fabric, tmp_path: Path) -> None:
    with NetnsLab(leaf_spine, name=f"tll{os.getpid()}", run_dir=tmp_path) as lab:
        lab.up()
        child = lab.popen("host1", ["sleep", "600"])
        (tmp_path / "state.json").unlink()
        (tmp_path / "pids" / str(child.pid)).unlink()
        lab.down()
        assert child.wait(5) == -signal.SIGKILL
        assert not left_of(lab.name)


def test_messages_are_what_the_kernel_took(whole: NetnsLab) -> None:
    """Nothing is missing right after `up`: the kernel's tables hold every next hop, group and route of the plan."""
    for node in whole.plan.nodes:
        assert whole.repair_routes(node) == 0
    assert nexthops.PROTOCOL == 186


def test_one_directory_is_not_given_to_two_labs(whole: NetnsLab) -> None:
    with pytest.raises(LabError, match=f"lab {whole.name} is up already"):
        NetnsLab(whole.fabric, name=f"tlo{os.getpid()}", run_dir=whole.run_dir).up()
    remove(f"tlo{os.getpid()}", whole.run_dir)
    with Talk(whole, "host1", "host4") as talk:
        assert talk.say(LABELS) == talk.hear(len(LABELS))


def test_a_refused_build_leaves_nothing(leaf_spine: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.netns.build.MTU", 10)  # no veth is that small
    lab = NetnsLab(leaf_spine, name=f"tlm{os.getpid()}", run_dir=tmp_path / "run")
    with pytest.raises(OSError, match="veth w0a - eth1"):
        lab.up()
    assert not left_of(lab.name) and state.find(lab.name) is None and not (tmp_path / "run").exists()


def test_a_lab_taken_down_by_somebody_else_ends_its_flaps_quietly(leaf_spine: Fabric, tmp_path: Path) -> None:
    with NetnsLab(leaf_spine, name=f"tlq{os.getpid()}", run_dir=tmp_path / "run") as lab:
        lab.up()
        flap = lab.fault(parse("flap:leaf1-spine1:50hz", leaf_spine))
        remove(lab.name)
        flap.undo()
        with pytest.raises(LabError, match="is not up"):
            lab.fault(parse("blackhole:leaf1-spine1", leaf_spine))
    assert until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("flap")])
    assert not (tmp_path / "run").exists()


def test_a_lab_that_is_closed_drives_no_flap_any_more(whole: NetnsLab) -> None:
    """Its threads use the wire's nftables context: they must be gone before that is freed."""
    with NetnsLab.load(whole.name) as other:
        for _ in range(3):
            other.fault(parse("flap:leaf1-spine1:50hz", whole.fabric))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flap")]
    assert whole.faults() == ()


async def test_a_lab_is_used_where_an_event_loop_runs(whole: NetnsLab) -> None:
    before = whole.counters()
    assert whole.repair_routes("leaf1") == 0
    assert all(whole.carriers("host1").values())
    assert whole.counters().since(before).at_s > 0


def test_a_lab_is_used_from_many_threads(whole: NetnsLab) -> None:
    """The connections belong to one thread; who asks from another must get the answer of the right namespace."""
    nodes = list(whole.plan.nodes)
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(nodes, pool.map(whole.carriers, nodes), strict=True))
    for node in nodes:
        assert set(found[node]) == {"lo", "lo0", *(wire.end(node).device for wire in whole.plan.wires_of(node))}


def test_the_loopback_is_called_by_family(whole: NetnsLab) -> None:
    """What getifaddrs(3) calls the addresses: the first one of `lo0` is the IPv6 one."""
    shown = whole.popen("host1", ["ip", "-o", "address", "show", "dev", "lo0"], stdout=subprocess.PIPE, text=True)
    lines = shown.communicate(timeout=30)[0].splitlines()
    assert [line.split()[3] for line in lines] == ["10.255.0.1/32", "fd00:ff::1/128"]
    assert f" {whole.interface(4)}" in lines[0].replace("\\", " ") and whole.interface() == "lo0"
