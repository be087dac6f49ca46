"""The UDP source port of a live mlx5 queue pair, over its program's own uverbs file: bytes, and one system call each.

mlx5 takes no new address while it runs, but a new UDP source port, with work outstanding: the command RTS2RTS_QP, as
rdma-core's `mlx5dv_modify_qp_udp_sport(3)` sends it over DEVX. **Never run on hardware**: the bytes are those of
libmlx5 44.0, the rest is read from sources.

What the kernel asks for (drivers/infiniband/hw/mlx5/devx.c): nothing of the caller but the file. The command runs under
the DEVX uid of the *file's* context, so a borrowed file is as good as the program's own. A context has one when the
program asked for it on opening the device; libmlx5 always asks and does without where the firmware has no DEVX. The
kernel itself refuses a command whose queue pair number is not that of the handle.

Layouts: mlx5_ifc.h (rdma-core providers/mlx5; Linux include/linux/mlx5), big-endian, in bits from a command's start.
Numbers: include/uapi/rdma/mlx5_user_ioctl_cmds.h, include/linux/mlx5/device.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

import msgspec

from rdma import uverbs

FIRST_PORT: Final = 0xC000
"""RoCEv2's source ports are 0xC000 to 0xFFFF (IBTA annex A17; IB_ROCE_UDP_ENCAP_VALID_PORT_MIN, ib_verbs.h)."""
_SPAN: Final = 1 << 14

_NAMESPACE: Final = 1 << 12  # 1 << UVERBS_ID_NS_SHIFT: numbers of the driver's own
_DEVX, _DEVX_OBJ = _NAMESPACE, _NAMESPACE + 1
_OTHER, _OBJ_MODIFY, _OBJ_QUERY = _NAMESPACE, _NAMESPACE + 2, _NAMESPACE + 3

_QUERY_HCA_CAP, _RTS2RTS_QP, _QUERY_QP = 0x100, 0x505, 0x50B
_GENERAL_CURRENT: Final = 1  # op_mod: MLX5_SET_HCA_CAP_OP_MOD_GENERAL_DEVICE | HCA_CAP_OPMOD_GET_CUR
_UDP_SPORT: Final = 1 << 2  # MLX5_QPC_OPT_MASK_32_UDP_SPORT

_QPC: Final = 0xC0
"""Where the queue pair's context begins, in RTS2RTS_QP's input as in QUERY_QP's output."""
_PORT_AT: Final = (_QPC + 0xC0 + 0x110) // 8  # qpc.primary_address_path.udp_sport
_MASK_AT: Final = 0x840 // 8  # opt_param_mask_95_32
_REMOTE_AT: Final = (_QPC + 0xA8) // 8  # qpc.remote_qpn, 24 bits
_CAPABLE_AT: Final = 0x80 + 0x151  # capability.cmd_hca_cap.rts2rts_qp_udp_sport, one bit
MODIFY_BYTES: Final = 464
_QUERY_BYTES, _CAPS_BYTES, _SHORT_BYTES = 272, 4112, 16

TYPES: Final = {0: "RC", 1: "UC"}
"""MLX5_QPC_ST_*, of those whose port can be changed."""
_RTS: Final = 3

STATUS: Final = {
    0x01: "internal error",
    0x02: "it does not know this command, or not for this queue pair",
    0x03: "a parameter is not to its liking",
    0x04: "it is not in a state to take commands",
    0x05: "no such queue pair, or another context's",
    0x06: "the queue pair is busy",
    0x07: "its firmware is not ready",
    0x08: "a limit is exceeded",
    0x09: "the queue pair is in another state",
    0x0A: "no such index",
    0x0F: "it has no resources left",
    0x10: "the queue pair is in another state than the command is for",
    0x30: "the packet was bad and dropped",
    0x40: "too many completions are outstanding",
    0x50: "the command has not the length that it expects",
    0x51: "the answer has not the length that it expects",
}
"""enum MLX5_CMD_STAT_*."""


class CommandError(Exception):
    """The device or the kernel refused a command; the text says which and why. Nothing was changed, unless the text
    says that the device did not answer."""


class Context(msgspec.Struct, frozen=True):
    """What the device says of a queue pair. `type`: empty when it is neither RC nor UC; `port`: UDP source port."""

    type: str
    running: bool
    remote_qpn: int
    port: int


def next_port(present: int) -> int:
    """Another source port than the present one, the same each time: a new draw for whatever hashes on it.

    Applied again and again it goes through all 16,384 before it comes back, since it is a congruential generator of
    full period (Hull and Dobell 1962: odd increment, multiplier 1 modulo 4); so do its lowest n bits through all 2^n,
    and a fabric that takes those to choose among 2^n ways is led over each in turn."""
    return FIRST_PORT | ((present % _SPAN) * 9541 + 6971) % _SPAN


def encode_set_port(qpn: int, port: int) -> bytes:
    """RTS2RTS_QP: this port (a program may have had one outside RoCE's range), and nothing else. As long as libmlx5
    sends it, with an empty extension of the context."""
    if not 0 <= qpn < 1 << 24 or not 0 < port < 1 << 16:
        raise ValueError(f"queue pair {qpn}, UDP source port {port}")
    command = bytearray(MODIFY_BYTES)
    command[0:2] = _RTS2RTS_QP.to_bytes(2)
    command[8:12] = qpn.to_bytes(4)
    command[_PORT_AT : _PORT_AT + 2] = port.to_bytes(2)
    command[_MASK_AT : _MASK_AT + 8] = _UDP_SPORT.to_bytes(8)
    return bytes(command)


def encode_query(qpn: int) -> bytes:
    """QUERY_QP."""
    return _QUERY_QP.to_bytes(2) + bytes(6) + qpn.to_bytes(4) + bytes(4)


def decode_query(answer: bytes) -> Context:
    at = _QPC // 8
    return Context(
        type=TYPES.get(answer[at + 1], ""),
        running=answer[at] >> 4 == _RTS,
        remote_qpn=int.from_bytes(answer[_REMOTE_AT : _REMOTE_AT + 3]),
        port=int.from_bytes(answer[_PORT_AT : _PORT_AT + 2]),
    )


def encode_query_caps() -> bytes:
    """QUERY_HCA_CAP, of the general capabilities as they are now."""
    return _QUERY_HCA_CAP.to_bytes(2) + bytes(4) + _GENERAL_CURRENT.to_bytes(2) + bytes(8)


def decode_can_set_port(answer: bytes) -> bool:
    return bool(answer[_CAPABLE_AT // 8] >> 7 - _CAPABLE_AT % 8 & 1)


def can_set_port(fd: int) -> bool:
    """Whether the device says that it can; asks it a question and changes nothing. CommandError."""
    command = _buffer(encode_query_caps())
    answer = ctypes.create_string_buffer(_CAPS_BYTES)
    _call(fd, _DEVX, _OTHER, None, command, answer, "its capabilities")
    return decode_can_set_port(answer.raw)


def query(fd: int, handle: int, qpn: int) -> Context:
    """What the device says of a queue pair now. CommandError, also when the handle is not that of `qpn`."""
    answer = ctypes.create_string_buffer(_QUERY_BYTES)
    _call(fd, _DEVX_OBJ, _OBJ_QUERY, handle, _buffer(encode_query(qpn)), answer, f"queue pair {qpn}")
    return decode_query(answer.raw)


def set_port(fd: int, handle: int, qpn: int, port: int) -> None:
    """Give a queue pair in RTS another UDP source port. CommandError."""
    answer = ctypes.create_string_buffer(_SHORT_BYTES)
    _call(fd, _DEVX_OBJ, _OBJ_MODIFY, handle, _buffer(encode_set_port(qpn, port)), answer, f"port {port}")


def attributes(handle: int | None, command: tuple[int, int], answer: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Of a DEVX call, for `uverbs.encode_call`. `command`, `answer`: length in bytes and address."""
    handles = [] if handle is None else [(_NAMESPACE, 0, handle)]
    first = _NAMESPACE + len(handles)
    return [*handles, (first, *command), (first + 1, *answer)]


def refusal(code: int, answer: bytes) -> str:
    """Why a DEVX call failed, by its errno and what was written to the answer, as a sentence."""
    if code == errno.EREMOTEIO:
        status, syndrome = answer[0], int.from_bytes(answer[4:8])
        why = STATUS.get(status, "for a reason that is not known here")
        return f"the device refuses: {why} (status {status:#04x}, syndrome {syndrome:#010x})"
    if code == errno.EPROTONOSUPPORT:
        return "this kernel or device has no DEVX"
    if code == errno.EOPNOTSUPP:
        return "the program's context was opened without DEVX"
    if code == errno.EINVAL:
        return (
            "the kernel refuses: the program's context was opened without DEVX, or the handle is another queue pair's "
            "(or, before Linux 5.18, the device refuses)"
        )
    if code == errno.ETIMEDOUT:
        return "the device did not answer in time: it may have done it all the same"
    if code == errno.EBUSY:
        return "the program is in a call on this queue pair: try again"
    return os.strerror(code)


def _buffer(command: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(command, len(command))


def _call(
    fd: int, kind: int, method: int, handle: int | None, command: ctypes.Array[ctypes.c_char],
    answer: ctypes.Array[ctypes.c_char], what: str,
) -> None:  # fmt: skip
    given = attributes(handle, (len(command), ctypes.addressof(command)), (len(answer), ctypes.addressof(answer)))
    try:
        uverbs.call(fd, uverbs.DRIVER_IDS["mlx5"], method, given, kind=kind)
    except OSError as error:
        raise CommandError(f"{what}: {refusal(error.errno or 0, answer.raw)}") from error
    if answer.raw[0]:
        raise CommandError(f"{what}: {refusal(errno.EREMOTEIO, answer.raw)}")
