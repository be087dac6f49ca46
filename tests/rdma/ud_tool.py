"""Runs in a guest: an end of `rdma.ud`, told by arguments, that prints JSON lines.

    ud_tool.py serve ADDRESS polled|woken            answers until it is ended
    ud_tool.py ask ADDRESS polled|woken GID QPN QKEY  asks in two classes and prints what came of it
    ud_tool.py break ADDRESS                          loses its address, and opens the port anew when it is back

`polled`: the queue of devices that stamp completions, here without stamps. An answer is the question with, in front,
for how long it was there (ns) and in which class it came."""

from __future__ import annotations

import ipaddress
import json
import select
import struct
import subprocess
import sys
import time
from typing import Any

from rdma import completions, ud, verbs

HEAD = struct.Struct("!QB")
ANSWER_S = 5.0
NEW_ROUTE_S = 25.0
CLASSES = (0, 26 << 2)


def tell(**line: object) -> None:
    print(json.dumps(line), flush=True)


def opened(address: str, how: str) -> tuple[ud.UdPort, int, str]:
    if how == "polled":
        ud.make = lambda pyverbs, context, depth: completions.Stamped(pyverbs, context, depth, stamps=False)
    port = ud.UdPort("rxe0")
    port.open()
    packed = ipaddress.ip_address(address)
    gid = f"::ffff:{address}" if packed.version == 4 else address
    (index,) = [one.index for one in port.gids() if one.gid == gid and one.type == "RoCE v2"]
    tell(gid=gid, qpn=port.qpn, qkey=port.qkey, index=index, wakes=port.fileno() is not None)
    return port, index, gid


def wait(port: ud.UdPort, seconds: float) -> None:
    fd = port.fileno()
    if fd is None:
        time.sleep(0.002)
    else:
        select.select([fd], [], [], seconds)


def serve(address: str, how: str) -> None:
    port, index, _ = opened(address, how)
    while not port.broken:
        wait(port, 0.5)
        for one in port.poll()[1]:
            qpn, qkey = struct.unpack_from("!II", one.payload, HEAD.size)
            assert qpn == one.source_qpn
            route = ud.Route(str(ipaddress.IPv6Address(one.source)), index, traffic_class=one.traffic_class)
            here_ns = int((port.now_s() - one.at_s) * 1e9)
            port.send(HEAD.pack(here_ns, one.traffic_class) + one.payload[HEAD.size :], route, qpn, qkey)
    raise SystemExit(port.broken)


def ask(address: str, how: str, gid: str, qpn: str, qkey: str) -> None:
    port, index, own = opened(address, how)
    for number in range(10):
        route = ud.Route(gid, index, traffic_class=CLASSES[number % 2], flow_label=0x12345)
        body = struct.pack("!III", port.qpn, port.qkey, number).ljust(ud.BYTES - HEAD.size, b"x")
        end_s = time.monotonic() + NEW_ROUTE_S
        while True:
            begun_s = port.now_s()
            token = port.send(bytes(HEAD.size) + body, route, int(qpn), int(qkey))
            if token is not None or port.broken or time.monotonic() > end_s:
                break
            time.sleep(0.1)  # finding the neighbour took long: the next new route has to wait (`Allowance`)
        left: list[Any] = []
        arrived: list[Any] = []
        while not arrived and port.now_s() < begun_s + ANSWER_S:
            wait(port, 0.5)
            more = port.poll()
            left += more[0]
            arrived += more[1]
        for one in arrived:
            here_ns, seen = HEAD.unpack_from(one.payload)
            tell(
                number=number, token=token, left=[x.token for x in left], whole=one.payload[HEAD.size :] == body,
                source=str(ipaddress.IPv6Address(one.source)), target=str(ipaddress.IPv6Address(one.target)),
                seen_class=seen, answer_class=one.traffic_class, round_s=one.at_s - begun_s, there_s=here_ns * 1e-9,
            )  # fmt: skip
    tell(broken=port.broken, own=own)
    port.close()


def break_(address: str) -> None:
    port, index, gid = opened(address, "woken")
    port.send(bytes(ud.BYTES), ud.Route(gid, index), port.qpn, port.qkey)  # a handle of the route is there from now on
    wait(port, ANSWER_S)
    port.poll()
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
    port.send(bytes(ud.BYTES), ud.Route(gid, index), port.qpn, port.qkey)
    end_s = time.monotonic() + ANSWER_S
    while not port.broken and time.monotonic() < end_s:
        wait(port, 0.1)
        port.poll()
    tell(broken=port.broken, refused=port.send(bytes(ud.BYTES), ud.Route(gid, index), port.qpn, port.qkey) is None)
    port.close()
    subprocess.run(["ip", "link", "set", "eth0", "up"], check=True)
    subprocess.run(["ip", "addr", "replace", f"{address}/64", "dev", "eth0", "nodad"], check=True)
    until_s = time.monotonic() + 10
    while True:
        try:
            port, index, gid = opened(address, "woken")
            break
        except (ValueError, verbs.VerbsError):
            assert time.monotonic() < until_s
            time.sleep(0.1)
    port.send(bytes(ud.BYTES), ud.Route(gid, index), port.qpn, port.qkey)  # to itself
    wait(port, ANSWER_S)
    tell(arrived=len(port.poll()[1]), broken=port.broken)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"serve": serve, "ask": ask, "break": break_}[what](*rest)
