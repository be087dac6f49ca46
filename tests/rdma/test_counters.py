"""Counters: the table, differences, reading, and what they say."""

from __future__ import annotations

import math
from collections import Counter as Count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sysfs_tree import REFUSED, Tree

from rdma.counters import table
from rdma.counters.deltas import MOST_PER_S, difference
from rdma.counters.evidence import FIGURES, Thresholds, figures, findings
from rdma.counters.reading import PortReader, Window
from rdma.counters.table import COUNTERS, find
from rdma.devices import devices
from rdma.sysfs import Unknown, Value


# the table
def test_a_driver_has_a_file_and_a_name_only_once() -> None:
    places = Count((row.folder, row.file, driver) for row in COUNTERS for driver in row.drivers)
    assert [place for place, count in places.items() if count > 1] == []
    names = Count((row.folder, row.name, driver) for row in COUNTERS for driver in row.drivers)
    assert {place for place, count in names.items() if count > 1} == {
        ("hw_counters", "retransmitted_segments", "irdma")  # its name changed between kernels
    }


def test_every_row_says_what_it_means_and_where_that_is_written() -> None:
    for row in COUNTERS:
        assert row.meaning, row.file
        assert row.source.startswith("drivers/infiniband/"), row.file
        assert row.bits in (4, 8, 16, 32, 64), row.file


def test_words_are_four_bytes() -> None:
    for file in ("port_xmit_data", "port_rcv_data"):
        row = find("counters", file)
        assert row is not None
        assert (row.unit, row.multiplier) == ("bytes", 4)
    assert all(row.multiplier == 1 for row in COUNTERS if row.unit != "bytes")


@pytest.mark.parametrize(
    ("driver", "bits"), [("mlx5_core", 32), ("rdma_rxe", 64), ("rxe", 64), ("", 32), ("new_driver", 32)]
)
def test_the_driver_decides_between_rows_of_one_name(driver: str, bits: int) -> None:
    row = find("hw_counters", "duplicate_request", driver)
    assert row is not None
    assert row.bits == bits


def test_what_nobody_described_has_no_row() -> None:
    assert find("hw_counters", "flux_capacitor_errors") is None


# differences
NAK = find("hw_counters", "packet_seq_err", "mlx5")
BYTES = find("counters", "port_xmit_data")
SYMBOLS = find("counters", "symbol_error")
assert NAK is not None
assert BYTES is not None
assert SYMBOLS is not None
MISSING = Unknown("missing")


@pytest.mark.parametrize(
    ("row", "before", "after", "counted"),
    [
        (NAK, 5, 9, 4),
        (NAK, 2**32 - 3, 4, 7),  # wrapped
        (NAK, 2**31, 4, 4),  # too far for a wrap within a second: it began anew
        (NAK, 9, 9, 0),
        (NAK, MISSING, 9, MISSING),
        (NAK, 9, MISSING, MISSING),
        (BYTES, 10, 35, 100),
        (BYTES, 35, 10, 40),  # cleared: at least what came since
        (SYMBOLS, 65534, 65535, 1),
        (SYMBOLS, 65535, 3, 3),
    ],
)  # fmt: skip
def test_differences(row: table.Counter, before: Value, after: Value, counted: Value) -> None:
    assert difference(row, before, after, 1.0) == counted


def test_a_counter_at_its_end_counts_no_more() -> None:
    stuck = difference(SYMBOLS, 65535, 65535, 1.0)
    assert isinstance(stuck, Unknown)
    assert stuck.why == "saturated"


def test_a_gauge_has_no_difference() -> None:
    row = find("hw_counters", "active_qps")
    assert row is not None
    with pytest.raises(ValueError, match="up and down"):
        difference(row, 1, 2, 1.0)


@given(st.integers(0, 2**32 - 1), st.integers(0, int(MOST_PER_S)))
def test_whatever_is_counted_is_found_across_a_wrap(before: int, counted: int) -> None:
    assert difference(NAK, before, (before + counted) % 2**32, 1.0) == counted


@given(st.sampled_from([r for r in COUNTERS if not r.gauge]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_no_difference_is_below_zero(row: table.Counter, before: int, after: int) -> None:
    counted = difference(row, before, after, 1.0)
    assert isinstance(counted, Unknown) or counted >= 0


# reading
@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    made.device("mlx5_0", driver="mlx5_core", pci="0000:9a:00.0")
    made.port("mlx5_0")
    made.counters("mlx5_0", "counters", port_xmit_data=1000, port_rcv_packets=50, symbol_error=65535, link_downed=0)
    made.counters("mlx5_0", "hw_counters", lifespan=10, np_cnp_sent=7, packet_seq_err=2**32 - 1)
    return made


def reader(tree: Tree) -> PortReader:
    device = devices(tree.root)[0]
    return PortReader(device.ports[0], device.driver)


def test_a_window_is_what_was_counted_in_between(tree: Tree) -> None:
    with reader(tree) as port:
        first = port.read(10.0)
        assert first.counted == {name: Unknown("first reading") for name in first.counted}
        tree.counters("mlx5_0", "counters", port_xmit_data=1250)
        # the file is another one now: what is open shows the old one, as a device that is gone would
    with reader(tree) as port:
        port.read(10.0)
        at = tree.root / "class/infiniband/mlx5_0/ports/1"
        for file, value in (("counters/port_xmit_data", "1500"), ("hw_counters/packet_seq_err", "1")):
            (at / file).write_text(value)
        window = port.read(12.0)
        assert (window.port, window.at_s, window.seconds) == ("mlx5_0/1", 12.0, 2.0)
        assert window.of("sent_bytes") == 1000
        assert window.per_s("sent_bytes") == 500.0
        assert window.of("sequence_naks") == 2
        assert window.of("received_packets") == 0
        assert window.of("symbol_errors") == Unknown(
            "saturated", "symbol_error stands at 65535; clear it (perfquery -R) to count again"
        )
        assert window.of("cnp_handled") == Unknown("missing", "the driver does not count it")
        assert window.of("cnp_handled", "cnp_sent") == 0
        assert port.totals()["sent_bytes"] == 6000
        again = port.read(13.0)
        assert again.of("sent_bytes") == 0
        assert again.of("sequence_naks") == 0


def test_a_refused_counter_is_unknown_and_comes_back(tree: Tree) -> None:
    """Of a driver that answers EINVAL or `N/A (no PMA)` for a while."""
    with reader(tree) as port:
        port.read(1.0)
        file = tree.root / "class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets"
        file.write_text("N/A (no PMA)\n")
        assert port.read(2.0).of("received_packets") == Unknown("no number", "N/A (no PMA)")
        file.write_text("80\n")
        assert port.read(3.0).of("received_packets") == Unknown("first reading")
        file.write_text("95\n")
        assert port.read(4.0).of("received_packets") == 15


def test_a_counter_that_cannot_be_read_is_refused(tree: Tree) -> None:
    tree.counters("mlx5_0", "counters", port_rcv_errors=REFUSED)
    with reader(tree) as port:
        assert port.read(1.0).of("receive_errors") == Unknown("refused", "Input/output error")
        assert port.read(2.0).of("receive_errors") == Unknown("refused", "Input/output error")


def test_what_no_row_describes_is_named_and_left_alone(tree: Tree) -> None:
    tree.counters("mlx5_0", "hw_counters", flux_capacitor_errors=1)
    with reader(tree) as port:
        assert port.strange == ("hw_counters/flux_capacitor_errors",)


def test_a_port_without_counters_counts_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.device("rxe0")
    tree.port("rxe0")
    with reader(tree) as port:
        assert port.read(1.0).counted == {}
        assert port.rows == ()


def test_a_gauge_is_shown_as_it_stands(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.device("bnxt_re0", driver="bnxt_en", pci="0000:9a:00.0")
    tree.port("bnxt_re0")
    tree.counters("bnxt_re0", "hw_counters", active_qps=12)
    with reader(tree) as port:
        assert [port.read(at).of("queue_pairs") for at in (1.0, 2.0)] == [12, 12]


# evidence
def window(seconds: float = 1.0, **counted: Value) -> Window:
    return Window("mlx5_0/1", 100.0, seconds, counted)


LIMITS = Thresholds()


def test_a_quiet_port_says_nothing() -> None:
    quiet = window(
        received_packets=0, sent_packets=0, ecn_marked_packets=0, cnp_sent=0, cnp_handled=0, out_of_sequence=0,
        sequence_naks=0, answer_timeouts=0, symbol_errors=0, link_downs=0, receive_errors=0, retries_exceeded=0,
    )  # fmt: skip
    assert list(findings(quiet, LIMITS)) == []


def test_what_is_unknown_makes_no_finding() -> None:
    assert list(findings(window(), LIMITS)) == []
    assert all(isinstance(value, Unknown) for value in figures(window(), LIMITS).values())
    assert list(figures(window(), LIMITS)) == [figure.name for figure in FIGURES]


@pytest.mark.parametrize(
    ("counted", "what", "kind", "value"),
    [
        ({"received_packets": 1000, "ecn_marked_packets": 60}, "ecn_marked_ratio", "congestion", 0.06),
        ({"received_packets": 9, "rdma_received_packets": 1000, "ecn_marked_packets": 60}, "ecn_marked_ratio",
         "congestion", 0.06),
        ({"cnp_sent": 3000}, "cnp_sent_per_s", "congestion", 1500.0),
        ({"cnp_handled": 3000}, "cnp_handled_per_s", "congestion", 1500.0),
        ({"received_packets": 1000, "out_of_sequence": 1}, "out_of_sequence_ratio", "loss", 0.001),
        ({"sent_packets": 1000, "sequence_naks": 1}, "sequence_nak_ratio", "loss", 0.001),
        ({"answer_timeouts": 1}, "answer_timeouts_per_s", "loss", 0.5),
        ({"retries_exceeded": 1}, "retries_exceeded_per_s", "failed", 0.5),
        ({"symbol_errors": 3}, "symbol_errors_per_s", "sick link", 1.5),
        ({"received_packets": 1000, "receive_errors": 1}, "receive_error_ratio", "sick link", 0.001),
        ({"link_downs": 1}, "link_downs_per_s", "sick link", 0.5),
    ],
)  # fmt: skip
def test_findings(counted: dict[str, Value], what: str, kind: str, value: float) -> None:
    (found,) = findings(window(2.0, **counted), LIMITS)
    assert (found.what, found.kind, found.port) == (what, kind, "mlx5_0/1")
    assert math.isclose(found.value, value)
    assert found.limit < found.value


def test_waiting_is_a_share_of_time_only_where_a_tick_has_a_length() -> None:
    waited = window(2.0, transmit_wait_ticks=500_000_000)
    assert isinstance(figures(waited, LIMITS)["transmit_wait_ratio"], Unknown)
    (found,) = findings(waited, Thresholds(tick_s=1e-9))
    assert math.isclose(found.value, 0.25)
