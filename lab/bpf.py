"""A small face of bpf(2): write a program in a few dozen instructions, load it, read its maps. No compiler, no library.

An instruction is 8 bytes: opcode, destination and source register, a signed 16-bit offset, a 32-bit immediate. Jumps
go to labels and are resolved by `assemble`. Registers: r0 result, r1-r5 arguments (lost in a call), r6-r9 kept, r10
the frame, whose 512 bytes lie below it.

Source: Documentation/bpf/standardization/instruction-set.rst, include/uapi/linux/bpf.h, bpf(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab.errors import LabError

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _LOOKUP_AND_DELETE_BATCH = 0, 2, 5, 25
_HASH, _ARRAY = 1, 2
_SOCKET_FILTER = 1
_PSEUDO_MAP_FD = 1

WIDTHS = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
"""Bytes of a load or store -> size bits of the opcode."""

_JUMPS = {"always": 0x05, "==": 0x15, "!=": 0x55}

MAP_LOOKUP, MAP_UPDATE, KTIME_GET_NS, SKB_LOAD_BYTES = 1, 2, 5, 26
"""Helpers' numbers (enum bpf_func_id)."""


@dataclass(frozen=True, slots=True)
class Jump:
    """To a label, if `register` compares so with `value`. Labels stand as plain strings between instructions."""

    label: str
    how: str = "always"
    register: int = 0
    value: int = 0


Step = bytes | str | Jump


def instruction(opcode: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
    signed = value if value < 1 << 31 else value - (1 << 32)
    return struct.pack("<BBhi", opcode, src << 4 | dst, offset, signed)


def move(dst: int, src: int) -> bytes:
    return instruction(0xBF, dst, src)


def constant(dst: int, value: int) -> bytes:
    return instruction(0xB7, dst, value=value)


def add(dst: int, value: int) -> bytes:
    return instruction(0x07, dst, value=value)


def shift_right(dst: int, bits: int) -> bytes:
    return instruction(0x77, dst, value=bits)


def load(dst: int, src: int, offset: int, width: int) -> bytes:
    """dst = *(src + offset), zero-extended."""
    return instruction(0x61 | WIDTHS[width], dst, src, offset)


def store(dst: int, offset: int, src: int, width: int) -> bytes:
    return instruction(0x63 | WIDTHS[width], dst, src, offset)


def store_constant(dst: int, offset: int, value: int, width: int) -> bytes:
    return instruction(0x62 | WIDTHS[width], dst, offset=offset, value=value)


def atomic_add(dst: int, offset: int, src: int) -> bytes:
    """*(u64 *)(dst + offset) += src, atomically."""
    return instruction(0xDB, dst, src, offset)


def packet(offset: int, width: int) -> bytes:
    """r0 = the packet's bytes at `offset` in host order; the program ends with 0 when they lie beyond the packet."""
    return instruction(0x20 | WIDTHS[width], value=offset)


def map_address(dst: int, fd: int) -> bytes:
    return instruction(0x18, dst, _PSEUDO_MAP_FD, value=fd) + instruction(0)


def call(helper: int) -> bytes:
    return instruction(0x85, value=helper)


def leave() -> bytes:
    return instruction(0x95)


def assemble(steps: Sequence[Step]) -> bytes:
    """Resolve labels. Raises KeyError for a jump to a label that does not exist."""
    places: dict[str, int] = {}
    at = 0
    for step in steps:
        if isinstance(step, str):
            places[step] = at
        else:
            at += len(step) // 8 if isinstance(step, bytes) else 1
    code = bytearray()
    for step in steps:
        if isinstance(step, Jump):
            here = len(code) // 8
            code += instruction(_JUMPS[step.how], step.register, 0, places[step.label] - here - 1, step.value)
        elif isinstance(step, bytes):
            code += step
    return bytes(code)


def load_filter(code: bytes, name: str) -> int:
    """Load a socket filter; returns its descriptor. LabError when the kernel refuses, with the verifier's reason."""
    log = ctypes.create_string_buffer(1 << 16)
    program, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQIIQII16s", _SOCKET_FILTER, len(code) // 8, ctypes.addressof(program), ctypes.addressof(licence),
        1, len(log), ctypes.addressof(log), 0, 0, name.encode()[:15],
    )  # fmt: skip
    try:
        return _bpf(_PROG_LOAD, attributes)[0]
    except OSError as error:
        said = log.value.decode(errors="replace").strip().splitlines()
        reason = " / ".join(said[-3:]) or os.strerror(error.errno or 0)
        raise LabError(f"the kernel refuses the capture program: {reason}", _hint(error)) from error


class Map:
    """A map of fixed-size keys and values. `fd` is what programs refer to."""

    def __init__(self, fd: int, key_bytes: int, value_bytes: int) -> None:
        self.fd = fd
        self.key_bytes = key_bytes
        self.value_bytes = value_bytes

    def set(self, key: bytes, value: bytes) -> None:
        key_buffer, value_buffer = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value)
        _bpf(_MAP_UPDATE, struct.pack("=IxxxxQQQ", self.fd, ctypes.addressof(key_buffer),
                                      ctypes.addressof(value_buffer), 0))  # fmt: skip

    def take(self, batch: int = 4096) -> Iterator[tuple[bytes, bytes]]:
        """Remove and yield all entries (key, value), `batch` at a system call. For hash maps."""
        keys = ctypes.create_string_buffer(self.key_bytes * batch)
        values = ctypes.create_string_buffer(self.value_bytes * batch)
        cursors = (ctypes.create_string_buffer(64), ctypes.create_string_buffer(64))
        first = True
        while True:
            attributes = struct.pack(
                "=QQQQIIQQ", 0 if first else ctypes.addressof(cursors[0]), ctypes.addressof(cursors[1]),
                ctypes.addressof(keys), ctypes.addressof(values), batch, self.fd, 0, 0,
            )  # fmt: skip
            result, after = _bpf(_LOOKUP_AND_DELETE_BATCH, attributes, allow=errno.ENOENT)
            count = struct.unpack_from("=I", after, 32)[0]
            all_keys, all_values = keys.raw, values.raw
            for place in range(count):
                yield (
                    all_keys[place * self.key_bytes : (place + 1) * self.key_bytes],
                    all_values[place * self.value_bytes : (place + 1) * self.value_bytes],
                )
            if result == -errno.ENOENT:  # the map's end
                return
            first = False
            cursors = (cursors[1], cursors[0])

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def hash_map(name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
    return _create(_HASH, name, key_bytes, value_bytes, entries)


def array_map(name: str, value_bytes: int, entries: int = 1) -> Map:
    return _create(_ARRAY, name, 4, value_bytes, entries)


def _create(kind: int, name: str, key_bytes: int, value_bytes: int, entries: int) -> Map:
    attributes = struct.pack("=IIIIIII16s", kind, key_bytes, value_bytes, entries, 0, 0, 0, name.encode()[:15])
    try:
        return Map(_bpf(_MAP_CREATE, attributes)[0], key_bytes, value_bytes)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise LabError(f"no BPF map for the capture: {reason}", _hint(error)) from error


def _bpf(command: int, attributes: bytes, allow: int = 0) -> tuple[int, bytes]:
    """The system call: (its result, the attributes as the kernel left them). An allowed error is a negative result."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"number of bpf(2) on {platform.machine()} unknown")
    libc = ctypes.CDLL(None, use_errno=True)
    size = max(len(attributes), 128)  # the kernel wants zeroes behind what a command uses, and no more than it knows
    buffer = ctypes.create_string_buffer(attributes, size)
    result = libc.syscall(number, command, buffer, size)
    if result < 0:
        code = ctypes.get_errno()
        if code == allow:
            return -code, buffer.raw
        raise OSError(code, f"bpf({command}): {os.strerror(code)}")
    return int(result), buffer.raw


def _hint(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "run as root; in a container CAP_BPF and CAP_NET_RAW are needed"
    if error.errno == errno.ENOSYS:
        return "the capture needs a kernel with CONFIG_BPF_SYSCALL (any distribution's has it)"
    return ""
