"""One connection over which state goes: frames, and who may speak.

A frame is four bytes of length and a message in msgpack; bytes of state follow it raw. Both ends show by a challenge
that they know the job's key, before anything else is read: the taker to get the state, the giver so that no stranger's
bytes are taken for it. What is sent is neither encrypted nor signed: it goes where the job's own gradients go.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from torchpass_bridge.trainer.groups import Key

MAX_FRAME_BYTES = 64 << 20
MAX_HELLO_BYTES = 1 << 10


class ChannelError(Exception):
    """The connection is of no use any more: closed, silent for too long, or not with a member of the job."""


class Hello(msgspec.Struct, frozen=True):
    member: str
    nonce: bytes
    proof: bytes


class Challenge(msgspec.Struct, frozen=True):
    nonce: bytes


class Ask(msgspec.Struct, frozen=True):
    """table: how the state is laid out · chunk: a part of it · own: what belongs to the giver alone (`Own.take`) ·
    keep: `data` is rank `rank`'s own at `step`, to be kept · kept: the newest of these up to `step` · hold: a copy of a
    part of a sharded state is to be kept, `number` bytes of it follow, each chunk after its digest.

    `part`: table, chunk and own are asked of the copy that is kept of it, and not of the giver's own state."""

    what: Literal["table", "chunk", "own", "keep", "kept", "hold"]
    group: Key = (0, 0)
    step: int = 0
    number: int = 0
    rank: int = 0
    data: bytes = b""
    part: int = -1


class Reply(msgspec.Struct, frozen=True):
    """`why`: not given. A chunk's bytes follow, `digest` is theirs; then one byte, 1 if the state stood still."""

    why: str = ""
    layout: str = ""
    digest: str = ""
    step: int = 0
    data: bytes = b""
    rank: int = -1
    """Whose own `data` is, in a copy."""


T = TypeVar("T", Hello, Challenge, Ask, Reply)


def send(sock: socket.socket, message: Hello | Challenge | Ask | Reply) -> None:
    data = msgspec.msgpack.encode(message)
    send_all(sock, [struct.pack("!I", len(data)), data])


def receive(sock: socket.socket, kind: type[T], limit: int = MAX_FRAME_BYTES) -> T:
    """ChannelError when it is none, or longer than `limit` bytes."""
    head = bytearray(4)
    receive_all(sock, [memoryview(head)])
    (length,) = struct.unpack("!I", head)
    if length > limit:
        raise ChannelError(f"a message of {length} bytes, where at most {limit} are expected")
    data = bytearray(length)
    receive_all(sock, [memoryview(data)])
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ChannelError(f"not a message of torchpass: {error}") from error


def send_all(sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
    """All parts, in as few calls as the system takes them."""
    rest = [memoryview(part) for part in parts if len(part)]
    try:
        while rest:
            sent = sock.sendmsg(rest[:512])
            rest = _after(rest, sent)
    except OSError as error:
        raise ChannelError(f"sending: {_words(error)}") from error


def receive_all(sock: socket.socket, parts: Sequence[memoryview]) -> None:
    """Fills all parts. ChannelError when the other end closes before, or nothing comes within the socket's timeout."""
    rest = [part for part in parts if len(part)]
    try:
        while rest:
            got = sock.recvmsg_into(rest[:512])[0]
            if not got:
                raise ChannelError("closed by the other end")
            rest = _after(rest, got)
    except OSError as error:
        raise ChannelError(f"receiving: {_words(error)}") from error


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    for number, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[number + 1 :]]
        count -= len(part)
    return []


def _words(error: OSError) -> str:
    return "nothing came in time" if isinstance(error, TimeoutError) else str(error)


def connect(address: str, key: bytes, member: str, connect_s: float, stall_s: float) -> socket.socket:
    """To a giver that has shown that it knows the key."""
    host, _, port = address.rpartition(":")
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=connect_s)
    except (OSError, ValueError) as error:
        raise ChannelError(f"{address}: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = receive(sock, Challenge, MAX_HELLO_BYTES)
        nonce = secrets.token_bytes(16)
        send(sock, Hello(member, nonce, _proof(key, "take", challenge.nonce, nonce, member)))
        answer = receive(sock, Hello, MAX_HELLO_BYTES)
        if not hmac.compare_digest(answer.proof, _proof(key, "give", nonce, challenge.nonce, "")):
            raise ChannelError(f"{address} does not know the job's key")
        sock.settimeout(stall_s)
    except BaseException:
        sock.close()
        raise
    return sock


def accept(sock: socket.socket, key: bytes, patience_s: float) -> str:
    """The member at the other end. ChannelError when it does not show that it knows the key."""
    sock.settimeout(patience_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nonce = secrets.token_bytes(16)
    send(sock, Challenge(nonce))
    hello = receive(sock, Hello, MAX_HELLO_BYTES)
    if not hmac.compare_digest(hello.proof, _proof(key, "take", nonce, hello.nonce, hello.member)):
        raise ChannelError(f"{hello.member[:64]!r} does not know the job's key")
    send(sock, Hello("", b"", _proof(key, "give", hello.nonce, nonce, "")))
    return hello.member


def _proof(key: bytes, role: str, theirs: bytes, ours: bytes, member: str) -> bytes:
    return hmac.new(key, b"\0".join((role.encode(), theirs, ours, member.encode())), hashlib.sha256).digest()
