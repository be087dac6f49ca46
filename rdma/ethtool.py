"""Statistics of Ethernet drivers: pauses per priority and how long they lasted, discards, broken symbols, modules.

Drivers' own statistics have no netlink message; they are asked by the ioctl SIOCETHTOOL, as the program `ethtool -S`
does (include/uapi/linux/ethtool.h). The names of a device are asked once, its values with one call a reading.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import re
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Final

import msgspec

from rdma.counters.table import Counter, Unit
from rdma.sysfs import Unknown

_SIOCETHTOOL: Final = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x3, 0x1B, 0x1D, 0x37
_SS_STATS: Final = 1
_NAME_BYTES: Final = 32
_DRVINFO_BYTES: Final = 196
PRIORITIES: Final = 8

_MLX5: Final = "drivers/net/ethernet/mellanox/mlx5/core/en_stats.c"
_BNXT: Final = "drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c"
_ICE: Final = "drivers/net/ethernet/intel/ice/ice_ethtool.c"


class Statistic(msgspec.Struct, frozen=True):
    """One of a driver's statistics, or one for each priority (`%d` in `file`). `name`: ours, the same for all drivers;
    times are in microseconds."""

    driver: str
    file: str
    name: str
    unit: Unit
    meaning: str
    source: str


def _of(driver: str, source: str, *rows: tuple[str, str, Unit, str]) -> tuple[Statistic, ...]:
    return tuple(Statistic(driver, file, name, unit, meaning, source) for file, name, unit, meaning in rows)


_PAUSED: Final = "pause frames received: the neighbour has no room, we stop sending"
_PAUSING: Final = "pause frames sent: we have no room, the neighbour stops"
_PAUSED_US: Final = "microseconds in which we were not allowed to send"
_PAUSING_US: Final = "microseconds in which we did not let the neighbour send"

STATISTICS: Final = (
    *_of(
        "mlx5_core", _MLX5,
        ("rx_prio%d_pause", "pauses_received", "packets", _PAUSED),
        ("tx_prio%d_pause", "pauses_sent", "packets", _PAUSING),
        ("rx_prio%d_pause_duration", "paused_us", "ticks", _PAUSED_US),
        ("tx_prio%d_pause_duration", "pausing_us", "ticks", _PAUSING_US),
        ("rx_prio%d_discards", "receive_discards", "packets", "packets of a priority dropped for lack of room"),
        ("rx_discards_phy", "port_receive_discards", "packets", "packets dropped at the port for lack of room"),
        ("tx_discards_phy", "port_transmit_discards", "packets", "packets dropped at the port before they were sent"),
        ("rx_crc_errors_phy", "crc_errors", "packets", "packets with a wrong checksum: a sick link"),
        ("rx_symbol_err_phy", "symbol_errors", "events", "broken symbols after error correction: a sick link"),
        ("rx_pcs_symbol_err_phy", "uncorrected_symbols", "events", "symbols that error correction could not repair"),
        ("rx_corrected_bits_phy", "corrected_bits", "events", "bits that error correction repaired"),
        ("link_down_events_phy", "link_downs", "events", "the link went down"),
        ("module_high_temp", "module_too_hot", "events", "the optical module was too hot"),
        ("module_unplug", "module_unplugged", "events", "the optical module was pulled"),
        ("tx_pause_storm_error_events", "pause_storms", "events", "we paused the neighbour for too long"),
    ),
    *_of(
        "bnxt_en", _BNXT,
        ("rx_pfc_ena_frames_pri%d", "pauses_received", "packets", _PAUSED),
        ("tx_pfc_ena_frames_pri%d", "pauses_sent", "packets", _PAUSING),
        ("pfc_pri%d_rx_duration_us", "paused_us", "ticks", _PAUSED_US),
        ("pfc_pri%d_tx_duration_us", "pausing_us", "ticks", _PAUSING_US),
        ("rx_fcs_err_frames", "crc_errors", "packets", "packets with a wrong checksum: a sick link"),
        ("rx_total_discard_pkts", "port_receive_discards", "packets", "packets dropped for lack of room"),
        ("rx_pcs_symbol_err", "uncorrected_symbols", "events", "symbols that error correction could not repair"),
        ("rx_corrected_bits", "corrected_bits", "events", "bits that error correction repaired"),
    ),
    *_of(
        "ice", _ICE,
        ("rx_priority_%d_xoff.nic", "pauses_received", "packets", _PAUSED),
        ("tx_priority_%d_xoff.nic", "pauses_sent", "packets", _PAUSING),
        ("rx_crc_errors.nic", "crc_errors", "packets", "packets with a wrong checksum: a sick link"),
        ("rx_dropped.nic", "port_receive_discards", "packets", "packets dropped for lack of room"),
        ("tx_dropped_link_down.nic", "port_transmit_discards", "packets", "packets dropped: the link was down"),
    ),
)  # fmt: skip


class NotToldError(Exception):
    """A device does not tell; the text says why."""


class Named(msgspec.Struct, frozen=True):
    """A statistic as it stands in a device's list. `priority`: None for those of the whole port."""

    index: int
    row: Statistic
    priority: int | None

    def counter(self) -> Counter:
        """The same as the counters of RDMA ports have it, for `rdma.counters.deltas`."""
        priority = "" if self.priority is None else f"_priority_{self.priority}"
        row = self.row
        return Counter("hw_counters", row.file, row.name + priority, row.unit, row.meaning, row.source, (row.driver,))


def known(driver: str, names: list[str]) -> list[Named]:
    """Which of a driver's statistics are described here, by their place in its list."""
    place = {name: index for index, name in enumerate(names)}
    found = []
    for row in (one for one in STATISTICS if one.driver == driver):
        every = [(row.file % n, n) for n in range(PRIORITIES)] if "%d" in row.file else [(row.file, None)]
        found += [Named(place[name], row, priority) for name, priority in every if name in place]
    return sorted(found, key=lambda one: one.index)


def paused_ratio(paused_us: int | Unknown, seconds: float) -> float | Unknown:
    """Of the time, in which a priority was not allowed to send: microseconds counted over microseconds passed."""
    if isinstance(paused_us, Unknown):
        return paused_us
    return min(1.0, paused_us / (seconds * 1e6)) if seconds > 0 else Unknown("first reading")


class DeviceStatistics:
    """The statistics of one network device, of this thread's namespace at `open`."""

    def __init__(self, device: str) -> None:
        if len(device.encode()) > 15 or re.search(r"[/\s]", device) or not device:
            raise ValueError(f"{device!r} is no name of a network device")
        self.device = device
        self.driver = ""
        self.names: list[str] = []
        self._socket: socket.socket | None = None

    def open(self) -> DeviceStatistics:
        """Ask for driver and names. NotToldError: no such device, or a driver that has none to tell."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            info = self._call(struct.pack("=I", _GDRVINFO) + bytes(_DRVINFO_BYTES - 4))
            self.driver = info[4:36].split(b"\0", 1)[0].decode("ascii", "replace")
            count = self._count()
            text = self._call(struct.pack("=III", _GSTRINGS, _SS_STATS, count) + bytes(_NAME_BYTES * count))[12:]
        except BaseException:
            self.close()
            raise
        names = (text[at : at + _NAME_BYTES] for at in range(0, len(text), _NAME_BYTES))
        self.names = [name.split(b"\0", 1)[0].decode("utf-8", "replace").strip() for name in names]
        return self

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> DeviceStatistics:
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def read(self) -> Mapping[str, int]:
        """All values by the driver's names. NotToldError when the device is gone, or tells another number of them."""
        count = len(self.names)
        answer = self._call(struct.pack("=II", _GSTATS, count) + bytes(8 * count))
        told = struct.unpack_from("=I", answer, 4)[0]
        if told != count:
            raise NotToldError(f"{self.device} tells {told} statistics, it had {count}: open it again")
        return dict(zip(self.names, struct.unpack_from(f"={count}Q", answer, 8), strict=True))

    def _count(self) -> int:
        answer = self._call(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        mask, count = struct.unpack_from("=QI", answer, 8)
        if not mask or not count:
            raise NotToldError(f"{self.device}: its driver ({self.driver or 'unknown'}) has no statistics to tell")
        return int(count)

    def _call(self, command: bytes) -> bytes:
        """SIOCETHTOOL: the kernel reads and writes behind a pointer in struct ifreq."""
        if self._socket is None:
            raise RuntimeError("DeviceStatistics.open() was not called")
        buffer = ctypes.create_string_buffer(command, len(command))
        request = struct.pack("16sQ16x", self.device.encode(), ctypes.addressof(buffer))
        try:
            fcntl.ioctl(self._socket, _SIOCETHTOOL, request)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise NotToldError(f"there is no network device {self.device}") from None
            raise NotToldError(f"{self.device} does not tell its statistics: {error.strerror}") from None
        return buffer.raw
