"""containerlab's own examples as labs of namespaces: every file that is a fabric is built, and everybody is reached."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.netns import namespace
from lab.netns.lab import NetnsLab
from linkpass.cli.lab import lab_group

pytestmark = pytest.mark.netns

FABRICS = {
    "01-linux-nodes.clab.yml": (3, 3),
    "25-link-vars-ip.clab.yml": (3, 4),
    "br01.clab.yml": (4, 3),
    "clos01.clab.yml": (5, 4),
    "clos02.clab.yml": (14, 16),
    "frr01.clab.yml": (6, 6),
    "sonic01.clab.yml": (2, 1),
    "srl02.clab.yml": (2, 1),
    "vr01.clab.yml": (2, 1),
}
"""Nodes and links of each file."""

NO_FABRICS = ("01-vxlan.clab.yml", "24-basic-groups.clab.yaml")


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(lab_group, list(words))
    return result.exit_code, result.output


@contextmanager
def built(file: Path, tmp_path: Path) -> Iterator[tuple[NetnsLab, dict[str, object]]]:
    name = f"tp2o{os.getpid()}"
    status, said = command("up", str(file), "--name", name, "--dir", str(tmp_path / "run"), "--json")
    try:
        assert status == 0, said
        with NetnsLab.load(name) as lab:
            yield lab, json.loads(said)
    finally:
        assert command("down", name)[0] == 0
        assert not [one for one in os.listdir(namespace.NETNS_DIR) if one.startswith(f"lp-{name}-")]


def heard(lab: NetnsLab, source: str, target: str, family: int, labels: range = range(1, 33)) -> tuple[int, int]:
    """Datagrams sent and heard, one for each flow label (IPv6) or source port (IPv4)."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with lab.in_netns(target):
        into = socket.socket(kind, socket.SOCK_DGRAM)
    with into:
        into.bind((lab.address(target, family), 0))
        into.settimeout(5)
        sent = 0
        for label in labels:
            with lab.in_netns(source):
                out = socket.socket(kind, socket.SOCK_DGRAM)
            with out:
                where = (*into.getsockname()[:2], label, 0) if family == 6 else into.getsockname()
                if family == 6:
                    out.setsockopt(socket.IPPROTO_IPV6, 33, 1)  # IPV6_FLOWINFO_SEND
                sent += out.sendto(b"x", where)
        count = 0
        try:
            while count < sent:
                count += len(into.recv(9))
        except TimeoutError:
            pass
    return sent, count


@pytest.mark.parametrize("name", sorted(FABRICS))
def test_every_fabric_is_built_and_everybody_reached(name: str, cases: Path, tmp_path: Path) -> None:
    with built(cases / "containerlab" / name, tmp_path) as (lab, report):
        assert (report["nodes"], report["links"]) == FABRICS[name]
        fabric = lab.fabric
        assert all(lab.repair_routes(node) == 0 for node in lab.plan.nodes), "the kernel took all of it"
        assert all(all(lab.carriers(node).values()) for node in lab.plan.nodes)
        ends = [node.name for node in fabric.hosts] or [node.name for node in fabric.switches]
        reached = 0
        for source, target in permutations(ends, 2):
            if fabric.next_hops(source, target):
                for family in (6, 4):
                    sent, count = heard(lab, source, target, family)
                    assert sent == count == 32, f"{source} to {target}, IPv{family}"
                reached += 1
        assert reached >= 2
        status, said = command("status", lab.name)
        assert status == 0 and all(node.name in said for node in fabric.nodes)


@pytest.mark.parametrize(
    ("name", "source", "target"), [("clos02.clab.yml", "client1", "client4"), ("clos01.clab.yml", "client1", "client2")]
)
def test_a_clos_uses_all_its_paths_and_breaks_like_one(
    name: str, source: str, target: str, cases: Path, tmp_path: Path
) -> None:  # fmt: skip
    with built(cases / "containerlab" / name, tmp_path) as (lab, _):
        before = lab.counters()
        assert heard(lab, source, target, 6, range(1, 257)) == (256, 256)
        used = lab.counters().since(before).directions
        on_paths = {step for path in lab.fabric.equal_cost_paths(source, target) for step in path.directions}
        assert all(used[direction].packets > 0 for direction in on_paths), "labels spread over every equal-cost path"
        # A direction in the middle of a path, found in the file's own names, goes dark: a part of the labels is lost.
        path = lab.fabric.equal_cost_paths(source, target)[0].directions
        status, said = command("fault", lab.name, f"blackhole:{path[1]}", "--json")
        assert status == 0, said
        sent, count = heard(lab, source, target, 6, range(1, 257))
        assert sent == 256 and count < 256
        assert (count == 0) is (len(lab.fabric.equal_cost_paths(source, target)) == 1)
        assert command("fault", lab.name, "--undo", "all")[0] == 0
        assert heard(lab, source, target, 6) == (32, 32)


@pytest.mark.parametrize("name", NO_FABRICS)
def test_what_is_no_fabric_is_told(name: str, cases: Path) -> None:
    status, said = command("up", str(cases / "containerlab" / name), "--name", f"tp2n{os.getpid()}")
    assert status == 1 and "has no link between two of its nodes" in said and "Traceback" not in said


def test_inferred_roles_are_said(cases: Path, tmp_path: Path) -> None:
    file = cases / "containerlab" / "frr01.clab.yml"
    name = f"tp2o{os.getpid()}"
    status, said = command("up", str(file), "--name", name, "--dir", str(tmp_path / "run"))
    assert command("down", name)[0] == 0
    assert status == 0 and "6 nodes, 6 links" in said, said
    assert "PC1" in said and "router1" in said, said
