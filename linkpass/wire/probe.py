"""The probe: what two daemons tell each other over every path, authenticated.

Layout, all numbers big-endian:

    offset  bytes  field
         0      1  version (1); TRACE_VERSION marks a trace's packet that overshot and is not for us
         1      1  flags: 1 ask (answer at once); 2 large: padded to the sender's MTU, and rare, so that its path number
                   is reported only a few times after it was heard
         2      1  path: the sender's number for (uplink, label); 255: no path, only a report
         3      1  n, number of report entries
         4      4  boot id of the sender, drawn at random when its daemon starts
         8      4  sequence on this path; advances by one with each probe on it
        12      4  report sequence of the sender to this peer
        16      8  send time, ns of the sender's monotonic clock
        24      4  boot id that the report is about (0: the sender has not heard from the receiver yet)
        28      1  epoch: changes when the sender's receive buffer overflowed, so its counts below are worth nothing
        29      1  number of notices and acknowledgements
        30      2  length of the whole payload, the MAC included
        32   16*n  report entries, one for each path of the *receiver* that the sender heard:
                     0  1  path number
                     1  1  late: 0: not told; else 1 + ms by which this report left after it was due, saturating
                     2  2  queueing: one-way delay above its floor, 10 us units, saturating
                     4  4  last (highest) sequence heard
                     8  4  probes heard since the boot id began, never less than before
                    12  4  dwell: us from the kernel's receive time of that last one to this report
         .         notices and acknowledgements: type (1), length (1), value:
                     type 1, notice: kind (1), id (4, the sender's), seq (4, the origin's), ttl ms (4), then
                             origin and link, each as length (1) + UTF-8
                     type 2, acknowledgement: id (4) of a notice heard from the receiver
                     type 3, place: flags (1): 1 tell me yours; address (16), queue pair number (4), key (4): where
                             datagrams of RoCE are answered; number 0: nowhere
                     type 4, claims; type 5, arrivals: the pace of the job (`linkpass.wire.pace`)
                     type 6, end: UDP port (2), network identifier (4): where the sender takes packets out of
                             entropy tunnels; port 0: nowhere
         .         zero bytes up to the configured size
       -16     16  HMAC-SHA256 over source address, destination address and all bytes before, cut to 16 bytes

A large probe's padding follows the MAC and is signed by nobody; receivers ignore what lies behind the length.
The addresses are part of what is signed, in order: a probe cannot be sent back at its sender. A report names the boot
id it is about: a recording of old packets cannot speak of this run of the receiver. RFC 2104, RFC 6479 (window).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from linkpass.wire.vxlan import End

VERSION: Final = 1
TRACE_VERSION: Final = 0x7F
MAC_BYTES: Final = 16
MAX_BYTES: Final = 1200
NO_PATH: Final = 255
MAX_REPORT: Final = 60
"""Report entries in one probe. With them there is still room for a notice of ordinary names."""
ASK: Final = 1
LARGE: Final = 2

_HEADER: Final = struct.Struct("!BBBBIIIQIBBH")
_ENTRY: Final = struct.Struct("!BBHIII")
_NOTICE: Final = struct.Struct("!BIII")
_NOTICE_TLV: Final = 1
_ACK_TLV: Final = 2
_PLACE_TLV: Final = 3
_PLACE: Final = struct.Struct("!B16sII")
MAX_PLACES: Final = 16
_END_TLV: Final = 6
_END: Final = struct.Struct("!HI")
NO_END: Final = End(0, 0)
HEADER_BYTES: Final = _HEADER.size


class Kind(enum.IntEnum):
    """Kinds of notices on the wire."""

    PORT_DOWN = 1
    PORT_UP = 2
    DRAIN = 3
    UNDRAIN = 4
    GOODBYE = 5
    SUSPECT = 6
    FAILING = 7
    AILING = 8
    WELL = 9
    MISSING = 10
    HEARD = 11


class Refusal(enum.IntEnum):
    """Why a packet is not a probe. Counted, never raised: a flood of bad packets must stay cheap."""

    TRUNCATED = 1
    BAD_VERSION = 2
    BAD_MAC = 3
    MALFORMED = 4
    TRACE = 5


class Heard(msgspec.Struct, frozen=True, gc=False):
    """One report entry."""

    path: int
    last: int
    count: int
    queueing_s: float = 0.0
    dwell_s: float = 0.0


class WireNotice(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    id: int
    seq: int
    ttl_s: float
    origin: str
    link: str


class RocePlace(msgspec.Struct, frozen=True, gc=False):
    """Where a host's queue pair for datagrams is reached: address of 16 bytes, number (0: there is none) and key.
    `asks`: the sender wants to be told the same."""

    gid: bytes
    qpn: int
    qkey: int
    asks: bool = False


class Signer:
    """HMAC-SHA256 with one key, cut to 16 bytes.

    The two hash states that depend on the key alone are made once and copied (RFC 2104, section 4): a third of the
    time of `hmac.digest`, which looks its algorithm up at every call."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        if not key:
            raise ValueError("an empty key signs nothing")
        block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def mac(self, data: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(data)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()[:MAC_BYTES]


class Report:
    """The part of the payload that all probes of a batch share, encoded once."""

    __slots__ = ("body", "boot", "count", "epoch", "sequence", "tlvs")

    def __init__(
        self,
        sequence: int,
        boot: int,
        epoch: int,
        heard: Sequence[Heard] | Sequence[bytes] = (),
        notices: Sequence[WireNotice] = (),
        acks: Sequence[int] = (),
        size_bytes: int = 0,
        places: Sequence[RocePlace] = (),
        values: Sequence[tuple[int, bytes]] = (),
        end: End | None = None,
    ) -> None:
        """`boot` is the receiver's. `heard`: entries, or what `raw_entry` made of them. `size_bytes`: least size of the
        payload. `values`: (type, value of at most 255 bytes) of other types. ValueError when above MAX_BYTES."""
        parts = [e if isinstance(e, bytes) else entry_bytes(e) for e in heard]
        parts += [notice_bytes(n) for n in notices]
        parts += [struct.pack("!BBI", _ACK_TLV, 4, number) for number in acks]
        for place in places:
            parts.append(bytes((_PLACE_TLV, _PLACE.size)) + _PLACE.pack(place.asks, place.gid, place.qpn, place.qkey))
        if end is not None:
            values = [*values, (_END_TLV, _END.pack(end.port, end.vni))]
        parts += [bytes((kind, len(value))) + value for kind, value in values]
        body = b"".join(parts)
        spare = size_bytes - HEADER_BYTES - len(body) - MAC_BYTES
        self.body = body + bytes(spare) if spare > 0 else body
        if HEADER_BYTES + len(self.body) + MAC_BYTES > MAX_BYTES or len(heard) > MAX_REPORT:
            raise ValueError(f"a probe of {HEADER_BYTES + len(self.body) + MAC_BYTES} bytes: at most {MAX_BYTES}")
        self.sequence, self.boot, self.epoch = sequence, boot, epoch
        self.count, self.tlvs = len(heard), len(notices) + len(acks) + len(places) + len(values)


def entry_bytes(entry: Heard) -> bytes:
    """A report entry on the wire; what does not fit saturates."""
    queueing = min(0xFFFF, max(0, int(entry.queueing_s * 1e5)))
    return _ENTRY.pack(entry.path, 0, queueing, entry.last, entry.count, min(0xFFFFFFFF, int(entry.dwell_s * 1e6)))


raw_entry = _ENTRY.pack
"""(path, late as of `late_byte`, queueing in 10 us, last, count, dwell in us), each in its range: for those who count
in these units."""


def late_byte(late_s: float) -> int:
    """By how much a report leaves after it was due, as its entries say; less than none is none."""
    return 1 + min(254, max(0, int(late_s * 1e3)))


def notice_bytes(notice: WireNotice) -> bytes:
    """One notice as type, length, value. ValueError when its names are too long for the length byte."""
    origin, link = notice.origin.encode(), notice.link.encode()
    length = _NOTICE.size + 2 + len(origin) + len(link)
    if length > 255:
        raise ValueError(f"notice about {notice.link!r} of {notice.origin!r}: names too long for the wire")
    ttl_ms = min(0xFFFFFFFF, max(0, int(notice.ttl_s * 1e3)))
    value = _NOTICE.pack(notice.kind, notice.id, notice.seq, ttl_ms)
    return bytes((_NOTICE_TLV, length)) + value + bytes((len(origin),)) + origin + bytes((len(link),)) + link


def encode(
    signer: Signer, addresses: bytes, report: Report, boot: int, path: int, sequence: int, sent_ns: int, flags: int = 0
) -> bytes:
    """One probe's payload. `addresses`: source and destination address, joined, as on the wire."""
    body = report.body
    length = HEADER_BYTES + len(body) + MAC_BYTES
    head = _HEADER.pack(
        VERSION, flags, path, report.count, boot, sequence, report.sequence, sent_ns, report.boot, report.epoch,
        report.tlvs, length,
    )  # fmt: skip
    return head + body + signer.mac(addresses + head + body)


class Probe(msgspec.Struct, gc=False):
    """A probe that was signed with our key. The report is parsed on demand: all probes of a batch carry the same."""

    flags: int
    path: int
    entries: int
    boot: int
    sequence: int
    report_sequence: int
    sent_ns: int
    report_boot: int
    epoch: int
    tlvs: int
    payload: bytes

    @property
    def late_s(self) -> float | None:
        """By how much the report left after it was due, in whole ms up to 0.254 s; None: it does not say."""
        late = self.payload[HEADER_BYTES + 1] if self.entries else 0
        return (late - 1) * 1e-3 if late else None

    def raw_report(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(path, late, queueing in 10 us, last, count, dwell in us) of each entry, as on the wire."""
        end = HEADER_BYTES + self.entries * _ENTRY.size
        return _ENTRY.iter_unpack(self.payload[HEADER_BYTES:end])

    def report(self) -> Iterator[Heard]:
        for path, _, queueing, last, count, dwell in self.raw_report():
            yield Heard(path, last, count, queueing * 1e-5, dwell * 1e-6)

    def words(self) -> tuple[list[WireNotice], list[int]] | None:
        """Notices and acknowledged ids; None when malformed. Unknown types are skipped: later versions' words."""
        values = self._values()
        if values is None:
            return None
        notices: list[WireNotice] = []
        acks: list[int] = []
        for kind, value in values:
            if kind == _NOTICE_TLV:
                notice = _notice(value)
                if notice is None:
                    return None
                notices.append(notice)
            elif kind == _ACK_TLV:
                if len(value) != 4:
                    return None
                acks.append(int.from_bytes(value, "big"))
        return notices, acks

    def places(self) -> list[RocePlace]:
        """Where the sender's datagrams are answered; those that are malformed are left out."""
        found = []
        for kind, value in self._values() or ():
            if kind == _PLACE_TLV and len(value) == _PLACE.size:
                flags, gid, qpn, qkey = _PLACE.unpack(value)
                found.append(RocePlace(gid, qpn, qkey, bool(flags & 1)))
        return found

    def end(self) -> End | None:
        """Where the sender takes packets out of tunnels; NO_END: nowhere; None: it does not say."""
        for _, value in self.values(_END_TLV):
            if len(value) == _END.size:
                port, vni = _END.unpack(value)
                return End(port, vni) if port else NO_END
        return None

    def values(self, *types: int) -> list[tuple[int, bytes]]:
        """(type, value) of those types; none when malformed."""
        return [(kind, value) for kind, value in self._values() or () if kind in types]

    def _values(self) -> list[tuple[int, bytes]] | None:
        values = []
        at, end = HEADER_BYTES + self.entries * _ENTRY.size, len(self.payload) - MAC_BYTES
        for _ in range(self.tlvs):
            if at + 2 > end:
                return None
            kind, length = self.payload[at], self.payload[at + 1]
            values.append((kind, self.payload[at + 2 : at + 2 + length]))
            at += 2 + length
            if at > end:
                return None
        return values


def _notice(value: bytes) -> WireNotice | None:
    try:
        kind, number, seq, ttl_ms = _NOTICE.unpack_from(value)
        at = _NOTICE.size
        origin = value[at + 1 : at + 1 + value[at]]
        at += 1 + value[at]
        link = value[at + 1 : at + 1 + value[at]]
        if at + 1 + value[at] != len(value):
            return None
        return WireNotice(Kind(kind), number, seq, ttl_ms / 1e3, origin.decode(), link.decode())
    except (struct.error, IndexError, ValueError):
        return None


def decode(signer: Signer, addresses: bytes, payload: bytes) -> Probe | Refusal:
    """The payload of a packet from `addresses` (source and destination, joined), or why it is refused.

    Bytes after the length that the header gives are ignored (padding of short frames)."""
    if len(payload) < HEADER_BYTES + MAC_BYTES:
        return Refusal.TRACE if payload[:1] == b"\x7f" else Refusal.TRUNCATED
    (version, flags, path, entries, boot, sequence, report_sequence, sent_ns, report_boot, epoch, tlvs, length) = (
        _HEADER.unpack_from(payload)
    )
    if version != VERSION:
        return Refusal.TRACE if version == TRACE_VERSION else Refusal.BAD_VERSION
    if length != len(payload):
        if length > len(payload) or length < HEADER_BYTES + MAC_BYTES:
            return Refusal.TRUNCATED
        payload = payload[:length]
    if not hmac.compare_digest(signer.mac(addresses + payload[:-MAC_BYTES]), payload[-MAC_BYTES:]):
        return Refusal.BAD_MAC
    if HEADER_BYTES + entries * _ENTRY.size > length - MAC_BYTES:
        return Refusal.MALFORMED
    return Probe(
        flags, path, entries, boot, sequence, report_sequence, sent_ns, report_boot, epoch, tlvs, payload
    )  # fmt: skip


class ReplayWindow:
    """Each sequence is taken once; older than `SIZE` behind the newest is refused (RFC 6479, section 2)."""

    SIZE: Final = 64
    __slots__ = ("_seen", "newest")

    def __init__(self) -> None:
        self.newest = -1
        self._seen = 0
        """Bit k: sequence newest - k was taken."""

    def accept(self, sequence: int) -> bool:
        ahead = sequence - self.newest
        if ahead == 1:
            self.newest = sequence
            self._seen = (self._seen << 1 | 1) & 0xFFFFFFFFFFFFFFFF
            return True
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & 0xFFFFFFFFFFFFFFFF if ahead < self.SIZE else 1
            self.newest = sequence
            return True
        if -ahead >= self.SIZE or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
