"""An ordinary RDMA program that knows nothing of linkpass: numbered, checksummed messages over one RC queue pair, every
byte of which is looked at. Needs Debian's `python3-pyverbs`.

    rdma_writer.py serve  --listen ADDRESS
    rdma_writer.py send   --connect ADDRESS --rate 100

Of three kinds (`--kind`, the same at both ends): `send`; `write`, into the other end's memory, with a word that tells
it; `read`, out of it, where the reader looks at them.

The ends exchange their numbers over a TCP connection, which also tells the receiver that all has been sent. What is
written to standard output are JSON lines: `{"ready": true}`, a line for each pause between two completions of more than
20 ms, and the result. SIGTERM ends the sender in order. Times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import select
import signal
import socket
import struct
import sys
import time
import zlib
from typing import Any

from rdma import verbs

HEAD = struct.Struct("!QI")
PAUSE_S = 0.02
GIVE_UP_S = 30.0
CONNECT_S = 60.0
TCP_PORT = 18600
POLL_S = 0.001


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def message(number: int, size: int) -> bytes:
    """Its number, the checksum of what follows, and bytes that are other ones in every message."""
    body = (number * 2654435761 % (1 << 64)).to_bytes(8, "big") * ((size - HEAD.size) // 8 + 1)
    body = body[: size - HEAD.size]
    return HEAD.pack(number, zlib.crc32(body)) + body


def is_whole(data: bytes, number: int) -> bool:
    there, checksum = HEAD.unpack_from(data)
    return bool(there == number and checksum == zlib.crc32(data[HEAD.size :]))


class End:
    """A queue pair and its memory."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.verbs = verbs.load()
        self.enums = e = self.verbs.enums
        qp = self.verbs.qp
        self.options = options
        self.context = verbs.open_device(options.device)
        self.domain = self.verbs.pd.PD(self.context)
        self.completions = self.verbs.cq.CQ(self.context, 4 * options.depth)
        self.ring = 2 * options.depth  # a message is written beside those that nobody has looked at yet
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.memory = self.verbs.mr.MR(self.domain, options.size * self.ring, access)
        self.there: dict[str, Any] = {}
        capacity = qp.QPCap(max_send_wr=options.depth, max_recv_wr=options.depth, max_send_sge=1, max_recv_sge=1)
        first = qp.QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.completions, rcq=self.completions, cap=capacity)
        self.pair = qp.QP(self.domain, first)  # its attributes come later: a QP that is made with some stays in INIT

    def gid(self, address: str) -> int:
        """Index of the GID that stands for an address."""
        wanted = ipaddress.ip_address(address)
        text = wanted.exploded if wanted.version == 6 else ipaddress.ip_address(f"::ffff:{wanted}").exploded
        for index in range(64):
            if str(self.context.query_gid(1, index).gid) == text:
                return index
        raise SystemExit(f"{self.options.device} has no GID for {address}")

    def connect(self, talk: Any, own: str) -> None:
        """Tell the other end our number, hear its number, and be ready to send."""
        addr = self.verbs.addr
        here = {"qpn": self.pair.qp_num, "gid": own, "address": self.memory.buf, "rkey": self.memory.rkey}
        talk.write(json.dumps(here) + "\n")
        talk.flush()
        there = self.there = json.loads(talk.readline())
        gid = ipaddress.ip_address(there["gid"])
        text = gid.exploded if gid.version == 6 else ipaddress.ip_address(f"::ffff:{gid}").exploded
        route = addr.GlobalRoute(dgid=addr.GID(text), sgid_index=self.gid(own), hop_limit=64)
        to = self.verbs.qp.QPAttr(port_num=1)
        to.qp_access_flags = self.enums.IBV_ACCESS_REMOTE_WRITE | self.enums.IBV_ACCESS_REMOTE_READ
        to.path_mtu = self.enums.IBV_MTU_1024
        to.dest_qp_num, to.rq_psn, to.sq_psn = there["qpn"], 0, 0
        to.max_dest_rd_atomic = to.max_rd_atomic = 1
        to.min_rnr_timer, to.rnr_retry = 12, 7
        to.timeout, to.retry_cnt = self.options.timeout, self.options.retries
        to.ah_attr = addr.AHAttr(port_num=1, is_global=1, gr=route)
        self.pair.to_rts(to)

    def piece(self, slot: int) -> Any:
        return self.verbs.wr.SGE(self.memory.buf + slot * self.options.size, self.options.size, self.memory.lkey)

    def request(self, number: int) -> Any:
        """The work that brings a message over."""
        e, kind = self.enums, self.options.kind
        opcode = {"send": e.IBV_WR_SEND, "write": e.IBV_WR_RDMA_WRITE_WITH_IMM, "read": e.IBV_WR_RDMA_READ}[kind]
        made = self.verbs.wr.SendWR(
            wr_id=number, opcode=opcode, num_sge=1, sg=[self.piece(number % self.options.depth)],
            send_flags=e.IBV_SEND_SIGNALED, imm_data=number % (1 << 32) if kind == "write" else 0,
        )  # fmt: skip
        if kind != "send":
            made.set_wr_rdma(self.there["rkey"], self.there["address"] + number % self.ring * self.options.size)
        return made

    def at(self, slot: int) -> bytes:
        data: bytes = self.memory.read(self.options.size, slot * self.options.size)
        return data

    def put(self, number: int, slot: int) -> None:
        self.memory.write(message(number, self.options.size), self.options.size, slot * self.options.size)

    def done(self) -> list[Any]:
        """Completions that have come, at once or after a short wait."""
        _, found = self.completions.poll(num_entries=16)
        if not found:
            time.sleep(POLL_S)
        return list(found)


def serve(options: argparse.Namespace) -> int:
    end = End(options)
    with socket.create_server(("", TCP_PORT), family=family(options.listen)) as listener:  # whatever VRF it is in
        tell(listening=True)
        channel, _ = listener.accept()
    talk = channel.makefile("rw")
    for number in range(end.ring if options.kind == "read" else 0):
        end.put(number, number)
    end.connect(talk, options.listen)
    for slot in range(options.depth):
        end.pair.post_recv(end.verbs.wr.RecvWR(wr_id=slot, num_sge=1, sg=[end.piece(slot)]))
    talk.write("go\n")
    talk.flush()
    tell(ready=True)
    received = errors = 0
    last: int | None = None
    quiet_s = time.monotonic()
    while last is None or received < last:
        if last is None and select.select([channel], [], [], 0)[0]:
            line = json.loads(talk.readline() or "{}")
            last = line.get("sent", received)
            if options.kind == "read":  # nothing is told of what is read here
                received, errors = last, line.get("errors", 0)
        for one in end.done():
            quiet_s = time.monotonic()
            if one.status != end.enums.IBV_WC_SUCCESS:
                errors += 1
                continue
            errors += not is_whole(end.at(one.wr_id if options.kind == "send" else received % end.ring), received)
            received += 1
            end.pair.post_recv(end.verbs.wr.RecvWR(wr_id=one.wr_id, num_sge=1, sg=[end.piece(one.wr_id)]))
        if last is not None and time.monotonic() - quiet_s > GIVE_UP_S:
            break
    tell(received=received, payload_errors=errors)
    return 0 if not errors and received == last else 1


def connected(address: str) -> socket.socket:
    """A connection to the other end, which may still be starting."""
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            channel = socket.create_connection((address, TCP_PORT), timeout=CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
        else:
            channel.settimeout(None)
            return channel


def send(options: argparse.Namespace) -> int:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    end = End(options)
    channel = connected(options.connect)
    talk = channel.makefile("rw")
    end.connect(talk, channel.getsockname()[0])
    talk.readline()
    tell(ready=True)
    sent = completed = errors = 0
    status = ""
    begun_s = last_s = time.monotonic()
    while not status and (completed < sent or not stop):
        now_s = time.monotonic()
        due = (now_s - begun_s) * options.rate >= sent and now_s - last_s < 1 / options.rate + PAUSE_S
        if sent - completed < options.depth and not stop and (due or sent == completed):
            if options.kind != "read":
                end.put(sent, sent % options.depth)
            end.pair.post_send(end.request(sent))
            if sent == completed:
                last_s = now_s  # nothing was waiting: no pause counts from before
            sent += 1
        for one in end.done():
            now_s = time.monotonic()
            if one.status != end.enums.IBV_WC_SUCCESS:
                status = status or name_of(end.enums, one.status)
                continue
            if options.kind == "read":
                errors += not is_whole(end.at(completed % options.depth), completed % end.ring)
            completed += 1
            if now_s - last_s > PAUSE_S:
                tell(pause_s=round(now_s - last_s, 4), at_s=round(last_s, 4))
            last_s = now_s
    talk.write(json.dumps({"sent": completed, "errors": errors}) + "\n")
    talk.flush()
    tell(sent=sent, completed=completed, error=status, at_s=round(time.monotonic(), 4), last_s=round(last_s, 4))
    return 1 if status else 0


def name_of(enums: Any, status: int) -> str:
    """`RETRY_EXC_ERR` and its like."""
    names = (name for name in dir(enums) if name.startswith("IBV_WC_") and name.endswith("_ERR"))
    found = next((name for name in names if getattr(enums, name) == status), str(status))
    return f"{found.removeprefix('IBV_WC_')} ({status})"


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def main() -> int:
    shape = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape.add_argument("what", choices=["serve", "send"])
    shape.add_argument("--kind", choices=["send", "write", "read"], default="send")
    shape.add_argument("--listen", default="", help="own address; its GID is used")
    shape.add_argument("--connect", default="", help="the other end's address")
    shape.add_argument("--device", default="rxe0")
    shape.add_argument("--size", type=int, default=4096, help="bytes of a message")
    shape.add_argument("--depth", type=int, default=4, help="messages under way")
    shape.add_argument("--rate", type=float, default=100.0, help="messages a second")
    shape.add_argument("--timeout", type=int, default=14, help="exponent of 4.096 us x 2^timeout")
    shape.add_argument("--retries", type=int, default=6)
    options = shape.parse_args()
    return serve(options) if options.what == "serve" else send(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except verbs.VerbsError as error:
        sys.exit(str(error))
