"""Real daemons in the lab, the fabric's file a cabling plan: what traces find out stands in journal, status and
paths.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rig import FILE, PATIENCE_S, START_S

from lab.daemons import Daemons, DaemonSpec
from lab.netns.lab import NetnsLab
from linkpass.cli import cli
from topology.model import Fabric
from topology.sources.containerlab import parse

pytestmark = [pytest.mark.netns, pytest.mark.e2e]
LEAF = "leaf1"
MUTE = """table ip6 mute {
 chain out {
  type filter hook output priority 0
  icmpv6 type time-exceeded drop
 }
}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[NetnsLab]:
    with NetnsLab(parse(FILE.read_text(encoding="utf-8"), str(FILE)), name="tdtraces", run_dir=tmp_path) as made:
        made.up()
        try:
            yield made
        finally:
            made.down()


def dot(fabric: Fabric, file: Path) -> Path:
    """The fabric as a plan of its cables."""
    nodes = [f'"{node.name}" [function="{node.role}"]' for node in fabric.nodes]
    cables = [f'"{x.a.node}":"{x.a.name}" -- "{x.b.node}":"{x.b.name}"' for x in fabric.links]
    file.write_text("\n".join(["graph plan {", *nodes, *cables, "}"]))
    return file


def kinds_to(daemons: Daemons, peer: str) -> set[str]:
    rows = [path for path in daemons.view("host1")["paths"] if (path["peer_name"], path["uplink"]) == (peer, "eth1")]
    return {kind for path in rows for kind in path["traces"]}


def notes(daemons: Daemons) -> dict[tuple[str, str, int], dict[str, Any]]:
    return {(one["kind"], one["uplink"], one["hop"]): one for one in daemons.view("host1")["traces"]}


def until(true: Any, what: str, patience_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < until_s, f"waited in vain until {what}"
        time.sleep(0.05)


def test_what_answers_show_is_said_and_withdrawn(lab: NetnsLab, tmp_path: Path) -> None:
    with lab.in_netns(LEAF):
        limit = Path("/proc/sys/net/ipv6/icmp/ratelimit")
        limit.write_text("1000")
    for spine in ("spine1", "spine2"):
        with lab.in_netns(spine):
            subprocess.run(["nft", "-f", "-"], input=MUTE, text=True, check=True)
    time.sleep(2.5)  # without a limit the kernel has kept the leaf's bucket empty
    spec = DaemonSpec(
        mode="observe",
        topology=dot(lab.fabric, tmp_path / "plan.dot"),
        record=True,
        extra={"limits": {"retrace_s": 2.0}},
    )
    with Daemons(lab, spec, hosts=("host1", "host3")) as daemons:
        daemons.start().wait_ready(START_S)
        view = daemons.view("host1")
        assert not [note for note in view["notes"] if "fabric's file" in note]
        wanted = {("limited", "eth1", 1), ("mute", "eth1", 2), ("mute", "eth2", 2)}
        until(lambda: wanted <= notes(daemons).keys(), "traces have found out")
        assert not [key for key in notes(daemons) if key[0] == "mute" and key[2] == 1], "limited is not mute"
        assert notes(daemons)["limited", "eth1", 1]["nodes"] == [LEAF]
        until(lambda: {"limited", "mute"} <= kinds_to(daemons, "host3"), "all ways over the uplink have been traced")
        assert ("limited", "eth2", 1) not in notes(daemons)
        env = {"LINKPASS_SOCKET": str(daemons.path("host1", "control.sock")), "COLUMNS": "300"}
        status = CliRunner(env=env).invoke(cli, ["status"]).output
        assert "hop 2 over eth1 never answers traces" in status, status
        paths = CliRunner(env=env).invoke(cli, ["paths", "host3", "--uplink", "eth1"]).output
        assert "limited, mute" in paths, paths
        good = [path for path in daemons.view("host1")["paths"] if path["peer_name"] == "host3"]
        assert good and not [path for path in good if path["evidence"] == "blackhole"], "mute is not down"
        for spine in ("spine1", "spine2"):
            with lab.in_netns(spine):
                subprocess.run(["nft", "delete", "table", "ip6", "mute"], check=True)
        until(lambda: not [key for key in notes(daemons) if key[0] == "mute"], "they answer again", 60)
        said = [entry.what for entry in daemons.journal() if entry.host == "host1"]
        for uplink in ("eth1", "eth2"):
            assert said.count(f"hop 2 over {uplink} never answers traces") == 1
            assert said.count(f"no longer: hop 2 over {uplink} never answers traces") == 1
        daemons.stop(60.0)
        replayed = CliRunner().invoke(cli, ["replay", str(daemons.path("host1", "recording.jsonl"))])
        assert replayed.exit_code == 0, replayed.output


class Nameless(Daemons):
    """The daemons know no names but those that a program tells, as lldpctl would."""

    def _configuration(self, host: str) -> dict[str, dict[str, Any]]:
        wanted = super()._configuration(host)
        spine = self.lab.address("spine1")
        ports = [("eth1", "leaf-by-lldp", []), ("eth2", "other-leaf", [spine])]
        interfaces = [
            {name: {"chassis": {node: {"mgmt-ip": said}}, "port": {"id": {"type": "ifname", "value": "swp1"}}}}
            for name, node, said in ports
        ]
        said = json.dumps({"lldp": {"interface": interfaces}})
        wanted["fabric"] = {"lldpctl": [sys.executable, "-c", f"print({said!r})"]}
        wanted["fabric.names"] = {}
        return wanted


def test_lldp_names_the_nodes_that_answer(lab: NetnsLab) -> None:
    with Nameless(lab, DaemonSpec(mode="observe", extra={"limits": {"retrace_s": 2.0}}), ("host1", "host3")) as daemons:
        daemons.start().wait_ready(START_S)

        def firsts() -> set[tuple[str, str | None]]:
            rows = daemons.view("host1")["paths"]
            return {(path["uplink"], path["hops"][0]) for path in rows if path["hops"]}

        until(lambda: firsts() == {("eth1", "leaf-by-lldp"), ("eth2", "other-leaf")}, "the first hops have names", 60)

        def hops() -> set[str | None]:
            return {hop for path in daemons.view("host1")["paths"] for hop in path["hops"]}

        until(lambda: lab.address("spine2") in hops(), "what nobody names stands for itself", 60)
        assert lab.address("spine1") not in hops() and "other-leaf" in hops(), "an announced address has a name"
