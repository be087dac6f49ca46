"""InfiniBand subnets simulated by ibsim, and the real tools over them: two leaves, two spines, two hosts, two rails."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

Ports = dict[str, dict[int, tuple[str, int]]]

TWO_LEAVES: Ports = {
    "leaf1": {1: ("node1 HCA-1", 1), 2: ("node2 HCA-1", 1), 7: ("spine1", 1), 8: ("spine2", 1)},
    "leaf2": {1: ("node1 HCA-2", 1), 2: ("node2 HCA-2", 1), 7: ("spine1", 2), 8: ("spine2", 2)},
    "spine1": {1: ("leaf1", 7), 2: ("leaf2", 7)},
    "spine2": {1: ("leaf1", 8), 2: ("leaf2", 8)},
    "node1 HCA-1": {1: ("leaf1", 1)},
    "node1 HCA-2": {1: ("leaf2", 1)},
    "node2 HCA-1": {1: ("leaf1", 2)},
    "node2 HCA-2": {1: ("leaf2", 2)},
}


class SimulatedSubnet:
    """`options`: of all ports, in ibsim's words; `other`: those of some (node, port)."""

    def __init__(
        self, folder: Path, ports: Ports, options: str = "", other: dict[tuple[str, int], str] | None = None
    ) -> None:
        text = []
        for name, ends in ports.items():
            text.append(f'{"Hca" if "HCA" in name else "Switch"}\t8 "{name}"')
            for port, (peer, peer_port) in ends.items():
                text.append(f'[{port}]\t"{peer}"[{peer_port}] {(other or {}).get((name, port), options)}')
            text.append("")
        (folder / "net").write_text("\n".join(text))
        self._env = {
            **os.environ, "SIM_HOST": "node1 HCA-1", "IBSIM_SOCKNAME": f"linkpass:{os.getpid()}:{id(self):x}",
            "OSM_CACHE_DIR": str(folder), "OSM_TMP_DIR": str(folder),
        }  # fmt: skip
        self._folder = folder
        self._process = subprocess.Popen(
            ["ibsim", "-s", str(folder / "net")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, text=True, env=self._env, cwd=folder,
        )  # fmt: skip

    def order(self, line: str) -> None:
        """On the simulator's console."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def run(self, tool: str, *options: str) -> str:
        """What a tool prints; ended after 20 s, since some never do (`iblinkinfo -S`)."""
        argv = ["ibsim-run", tool, *options]
        done = subprocess.run(
            argv, env=self._env, cwd=self._folder, capture_output=True, text=True, timeout=20, check=False
        )
        return done.stdout

    def discover(self, *options: str) -> str:
        """What ibnetdiscover prints, once the simulator is there."""
        until_s = time.monotonic() + 20
        while "Topology file" not in (text := self.run("ibnetdiscover", *options)):
            assert self._process.poll() is None, "ibsim has ended"
            assert time.monotonic() < until_s, text
            time.sleep(0.1)
        return text

    def sweep(self) -> None:
        """A subnet manager gives LIDs and forwarding tables, brings the links up, and ends."""
        self.discover()
        self.run("opensm", "--once", "--log_file", str(self._folder / "opensm.log"))
        assert "Active/" in self.run("iblinkinfo")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
