"""What the counters of RDMA ports mean: a row a file.

`counters/` holds what an InfiniBand port's performance management agent counts, `hw_counters/` what the driver adds.
One thing has one name here, whatever each driver calls it: a formula is written once.

Widths. Classic performance counters stop at their end and stay there (InfiniBand Architecture Specification, volume 1,
16.1.3.5, "PortCounters"); drivers that read the extended ones show 64 bits in the same files, so the end of the short
form is no proof, only two equal readings there are (`deltas`). Driver counters wrap at their width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Folder = Literal["counters", "hw_counters"]
Unit = Literal["bytes", "bits", "packets", "events", "ticks", "microseconds", "objects"]


class Counter(msgspec.Struct, frozen=True):
    """One file. `name`: ours, the same for all drivers; `multiplier`: the file's number times this is in `unit`.

    `bits`: where it wraps, or (`saturates`) stops. `gauge`: it goes up and down, a difference means nothing."""

    folder: Folder
    file: str
    name: str
    unit: Unit
    meaning: str
    source: str
    drivers: tuple[str, ...]
    multiplier: int = 1
    bits: int = 64
    saturates: bool = False
    gauge: bool = False


NOT_COUNTERS: Final = frozenset({"lifespan"})
"""`lifespan`: for how many ms the kernel answers from its memory instead of asking the device."""

_PMA: Final = "drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR"
_EVERY: Final = ("mlx4", "mlx5", "hfi1", "irdma", "bnxt_re")


def _pma(
    file: str, name: str, unit: Unit, bits: int, meaning: str, multiplier: int = 1, drivers: tuple[str, ...] = _EVERY
) -> Counter:
    return Counter("counters", file, name, unit, meaning, _PMA, drivers, multiplier, bits, saturates=True)


_STANDARD: Final = (
    _pma("port_xmit_data", "sent_bytes", "bytes", 64, "data sent, all lanes; the file counts 4-byte words", 4),
    _pma("port_rcv_data", "received_bytes", "bytes", 64, "data received, all lanes; the file counts 4-byte words", 4),
    _pma("port_xmit_packets", "sent_packets", "packets", 64, "packets sent, those with errors too"),
    _pma("port_rcv_packets", "received_packets", "packets", 64, "packets received, those with errors too"),
    _pma("unicast_xmit_packets", "sent_unicast_packets", "packets", 64, "unicast packets sent"),
    _pma("unicast_rcv_packets", "received_unicast_packets", "packets", 64, "unicast packets received"),
    _pma("multicast_xmit_packets", "sent_multicast_packets", "packets", 64, "multicast packets sent"),
    _pma("multicast_rcv_packets", "received_multicast_packets", "packets", 64, "multicast packets received"),
    _pma("port_xmit_wait", "transmit_wait_ticks", "ticks", 32,
         "ticks in which there was something to send and nothing was: no credit, or no turn. A tick's length is the "
         "device's own"),
    _pma("symbol_error", "symbol_errors", "events", 16, "symbols with errors on a lane: a sick cable, optic or port"),
    _pma("link_error_recovery", "link_recoveries", "events", 8, "the port trained its link anew, and it came up"),
    _pma("link_downed", "link_downs", "events", 8, "the port trained its link anew, and it went down"),
    _pma("port_rcv_errors", "receive_errors", "packets", 16, "packets with an error: physical, malformed or overrun"),
    _pma("port_rcv_remote_physical_errors", "receive_remote_physical_errors", "packets", 16,
         "packets that the other side marked bad: the error is further upstream"),
    _pma("port_rcv_switch_relay_errors", "receive_relay_errors", "packets", 16,
         "packets that could not be relayed; a host port counts its own multicast that came back"),
    _pma("port_xmit_discards", "transmit_discards", "packets", 16, "packets dropped: the port was down or congested"),
    _pma("port_xmit_constraint_errors", "transmit_constraint_errors", "packets", 8, "packets refused by partition"),
    _pma("port_rcv_constraint_errors", "receive_constraint_errors", "packets", 8, "packets refused by partition"),
    _pma("local_link_integrity_errors", "link_integrity_errors", "events", 4, "more physical errors than allowed"),
    _pma("excessive_buffer_overrun_errors", "buffer_overrun_errors", "events", 4, "flow control failed for long"),
    _pma("VL15_dropped", "management_drops", "packets", 16, "management packets dropped for lack of room"),
)  # fmt: skip

_MLX5: Final = "drivers/infiniband/hw/mlx5/counters.c"
_BNXT: Final = "drivers/infiniband/hw/bnxt_re/hw_counters.c"
_RXE: Final = "drivers/infiniband/sw/rxe/rxe_hw_counters.c"
_IRDMA: Final = "drivers/infiniband/hw/irdma/verbs.c, irdma_hw_stat_names"
_MLX4: Final = "drivers/infiniband/hw/mlx4/main.c, diag_basic and diag_ext"

_ECN: Final = "RoCE packets received with the mark of a congested switch"
_CNP_SENT: Final = "congestion notifications sent: senders are asked to slow down"
_CNP_HANDLED: Final = "congestion notifications received and obeyed: we slow down"
_CNP_IGNORED: Final = "congestion notifications received and not obeyed"
_OUT_OF_SEQUENCE: Final = "requests received out of order: one before was lost, or took another path"
_SEQUENCE: Final = "negative answers for a wrong sequence number received: a packet of ours was lost"
_TIMEOUT: Final = "answers that did not come in time: packets of ours, or their answers, were lost"
_DUPLICATE: Final = "requests received twice: the peer sent again, an answer of ours may have been lost"
_RNR: Final = "the peer had no receive buffer ready"
_EXCEEDED: Final = "queue pairs that gave up: every retry was lost"


def _hw(
    driver: str, source: str, file: str, name: str, meaning: str, unit: Unit = "events", bits: int = 64, *,
    gauge: bool = False,
) -> Counter:  # fmt: skip
    return Counter("hw_counters", file, name, unit, meaning, source, (driver,), bits=bits, gauge=gauge)


def _mlx5(file: str, name: str, meaning: str, unit: Unit = "events", bits: int = 32) -> Counter:
    """Queue counters are 32 bits wide in the device's answer, congestion counters 64."""
    return _hw("mlx5", _MLX5, file, name, meaning, unit, bits)


def _bnxt(file: str, name: str, meaning: str, unit: Unit = "events", *, gauge: bool = False) -> Counter:
    return _hw("bnxt_re", _BNXT, file, name, meaning, unit, gauge=gauge)


def _rxe(file: str, name: str, meaning: str, unit: Unit = "events") -> Counter:
    return _hw("rxe", _RXE, file, name, meaning, unit)


def _irdma(file: str, name: str, meaning: str, unit: Unit = "events", bits: int = 64) -> Counter:
    return _hw("irdma", _IRDMA, file, name, meaning, unit, bits)


def _mlx4(file: str, name: str, meaning: str) -> Counter:
    return _hw("mlx4", _MLX4, file, name, meaning, bits=32)


_DRIVERS: Final = (
    _mlx5("np_ecn_marked_roce_packets", "ecn_marked_packets", _ECN, "packets", 64),
    _mlx5("np_cnp_sent", "cnp_sent", _CNP_SENT, "packets", 64),
    _mlx5("rp_cnp_handled", "cnp_handled", _CNP_HANDLED, "packets", 64),
    _mlx5("rp_cnp_ignored", "cnp_ignored", _CNP_IGNORED, "packets", 64),
    _mlx5("out_of_sequence", "out_of_sequence", _OUT_OF_SEQUENCE, "packets"),
    _mlx5("packet_seq_err", "sequence_naks", _SEQUENCE),
    _mlx5("implied_nak_seq_err", "implied_sequence_naks", "a lost answer, told by a later one: a read or an atomic"),
    _mlx5("local_ack_timeout_err", "answer_timeouts", _TIMEOUT),
    _mlx5("rnr_nak_retry_err", "receiver_not_ready", _RNR),
    _mlx5("duplicate_request", "duplicate_requests", _DUPLICATE, "packets"),
    _mlx5("out_of_buffer", "receive_buffer_drops", "packets dropped: no receive buffer was posted", "packets"),
    _mlx5("req_transport_retries_exceeded", "retries_exceeded", _EXCEEDED),
    _mlx5("req_rnr_retries_exceeded", "receiver_not_ready_exceeded", "queue pairs that gave up: no receive buffer"),
    _mlx5("rx_icrc_encapsulated", "icrc_errors", "RoCE packets with a wrong checksum of their content", "packets", 64),
    _mlx5("rx_write_requests", "received_writes", "RDMA writes received"),
    _mlx5("rx_read_requests", "received_reads", "RDMA reads received"),
    _mlx5("rx_atomic_requests", "received_atomics", "atomics received"),
    _mlx5("rx_dct_connect", "dct_connections", "connections to dynamically connected targets"),
    _mlx5("resp_local_length_error", "responder_length_errors", "a message was too long for its buffer"),
    _mlx5("resp_cqe_error", "responder_errors", "completions with an error, as responder"),
    _mlx5("req_cqe_error", "requester_errors", "completions with an error, as requester"),
    _mlx5("req_remote_invalid_request", "remote_invalid_requests", "the peer found a request invalid"),
    _mlx5("req_remote_access_errors", "remote_access_errors", "the peer refused access to its memory"),
    _mlx5("resp_remote_access_errors", "responder_access_errors", "access to our memory was refused"),
    _mlx5("resp_cqe_flush_error", "responder_flushes", "receives flushed: their queue pair had failed"),
    _mlx5("req_cqe_flush_error", "requester_flushes", "requests flushed: their queue pair had failed"),
    _mlx5("roce_adp_retrans", "adaptive_retransmissions", "packets sent again before the timeout", "packets"),
    _mlx5("roce_adp_retrans_to", "adaptive_timeouts", "timeouts of adaptive retransmission"),
    _mlx5("roce_slow_restart", "slow_restarts", "flows that started slowly after a pause"),
    _mlx5("roce_slow_restart_cnps", "slow_restart_cnps", "congestion notifications made by slow restart", "packets"),
    _mlx5("roce_slow_restart_trans", "slow_restart_transitions", "transitions into slow restart"),
    _rxe("sent_pkts", "rdma_sent_packets", "RoCE packets sent", "packets"),
    _rxe("rcvd_pkts", "rdma_received_packets", "RoCE packets received", "packets"),
    _rxe("duplicate_request", "duplicate_requests", _DUPLICATE, "packets"),
    _rxe("out_of_seq_request", "out_of_sequence", _OUT_OF_SEQUENCE, "packets"),
    _rxe("rcvd_rnr_err", "receiver_not_ready", _RNR),
    _rxe("send_rnr_err", "receiver_not_ready_sent", "we had no receive buffer ready"),
    _rxe("rcvd_seq_err", "sequence_naks", _SEQUENCE),
    _rxe("ack_deferred", "completer_runs", "the completer was scheduled"),
    _rxe("retry_exceeded_err", "retries_exceeded", _EXCEEDED),
    _rxe("retry_rnr_exceeded_err", "receiver_not_ready_exceeded", "queue pairs that gave up: no receive buffer"),
    _rxe("completer_retry_err", "requester_retries", "requests sent again, after a timeout or a negative answer"),
    _rxe("send_err", "send_errors", "packets that the network stack refused"),
    _rxe("link_downed", "link_downs", "the network device went down"),
    _rxe("rdma_sends", "sends", "send requests carried out"),
    _rxe("rdma_recvs", "receives", "receive requests filled"),
    _bnxt("oos_drop_count", "out_of_sequence", _OUT_OF_SEQUENCE, "packets"),
    _bnxt("seq_err_naks_rcvd", "sequence_naks", _SEQUENCE),
    _bnxt("to_retransmits", "answer_timeouts", _TIMEOUT),
    _bnxt("max_retry_exceeded", "retries_exceeded", _EXCEEDED),
    _bnxt("rnr_naks_rcvd", "receiver_not_ready", _RNR),
    _bnxt("dup_req", "duplicate_requests", _DUPLICATE, "packets"),
    _bnxt("missing_resp", "implied_sequence_naks", "a lost answer, told by a later one: a read or an atomic"),
    _bnxt("rx_out_of_buffer", "receive_buffer_drops", "packets dropped: no receive buffer was posted", "packets"),
    _bnxt("rx_pkts", "rdma_received_packets", "packets received by the RDMA function", "packets"),
    _bnxt("tx_pkts", "rdma_sent_packets", "packets sent by the RDMA function", "packets"),
    _bnxt("rx_bytes", "rdma_received_bytes", "bytes received by the RDMA function", "bytes"),
    _bnxt("tx_bytes", "rdma_sent_bytes", "bytes sent by the RDMA function", "bytes"),
    _bnxt("rx_roce_errors", "receive_errors", "RoCE packets received with errors", "packets"),
    _bnxt("rx_roce_discards", "receive_discards", "RoCE packets received and dropped", "packets"),
    _bnxt("recoverable_errors", "recoverable_errors", "errors that the device got over"),
    _bnxt("unrecoverable_err", "unrecoverable_errors", "errors that ended a queue pair"),
    _bnxt("active_qps", "queue_pairs", "queue pairs that exist", "objects", gauge=True),
    _irdma("RxECNMrkd", "ecn_marked_packets", _ECN, "packets"),
    _irdma("cnpSent", "cnp_sent", _CNP_SENT, "packets", 32),
    _irdma("cnpHandled", "cnp_handled", _CNP_HANDLED, "packets", 32),
    _irdma("cnpIgnored", "cnp_ignored", _CNP_IGNORED, "packets", 32),
    _irdma("RxUDP", "rdma_received_packets", "RoCE packets received", "packets"),
    _irdma("TxUDP", "rdma_sent_packets", "RoCE packets sent", "packets"),
    _irdma("ip4InDiscards", "receive_discards_ip4", "IPv4 packets received and dropped", "packets", 32),
    _irdma("ip6InDiscards", "receive_discards_ip6", "IPv6 packets received and dropped", "packets", 32),
    _irdma("RetransSegs", "retransmitted_segments", "segments sent again (iWARP)", "packets", 32),
    _irdma("tcpRetransSegs", "retransmitted_segments", "segments sent again (iWARP)", "packets", 32),
    _irdma("RTO", "answer_timeouts", _TIMEOUT),
    _irdma("Nak Sequence Error", "sequence_naks", _SEQUENCE),
    _irdma("Nak Sequence Error Implied", "implied_sequence_naks", "a lost answer, told by a later one"),
    _irdma("RNR received", "receiver_not_ready", _RNR),
    _irdma("RNR sent", "receiver_not_ready_sent", "we had no receive buffer ready"),
    _mlx4("rq_num_oos", "out_of_sequence", _OUT_OF_SEQUENCE),
    _mlx4("sq_num_oos", "sequence_naks", _SEQUENCE),
    _mlx4("sq_num_to", "answer_timeouts", _TIMEOUT),
    _mlx4("rq_num_dup", "duplicate_requests", _DUPLICATE),
    _mlx4("sq_num_tree", "retries_exceeded", _EXCEEDED),
    _mlx4("sq_num_rree", "receiver_not_ready_exceeded", "queue pairs that gave up: no receive buffer"),
    _mlx4("rq_num_rnr", "receiver_not_ready_sent", "we had no receive buffer ready"),
    _mlx4("sq_num_rnr", "receiver_not_ready", _RNR),
)

COUNTERS: Final = (*_STANDARD, *_DRIVERS)

_BY_PLACE: Final[Mapping[tuple[Folder, str], tuple[Counter, ...]]] = {
    (row.folder, row.file): tuple(one for one in COUNTERS if (one.folder, one.file) == (row.folder, row.file))
    for row in COUNTERS
}


FAMILIES: Final[Mapping[str, str]] = {
    "mlx5_core": "mlx5", "mlx4_core": "mlx4", "hfi1": "hfi1", "ice": "irdma", "i40e": "irdma", "bnxt_en": "bnxt_re",
    "rdma_rxe": "rxe",
}  # fmt: skip
"""What is found at a device's bus address -> the driver that makes its RDMA counters."""


def find(folder: Folder, file: str, driver: str = "") -> Counter | None:
    """The row of a file, None for one that nobody has described. Two drivers may use one name: `driver` (a key of
    FAMILIES) decides; of an unknown one the first is taken, with the narrowest width, so that no wrap looks like a
    reset."""
    rows = _BY_PLACE.get((folder, file), ())
    family = FAMILIES.get(driver, driver)
    for row in rows:
        if family in row.drivers:
            return row
    if not rows:
        return None
    return msgspec.structs.replace(rows[0], bits=min(row.bits for row in rows))
