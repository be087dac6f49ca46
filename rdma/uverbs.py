"""The ioctl of an open uverbs file: ask for a queue pair and change it by its handle. Bytes and one system call.

A handle is the file's own number for an object. The kernel lists them (method INFO_HANDLES, Linux 5.3): none is ever
guessed. Commands of the older write interface go through the ioctl too (INVOKE_WRITE).
Layouts: include/uapi/rdma/{rdma_user_ioctl_cmds,ib_user_ioctl_cmds,ib_user_verbs}.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import struct
from typing import Final, Literal

import msgspec

from rdma.devices import GidType, gid_text, gid_type
from rdma.nldev import STATES, QpState

IOCTL: Final = 3 << 30 | 24 << 16 | 0x1B << 8 | 1
"""_IOWR(RDMA_IOCTL_MAGIC, 1, struct ib_uverbs_ioctl_hdr)."""
DRIVER_IDS: Final = {"mlx5": 1, "mlx4": 2, "bnxt_re": 6, "irdma": 9, "rxe": 14, "hfi1": 15, "efa": 17, "siw": 18}
"""enum rdma_driver_id, of the drivers named in `rdma.counters.table.FAMILIES` and a few more."""

_DEVICE, _QP = 0, 4
_INVOKE_WRITE, _INFO_HANDLES, _QUERY_GID_TABLE = 0, 1, 5
_CORE_IN, _CORE_OUT, _WRITE_CMD = 0, 1, 2
_INFO_OBJECT, _INFO_TOTAL, _INFO_LIST = 0, 1, 2
_GID_ENTRY_BYTES, _GID_ENTRIES, _GID_COUNT = 0, 2, 3
_QUERY_QP, _MODIFY_QP, _POST_SEND = 25, 26, 28
_MANDATORY: Final = 1
_ATTRIBUTE: Final = struct.Struct("=HHHHQ")
_HEADER: Final = struct.Struct("=HHHHQII")
_MOST_HANDLES: Final = 4096
_GID: Final = struct.Struct("=16sIIII")
_MOST_GIDS: Final = 1024

_DEST: Final = struct.Struct("=16sIHHBBBBBBBB")
_REST: Final = struct.Struct("=10I2H20B")
_EVERYTHING: Final = 0x1FFFFF
MODIFY_BYTES: Final = 112

Attribute = Literal["state", "av", "min_rnr_timer"]
MASK: Final[dict[Attribute, int]] = {"state": 1 << 0, "av": 1 << 7, "min_rnr_timer": 1 << 15}
"""enum ib_qp_attr_mask, of what is ever changed from outside."""


class Address(msgspec.Struct, frozen=True):
    """Where a queue pair sends to (its address vector). `gid` as an IPv6 address; `sgid_index`: of the own GID."""

    gid: str
    sgid_index: int
    flow_label: int = 0
    hop_limit: int = 64
    traffic_class: int = 0
    sl: int = 0
    dlid: int = 0
    src_path_bits: int = 0
    static_rate: int = 0
    is_global: bool = True
    port: int = 1

    def encode(self) -> bytes:
        """struct ib_uverbs_qp_dest, 32 bytes."""
        return _DEST.pack(
            ipaddress.IPv6Address(self.gid).packed, self.flow_label, self.dlid, 0, self.sgid_index, self.hop_limit,
            self.traffic_class, self.sl, self.src_path_bits, self.static_rate, self.is_global, self.port,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Address:
        gid, label, dlid, _, sgid, hops, tclass, sl, bits, rate, is_global, port = _DEST.unpack_from(data)
        return cls(_text(gid), sgid, label, hops, tclass, sl, dlid, bits, rate, bool(is_global), port)


class Queried(msgspec.Struct, frozen=True):
    """What a queue pair is set to. `timeout`: exponent of 4.096 us x 2^timeout; 0 waits for ever."""

    to: Address
    dest_qpn: int
    sq_psn: int
    rq_psn: int
    state: QpState
    path_mtu: int
    sq_draining: bool
    min_rnr_timer: int
    port: int
    timeout: int
    retry_count: int
    rnr_retry: int


def query(fd: int, handle: int, driver_id: int) -> Queried:
    """OSError: ENOENT for a handle that is none, ENODEV for a device that is gone."""
    answer = invoke_write(fd, driver_id, _QUERY_QP, struct.pack("=QII", 0, handle, _EVERYTHING), 128)
    return decode_query(answer)


def decode_query(answer: bytes) -> Queried:
    """struct ib_uverbs_query_qp_resp, 128 bytes."""
    rest = _REST.unpack_from(answer, 64)
    state, mtu, draining, rnr_timer, port, timeout, retries, rnr = (rest[i] for i in (12, 14, 16, 19, 20, 21, 22, 23))
    return Queried(
        to=Address.decode(answer),
        dest_qpn=rest[8],
        sq_psn=rest[7],
        rq_psn=rest[6],
        state=STATES[state] if state < len(STATES) else "unknown",
        path_mtu=128 << mtu if mtu else 0,
        sq_draining=bool(draining),
        min_rnr_timer=rnr_timer,
        port=port,
        timeout=timeout,
        retry_count=retries,
        rnr_retry=rnr,
    )


def modify(
    fd: int, handle: int, driver_id: int, *, state: QpState | None = None, to: Address | None = None,
    min_rnr_timer: int | None = None,
) -> None:  # fmt: skip
    """Change what is given and nothing else. OSError: EINVAL where the state machine does not allow it."""
    invoke_write(fd, driver_id, _MODIFY_QP, encode_modify(handle, state, to, min_rnr_timer), 0)


def encode_modify(
    handle: int, state: QpState | None = None, to: Address | None = None, min_rnr_timer: int | None = None
) -> bytes:
    """struct ib_uverbs_modify_qp."""
    command, mask = bytearray(MODIFY_BYTES), 0
    if state is not None:
        mask |= MASK["state"]
        command[96] = STATES.index(state)
    if to is not None:
        mask |= MASK["av"]
        command[:32] = to.encode()
    if min_rnr_timer is not None:
        mask |= MASK["min_rnr_timer"]
        command[103] = min_rnr_timer
    struct.pack_into("=II", command, 64, handle, mask)
    return bytes(command)


def ring(fd: int, handle: int, driver_id: int) -> None:
    """Ring the doorbell: a post of no requests. What was posted while rxe's queue was stopped is sent only then."""
    invoke_write(fd, driver_id, _POST_SEND, struct.pack("=QIIII", 0, handle, 0, 0, 128), 4)


def handles(fd: int, driver_id: int) -> list[int]:
    """The queue pairs of this file, by handle."""
    total = ctypes.create_string_buffer(4)
    listed = ctypes.create_string_buffer(4 * _MOST_HANDLES)
    call(fd, driver_id, _INFO_HANDLES, [
        (_INFO_OBJECT, 8, _QP), (_INFO_TOTAL, 4, ctypes.addressof(total)),
        (_INFO_LIST, len(listed), ctypes.addressof(listed)),
    ])  # fmt: skip
    count = min(struct.unpack("=I", total.raw)[0], _MOST_HANDLES)
    return list(struct.unpack_from(f"={count}I", listed.raw))


class GidEntry(msgspec.Struct, frozen=True):
    """A row of a device's GID table. `gid` as in `Address`; `ifindex`: of its network device, 0 without one."""

    index: int
    port: int
    gid: str
    type: GidType
    ifindex: int


def gid_table(fd: int, driver_id: int) -> list[GidEntry]:
    """All GIDs of this file's device, in one call (Linux 5.10). OSError on older kernels."""
    count = ctypes.create_string_buffer(8)
    rows = ctypes.create_string_buffer(_GID.size * _MOST_GIDS)
    call(fd, driver_id, _QUERY_GID_TABLE, [
        (_GID_ENTRY_BYTES, 8, _GID.size), (_GID_ENTRIES, len(rows), ctypes.addressof(rows)),
        (_GID_COUNT, 8, ctypes.addressof(count)),
    ])  # fmt: skip
    return decode_gids(rows.raw[: _GID.size * min(struct.unpack("=Q", count.raw)[0], _MOST_GIDS)])


def decode_gids(rows: bytes) -> list[GidEntry]:
    """struct ib_uverbs_gid_entry, 32 bytes each."""
    return [
        GidEntry(index, port, _text(gid), gid_type(kind), ifindex)
        for gid, index, port, kind, ifindex in _GID.iter_unpack(rows)
    ]


def _text(gid: bytes) -> str:
    return gid_text(ipaddress.IPv6Address(gid))


def invoke_write(fd: int, driver_id: int, command: int, core_in: bytes, out_bytes: int) -> bytes:
    """A command of the write interface. `core_in`: its struct; returns `out_bytes` of its answer."""
    given = ctypes.create_string_buffer(core_in, len(core_in))
    answer = ctypes.create_string_buffer(max(out_bytes, 1))
    inline = len(core_in) <= 8  # the kernel takes short ones from the attribute itself
    value = int.from_bytes(core_in, "little") if inline else ctypes.addressof(given)
    attributes = [(_WRITE_CMD, 8, command), (_CORE_IN, len(core_in), value)]
    if out_bytes:
        attributes.append((_CORE_OUT, out_bytes, ctypes.addressof(answer)))
    call(fd, driver_id, _INVOKE_WRITE, attributes)
    return answer.raw[:out_bytes]


def call(fd: int, driver_id: int, method: int, attributes: list[tuple[int, int, int]], *, kind: int = _DEVICE) -> None:
    """As `encode_call`; addresses in `attributes` must stay valid meanwhile. OSError as the kernel says."""
    fcntl.ioctl(fd, IOCTL, bytearray(encode_call(driver_id, method, attributes, kind=kind)))


def encode_call(driver_id: int, method: int, attributes: list[tuple[int, int, int]], *, kind: int = _DEVICE) -> bytes:
    """A method of an object of this `kind`. `attributes`: (id, bytes, value or address); of an object's handle 0 bytes
    are given, since it is no data."""
    body = b"".join(_ATTRIBUTE.pack(name, size, _MANDATORY, 0, value) for name, size, value in attributes)
    return _HEADER.pack(_HEADER.size + len(body), kind, method, len(attributes), 0, driver_id, 0) + body
