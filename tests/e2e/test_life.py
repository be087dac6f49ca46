"""What may happen to a daemon, its host or its kernel under a job: traffic flows on, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig import RETURN_S, Rig, blamed, says

from lab.daemons import DaemonSpec

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

METRICS = "127.0.0.1:9478"


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the escalation hook writes what it was told."""
    return tmp_path_factory.mktemp("hook") / "told.jsonl"


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory, hooked: Path) -> Iterator[Rig]:
    extra = {"escalate": {"hook": ["/bin/sh", "-c", f"cat >> {hooked}"]}, "metrics": {"listen": METRICS}}
    spec = DaemonSpec(mode="act", tcp_timers=True, realtime=True, extra=extra)
    with Rig(tmp_path_factory.mktemp("rig"), spec) as made:
        yield made


def ours(rig: Rig, host: str) -> str:
    """What carries our marks in a host's kernel: routes, next hops, the table."""
    table = "table ip6 linkpass" if "table ip6 linkpass" in rig.in_host(host, "nft", "list", "tables") else ""
    hops = "\n".join(line for line in rig.in_host(host, "ip", "nexthop").splitlines() if "proto 76" in line)
    routes = rig.in_host(host, "ip", "-6", "route", "show", "proto", "76")
    return "\n".join(part for part in (table, hops, routes) if part.strip())


def only_its_daemon(rig: Rig, since_s: float, host: str) -> None:
    """A host whose daemon alone is silent: nobody moves anything, blames a link or gives it up. Those who exchange data
    with it (its neighbours in the ring) know better, and tell the others."""
    place = rig.hosts.index(host)
    neighbours = {rig.hosts[place - 1], rig.hosts[(place + 1) % len(rig.hosts)]}
    entries = rig.told(since_s, says(""))
    assert not [entry for entry in entries if entry.is_move]
    assert blamed(entries) <= {host}
    assert not [entry for entry in entries if entry.what.endswith(" fails")]
    assert blamed([entry for entry in entries if entry.host in neighbours | {host}]) == set()


def test_status_paths_and_why_of_a_live_daemon(living: Rig) -> None:
    rig = living
    rig.calm()
    status = rig.cli("host1", "status")
    assert status.exit_code == 0, status.output
    assert f"host1 {rig.lab.address('host1')} · act · linkpass" in status.output
    assert "rung 1 armed" in status.output and "rung 2 armed" in status.output
    assert "host2" in status.output and "active" in status.output
    namespaces = json.loads(rig.cli("host1", "status", "--json").output)["netns"]
    own = next(one for one in namespaces if one["inode"] == _inode(rig, "host1"))
    assert own["connections"] > 0 and own["steerable"] is True
    paths = rig.cli("host1", "paths", "host3").output
    assert "leaf1 spine1 leaf3" in paths and "in use" in paths and "good" in paths
    assert rig.cli("host1", "why", "no-such-story").exit_code == 1
    assert rig.cli("host1", "drain", "leaf1-spine9").exit_code == 1


def test_promtool_accepts_what_a_live_daemon_exports(living: Rig) -> None:
    with living.lab.in_netns("host2"), urllib.request.urlopen(f"http://{METRICS}/metrics", timeout=10) as answer:
        text = answer.read()
    promtool = shutil.which("promtool")
    assert promtool, "promtool is part of the package prometheus"
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    names = {line.split("{")[0].split(" ")[0] for line in text.decode().splitlines() if line and line[0] != "#"}
    assert any(name.startswith("linkpass_") for name in names)
    assert b'linkpass_info{host="host2",mode="act"' in text


def test_a_restarted_daemon_takes_up_its_work(living: Rig) -> None:
    """Stopped in order it hands everything back to the kernel; its peers move nothing meanwhile."""
    rig = living
    since_s = rig.calm()
    assert ours(rig, "host1")
    rig.daemons.processes["host1"].send_signal(signal.SIGTERM)
    assert rig.daemons.processes.pop("host1").wait(30) == 0
    assert ours(rig, "host1") == ""
    assert not rig.daemons.path("host1", "control.sock").exists()
    rig.goes_on(20)
    rig.wait_told(since_s, says(r"^host1: its daemon stops$"), "its neighbours hear it say goodbye")
    rig.goes_on(20)
    rig.daemons.start_one("host1")
    rig.daemons.wait_ready()
    rig.calm()
    assert ours(rig, "host1")
    only_its_daemon(rig, since_s, "host1")
    assert {entry.run for entry in rig.daemons.journal() if entry.host == "host1"} == {1, 2}
    rig.goes_on()


def test_a_killed_daemon_leaves_traffic_flowing_and_cleanup_restores(living: Rig) -> None:
    rig = living
    since_s = rig.calm()
    rig.daemons.kill("host2")
    assert ours(rig, "host2"), "a killed daemon cannot have cleared up"
    rig.goes_on(20)
    rig.wait_told(since_s, says(r"^host2 stays silent, but only its daemon$"), "its neighbours know better")
    config = str(rig.daemons.path("host2", "linkpass.toml"))
    with rig.lab.in_netns("host2"):
        result = rig.cli("host2", "cleanup", "--config", config)
    assert result.exit_code == 0, result.output
    assert "nftables table ip6 linkpass" in result.output
    assert "restored the TCP timers of" in result.output
    assert ours(rig, "host2") == ""
    rig.goes_on(20)
    with rig.lab.in_netns("host2"):
        assert "nothing of linkpass was left" in rig.cli("host2", "cleanup", "--config", config).output
    only_its_daemon(rig, since_s, "host2")
    rig.daemons.start_one("host2")
    rig.daemons.wait_ready()
    rig.calm()
    assert ours(rig, "host2")


def test_a_daemon_that_was_killed_is_cleared_up_after_by_the_next(living: Rig) -> None:
    rig = living
    rig.calm()
    rig.daemons.kill("host2")
    rig.daemons.start_one("host2")
    rig.daemons.wait_ready()
    rig.calm()
    notes = rig.daemons.view("host2")["notes"]
    assert any(note.startswith("removed what an earlier run left: ") for note in notes), notes
    assert rig.in_host("host2", "nft", "list", "tables").count("linkpass") == 1
    rig.goes_on(20)


def test_a_peer_with_a_wrong_key_is_not_believed(living: Rig) -> None:
    """What it says is refused and counted; its data flows, so it is no failing host; nothing is moved."""
    rig = living
    since_s = rig.calm()
    rig.daemons.processes["host3"].send_signal(signal.SIGTERM)
    assert rig.daemons.processes.pop("host3").wait(30) == 0
    key = rig.daemons.path("host3", "key")
    right = key.read_text()
    key.write_text("not the key of this fabric at all\n")
    rig.daemons.start_one("host3")
    try:
        rig.daemons.wait_ready()
        others = [host for host in rig.hosts if host != "host3"]
        rig.wait("its probes are refused", lambda: all(_refused(rig, host) > 10 for host in others))
        rig.wait_told(since_s, says(r"^host3: its daemon stops$"), "its neighbours hear it say goodbye")
        rig.goes_on(20)
        only_its_daemon(rig, since_s, "host3")
        assert "refused" in rig.cli("host1", "status").output
    finally:
        rig.daemons.processes["host3"].send_signal(signal.SIGTERM)
        rig.daemons.processes.pop("host3").wait(30)
        key.write_text(right)
        rig.daemons.start_one("host3")
        rig.daemons.wait_ready()
    rig.calm()


def test_who_deletes_our_routes_wins_after_three_times(living: Rig) -> None:
    """Put back three times, then left alone, with the name of who did it; `clear` takes it up again."""
    rig = living
    since_s = rig.calm()
    for times in range(1, 5):
        destination = rig.in_host("host4", "ip", "-6", "route", "show", "proto", "76").split()[0]
        rig.in_host("host4", "ip", "-6", "route", "del", destination, "proto", "76")
        gone = says(r"removed group all$")
        rig.wait("it is noticed", lambda: len(rig.told(since_s, gone, ["host4"])) >= times)  # noqa: B023
        if times < 4:
            rig.wait("it is put back", lambda: "proto 76" in rig.in_host("host4", "ip", "-6", "route"))
            rig.goes_on(15)
    entry = rig.wait_told(since_s, says(r"^stood down on group all$"), "it stands down", ["host4"])[0]
    assert "removed it 4 times" in entry.why
    who = entry.why.removesuffix(" removed it 4 times")
    assert who and who != "0"
    rig.goes_on(20)
    assert "proto 76" not in rig.in_host("host4", "ip", "-6", "route")
    shown = rig.cli("host4", "status").output
    assert "stood down" in shown and who in shown
    assert rig.cli("host4", "clear", "*").exit_code == 0
    rig.wait("it takes it up again", lambda: "proto 76" in rig.in_host("host4", "ip", "-6", "route"))
    rig.calm()


def test_a_frozen_daemon_blames_nobody_when_it_wakes(living: Rig) -> None:
    rig = living
    since_s = rig.calm()
    process = rig.daemons.processes["host4"]
    process.send_signal(signal.SIGSTOP)
    try:
        rig.wait_told(since_s, says(r"^host4 stays silent, but only its daemon$"), "its neighbours know better")
        rig.goes_on(20)
    finally:
        process.send_signal(signal.SIGCONT)
    rig.wait_told(since_s, says(r"^host4 is heard again$"), "it is heard again")
    rig.goes_on(20)
    only_its_daemon(rig, since_s, "host4")


def test_a_frozen_host_is_escalated_and_no_link_is_blamed(living: Rig, hooked: Path) -> None:
    rig = living
    since_s = rig.calm()
    hooked.unlink(missing_ok=True)
    with rig.broken("freeze:host3"):
        first = rig.wait_told(since_s, says(r"^verdict host: host3 fails$"), "somebody gives it up")[0]
        rig.wait_told(since_s, says(r"^host3 was handed over$"), "the hook has taken it", [first.host])
    told = [json.loads(line) for line in hooked.read_text().splitlines()]
    assert {one["host"] for one in told} == {"host3"}
    mine = next(one for one in told if one["cause"] == first.cause)
    assert any(part.startswith("silent on all ") for part in mine["evidence"])
    rig.wait_told(since_s, says(r"^host3 is heard again$"), "it is heard again", [first.host])
    rig.goes_on(20)
    entries = rig.told(since_s, says(""))
    assert blamed([entry for entry in entries if entry.host != "host3"]) == {"host3"}
    assert blamed([entry for entry in entries if entry.host == "host3"]) == set()
    assert not [entry for entry in entries if entry.is_move]
    story = json.loads(rig.cli(first.host, "why", "--json", first.cause).output)
    assert [entry["what"] for entry in story if "host3" in entry["what"]] == [
        "host3 is silent", "verdict host: host3 fails", "host3 was handed over", "host3 is heard again",
    ]  # fmt: skip


def test_after_all_that_the_weights_are_the_same(living: Rig) -> None:
    living.calm()
    living.end_with_the_same_weights()


def test_a_dead_host_is_escalated_too(living: Rig, hooked: Path) -> None:
    """Its links lose carrier and its processes are gone. The job is lost with its rank: another rung's matter."""
    rig = living
    rig.job.close()
    rig.job.processes.clear()
    since_s = rig.calm()
    hooked.unlink(missing_ok=True)
    with rig.broken("dead:host4"):
        rig.daemons.processes.pop("host4").wait(30)
        others = [host for host in rig.hosts if host != "host4"]
        entries = rig.wait_told(
            since_s, says(r"^verdict host: host4 fails$"), "somebody gives it up", patience_s=RETURN_S
        )
        rig.wait_told(since_s, says(r"^host4 was handed over$"), "the hook has taken it", [entries[0].host])
        accused = blamed(rig.told(since_s, says(""), others))
        assert accused == {"host4"}
        assert not [entry for entry in rig.told(since_s, says(""), others) if entry.is_move]
    assert "host4" in hooked.read_text()


def _inode(rig: Rig, host: str) -> int:
    return os.stat(f"/run/netns/{rig.lab.namespace(host)}").st_ino


def _refused(rig: Rig, host: str) -> int:
    return sum(rig.daemons.view(host)["probes"]["refused"].values())
