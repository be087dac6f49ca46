"""Two guests with soft-RoCE on one wire, and what is asked of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.netns import namespace
from lab.qemu.daemons import FIRST
from lab.qemu.guest import Guest, Nic
from lab.qemu.kernel import prepare
from lab.qemu.tap import open_tap

HERE = Path(__file__).parent
TOOL = HERE / "guest_tool.py"
ROOT = HERE.parents[1]
WARM = "/run/warm.sock"
LOADED = (
    "pyverbs.device", "pyverbs.pd", "pyverbs.cq", "pyverbs.qp", "pyverbs.mr", "linkpass.app.udp_port",
    "linkpass.edges.kernel.egress", "linkpass.edges.moves.undoing", "rdma.counters.reading", "rdma.ethernet.watch",
    "rdma.flows", "rdma.remote_qp", "rdma.ud",
)  # fmt: skip
"""What scripts in a guest begin with: a list that lacks something makes them slower, no more."""
START_S, SCRIPT_S = 90.0, 240.0
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

    def set_up(self) -> None:
        self.guest.sh(
            f"ip link set eth0 up; ip addr add {self.v6}/64 dev eth0 nodad; ip addr add {self.v4}/24 dev eth0;"
            " rdma link add rxe0 type rxe netdev eth0"
        )
        until_s = time.monotonic() + START_S
        port = "/sys/class/infiniband/rxe0/ports/1"
        wanted = {"4: ACTIVE", "5: LinkUp", *(self._gid(address) for address in (self.v6, f"::ffff:{self.v4}"))}
        # The kernel's work queues give the port its state and its addresses.
        while not wanted <= (seen := set(self.guest.sh(f"cat {port}/*state {port}/gids/* 2>&1; true").splitlines())):
            assert time.monotonic() < until_s, wanted - seen
            time.sleep(0.1)

    @staticmethod
    def _gid(address: str) -> str:
        return socket.inet_pton(socket.AF_INET6, address).hex(":", 2)

    def warm_up(self) -> None:
        """For whoever is going to run scripts here: done a while later."""
        argv = [*FIRST, sys.executable, str(HERE / "warm_python.py"), WARM, *LOADED]
        self.guest.spawn(argv, "warm", env={"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"})

    def python(self, *argv: object) -> str:
        """What a script (or `-c` and a program) prints; it must end well."""
        done = self._ask_warm(argv=[*map(str, argv)])
        assert done["rc"] == 0, (
            f"{argv} ended with {done['rc']}\n{done['err']}\n{self.guest.run(['dmesg'], check=False).out[-2000:]}"
        )
        return str(done["out"])

    def start_python(self, log: str, *argv: object) -> int:
        """A script that goes on, and says what it says in `log` (below `share`): its pid."""
        return int(self._ask_warm(argv=[*map(str, argv)], log=f"/share/{log}")["pid"])

    def _ask_warm(self, **request: object) -> dict[str, Any]:
        until_s = time.monotonic() + START_S
        while self.guest.run(["test", "-e", WARM], check=False).rc:
            assert time.monotonic() < until_s, (self.guest.share / "warm").read_text()
            time.sleep(0.1)
        text = json.dumps(request) + "\n"
        answer = self.guest.ask(SCRIPT_S + 15, unix=WARM, send=text, timeout_s=SCRIPT_S)["out"]
        return json.loads(answer)  # type: ignore[no-any-return]

    def tool(self, *words: object) -> Any:
        """What `guest_tool.py` answers."""
        return json.loads(self.python(TOOL, *words))

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


@contextmanager
def a_pair(folder: Path) -> Iterator[Pair]:
    """Two guests that have nothing behind them."""
    made = Pair(f"te-{os.getpid()}-{folder.name}", folder)
    try:
        made.up()
        yield made
    finally:
        made.down()
