"""Sensors, GPUs' figures, checks and their hysteresis: trees, programs, pages over real HTTP."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from linkpass.app.host import host_edge, missing
from linkpass.config.model import Health, HealthCheck
from linkpass.core.events import HostEvidence
from linkpass.edges.host import HostEdge, Watched
from linkpass.edges.host.check import ExecCheck, FileCheck
from linkpass.edges.host.dcgm import Dcgm, values
from linkpass.edges.host.gpus import Gpu, not_shown, troubles
from linkpass.edges.host.nvml import Nvml
from linkpass.edges.host.reading import AbsentError, Place, Reading, Standing, Trouble
from linkpass.edges.host.sensors import Sensors

GPU = "0000:3b:00.0"


# sensors
def tree(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def zone(root: Path, temp: int, name: str = "x86_pkg_temp") -> None:
    tree(root / "class/thermal/thermal_zone0", type=name, temp=str(temp))
    trips = {"trip_point_0_type": "passive", "trip_point_0_temp": "85000", "trip_point_1_type": "critical"}
    tree(root / "class/thermal/thermal_zone0", **trips, trip_point_1_temp="100000")
    tree(root / "class/thermal/thermal_zone0", trip_point_2_type="hot", trip_point_2_temp="95000")


@pytest.mark.parametrize(
    ("temp", "severity"), [(60_000, None), (90_000, None), (96_000, "degraded"), (101_000, "fatal")]
)
def test_a_thermal_zone_is_judged_by_its_own_trips(tmp_path: Path, temp: int, severity: str | None) -> None:
    zone(tmp_path, temp)
    reading = Sensors(0.0, tmp_path).read()
    assert [one.severity for one in reading.troubles.values()] == ([severity] if severity else [])
    assert reading.figures["x86_pkg_temp (thermal_zone0)", "temperature_c"] == temp / 1000


def test_a_margin_makes_it_critical_sooner(tmp_path: Path) -> None:
    zone(tmp_path, 96_000)
    assert [one.severity for one in Sensors(5.0, tmp_path).read().troubles.values()] == ["fatal"]


def test_a_chips_critical_temperature_degrades(tmp_path: Path) -> None:
    chip = tmp_path / "class/hwmon/hwmon3"
    tree(chip, name="mlx5", temp1_input="106000", temp1_crit="105000", temp1_label="asic")
    tree(chip, temp2_input="50000", temp2_crit="0", temp3_input="x")
    reading = Sensors(0.0, tmp_path).read()
    assert {place: one.severity for place, one in reading.troubles.items()} == {
        ("", "mlx5 asic (hwmon3) is critical"): "degraded"
    }
    assert len(reading.figures) == 2


def test_memory_errors_count_from_now_on(tmp_path: Path) -> None:
    controller = tmp_path / "devices/system/edac/mc/mc0"
    tree(controller, mc_name="Skylake Socket#0", ue_count="7", ue_noinfo_count="0", ce_count="99")
    sensors = Sensors(0.0, tmp_path)
    assert sensors.read().troubles == {}
    tree(controller, ue_count="9")
    ((place, one),) = sensors.read().troubles.items()
    assert place == ("", "uncorrected memory error") and one.severity == "fatal" and one.happened
    assert one.why == "2 more on mc0 (Skylake Socket#0)"
    assert sensors.read().troubles == {}
    (controller / "ue_count").unlink()
    assert "ue_count of mc0" in sensors.read().unknown


def test_what_cannot_be_read_is_neither_good_nor_bad(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="no temperature and no memory controller"):
        Sensors(0.0, tmp_path).read()
    tree(tmp_path / "class/thermal/thermal_zone0", type="acpitz", temp="unreadable")
    unknown = Sensors(0.0, tmp_path).read().unknown
    assert unknown == (
        "temperature of acpitz (thermal_zone0)", "uncorrected memory errors: no EDAC driver is loaded",
    )  # fmt: skip
    tree(tmp_path / "devices/system/edac/mc/mc0", ue_count="0", ue_noinfo_count="0")
    (tmp_path / "class/thermal/thermal_zone0/temp").unlink()
    (tmp_path / "class/thermal/thermal_zone0/type").unlink()
    (tmp_path / "class/thermal/thermal_zone0").rmdir()
    assert Sensors(0.0, tmp_path).read().unknown == ("temperatures: no thermal zone and no hwmon chip",)


# hysteresis
def reading(*places: Place, severity: str = "degraded", blind: tuple[Place, ...] = ()) -> Reading:
    found = {place: Trouble(severity, "why") for place in places}  # type: ignore[arg-type]
    return Reading(found, (), frozenset(blind))


def test_a_trouble_has_to_stand_and_to_rest() -> None:
    hot: Place = (GPU, "temperature")
    standing = Standing("nvml", 10.0, 60.0)
    said = [
        (at_s, one.severity)
        for at_s, seen in [(0, True), (5, False), (10, True), (15, True), (20, True), (25, True), (30, False),
                           (60, True), (65, False), (120, False), (130, False), (200, False)]
        for one in standing.take(reading(hot) if seen else reading(), float(at_s))
    ]  # fmt: skip
    assert said == [(20, "degraded"), (130, "well")]


def test_what_cannot_be_seen_is_not_over_and_what_gets_worse_is_told() -> None:
    hot: Place = (GPU, "temperature")
    standing = Standing("nvml", 0.0, 0.0)
    assert [one.severity for one in standing.take(reading(hot), 0.0)] == ["degraded"]
    assert list(standing.take(reading(blind=(hot,)), 100.0)) == []
    assert list(standing.take(reading(hot), 101.0)) == []
    assert [one.severity for one in standing.take(reading(hot, severity="fatal"), 102.0)] == ["fatal"]
    assert [one.severity for one in standing.take(reading(), 103.0)] == ["well"]


def test_what_happened_is_told_at_once_each_time() -> None:
    standing = Standing("sensors", 1000.0, 0.0)
    event = Reading({("", "uncorrected memory error"): Trouble("fatal", "2 more", happened=True)})
    for at_s in (0.0, 5.0):
        assert [(one.severity, one.lasts_s) for one in standing.take(event, at_s)] == [("fatal", None)]
    assert list(standing.take(Reading({}), 5000.0)) == []


# checks
@pytest.mark.parametrize(
    ("script", "severity", "why"),
    [
        ("echo all is well; exit 0", None, ""),
        ("echo '  two   fans   slow '; echo more; exit 1", "degraded", "two fans slow"),
        ("echo NVLink down; exit 2", "fatal", "NVLink down"),
        ("exit 2", "fatal", "no reason was given"),
        ("head -c 1000000 /dev/zero | tr '\\0' x; exit 1", "degraded", "x" * 300),
    ],
)
def test_a_program_has_an_opinion(script: str, severity: str | None, why: str) -> None:
    found = ExecCheck(["sh", "-c", script], 10.0).read()
    assert found.unknown == ()
    assert [(one.severity, one.why) for one in found.troubles.values()] == ([(severity, why)] if severity else [])


def test_a_program_without_an_opinion_changes_nothing() -> None:
    for script, why in (("exit 7", "exit status 7 is no opinion"), ("kill -9 $$", "exit status -9 is no opinion")):
        found = ExecCheck(["sh", "-c", script], 10.0).read()
        assert why in found.unknown[0] and found.blind == {("", "health")} and not found.troubles
    with pytest.raises(AbsentError, match="/no/such: No such file"):
        ExecCheck(["/no/such"], 1.0).read()


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo begun; wait"
    found = ExecCheck(["sh", "-c", script], 0.3).read()
    assert found.unknown == ("sh: not done after 0.3 s, ended",)
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    until_s = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until_s


def test_a_daemon_that_stops_does_not_wait_for_a_check(tmp_path: Path) -> None:
    check = ExecCheck(["sh", "-c", f"echo > {tmp_path}/begun; sleep 600"], 600.0)
    found: list[Reading] = []
    thread = threading.Thread(target=lambda: found.append(check.read()))
    thread.start()
    until_s = time.monotonic() + 30
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < until_s
    check.interrupt()
    thread.join(20)
    assert not thread.is_alive() and "is no opinion" in found[0].unknown[0]
    assert "is no opinion" in check.read().unknown[0]  # and none begins any more


def test_a_file_has_an_opinion(tmp_path: Path) -> None:
    file = tmp_path / "health"
    with pytest.raises(AbsentError, match="No such file"):
        FileCheck(str(file)).read()
    for text, severity in (("healthy", None), ("degraded: one DIMM", "degraded"), ("2 dead fan\nmore", "fatal")):
        file.write_text(text)
        assert [one.severity for one in FileCheck(str(file)).read().troubles.values()] == (
            [severity] if severity else []
        )
    file.write_text("perhaps")
    assert "neither healthy, degraded nor failing" in FileCheck(str(file)).read().unknown[0]


# GPUs
def test_a_gpu_is_judged_by_its_own_limits() -> None:
    well = Gpu(GPU, 60.0, 87.0, 92.0, 0, False, False, 0)
    assert list(troubles(well, None, 0.0, 600.0)) == []
    assert list(troubles(Gpu(GPU, temperature_c=99.0), None, 0.0, 600.0)) == []  # without a limit it is a figure
    assert set(not_shown(Gpu(GPU))) == {
        (GPU, "temperature"), (GPU, "throttled"), (GPU, "row remapping"),
    }  # fmt: skip
    sick = Gpu(GPU, 90.0, 87.0, 92.0, 3, True, False, 0x40 | 0x4, (79, 13))
    found = dict(troubles(sick, well, 0.0, 600.0))
    assert {what: one.severity for (_, what), one in found.items()} == {
        "temperature": "degraded", "throttled": "degraded", "row remapping": "degraded", "memory": "degraded",
        "Xid 79": "fatal", "Xid 13": "info",
    }  # fmt: skip
    assert "heat" in found[GPU, "throttled"].why and found[GPU, "Xid 79"].lasts_s is None
    worse = Gpu(GPU, 93.0, 87.0, 92.0, 3, True, True, 0)
    found = dict(troubles(worse, sick, 0.0, 600.0))
    assert {what: one.severity for (_, what), one in found.items()} == {
        "temperature": "fatal",
        "row remapping": "fatal",
    }
    gone = dict(troubles(Gpu(GPU, gone="GPU is lost", xids=(79,)), worse, 0.0, 600.0))
    assert gone.pop((GPU, "unreachable")) == Trouble("fatal", "GPU is lost")
    assert set(gone) == {(GPU, "Xid 79")}


@pytest.mark.gpu
def test_real_gpus_are_read() -> None:
    nvml = Nvml(0.0, 600.0)
    found = nvml.read()
    nvml.close()
    assert found.figures and all(10 < value < 120 for (_, name), value in found.figures.items() if name[0] == "t")
    assert not [one for one in found.troubles.values() if one.severity == "fatal"]


class Exporter(Collector):
    """A page in the exporter's names, made by Prometheus' own library."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self.counters: dict[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        labels = {"gpu": "0", "UUID": "GPU-1", "pci_bus_id": "00000000:3B:00.0", "modelName": "H100"}
        for name, value in (self.gauges | self.counters).items():
            family = GaugeMetricFamily(f"DCGM_FI_DEV_{name}", "of DCGM", labels=list(labels))
            family.add_metric(list(labels.values()), value)
            yield family

    def page(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        page = generate_latest(registry)
        for name in self.counters:  # counters of the exporter end in capitals, which Prometheus' library would not make
            kind = f"# TYPE DCGM_FI_DEV_{name}".encode()
            page = page.replace(kind + b" gauge", kind + b" counter")
        return page


@contextmanager
def served(exporter: Exporter, *, slow: threading.Event | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if slow is not None:
                slow.wait(30)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(exporter.page())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_exporters_page_is_read_over_http() -> None:
    exporter = Exporter()
    exporter.gauges = {
        "GPU_TEMP": 91.0, "SLOWDOWN_TEMP": 87.0, "SHUTDOWN_TEMP": 95.0, "XID_ERRORS": 31.0, "ROW_REMAP_FAILURE": 0.0,
        "CLOCKS_EVENT_REASONS": 8.0, "FB_USED": float("nan"),
    }  # fmt: skip
    with served(exporter) as url:
        dcgm = Dcgm(url, 0.0, 600.0)
        first = dcgm.read()
        assert {what: one.severity for (_, what), one in first.troubles.items()} == {
            "temperature": "degraded", "throttled": "degraded",
        }  # an Xid of unknown age is no event  # fmt: skip
        assert first.figures == {(GPU, "temperature_c"): 91.0}
        exporter.gauges |= {"XID_ERRORS": 79.0, "GPU_TEMP": 50.0, "CLOCKS_EVENT_REASONS": 0.0}
        second = dcgm.read()
        assert {place: one.severity for place, one in second.troubles.items()} == {(GPU, "Xid 79"): "fatal"}
        assert dcgm.read().troubles == {}
        exporter.gauges = {"POWER_USAGE": 1.0}
        assert (GPU, "temperature") in dcgm.read().blind
        exporter.gauges = {}
        with pytest.raises(AbsentError, match="is it DCGM's exporter"):
            dcgm.read()
    with pytest.raises(AbsentError, match="refused"):
        dcgm.read()


def test_an_xid_series_that_appears_is_an_event_and_counters_count_from_now_on() -> None:
    exporter = Exporter()
    exporter.gauges, exporter.counters = {"GPU_TEMP": 50.0}, {"ECC_DBE_VOL_TOTAL": 4.0}
    with served(exporter) as url:
        dcgm = Dcgm(url, 0.0, 600.0)
        assert dcgm.read().troubles == {}
        exporter.gauges["XID_ERRORS"], exporter.counters["ECC_DBE_VOL_TOTAL"] = 48.0, 5.0
        assert {what for _, what in dcgm.read().troubles} == {"Xid 48", "memory"}


def test_a_page_of_something_else_is_an_error() -> None:
    with pytest.raises(OSError, match="not a page for Prometheus"):
        values("<html>no {metrics} here</html>\nx y z")
    assert values("") == {}


# the edge
class Slow:
    name = "slow"

    def __init__(self) -> None:
        self.free = threading.Event()

    def read(self) -> Reading:
        self.free.wait(30)
        return Reading({("", "slow"): Trouble("degraded", "at last")})

    def interrupt(self) -> None:
        self.free.set()

    def close(self) -> None:
        pass


class Broken:
    name = "broken"

    def read(self) -> Reading:
        raise RuntimeError("a driver's answer")

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


def polled(edge: HostEdge, until: str, source: str, now_s: float = 0.0) -> list[str]:
    """Poll until a source has this state; what was said meanwhile."""
    lines: list[str] = []
    until_s = time.monotonic() + 30
    while True:
        lines += edge.poll(now_s)
        if any((row["source"], row["state"]) == (source, until) for row in edge.snapshot(now_s)):
            return lines
        assert time.monotonic() < until_s, edge.snapshot(now_s)


async def test_a_source_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    said: list[HostEvidence] = []
    (tmp_path / "health").write_text("failing of old age")
    slow = Slow()
    watched = [
        Watched(slow, 1.0, 0.0, 0.0), Watched(FileCheck(str(tmp_path / "health")), 1.0, 0.0, 0.0),
        Watched(Broken(), 1.0, 0.0, 0.0),
    ]  # fmt: skip
    edge = HostEdge(None, watched, {"nvml": "off"}, said.append)
    edge.open()
    polled(edge, "read", "check")
    polled(edge, "unknown", "broken")
    assert [(one.source, one.severity, one.why) for one in said] == [("check", "fatal", "of old age")]
    lines = edge.poll(6.0)
    rows = {row["source"]: row for row in edge.snapshot(6.0)}
    assert "has not answered for long" in rows["slow"]["why"] and any("slow" in line for line in lines)
    assert rows["nvml"]["state"] == "off" and "RuntimeError: a driver's answer" in rows["broken"]["why"]
    slow.free.set()
    polled(edge, "read", "slow", 7.0)
    assert said[-1].source == "slow"
    edge.close()


async def test_a_source_that_is_not_there_is_said_once_and_looked_for_again(tmp_path: Path) -> None:
    said: list[HostEvidence] = []
    health = Health(
        kernel_log=False, sensors=False, nvml=False, check=HealthCheck(file=str(tmp_path / "health"), interval_s=1.0)
    )
    edge = host_edge(health, said.append)
    lines = polled(edge, "absent", "check")
    for at_s in range(1, 12):
        lines += edge.poll(float(at_s))
    assert lines == [f"host evidence, check: health.check.file: {tmp_path}/health: No such file or directory"]
    (tmp_path / "health").write_text("degraded")
    assert polled(edge, "read", "check", 13.0) == ["host evidence, check: is read now"]
    assert [one.severity for one in said] == ["degraded"]
    off = {row["source"] for row in edge.snapshot(13.0) if row["state"] == "off"}
    assert off == {"kernel log", "sensors", "nvml", "dcgm"}
    edge.close()


def test_who_asks_is_told_what_is_missing(tmp_path: Path) -> None:
    health = Health(dcgm="http://127.0.0.1:9/metrics", check=HealthCheck(exec=("/no/such",)))
    told = dict(missing(health))
    assert set(told) == {"kernel log", "sensors", "nvml", "dcgm", "check"}
    assert "/no/such" in told["check"] and "refused" in told["dcgm"]
