"""Captures of real daemons' probes: on a link of the lab, on a host's uplink, under a fault, kept and read again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from talk import Talk

from lab.daemons import Daemons, DaemonSpec
from lab.faults import parse
from lab.netns.lab import NetnsLab
from linkpass.cli import cli

pytestmark = pytest.mark.netns


def linkpass(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture(scope="module")
def daemons(lab: NetnsLab) -> Iterator[Daemons]:
    """Two hosts of the lab that probe each other, at ten probes a second and path."""
    spec = DaemonSpec(mode="observe", extra={"probing": {"interval_s": 0.1}})
    made = Daemons(lab, spec, hosts=("host1", "host3"))
    made.start()
    made.wait_ready(60.0)
    yield made
    made.close()


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_link_of_the_lab(lab: NetnsLab, daemons: Daemons) -> None:
    options = ("--kind", "probe", "--count", "40", "--seconds", "60", "--json")
    probes = rows(linkpass("lab", "capture", lab.name, "host1-leaf1", *options))
    assert len(probes) == 40 and {one["kind"] for one in probes} == {"probe"}
    assert {one["where"] for one in probes} == {"host1>leaf1", "leaf1>host1"}
    for one in probes:
        assert one["authentic"] is True and one["checksum_ok"] is True
        assert one["source"] == lab.address("host1" if one["where"] == "host1>leaf1" else "host3")
        assert 0 <= one["age_s"] < 5, "all hosts of a lab have one clock"
        assert one["hop_limit"] == (64 if one["where"] == "host1>leaf1" else 61)
    assert any(one["probe"]["report"] for one in probes), "they tell each other what they heard"
    ours = [one for one in probes if one["where"] == "host1>leaf1"]
    for path, label in {(one["probe"]["path"], one["label"]) for one in ours}:
        of_path = [one for one in ours if (one["probe"]["path"], one["label"]) == (path, label)]
        sequences = [one["probe"]["sequence"] for one in of_path]
        assert sequences == sorted(set(sequences)), "no probe twice, none before its turn"


def test_one_direction_is_seen_before_a_fault_takes_it(lab: NetnsLab, daemons: Daemons) -> None:
    fault = lab.fault(parse("blackhole:host1-leaf2", lab.fabric))
    try:
        found = rows(linkpass("lab", "capture", lab.name, "host1>leaf2", "--count", "5", "--seconds", "60", "--json"))
    finally:
        fault.undo()
    assert len(found) == 5 and {one["where"] for one in found} == {"host1>leaf2"}


def test_filters_on_a_live_link(lab: NetnsLab, daemons: Daemons) -> None:
    found: list[dict[str, Any]] = []
    label = 0
    for _ in range(6):  # while they learn which label leads where, daemons choose others now and then
        probes = ("--kind", "probe", "--peer", "host3", "--json")
        label = rows(linkpass("lab", "capture", lab.name, "host1>leaf1", *probes, "--count", "10"))[-1]["label"]
        chosen = ("--label", hex(label), "--count", "4", "--seconds", "5")
        found = rows(linkpass("lab", "capture", lab.name, "host1>leaf1", *probes, *chosen))
        if len(found) == 4:
            break
    assert [one["label"] for one in found] == [label] * 4
    assert {one["target"] for one in found} == {lab.address("host3")}
    nobody = ("--peer", "fd00:ff::99", "--seconds", "0.3", "--json")
    assert rows(linkpass("lab", "capture", lab.name, "host1>leaf1", *nobody)) == []


def test_an_uplink_as_its_host_sees_it(lab: NetnsLab, daemons: Daemons, tmp_path: Path) -> None:
    """The command runs in the host's namespace, is ended by Ctrl-C, and leaves a file that anybody can read."""
    file, config = tmp_path / "eth1.pcap", daemons.path("host1", "linkpass.toml")
    command = [
        sys.executable,
        "-c",
        "from linkpass.cli import main; main()",
        "capture",
        "eth1",
        "--config",
        str(config),
    ]
    child = lab.popen("host1", [*command, "--count", "0", "--write", str(file)], stdout=subprocess.PIPE, text=True,
                      env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(20)]
    child.send_signal(signal.SIGINT)
    rest, _ = child.communicate(timeout=30)
    assert child.returncode == 0, rest
    assert "hmac" in lines[0] and "WRONG" not in "".join(lines)
    assert any("eth1 out" in line and "host1 > host3" in line and " ok " in line for line in lines)
    assert any("eth1 " in line and "host3 > host1" in line for line in lines)
    assert "paths of 2 senders" in rest and f"--read {file}" in rest
    found = rows(linkpass("capture", "--read", str(file), "--config", str(config), "--json"))
    assert len(found) >= 19 and all(one["authentic"] for one in found if one["kind"] == "probe")


def test_all_shows_what_is_no_probe(lab: NetnsLab, daemons: Daemons) -> None:
    enough = threading.Event()

    def chatter() -> None:
        with Talk(lab, "host1", "host4") as talk:
            while not enough.wait(0.05):
                talk.say(range(1, 17))

    speaker = threading.Thread(target=chatter)
    speaker.start()
    try:
        options = ("--all", "--kind", "other", "--peer", "host4", "--count", "5", "--seconds", "60", "--json")
        found = rows(linkpass("lab", "capture", lab.name, "host1>leaf1", *options))
    finally:
        enough.set()
        speaker.join()
    assert [(one["kind"], one["protocol"]) for one in found] == [("other", "UDP")] * 5
    assert all(one["label"] in range(1, 17) and "UDP" in one["summary"] for one in found)


def test_mistakes(lab: NetnsLab) -> None:
    unknown = linkpass("lab", "capture", lab.name, "leaf1-spine9")
    assert unknown.exit_code == 1 and "leaf1-spine" in unknown.output
    assert linkpass("lab", "capture", "tl-nobody", "leaf1-spine1").exit_code == 1
