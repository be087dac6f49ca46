"""What two daemons say to one another about the move of a queue pair: words <-> bytes. Signed by whoever sends them.

A word is MessagePack (msgspec) behind a version byte; with its signature it stays far below any path's MTU."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal

import msgspec

VERSION: Final = 1
MOST_GIDS: Final = 8
MOST_BYTES: Final = 1000
_TEXT = Annotated[str, msgspec.Meta(max_length=200)]
_U64 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_QPN = Annotated[int, msgspec.Meta(ge=0, lt=1 << 24)]

Kind = Literal[
    "prepare", "offer", "refuse", "check", "checked", "ask", "drained", "address", "addressed", "go", "back"
]  # fmt: skip


class Word(msgspec.Struct, frozen=True, array_like=True):
    """`move`: drawn at random by the asker. `nonce`: drawn at random by the asked for its offer and in every word of
    the move after it, so that old words move nothing. `asker_qpn`, `asked_qpn`: with `prepare`. `gids`: addresses as
    `ipaddress` prints them; with `prepare` the asker's others, with `offer` the new pair, the asked's and the asker's.
    `step`: counts checks."""

    kind: Kind
    move: _U64
    nonce: _U64 = 0
    asker_qpn: _QPN = 0
    asked_qpn: _QPN = 0
    gids: Annotated[tuple[_TEXT, ...], msgspec.Meta(max_length=MOST_GIDS)] = ()
    step: Annotated[int, msgspec.Meta(ge=0, lt=256)] = 0
    why: _TEXT = ""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Word)


def encode(word: Word) -> bytes:
    return bytes((VERSION,)) + _encoder.encode(word)


def decode(data: bytes) -> Word | None:
    """None: it is no word of ours. Never raises."""
    if not 1 < len(data) <= MOST_BYTES or data[0] != VERSION:
        return None
    try:
        word = _decoder.decode(data[1:])
        gids = tuple(str(ipaddress.ip_address(gid)) for gid in word.gids)
    except (msgspec.MsgspecError, ValueError):  # UnicodeDecodeError is one
        return None
    return word if gids == word.gids and not any("%" in gid for gid in gids) else None
