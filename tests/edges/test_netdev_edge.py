"""The edge that watches Ethernet ports: it never waits for a reading, tells a finding once, and shows what is unknown
as such; in the terminal and to Prometheus, too."""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ethtool_kernel
import pytest
from at_once import AtOnce
from ethtool_kernel import RecordedKernel, answer, with_numbers
from module_pages import osfp, qsfp28, words
from rich.console import Console

from lab.netns import namespace
from linkpass.cli.status_tables import status_of
from linkpass.edges.metrics import exposition
from linkpass.edges.netdevs import NetdevEdge
from rdma.counters.evidence import Thresholds, outward
from rdma.counters.reading import Window
from rdma.ethernet.table import STATISTICS
from rdma.ethernet.watch import OFF, Look, Netdevs

DEVICE = "nothere0"


class Bench:
    """An edge over a kernel's recorded answers, and the time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.kernel = RecordedKernel(DEVICE, qsfp28())  # type: ignore[arg-type]
        self.kernel.answers = {"pause": answer("pause"), "fec": answer("fec"), "statistics": answer("statistics")}
        self.edge = NetdevEdge(Thresholds(), Netdevs(60.0, self.kernel), lambda: self.now_s, AtOnce())

    def poll(self, seconds: float = 1.0) -> list[str]:
        """A second later: what the reading of the second before has told."""
        self.now_s += seconds
        return self.edge.poll([DEVICE])

    def port(self) -> dict[str, Any]:
        (port,) = self.edge.snapshot()
        return port


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.edge.close()


@pytest.fixture
def wire() -> Iterator[str]:
    with ethtool_kernel.veth("edge") as name:
        yield name


@pytest.mark.netns
def test_a_real_device_is_read_in_a_thread_of_this_namespace(wire: str) -> None:
    with namespace.inside(wire):
        thread = ThreadPoolExecutor(1)
        edge = NetdevEdge(Thresholds(), Netdevs(), iter(range(10)).__next__, thread)
        assert edge.poll(["far0"]) == []
        thread.submit(int).result(10)  # after the reading: there is one thread
    assert edge.poll(["far0"]) == []
    (port,) = edge.snapshot()
    assert (edge.why, port["name"], port["driver"], port["totals"], port["module"]) == ("", "far0", "veth", {}, None)
    assert port["module_why"] == "unknown: missing (the driver does not tell it)"
    assert set(port["unknown"]) == {"pause", "fec", "statistics", "driver"}
    assert port["figures"]["uncorrectable_blocks_per_s"] is None
    edge.close()


def test_a_reading_that_hangs_is_not_waited_for() -> None:
    let_go, asked = threading.Event(), []

    class Hanging(Netdevs):
        def look(self, devices: Any, now_s: Any) -> Any:
            asked.append(list(devices))
            let_go.wait(10)
            return {}

    thread = ThreadPoolExecutor(1)
    edge = NetdevEdge(Thresholds(), Hanging(), lambda: 0.0, thread)
    assert [edge.poll([DEVICE]) for _ in range(5)] == [[]] * 5
    assert edge.snapshot() == []
    edge.close()
    let_go.set()
    thread.shutdown(wait=True)
    assert asked == [[DEVICE]]


def test_a_finding_is_said_once_and_once_when_it_is_over(bench: Bench) -> None:
    bench.poll()
    assert bench.poll() == []
    bench.kernel.answers["fec"] = with_numbers("fec", fec_uncorrectable_blocks=6)
    assert bench.poll() == []  # this reading is told with the next
    (line,) = bench.poll()
    assert line == (
        f"{DEVICE}: blocks arrive that error correction cannot repair (uncorrectable_blocks_per_s 2, limit 0.1)"
    )
    assert bench.poll() == [f"{DEVICE}: uncorrectable_blocks_per_s is within its limit again"]


def test_a_port_that_may_not_send_is_congested_in_what_it_sends() -> None:
    class Paused(Netdevs):
        def look(self, devices: Any, now_s: Any) -> dict[str, Look]:
            window = Window(DEVICE, 1.0, 1.0, {"paused_us_priority_3": 400_000, "fec_uncorrectable_blocks": 9})
            return {DEVICE: Look(DEVICE, "mlx5_core", window, {}, {}, OFF)}

    edge = NetdevEdge(Thresholds(), Paused(), lambda: 0.0, AtOnce())
    assert list(edge.congested(DEVICE)) == []
    edge.poll([DEVICE])
    edge.poll([DEVICE])
    (found,) = edge.congested(DEVICE)
    assert (found.what, outward(found)) == ("paused_ratio_priority_3", True)
    assert list(edge.congested("other0")) == []
    edge.close()


def test_a_module_that_gets_no_light_is_said(bench: Bench) -> None:
    bench.kernel.pages = dict(qsfp28(b34=words(10_000, 10_000, 0, 10_000)))  # type: ignore[arg-type]
    bench.poll()
    (line,) = bench.poll()
    assert line.startswith(
        f"{DEVICE}: the light received on lane 3 is too weak (receive_power_dbm_lane_3 -40, limit -13"
    )


def test_what_is_shown_has_numbers_or_reasons(bench: Bench) -> None:
    bench.poll()
    bench.poll()
    port = bench.port()
    assert port["totals"]["fec_uncorrectable_blocks"] == 4
    assert port["figures"]["corrected_bit_ratio"] is None
    module = port["module"]
    assert (module["kind"], module["temperature_c"], module["unknown"]) == ("QSFP28", 40.0, {})
    assert module["lanes"][3] == {
        "number": 4, "receive_power_dbm": 0.0, "transmit_power_dbm": pytest.approx(-3.01, abs=0.01), "bias_ma": 40.0,
    }  # fmt: skip
    assert module["temperature_limits_c"]["high_warning"] == 70.0


def test_what_a_module_does_not_tell_is_null_with_its_reason(bench: Bench) -> None:
    bench.kernel.pages = {half: raw for half, raw in osfp().items() if half.page not in (0x02, 0x11)}  # type: ignore[misc]
    bench.poll()
    bench.poll()
    module = bench.port()["module"]
    assert (module["temperature_c"], module["temperature_limits_c"]) == (55.5, None)
    assert module["lanes"][7]["receive_power_dbm"] is None
    assert module["unknown"]["lanes_8.receive_power_dbm"] == "unknown: refused (Input/output error)"


def test_a_host_without_such_ports_says_so() -> None:
    edge = NetdevEdge(Thresholds(), Netdevs(), lambda: 0.0, AtOnce())
    assert (edge.snapshot(), edge.why) == ([], "not read yet")
    edge.poll([])
    edge.poll([])
    assert edge.why == "no Ethernet port of an RDMA device or uplink"
    edge.close()


def test_a_reading_that_fails_is_said() -> None:
    class Failing(Netdevs):
        def look(self, devices: Any, now_s: Any) -> Any:
            raise OSError(24, "Too many open files")

    edge = NetdevEdge(Thresholds(), Failing(), lambda: 0.0, AtOnce())
    edge.poll([DEVICE])
    edge.poll([DEVICE])
    assert edge.why == "Ethernet ports are not read: Too many open files"
    edge.close()


def test_a_reading_that_stumbles_over_what_a_module_says_is_said_and_done_again() -> None:
    class Stumbling(Netdevs):
        def look(self, devices: Any, now_s: Any) -> Any:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    edge = NetdevEdge(Thresholds(), Stumbling(), lambda: 0.0, AtOnce())
    assert [edge.poll([DEVICE]) for _ in range(3)] == [[]] * 3
    assert edge.why.startswith("Ethernet ports are not read: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff")
    edge.close()


def view(edge: NetdevEdge) -> dict[str, Any]:
    return {"rdma": {"why": "", "devices": [], "ethernet": edge.snapshot(), "ethernet_why": edge.why}}


def test_what_is_exported_is_accepted_by_promtool(bench: Bench) -> None:
    bench.kernel.answers["fec"] = with_numbers("fec", fec_uncorrectable_blocks=1)
    bench.poll()
    bench.kernel.answers["fec"] = with_numbers("fec", fec_uncorrectable_blocks=4)
    bench.poll()
    bench.poll()
    ports = bench.edge.snapshot()
    ports[0]["totals"].update(paused_us_priority_3=2_500_000, line_bits=80)
    text = exposition(lambda: {"rdma": {"ethernet": ports}})
    for line in (
        b'linkpass_ethernet_fec_uncorrectable_blocks_total{device="nothere0"} 4.0',
        b'linkpass_ethernet_fec_lane_corrected_bit_errors_total{device="nothere0",lane="3"} 40.0',
        b'linkpass_ethernet_paused_seconds_total{device="nothere0",priority="3"} 2.5',
        b'linkpass_ethernet_line_bytes_total{device="nothere0"} 10.0',
        b'linkpass_ethernet_figure{device="nothere0",figure="uncorrectable_blocks_per_s"} 3.0',
        b'linkpass_ethernet_finding{device="nothere0",figure="uncorrectable_blocks_per_s",kind="sick link"} 1.0',
        b'linkpass_module_temperature_celsius{device="nothere0"} 40.0',
        b'linkpass_module_receive_power_dbm{device="nothere0",lane="4"} 0.0',
        b'linkpass_module_laser_bias_amperes{device="nothere0",lane="1"} 0.04',
    ):
        assert line in text
    assert b"port_receive_discards" not in text  # what cannot be read is no zero
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_statistic_can_be_exported(bench: Bench) -> None:
    bench.poll()
    bench.poll()
    ports = bench.edge.snapshot()
    ports[0]["totals"] = {row.named(number): 8_000_000 for row in STATISTICS for number in row.numbers()}
    text = exposition(lambda: {"rdma": {"ethernet": ports}})
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert text.count(b"# HELP linkpass_ethernet_") == len({row.name for row in STATISTICS})


def printed(shown: dict[str, Any], *, everything: bool) -> str:
    console = Console(width=220, file=io.StringIO())
    with console.capture() as captured:
        console.print(status_of(shown, everything=everything))
    return captured.get()


def test_the_terminal_shows_a_port_in_a_line(bench: Bench) -> None:
    bench.poll()
    bench.kernel.answers["fec"] = with_numbers("fec", fec_uncorrectable_blocks=6)
    bench.poll()
    bench.poll()
    shown = view(bench.edge)
    shown["rdma"]["ethernet"][0]["totals"].update(pauses_received_priority_3=9, paused_us_priority_3=5)
    shown["rdma"]["ethernet"][0]["figures"]["paused_ratio_priority_3"] = 0.125
    (line,) = [one for one in printed(shown, everything=False).splitlines() if DEVICE in one]
    for part in ("10/2, 12% of time", "1234567", "QSFP28, 40 °C, 0.0…0.0 dBm in", "error correction cannot repair"):
        assert part in line


def test_a_port_of_which_nothing_is_known_is_shown_with_everything_and_why(bench: Bench) -> None:
    bench.kernel.answers.clear()
    bench.kernel.pages.clear()
    bench.poll()
    bench.poll()
    shown = view(bench.edge)
    assert DEVICE not in printed(shown, everything=False)
    assert "fec: unknown: missing (the driver does not tell it)" in printed(shown, everything=True)
