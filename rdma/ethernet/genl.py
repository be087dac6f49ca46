"""Asking the kernel for standard statistics of network devices: generic netlink, family `ethtool`
(include/uapi/linux/ethtool_netlink.h, Documentation/networking/ethtool-netlink.rst).

pyroute2 has the family but neither pauses, error correction nor statistics, and takes 140 us a request; a port needs
three requests a second and 64 ports have 150 us each for everything. So the requests are laid out once, and an answer
of the same form as the last one is taken apart in one call.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Literal

from rdma.ethernet.module import HALF_PAGE, Half
from rdma.ethernet.table import BY_PLACE
from rdma.netlink import ERROR, HEADER, NESTED, REQUEST, attributes, encode, places
from rdma.sysfs import Unknown

Part = Literal["pause", "fec", "statistics"]
PARTS: Final[tuple[Part, ...]] = ("pause", "fec", "statistics")

NETLINK_GENERIC: Final = 16
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_GENL: Final = struct.Struct("=BBH")
"""Command, version, reserved."""
_PAUSE_GET, _FEC_GET, _EEPROM_GET, _STATS_GET = 21, 29, 31, 32
_DEV_NAME, _FLAGS = 2, 3
_COMPACT, _WITH_STATISTICS = 1, 4
_NO_MASK, _SIZE, _VALUE = 1, 2, 4
_OFFSET, _LENGTH, _PAGE, _BANK, _I2C_ADDRESS, _DATA = 2, 3, 4, 5, 6, 7
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _ACK_TLVS, _ACK_MESSAGE = 270, 10, 11, 0x200, 1
_MOST_BYTES: Final = 1 << 16
_ANSWER_S: Final = 2.0


def _header(kind: int, device: str, flags: int) -> bytes:
    name = encode(_DEV_NAME, device.encode() + b"\0")
    return encode(kind | NESTED, name + encode(_FLAGS, struct.pack("=I", flags)))


def question(part: Part, device: str) -> bytes:
    """Command and attributes that ask for one part of a device's statistics."""
    if part == "pause":
        return _GENL.pack(_PAUSE_GET, 1, 0) + _header(1, device, _WITH_STATISTICS)
    if part == "fec":
        return _GENL.pack(_FEC_GET, 1, 0) + _header(1, device, _COMPACT | _WITH_STATISTICS)
    groups = encode(_NO_MASK, b"") + encode(_SIZE, struct.pack("=I", 4)) + encode(_VALUE, struct.pack("=I", 0xF))
    return _GENL.pack(_STATS_GET, 1, 0) + _header(2, device, _COMPACT) + encode(3 | NESTED, groups)


def numbers(part: Part, answer: bytes) -> Iterator[tuple[int, str]]:
    """Where each number (64 bits) that the table knows stands in an answer, and its name. What the driver does not
    count is not in the answer, or is an array without elements: neither is a zero."""
    if part == "statistics":
        yield from _grouped(answer)
        return
    place = 5
    """ETHTOOL_A_PAUSE_STATS and ETHTOOL_A_FEC_STATS have the same number."""
    for kind, begin, end in places(answer):
        if kind != place:
            continue
        for statistic, at, until in places(answer, begin, end):
            for index, number in enumerate(range(at, until - 7, 8)):
                where = f"{part}/{statistic}" + (f"/{index - 1}" if index else "")
                if where in BY_PLACE:
                    yield number, BY_PLACE[where][1]


_GROUPS: Final = ("phy", "mac", "ctrl", "rmon")


def _grouped(answer: bytes) -> Iterator[tuple[int, str]]:
    for kind, begin, end in places(answer):
        if kind != 4:
            continue
        group = ""
        for inner, at, until in places(answer, begin, end):
            if inner == 2 and until - at == 4:
                number = int(struct.unpack_from("=I", answer, at)[0])
                group = _GROUPS[number] if number < len(_GROUPS) else ""
            elif inner == 4:
                for statistic, value, past in places(answer, at, until):
                    where = f"{group}/{statistic}"
                    if past - value == 8 and where in BY_PLACE:
                        yield value, BY_PLACE[where][1]


class Layout:
    """Takes answers of one kind apart. As long as what is between the numbers stays as it was, that is one call."""

    __slots__ = ("_find", "_frame", "_size", "_take", "names")

    def __init__(self, find: Callable[[bytes], Iterator[tuple[int, str]]]) -> None:
        self._find = find
        self._size = -1
        self._frame: tuple[bytes, ...] = ()
        self._take = struct.Struct("")
        self.names: tuple[str, ...] = ()

    def values(self, answer: bytes) -> tuple[int, ...]:
        """In the order of `names`, which may be others than before."""
        if len(answer) == self._size:
            taken = self._take.unpack(answer)
            if taken[::2] == self._frame:
                return taken[1::2]
        self._learn(answer)
        taken = self._take.unpack(answer)
        self._frame = taken[::2]
        return taken[1::2]

    def _learn(self, answer: bytes) -> None:
        form, at, names = "=", 0, []
        for place, name in sorted(dict(self._find(answer)).items()):
            form += f"{place - at}sQ"
            at = place + 8
            names.append(name)
        self._take = struct.Struct(f"{form}{len(answer) - at}s")
        self._size, self.names = len(answer), tuple(names)


class EthtoolNetlink:
    """A connection, of this thread's namespace at `open`. Used by one thread at a time; every question is answered
    before the call returns. The kernel holds its lock of network settings while it asks the hardware."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._family = 0

    def open(self) -> Unknown | None:
        """Why there is nothing to ask, None when there is."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
            self._socket.settimeout(_ANSWER_S)
            self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
            self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
        except OSError as error:
            self.close()
            return Unknown("refused", f"generic netlink: {error.strerror}")
        told = self._ask(_CONTROL, _GENL.pack(_GET_FAMILY, 1, 0) + encode(_FAMILY_NAME, b"ethtool\0"))
        if isinstance(told, Unknown):
            self.close()
            return Unknown("missing", "this kernel has no netlink interface for ethtool (CONFIG_ETHTOOL_NETLINK)")
        self._family = int.from_bytes(dict(attributes(told)).get(_FAMILY_ID, b"\0\0"), _ORDER)
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> EthtoolNetlink:
        if (why := self.open()) is not None:
            raise OSError(errno.EOPNOTSUPP, str(why))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def ask(self, question: bytes) -> bytes | Unknown:
        """The answer's attributes, or why there is none."""
        return self._ask(self._family, question)

    def memory(self, device: str, half: Half) -> bytes | Unknown:
        """Half a page of the module's memory. Needs CAP_NET_ADMIN. The bus behind it (I2C, 100 or 400 kHz) takes 3 to
        12 ms for it."""
        wanted = (
            (_OFFSET, struct.pack("=I", HALF_PAGE if half.upper else 0)),
            (_LENGTH, struct.pack("=I", HALF_PAGE)),
            (_PAGE, bytes([half.page])),
            (_BANK, b"\0"),
            (_I2C_ADDRESS, bytes([half.i2c])),
        )
        body = _GENL.pack(_EEPROM_GET, 1, 0) + _header(1, device, 0) + b"".join(encode(*one) for one in wanted)
        told = self.ask(body)
        if isinstance(told, Unknown):
            return told
        data = dict(attributes(told)).get(_DATA, b"")
        if len(data) != HALF_PAGE:
            return Unknown("no number", f"{len(data)} bytes of {HALF_PAGE}")
        return data

    def _ask(self, family: int, body: bytes) -> bytes | Unknown:
        if self._socket is None:
            raise RuntimeError("EthtoolNetlink.open() was not called")
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        try:
            self._socket.send(HEADER.pack(HEADER.size + len(body), family, REQUEST, self._sequence, 0) + body)
            while True:
                data = self._socket.recv(_MOST_BYTES)
                size, kind, flags, sequence, _ = HEADER.unpack_from(data)
                if sequence == self._sequence:  # others: of a question that was given up
                    break
        except OSError as error:
            return Unknown("refused", f"no answer: {error.strerror or error}")
        if kind == ERROR:
            return _refusal(data[:size], flags)
        return data[HEADER.size + _GENL.size : size]


NO_DEVICE: Final = Unknown("missing", "there is no such network device")

_ORDER: Final[Literal["little", "big"]] = "little" if struct.pack("=H", 1) == b"\x01\x00" else "big"


def _refusal(message: bytes, flags: int) -> Unknown:
    code = -int(struct.unpack_from("=i", message, HEADER.size)[0])
    if code == errno.EOPNOTSUPP:
        return Unknown("missing", "the driver does not tell it")
    if code == errno.ENODEV:
        return NO_DEVICE
    if code == errno.EPERM:
        return Unknown("refused", "it needs CAP_NET_ADMIN")
    said = ""
    if flags & _ACK_TLVS:
        words = dict(attributes(message[HEADER.size * 2 + 4 :])).get(_ACK_MESSAGE, b"")
        said = words.split(b"\0", 1)[0].decode("utf-8", "replace")
    return Unknown("refused", ": ".join(filter(None, (os.strerror(code), said))))
