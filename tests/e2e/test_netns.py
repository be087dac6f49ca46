"""A job in a namespace of its own (a pod that owns its interfaces): the daemon lives outside and acts inside."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rig import RETURN_S, Rig, moved, says

from lab.daemons import PROGRAM, Daemons, DaemonSpec
from lab.netns import namespace

pytestmark = [pytest.mark.netns, pytest.mark.e2e]
OUTSIDE, LATE = f"td-{os.getpid()}-outside", f"td-{os.getpid()}-late"
HOST = "host1"


class FromOutside(Daemons):
    """The daemon of one host runs in an empty namespace, and is told to act in the host's."""

    def start_one(self, host: str) -> None:
        if host != HOST:
            super().start_one(host)
            return
        argv = [*PROGRAM, "run", "--config", str(self.path(host, "linkpass.toml"))]
        with open(self.path(host, "log"), "ab") as log, namespace.inside(OUTSIDE):
            self.processes[host] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.lab.adopt(host, self.processes[host].pid, argv)

    def _configuration(self, host: str) -> dict[str, dict[str, Any]]:
        wanted = super()._configuration(host)
        if host == HOST:
            del wanted[""]["address"]
            wanted[""]["netns"] = [self.lab.namespace(host), LATE]
        return wanted


def jobs_come_and_go(rig: Rig) -> None:
    """A namespace that is configured and not there yet is attended when it comes, and let go when it ends."""

    def noted(what: str) -> bool:
        return any(LATE in note and what in note for note in rig.daemons.view(HOST)["notes"])

    rig.wait("it is missed", lambda: noted("not there yet"))
    for _ in range(2):
        os.close(namespace.create(LATE))
        try:
            rig.wait("the new namespace is attended", lambda: noted("uplinks are watched and nothing is steered"))
        finally:
            namespace.remove(LATE)
        rig.wait("it is let go", lambda: noted("not there yet"))


def test_a_daemon_acts_in_the_namespaces_that_it_is_given(tmp_path: Path) -> None:
    os.close(namespace.create(OUTSIDE))
    try:
        with Rig(tmp_path, DaemonSpec(mode="act", tcp_timers=True), daemons=FromOutside, daemons_later=True) as rig:
            before = rig.kernel_state(HOST)
            rig.start_daemons()
            rows = {row["name"]: row for row in json.loads(rig.cli(HOST, "status", "--json").output)["netns"]}
            assert rows[rig.lab.namespace(HOST)]["steerable"] is True
            assert rows[rig.lab.namespace("host2")]["steerable"] is False
            jobs_come_and_go(rig)
            since_s = rig.calm()
            leaf = ""

            def carries() -> bool:
                nonlocal leaf
                leaf = next((d.split(">")[1] for d in rig.lab.carrying(0.3, 1e5) if d.startswith(f"{HOST}>")), "")
                return bool(leaf)

            rig.wait("the host sends", carries)
            with rig.broken(f"blackhole:{HOST}-{leaf}"):
                rig.wait_told(since_s, moved("away"), "the host leaves the uplink", [HOST])
                rig.wait_told(since_s, says(r"verified after the move$"), "it has verified the move", [HOST])
            rig.wait_told(since_s, moved("back"), "it has moved back", [HOST], RETURN_S)
            rig.goes_on()
            outside = subprocess.run(
                ["ip", "netns", "exec", OUTSIDE, "nft", "list", "tables"], check=True, capture_output=True, text=True
            ).stdout
            assert "linkpass" not in outside
            rig.daemons.stop(60.0)
            assert rig.kernel_state(HOST) == before
            rig.end_with_the_same_weights()
    finally:
        namespace.remove(OUTSIDE)
