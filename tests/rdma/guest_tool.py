"""Runs in a guest: asks this project's `rdma` package and prints the answer as JSON.

    guest_tool.py devices | queue-pairs | ethernet | watch PID TIMER | stop PID FOLDER | port PID FOLDER

`watch` looks at a program's queue pairs in all the ways that there are, in one go: under emulation a start of Python
takes longer than all of them. `stop` is a daemon that dies after it has stopped a queue pair: it is in the undo journal
in FOLDER, and stands. `port` asks for another UDP source port in all the ways that there are."""

from __future__ import annotations

import sys
import time

import msgspec

from linkpass.app.udp_port import change
from linkpass.config import Config
from linkpass.config.model import Journal, Rdma, RdmaSteer
from linkpass.edges.moves.undoing import KIND, plain
from linkpass.edges.undo import UndoJournal
from rdma import mlx5, uverbs
from rdma.borrowed import borrowed, device_number, start_ticks
from rdma.counters.reading import PortReader
from rdma.devices import devices
from rdma.ethernet.reading import physical
from rdma.ethernet.watch import Netdevs
from rdma.flows import FlowTable
from rdma.nldev import Nldev
from rdma.remote_qp import RefusedError, RemoteQp, Target

RXE = uverbs.DRIVER_IDS["rxe"]


def counters(seconds: float) -> dict[str, object]:
    device = devices()[0]
    with PortReader(device.ports[0], device.driver) as reader:
        reader.read(time.monotonic())
        time.sleep(seconds)
        window = reader.read(time.monotonic())
        files = [row.file for row in reader.rows]
        return {"strange": reader.strange, "files": files, "counted": window.counted, "totals": reader.totals()}


def with_file(pid: int, timer: int | None = None) -> list[dict[str, object]]:
    number, started = device_number("rxe0"), start_ticks(pid)
    if number is None or started is None:
        raise SystemExit(f"no device, or no process {pid}")
    found: list[dict[str, object]] = []
    with borrowed(pid, started, number) as files:
        for fd in files:
            for handle in uverbs.handles(fd, RXE):
                if timer is not None:
                    uverbs.modify(fd, handle, RXE, state="RTS", min_rnr_timer=timer)
                found.append({"fd": fd, "handle": handle, "is": uverbs.query(fd, handle, RXE)})
    return found


def watch(pid: int, timer: int) -> dict[str, object]:
    counted = counters(1.0)
    with Nldev() as kernel:
        table = FlowTable(kernel)
        looks = [table.look(time.monotonic())]
        for _ in range(100):  # a requester sends again from time to time: its number may stand, or go back, for a look
            time.sleep(0.05)
            looks.append(table.look(time.monotonic()))
            if looks[-1] and looks[-1][0].qp.sq_psn != looks[0][0].qp.sq_psn:
                break
        return {
            "first": looks[0], "last": looks[-1], "before": with_file(pid), "after": with_file(pid, timer),
            "counters": counted, "still": table.look(time.monotonic()),
        }  # fmt: skip


def stop(pid: int, folder: str) -> str:
    """Its state then."""
    with Nldev() as kernel:
        (flow,) = [one for one in FlowTable(kernel).look(time.monotonic()) if one.qp.pid == pid]
    number = device_number("rxe0")
    assert number is not None
    target = Target.of(flow, "rxe", number)
    undo = UndoJournal(folder)
    undo.open()
    undo.note(KIND, [plain(target)])
    remote = RemoteQp(target)
    remote.stop()
    while not remote.is_drained():
        time.sleep(0.01)
    with borrowed(target.pid, target.started, number) as files:
        return uverbs.query(files[target.file], target.handle, RXE).state


def port(pid: int, folder: str) -> dict[str, object]:
    """What is said to it: to the call as it is for mlx5, to one of this device's own driver, and by hand."""
    with Nldev() as kernel:
        (flow,) = [one for one in FlowTable(kernel).look(time.monotonic()) if one.qp.pid == pid]
    number = device_number("rxe0")
    assert number is not None
    assert flow.place is not None
    said: dict[str, object] = {}
    with borrowed(pid, flow.started, number) as files:
        fd, handle = files[flow.place.file], flow.place.handle
        try:
            mlx5.set_port(fd, handle, flow.qp.lqpn, 0xC123)
        except mlx5.CommandError as error:
            said["as mlx5"] = str(error)
        try:
            uverbs.call(fd, RXE, 0x1002, mlx5.attributes(handle, (8, 0), (8, 0)), kind=0x1001)
        except OSError as error:
            said["as rxe"] = error.errno
        said["after"] = uverbs.query(fd, handle, RXE).state
    steer = RdmaSteer(live_qps=True, unproven=True)
    try:
        change(Config(mode="act", journal=Journal(dir=folder), rdma=Rdma(steer=steer)), pid, flow.qp.lqpn)
    except RefusedError as error:
        said["by hand"] = str(error)
    return said


def main(argv: list[str]) -> object:
    match argv:
        case ["devices"]:
            return devices()
        case ["queue-pairs"]:
            with Nldev() as kernel:
                return kernel.listing().queue_pairs
        case ["ethernet"]:
            netdevs = Netdevs()
            return netdevs.look(physical(devices()[0].netdevs[0]), time.monotonic)
        case ["watch", pid, timer]:
            return watch(int(pid), int(timer))
        case ["port", pid, folder]:
            return port(int(pid), folder)
        case ["stop", pid, folder]:
            return stop(int(pid), folder)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(main(sys.argv[1:]), enc_hook=str))
