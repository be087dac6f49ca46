"""What reading the statistics of 64 Ethernet ports once a second costs: python tests/rdma/bench_ethernet.py [ROUNDS]

Needs root. Ports are virtual Ethernet devices, which the kernel is really asked about (three netlink questions and one
ioctl a port and round); since they count nothing, recorded answers and 1,600 statistics as mlx5 has them are taken
instead of theirs, with other numbers every round. Prints JSON: processor time of a round, and for how long a call of
`poll` keeps the loop. What a driver does behind a read is not in it: that needs the hardware."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from ethtool_kernel import with_numbers  # noqa: E402

from lab.netns import namespace  # noqa: E402
from linkpass.edges.netdevs import NetdevEdge  # noqa: E402
from rdma.counters.evidence import Thresholds  # noqa: E402
from rdma.ethernet.genl import PARTS, EthtoolNetlink, Part, question  # noqa: E402
from rdma.ethernet.ioctl import DeviceStatistics  # noqa: E402
from rdma.ethernet.reading import NetdevReader  # noqa: E402
from rdma.ethernet.table import DRIVERS  # noqa: E402
from rdma.ethernet.watch import Netdevs  # noqa: E402
from rdma.sysfs import Unknown  # noqa: E402

PORTS = 64
NAMES = [row.file_of(number) for row in DRIVERS if row.driver == "mlx5_core" for number in row.numbers()]
FILLER = [f"ch{number}_poll" for number in range(1600 - len(NAMES))]
BUSY = {
    "received_packets": 1000, "sent_packets": 1000, "received_bytes": 10**6, "sent_bytes": 10**6, "symbol_errors": 0,
    "control_packets_received": 9,
}  # fmt: skip


class Numbers:
    """This round's."""

    def __init__(self) -> None:
        self.answers: dict[Part, bytes] = {}
        self.own = b""

    def move(self, number: int) -> None:
        self.answers = {
            "pause": with_numbers("pause", link_pauses_received=number),
            "fec": with_numbers("fec", fec_corrected_blocks=100 * number, fec_corrected_bit_errors=900 * number),
            "statistics": with_numbers("statistics", **{name: step * number for name, step in BUSY.items()}),
        }
        busy = ("pause", "duration", "packets", "bits")
        own = [1000 * number if any(word in name for word in busy) else 7 for name in NAMES]
        self.own = struct.pack(f"={len(FILLER) + len(NAMES)}Q", *([number] * len(FILLER)), *own)


class Kernel(EthtoolNetlink):
    def __init__(self, numbers: Numbers, devices: list[str]) -> None:
        super().__init__()
        self._numbers = numbers
        self._parts = {question(part, device): part for device in devices for part in PARTS}

    def ask(self, question: bytes) -> bytes | Unknown:
        told = super().ask(question)
        return self._numbers.answers[self._parts[question]] if question in self._parts else told


class Mlx5(DeviceStatistics):
    def __init__(self, device: str, numbers: Numbers) -> None:
        super().__init__(device)
        self._numbers = numbers
        self._real: list[str] = []

    def open(self) -> DeviceStatistics:
        super().open()
        self._real, self.driver, self.names = self.names, "mlx5_core", FILLER + NAMES
        return self

    def raw(self) -> bytes:
        names, self.names = self.names, self._real
        super().raw()
        self.names = names
        return self._numbers.own


class AtOnce(ThreadPoolExecutor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def netdevs(numbers: Numbers, devices: list[str]) -> Netdevs:
    made = Netdevs(60.0, Kernel(numbers, devices))
    made.look([devices[0]], lambda: 0.0)
    for device in devices:
        reader = made._readers[device] = NetdevReader(device, made._kernel)
        reader._told = Mlx5(device, numbers)
    return made


def main(rounds: int) -> None:
    name = f"te-{os.getpid()}-bench"
    devices = [f"near{number}" for number in range(PORTS)]
    os.close(namespace.create(name))
    try:
        lines = "".join(f"link add {one} type veth peer name far{n}\n" for n, one in enumerate(devices))
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=lines, text=True, check=True)
        with namespace.inside(name):
            told = measure(rounds, devices)
    finally:
        namespace.remove(name)
    print(json.dumps(told))


def measure(rounds: int, devices: list[str]) -> dict[str, Any]:
    numbers = Numbers()
    numbers.move(0)
    whole = NetdevEdge(Thresholds(), netdevs(numbers, devices), time.monotonic, AtOnce(1))
    cpu_s = []
    for number in range(rounds + 2):
        numbers.move(number)
        begun_s = time.process_time()
        whole.poll(devices)
        cpu_s.append(time.process_time() - begun_s)
    assert len(whole.snapshot()[0]["totals"]) > len(NAMES)
    whole.close()
    thread = ThreadPoolExecutor(1)
    loop = NetdevEdge(Thresholds(), netdevs(numbers, devices), time.monotonic, thread)
    held_s = []
    for number in range(rounds + 2):
        numbers.move(number)
        begun_s = time.perf_counter()
        loop.poll(devices)
        held_s.append(time.perf_counter() - begun_s)
        thread.submit(int).result()
    loop.close()
    cpu_s, held_s = sorted(cpu_s[2:]), sorted(held_s[2:])  # the first ones learn
    return {
        "ports": PORTS, "statistics": len(NAMES) + len(FILLER), "rounds": rounds,
        "cpu_ratio": {"p50": statistics.median(cpu_s), "max": cpu_s[-1]},
        "loop_held_s": {"p50": statistics.median(held_s), "max": held_s[-1]},
    }  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
