"""Runs in a guest: a program whose queue pair is made by its second thread, and looks at itself. Prints JSON.

threads_tool.py ADDRESS
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import threading
import time
from pathlib import Path

import msgspec

from lab.rdma_writer import End
from rdma.flows import FlowTable
from rdma.netlink import encode
from rdma.nldev import Nldev

OPTIONS = argparse.Namespace(device="rxe0", depth=4, size=4096, timeout=14, retries=6, kind="send")
NO_DEVICE = encode(1, struct.pack("=I", 4711))


class Echo:
    """The other end of a queue pair that is connected with itself."""

    def write(self, text: str) -> None:
        self.text = text

    def flush(self) -> None:
        pass

    def readline(self) -> str:
        return self.text


def main(address: str) -> dict[str, object]:
    ends: list[End] = []
    threads: list[int] = []
    may_end = threading.Event()

    def make() -> None:
        Path("/proc/thread-self/comm").write_bytes(b"\xc3")
        threads.append(threading.get_native_id())
        end = End(OPTIONS)
        end.connect(Echo(), address)
        ends.append(end)
        may_end.wait()

    thread = threading.Thread(target=make)
    thread.start()
    while not ends and thread.is_alive():
        time.sleep(0.01)
    with Nldev() as kernel:
        listed = [one for one in kernel.listing().queue_pairs if one.type == "RC"]
        table = FlowTable(kernel)
        first = table.look(time.monotonic())
        may_end.set()
        thread.join()
        while Path(f"/proc/self/task/{threads[0]}").exists():
            time.sleep(0.01)
        ended = [one for one in kernel.listing().queue_pairs if one.type == "RC"]
        after, anew = table.look(time.monotonic()), FlowTable(kernel).look(time.monotonic())
        (end,) = ends
        pair = end.verbs.qp
        capacity = pair.QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        attributes = pair.QPInitAttr(
            qp_type=end.enums.IBV_QPT_RC, scq=end.completions, rcq=end.completions, cap=capacity
        )
        beside = pair.QP(end.domain, attributes)
        found = FlowTable(kernel).look(time.monotonic())
        broken = kernel._dump((5 << 10) + 10, NO_DEVICE)
        beside.close()
    return {
        "pid": os.getpid(), "thread": threads[0], "listed": listed, "ended": ended, "first": first, "after": after,
        "anew": anew, "found": found, "broken": broken,
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main(sys.argv[1]), enc_hook=str))
    sys.stdout.flush()
