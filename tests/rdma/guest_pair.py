"""Two guests with soft-RoCE on one wire, and what is asked of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.netns import namespace
from lab.qemu.guest import Guest, Nic
from lab.qemu.kernel import prepare
from lab.qemu.tap import open_tap

TOOL = Path(__file__).with_name("guest_tool.py")
ROOT = Path(__file__).parents[2]
WIRE = """table netdev wire {
 chain a { type filter hook ingress device "tap-a" priority 0; fwd to "tap-b"; }
 chain b { type filter hook ingress device "tap-b" priority 0; fwd to "tap-a"; }
}
"""


class Side:
    """A guest and its addresses."""

    def __init__(self, guest: Guest, number: int) -> None:
        self.guest = guest
        self.v6, self.v4 = f"fd00:a::{number}", f"10.9.0.{number}"
        self.tool_s = 0.0
        """How long the last question took: how fast this machine emulates."""

    def set_up(self) -> None:
        self.guest.sh(
            f"ip link set eth0 up; ip addr add {self.v6}/64 dev eth0 nodad; ip addr add {self.v4}/24 dev eth0;"
            " rdma link add rxe0 type rxe netdev eth0"
        )

    def tool(self, *words: object) -> Any:
        """What `guest_tool.py` answers."""
        argv = [sys.executable, str(TOOL), *map(str, words)]
        begun_s = time.monotonic()
        env = {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        done = self.guest.run(argv, timeout_s=240, env=env, check=False)
        self.tool_s = time.monotonic() - begun_s
        assert done.rc == 0, (
            f"{words} ended with {done.rc}\n{done.err}\n{self.guest.run(['dmesg'], check=False).out[-2000:]}"
        )
        return json.loads(done.out)

    def gid_index(self, gid: str) -> int:
        (device,) = self.tool("devices")
        return next(one["index"] for one in device["ports"][0]["gids"] if one["gid"] == gid)


class Pair:
    def __init__(self, wire: str, folder: Path) -> None:
        self.wire = wire
        self.a, self.b = (Side(Guest(f"guest-{side}", folder / side), n) for n, side in enumerate("ab", 1))

    def up(self) -> None:
        kernel = prepare()
        os.close(namespace.create(self.wire))
        with namespace.inside(self.wire):
            for number, (side, one) in enumerate((("a", self.a), ("b", self.b))):
                tap = open_tap(self.wire, f"tap-{side}")
                one.guest.run_dir.mkdir(parents=True)
                one.guest.start(kernel, [Nic("eth0", tap, f"02:4c:50:00:00:1{number}")])
            for side in "ab":
                subprocess.run(["ip", "link", "set", f"tap-{side}", "up"], check=True)
            subprocess.run(["nft", "-f", "-"], input=WIRE, text=True, check=True)
        for one in (self.a, self.b):
            one.guest.connect()
            one.set_up()

    def down(self) -> None:
        for one in (self.a, self.b):
            one.guest.stop()
        namespace.remove(self.wire)
