"""What the statistics of Ethernet ports mean: a row a statistic, or a row for eight priorities or all lanes.

Rows without a driver are the kernel's standard ones, told over netlink with one meaning for all drivers
(include/uapi/linux/ethtool_netlink.h). A driver's own come by ioctl, under names of its own. One thing has one name
here; where a standard statistic and a driver's are the same, the standard one counts. All are 64 bits wide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from rdma.counters.table import Counter, Unit

PRIORITIES: Final = 8
LANES: Final = 8
"""At most, as the kernel has it (include/linux/ethtool.h, ETHTOOL_MAX_LANES)."""

Each = Literal["", "priority", "lane"]


class Statistic(msgspec.Struct, frozen=True):
    """`file`: the kernel's or the driver's name; `%d` stands for the number of a priority or lane (`each`). `name`:
    ours, the same for all drivers."""

    driver: str
    file: str
    name: str
    unit: Unit
    meaning: str
    source: str
    each: Each = ""

    def named(self, number: int | None) -> str:
        return self.name if number is None else f"{self.name}_{self.each}_{number}"

    def numbers(self) -> Iterable[int | None]:
        return range(PRIORITIES) if self.each == "priority" else range(LANES) if self.each == "lane" else (None,)

    def file_of(self, number: int | None) -> str:
        return self.file if number is None else self.file % number


_PAUSED: Final = "pause frames received: the neighbour has no room, we stop sending"
_PAUSING: Final = "pause frames sent: we have no room, the neighbour stops"
_PAUSED_US: Final = "time in which we were not allowed to send"
_PAUSING_US: Final = "time in which we did not let the neighbour send"
_CRC: Final = "packets with a wrong checksum: a sick link"
_SYMBOL: Final = "packets with broken symbols: a sick link"
_CORRECTED: Final = "bits that error correction repaired"
_NO_ROOM: Final = "packets dropped at the port for lack of room"
_RECEIVED: Final = "packets received without error"

_Row = tuple[str, str, Unit, str]


def _of(driver: str, source: str, *rows: _Row, each: Each = "") -> tuple[Statistic, ...]:
    return tuple(Statistic(driver, file, name, unit, meaning, source, each) for file, name, unit, meaning in rows)


STANDARD: Final = (
    *_of(
        "", "net/ethtool/pause.c; IEEE 802.3, 30.3.4.2 and 30.3.4.3",
        ("pause/2", "link_pauses_sent", "packets", _PAUSING),
        ("pause/3", "link_pauses_received", "packets", _PAUSED),
    ),
    *_of(
        "", "net/ethtool/fec.c; IEEE 802.3, 30.5.1.1.17 and 30.5.1.1.18",
        ("fec/2", "fec_corrected_blocks", "events", "blocks that error correction repaired"),
        ("fec/3", "fec_uncorrectable_blocks", "events", "blocks that error correction could not repair: packets lost"),
        ("fec/4", "fec_corrected_bit_errors", "events", _CORRECTED),
    ),
    *_of(
        "", "net/ethtool/fec.c; IEEE 802.3, 30.5.1.1.17 and 30.5.1.1.18",
        ("fec/2/%d", "fec_lane_corrected_blocks", "events", "blocks of a lane that error correction repaired"),
        ("fec/3/%d", "fec_lane_uncorrectable_blocks", "events", "blocks of a lane that could not be repaired"),
        ("fec/4/%d", "fec_lane_corrected_bit_errors", "events", "bits of a lane that error correction repaired"),
        each="lane",
    ),
    *_of("", "net/ethtool/stats.c, eth-phy; IEEE 802.3, 30.3.2.1.5", ("phy/0", "symbol_errors", "events", _SYMBOL)),
    *_of(
        "", "net/ethtool/stats.c, eth-mac; IEEE 802.3, 30.3.1.1",
        ("mac/0", "sent_packets", "packets", "packets sent"),
        ("mac/3", "received_packets", "packets", _RECEIVED),
        ("mac/4", "crc_errors", "packets", _CRC),
        ("mac/5", "alignment_errors", "packets", "packets that did not end at a byte: a sick link"),
        ("mac/6", "sent_bytes", "bytes", "bytes sent"),
        ("mac/10", "internal_transmit_discards", "packets", "packets lost in the port before they were sent"),
        ("mac/12", "received_bytes", "bytes", "bytes received"),
        ("mac/13", "internal_receive_discards", "packets", "packets lost in the port after they were received"),
        ("mac/19", "length_errors", "packets", "packets that are not as long as they say"),
        ("mac/21", "too_long_packets", "packets", "packets longer than allowed: the neighbour has a larger MTU"),
    ),
    *_of(
        "", "net/ethtool/stats.c, eth-ctrl; IEEE 802.3, 30.3.3",
        ("ctrl/0", "control_packets_sent", "packets", "MAC control packets sent, pauses among them"),
        ("ctrl/1", "control_packets_received", "packets", "MAC control packets received, pauses among them"),
        ("ctrl/2", "unknown_control_packets", "packets", "MAC control packets received that nobody here understands"),
    ),
    *_of(
        "", "net/ethtool/stats.c, rmon; RFC 2819",
        ("rmon/0", "undersize_packets", "packets", "packets shorter than 64 bytes"),
        ("rmon/1", "oversize_packets", "packets", "packets longer than the port takes"),
        ("rmon/2", "fragments", "packets", "packets too short and with a wrong checksum"),
        ("rmon/3", "jabbers", "packets", "packets too long and with a wrong checksum"),
    ),
)  # fmt: skip
"""`file`: part/number of the attribute, for `fec` with the lane behind."""

_MLX5: Final = "drivers/net/ethernet/mellanox/mlx5/core/en_stats.c; Documentation/.../mlx5/counters.rst"
_MLX4: Final = "drivers/net/ethernet/mellanox/mlx4/en_ethtool.c, main_strings"
_BNXT: Final = "drivers/net/ethernet/broadcom/bnxt/bnxt_ethtool.c"
_ICE: Final = "drivers/net/ethernet/intel/ice/ice_ethtool.c"

DRIVERS: Final = (
    *_of(
        "mlx5_core", _MLX5,
        ("rx_prio%d_pause", "pauses_received", "packets", _PAUSED),
        ("tx_prio%d_pause", "pauses_sent", "packets", _PAUSING),
        ("rx_prio%d_pause_duration", "paused_us", "microseconds", _PAUSED_US),
        ("tx_prio%d_pause_duration", "pausing_us", "microseconds", _PAUSING_US),
        ("rx_prio%d_discards", "receive_discards", "packets", "packets of a priority dropped for lack of room"),
        ("rx_prio%d_cong_discard", "congestion_discards", "packets", "packets of a priority dropped: host congested"),
        ("rx_prio%d_marked", "host_marked_packets", "packets", "packets that the device marked: host congested"),
        each="priority",
    ),
    *_of(
        "mlx5_core", _MLX5,
        ("rx_global_pause", "link_pauses_received", "packets", _PAUSED),
        ("tx_global_pause", "link_pauses_sent", "packets", _PAUSING),
        ("rx_global_pause_duration", "link_paused_us", "microseconds", _PAUSED_US),
        ("tx_global_pause_duration", "link_pausing_us", "microseconds", _PAUSING_US),
        ("rx_packets_phy", "received_packets", "packets", _RECEIVED),
        ("rx_bits_phy", "line_bits", "bits", "bits that the link could have carried to us"),
        ("rx_discards_phy", "port_receive_discards", "packets", _NO_ROOM),
        ("tx_discards_phy", "port_transmit_discards", "packets", "packets dropped at the port before they were sent"),
        ("rx_crc_errors_phy", "crc_errors", "packets", _CRC),
        ("rx_symbol_err_phy", "symbol_errors", "events", _SYMBOL),
        ("rx_pcs_symbol_err_phy", "uncorrected_symbols", "events", "symbols that error correction could not repair"),
        ("rx_corrected_bits_phy", "fec_corrected_bit_errors", "events", _CORRECTED),
        ("link_down_events_phy", "link_downs", "events", "the link went down"),
        ("module_high_temp", "module_too_hot", "events", "the optical module was too hot"),
        ("module_unplug", "module_unplugged", "events", "the optical module was pulled"),
        ("tx_pause_storm_warning_events", "pause_storm_warnings", "events", "we paused the neighbour for long"),
        ("tx_pause_storm_error_events", "pause_storms", "events",
         "we paused the neighbour for so long that the device gave up pausing: packets may be lost"),
    ),
    *_of(
        "mlx5_core", _MLX5,
        ("rx_err_lane_%d_phy", "fec_lane_corrected_bit_errors", "events",
         "bits of a lane that error correction repaired"),
        each="lane",
    ),
    *_of(
        "mlx4_en", _MLX4,
        ("rx_pause_prio_%d", "pauses_received", "packets", _PAUSED),
        ("tx_pause_prio_%d", "pauses_sent", "packets", _PAUSING),
        ("rx_pause_duration_prio_%d", "paused_us", "microseconds", _PAUSED_US),
        ("tx_pause_duration_prio_%d", "pausing_us", "microseconds", _PAUSING_US),
        each="priority",
    ),
    *_of(
        "mlx4_en", _MLX4,
        ("rx_pause", "link_pauses_received", "packets", _PAUSED),
        ("tx_pause", "link_pauses_sent", "packets", _PAUSING),
        ("rx_pause_duration", "link_paused_us", "microseconds", _PAUSED_US),
        ("tx_pause_duration", "link_pausing_us", "microseconds", _PAUSING_US),
        ("rx_packets_phy", "received_packets", "packets", _RECEIVED),
        ("rx_crc_errors", "crc_errors", "packets", _CRC),
        ("rx_fifo_errors", "port_receive_discards", "packets", _NO_ROOM),
    ),
    *_of(
        "bnxt_en", _BNXT,
        ("rx_pfc_ena_frames_pri%d", "pauses_received", "packets", _PAUSED),
        ("tx_pfc_ena_frames_pri%d", "pauses_sent", "packets", _PAUSING),
        ("pfc_pri%d_rx_duration_us", "paused_us", "microseconds", _PAUSED_US),
        ("pfc_pri%d_tx_duration_us", "pausing_us", "microseconds", _PAUSING_US),
        each="priority",
    ),
    *_of(
        "bnxt_en", _BNXT,
        ("rx_good_frames", "received_packets", "packets", _RECEIVED),
        ("rx_fcs_err_frames", "crc_errors", "packets", _CRC),
        ("rx_total_discard_pkts", "port_receive_discards", "packets", "packets dropped for lack of room"),
        ("rx_pcs_symbol_err", "uncorrected_symbols", "events", "symbols that error correction could not repair"),
        ("rx_corrected_bits", "fec_corrected_bit_errors", "events", _CORRECTED),
        ("rx_fec_corrected_blocks", "fec_corrected_blocks", "events", "blocks that error correction repaired"),
        ("rx_fec_uncorrectable_blocks", "fec_uncorrectable_blocks", "events",
         "blocks that error correction could not repair: packets lost"),
    ),
    *_of(
        "ice", _ICE,
        ("rx_priority_%d_xoff.nic", "pauses_received", "packets", _PAUSED),
        ("tx_priority_%d_xoff.nic", "pauses_sent", "packets", _PAUSING),
        each="priority",
    ),
    *_of(
        "ice", _ICE,
        ("rx_crc_errors.nic", "crc_errors", "packets", _CRC),
        ("rx_dropped.nic", "port_receive_discards", "packets", "packets dropped for lack of room"),
        ("tx_dropped_link_down.nic", "port_transmit_discards", "packets", "packets dropped: the link was down"),
    ),
)  # fmt: skip

STATISTICS: Final = (*STANDARD, *DRIVERS)

_NUMBER: Final = re.compile(r"^(.+)_(priority|lane)_(\d+)$")


class Named(msgspec.Struct, frozen=True):
    """A statistic as it stands in a device's list. `number`: of the priority or lane, None for the whole port."""

    index: int
    row: Statistic
    number: int | None

    @property
    def name(self) -> str:
        return self.row.named(self.number)


def known(driver: str, names: list[str]) -> list[Named]:
    """Which of a driver's statistics are described here, by their place in its list."""
    place = {name: index for index, name in enumerate(names)}
    found = []
    for row in (one for one in DRIVERS if one.driver == driver):
        for number in row.numbers():
            index = place.get(row.file_of(number))
            if index is not None:
                found.append(Named(index, row, number))
    return sorted(found, key=lambda one: one.index)


def split(name: str) -> tuple[str, Each, str]:
    """`paused_us_priority_3` -> (`paused_us`, `priority`, `3`)."""
    match = _NUMBER.match(name)
    return (match[1], match[2], match[3]) if match else (name, "", "")  # type: ignore[return-value]


def counter(row: Statistic, name: str) -> Counter:
    """The same as the counters of RDMA ports have it, for `rdma.counters.deltas`."""
    return Counter("hw_counters", row.file, name, row.unit, row.meaning, row.source, (row.driver,))


BY_PLACE: Final = {row.file_of(number): (row, row.named(number)) for row in STANDARD for number in row.numbers()}
"""Of standard ones: file -> (row, name)."""
COUNTERS: Final = {
    row.named(number): counter(row, row.named(number)) for row in reversed(STATISTICS) for number in row.numbers()
}
"""By our name, the first row's words."""
