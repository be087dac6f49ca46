"""What the job's own flows send again, under labels that the kernel has given: real daemons that only observe, real TCP
streams, and a direction that loses. IPv4 has no labels at all, and without flows nobody would be named."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from rig import RETURN_S, START_S, Rig

from lab import streams
from lab.daemons import DaemonSpec
from lab.job import Job, JobSpec

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

FLOWS = 6
"""Connections from each host to each other one."""
SAID = re.compile(r"flows of the job send again on [1-9]\d* of their \d+ traced ways over it, weighed as")


class StreamRig(Rig):
    """Job, streams and daemons of one family; the daemons observe."""

    def __init__(self, folder: Path, family: Literal[4, 6]) -> None:
        super().__init__(
            folder, DaemonSpec(mode="observe", family=family, realtime=True, extra={"diagnosis": {"enabled": True}})
        )
        self.family = family
        self.streams: list[subprocess.Popen[str]] = []
        self.job = Job(
            self.lab, self.hosts, folder / "job",
            JobSpec(steps=1_000_000, hash_every=50, family=family, extra=("--pause-s", "0.1")),
        )  # fmt: skip

    def __enter__(self) -> StreamRig:
        try:
            self.lab.up()
            self.job.start().wait_steps(5, START_S)
            self._start_streams()
            self.start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def _start_streams(self) -> None:
        for host in self.hosts:
            peers = ",".join(self.lab.address(other, self.family) for other in self.hosts if other != host)
            self.streams.append(
                self.lab.popen(
                    host,
                    [sys.executable, streams.__file__, "--bind", self.lab.address(host, self.family), "--peers", peers,
                     "--flows", str(FLOWS)],
                    stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        for one in self.streams:
            assert one.stdout is not None
            with one.stdout:  # they have no more to say
                assert one.stdout.readline() == "ready\n"

    def close(self) -> None:
        for one in self.streams:
            one.terminate()
            one.wait()
        super().close()

    def findings(self, host: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.daemons.view(host)["findings"]
        return found


@pytest.fixture(scope="module", params=[6, 4])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamRig]:
    with StreamRig(tmp_path_factory.mktemp("rig"), request.param) as made:
        yield made


def test_the_verdict_tells_what_flows_have_lost(rig: StreamRig) -> None:
    """The direction is one that probes find as well: alone flows accuse nobody."""
    rig.calm()
    direction = rig.busiest(between=(1, 2))
    blamed: dict[str, dict[str, Any]] = {}

    def told() -> bool:
        for host in rig.hosts:
            for one in rig.findings(host):
                if one["certain"] and SAID.search("; ".join(one["evidence"])):
                    blamed[host] = one
        return bool(blamed)

    with rig.broken(f"loss:{direction}:5%"):
        rig.wait("a verdict tells of flows", told, RETURN_S)
    for one in blamed.values():
        names = {one["element"], *one["others"]}
        assert direction in names or names & {*direction.split(">"), "-".join(sorted(direction.split(">")))}
