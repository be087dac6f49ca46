"""Hold frames for a while and send them on: `python relay_process.py DELAY_S IN:OUT …`, each pair two descriptors.

IN is a tap from which whole frames are read, OUT a packet socket bound to a device. A program of its own that imports
nothing of the lab, so that it stands in some 30 ms. SIGTERM lets what is held go in its time, then it ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections import deque

MOST_HELD = 65_536
"""Frames; what comes on top is dropped, as a switch would."""
BATCH = 64
FRAME_BYTES = 65_536


def relay(ways: dict[int, socket.socket], by_s: float, stop_fd: int) -> None:
    """Until something can be read from `stop_fd`. All frames wait equally long: they leave in the order they came."""
    held: deque[tuple[float, socket.socket, bytes]] = deque()
    ends_s: float | None = None
    while ends_s is None or (held and time.monotonic() < ends_s):
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        for fd in select.select([*ways, stop_fd] if ends_s is None else [*ways], [], [], wait_s)[0]:
            if fd == stop_fd:
                ends_s = time.monotonic() + 2 * by_s
                continue
            for _ in range(BATCH):
                try:
                    frame = os.read(fd, FRAME_BYTES)
                except BlockingIOError:
                    break
                if len(held) < MOST_HELD:
                    held.append((time.monotonic() + by_s, ways[fd], frame))
        while held and held[0][0] <= time.monotonic():
            _, out, frame = held.popleft()
            try:
                out.send(frame)
            except OSError:
                continue  # the device is down: the frame is lost, as on any link without carrier


def main() -> int:
    by_s = float(sys.argv[1])
    ways = {}
    for pair in sys.argv[2:]:
        into, _, out = pair.partition(":")
        os.set_blocking(int(into), False)
        ways[int(into)] = socket.socket(fileno=int(out))
    stop_fd, told_fd = os.pipe()
    os.set_blocking(told_fd, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(told_fd)
    os.write(1, b"ready\n")
    relay(ways, by_s, stop_fd)
    return 0


if __name__ == "__main__":
    sys.exit(main())
