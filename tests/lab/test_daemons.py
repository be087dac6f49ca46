"""The files that a lab writes for its daemons, and what is read back from their journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.daemons import Daemons, DaemonSpec, toml
from lab.errors import LabError
from lab.netns.lab import NetnsLab
from linkpass import config
from topology.model import Fabric


@pytest.fixture
def unbuilt(leaf_spine: Fabric, tmp_path: Path) -> Iterator[NetnsLab]:
    with NetnsLab(leaf_spine, name="tjfiles", run_dir=tmp_path) as lab:
        yield lab


def test_the_daemon_reads_the_file_that_the_lab_writes(unbuilt: NetnsLab, tmp_path: Path) -> None:
    topology = Path(__file__).parents[2] / "lab/leaf-spine.clab.yml"
    spec = DaemonSpec(
        mode="act", rungs=(1,), tcp_timers=True, rto_min_ms=5, topology=topology, record=True,
        extra={"probing": {"interval_s": 0.005}, "": {"realtime": True}},
    )  # fmt: skip
    path = Daemons(unbuilt, spec).write("host2")
    found = config.load(path)
    assert (found.mode, found.host, found.rungs, found.realtime) == ("act", "host2", (1,), True)
    assert found.address == "fd00:ff::2"
    assert found.prefixes == ("fd00:ff::/64", "10.255.0.0/24")
    assert found.peers == ("fd00:ff::1", "fd00:ff::3", "fd00:ff::4")
    assert found.fabric.names["fd00:ff:1::1"] == "leaf1"
    assert found.probing.interval_s == 0.005
    assert found.tcp_timers.enabled and found.routes.rto_min_ms == 5
    assert found.journal.dir == str(tmp_path / "host2")
    assert found.recorder.file == str(tmp_path / "host2/recording.jsonl")
    assert len(config.read_key(found)) >= config.loading.KEY_BYTES
    assert [finding for finding in config.check(found, path) if finding.level != "info"] == []


def test_all_hosts_share_a_key_that_nobody_else_reads(unbuilt: NetnsLab) -> None:
    daemons = Daemons(unbuilt)
    keys = {daemons.write(host).with_name("key").read_text() for host in daemons.hosts}
    assert len(keys) == 1
    assert daemons.path("host1", "key").stat().st_mode & 0o077 == 0
    assert Daemons(unbuilt).write("host1").with_name("key").read_text() not in keys


def test_journals_are_read_as_they_grow(unbuilt: NetnsLab) -> None:
    daemons = Daemons(unbuilt)
    for host in ("host1", "host2"):
        daemons.write(host)
    line = '{"seq": %d, "run": 1, "wall": "", "now_s": %f, "cause": "c1", "what": "%s", "why": "probes", "rung": 1}\n'
    one, two = (daemons.path(host, "journal.jsonl") for host in ("host1", "host2"))
    one.write_text(line % (1, 5.0, "moved 50% of the flows to host3 away: 4 path(s) carry them") + '{"seq": 2, "n')
    two.write_text(line % (1, 4.0, "would move traffic away"))
    assert [(entry.host, entry.now_s, entry.is_move) for entry in daemons.journal()] == [
        ("host2", 4.0, False),
        ("host1", 5.0, True),
    ]
    with one.open("a") as stream:
        stream.write('ow_s": 6.0, "cause": "c1", "what": "the flows get through", "why": ""}\n')
    assert [entry.now_s for entry in daemons.journal(since_s=5.0)] == [5.0, 6.0]


def test_a_daemon_that_is_not_there_is_an_error(unbuilt: NetnsLab) -> None:
    daemons = Daemons(unbuilt)
    daemons.write("host1")
    with pytest.raises(LabError, match="the daemon of host1 does not answer"):
        daemons.view("host1")


def test_toml() -> None:
    text = toml({"": {"a": 1, "b": [1, 2]}, "empty": {}, "x.y": {"fd00::1": "leaf 1", "on": True}})
    assert text == 'a = 1\nb = [1, 2]\n\n[x.y]\n"fd00::1" = "leaf 1"\non = true\n'
