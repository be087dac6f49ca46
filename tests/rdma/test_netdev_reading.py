"""A device's statistics over time: differences, who tells what, what is not told; and what is made of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import ethtool_kernel
import pytest
from ethtool_kernel import RecordedKernel, answer, with_numbers
from module_pages import QSFP28_LOWER, SFP, UPPER, osfp, page, qsfp28, words

from lab.netns import namespace
from rdma.counters.evidence import Finding, Thresholds, figures, findings
from rdma.counters.reading import Window
from rdma.ethernet.evidence import figures_of, module_findings
from rdma.ethernet.genl import NO_DEVICE, EthtoolNetlink
from rdma.ethernet.module import LOWER, Module, parse
from rdma.ethernet.reading import ASK_AGAIN_S, NetdevReader, physical, read_module
from rdma.ethernet.watch import NOT_YET, OFF, Netdevs
from rdma.sysfs import Unknown

FIRST = Unknown("first reading")
LIMITS = Thresholds()


@pytest.fixture
def wire() -> Iterator[str]:
    with ethtool_kernel.veth("netdev") as name:
        yield name


@pytest.fixture
def counting() -> tuple[NetdevReader, RecordedKernel]:
    kernel = RecordedKernel("nothere0")
    kernel.answers = {"pause": answer("pause"), "fec": answer("fec"), "statistics": answer("statistics")}
    return NetdevReader("nothere0", kernel), kernel


@pytest.mark.netns
def test_a_real_device_that_counts_nothing_says_so_part_by_part(wire: str) -> None:
    with namespace.inside(wire), EthtoolNetlink() as kernel:
        reader = NetdevReader("far0", kernel)
        window = reader.read(1.0)
        assert (reader.driver, dict(window.counted), reader.totals()) == ("veth", {}, {})
        assert {part: str(why) for part, why in reader.unknown.items()} == {
            "pause": "unknown: missing (the driver does not tell it)",
            "fec": "unknown: missing (the driver does not tell it)",
            "statistics": "unknown: missing (the driver counts none of it)",
            "driver": "unknown: missing (nothing is known of the statistics of veth)",
        }
        assert isinstance(window.of("fec_uncorrectable_blocks"), Unknown)
        assert read_module(kernel, "far0") == Unknown("missing", "the driver does not tell it")
        reader.close()


@pytest.mark.netns
def test_a_real_device_that_goes_and_comes_is_asked_at_once(wire: str) -> None:
    with namespace.inside(wire), EthtoolNetlink() as kernel:
        reader = NetdevReader("far0", kernel)
        subprocess.run(["ip", "link", "del", "near0"], check=True)
        reader.read(1.0)
        assert set(reader.unknown.values()) == {NO_DEVICE}
        subprocess.run(["ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0"], check=True)
        reader.read(2.0)
        assert (reader.driver, NO_DEVICE in reader.unknown.values()) == ("veth", False)
        reader.close()


def test_differences_are_of_the_interval_that_passed(counting: tuple[NetdevReader, RecordedKernel]) -> None:
    reader, kernel = counting
    first = reader.read(10.0)
    assert first.of("symbol_errors") == FIRST
    assert reader.totals()["received_packets"] == 1_000_000
    kernel.answers["statistics"] = with_numbers("statistics", received_packets=1_000_500, symbol_errors=20)
    window = reader.read(12.5)
    assert window.seconds == 2.5
    assert (window.of("received_packets"), window.of("symbol_errors"), window.of("crc_errors")) == (500, 3, 0)
    assert window.per_s("symbol_errors") == pytest.approx(1.2)
    assert (window.of("link_pauses_received"), window.of("fec_lane_corrected_bit_errors_lane_3")) == (0, 0)
    assert isinstance(window.of("paused_us_priority_3"), Unknown)
    assert reader.totals()["symbol_errors"] == 20


def test_a_driver_that_begins_anew_is_recognised(counting: tuple[NetdevReader, RecordedKernel]) -> None:
    reader, kernel = counting
    reader.read(1.0)
    kernel.answers["fec"] = with_numbers("fec", fec_uncorrectable_blocks=1)
    assert reader.read(2.0).of("fec_uncorrectable_blocks") == 1  # 4 before


def test_what_is_told_no_more_is_unknown_at_once_and_known_again_a_minute_later(
    counting: tuple[NetdevReader, RecordedKernel],
) -> None:
    reader, kernel = counting
    reader.read(1.0)
    told = kernel.answers.pop("fec")
    assert isinstance(reader.read(2.0).of("fec_uncorrectable_blocks"), Unknown)
    assert "fec_uncorrectable_blocks" not in reader.totals()
    kernel.answers["fec"] = told
    kernel.asked.clear()
    assert isinstance(reader.read(3.0).of("fec_uncorrectable_blocks"), Unknown)
    assert "fec" not in kernel.asked
    assert reader.read(2.0 + ASK_AGAIN_S).of("fec_uncorrectable_blocks") == FIRST
    assert reader.read(3.0 + ASK_AGAIN_S).of("fec_uncorrectable_blocks") == 0


class TwoTellers(NetdevReader):
    """`crc_errors` is told by the standard statistics and by the driver's own, which are read a little later."""

    def __init__(self, kernel: RecordedKernel) -> None:
        super().__init__("nothere0", kernel)
        self.own: tuple[tuple[str, ...], tuple[int, ...]] | Unknown = (("crc_errors", "port_receive_discards"), (3, 0))

    def _ask_driver(self) -> tuple[tuple[str, ...], tuple[int, ...]] | Unknown:
        return self.own


def test_what_two_tell_is_counted_once() -> None:
    kernel = RecordedKernel("nothere0")
    kernel.answers = {"statistics": answer("statistics")}
    reader = TwoTellers(kernel)
    reader.read(1.0)
    reader.own = (("crc_errors", "port_receive_discards"), (5, 1))  # two more, which the other saw a moment too early
    window = reader.read(2.0)
    assert (window.of("crc_errors"), window.of("port_receive_discards")) == (0, 1)
    kernel.answers["statistics"] = with_numbers("statistics", crc_errors=5)
    assert reader.read(3.0).of("crc_errors") == 2


def test_when_one_of_two_falls_silent_the_other_takes_over() -> None:
    kernel = RecordedKernel("nothere0")
    kernel.answers = {"statistics": answer("statistics")}
    reader = TwoTellers(kernel)
    reader.read(1.0)
    kernel.answers.clear()
    window = reader.read(2.0)
    assert (window.of("crc_errors"), reader.totals()["crc_errors"]) == (FIRST, 3)
    assert isinstance(window.of("received_packets"), Unknown)
    reader.own = (("crc_errors", "port_receive_discards"), (7, 0))
    assert reader.read(3.0).of("crc_errors") == 4
    reader.own = Unknown("missing")
    assert isinstance(reader.read(4.0).of("crc_errors"), Unknown)
    assert reader.totals() == {}


def test_what_lies_on_others_is_read_there(tmp_path: Path) -> None:
    for name, below in (
        ("vlan7", ("bond0",)), ("bond0", ("eth0", "eth1")), ("eth0", ()), ("eth1", ()), ("vrf0", ("eth1", "vlan7")),
        ("ring0", ("ring1",)), ("ring1", ("ring0",)),
    ):  # fmt: skip
        for one in ("statistics", *(f"lower_{other}" for other in below)):
            (tmp_path / "class/net" / name / one).mkdir(parents=True)
    assert sorted(physical("vlan7", tmp_path)) == ["eth0", "eth1"]
    assert sorted(physical("vrf0", tmp_path)) == ["eth0", "eth1"]
    assert physical("eth0", tmp_path) == ("eth0",)
    assert physical("nothere0", tmp_path) == ("nothere0",)
    assert physical("ring0", tmp_path) == ()


@pytest.mark.netns
def test_one_module_is_read_at_a_time_and_rarely(wire: str) -> None:
    with namespace.inside(wire):
        netdevs = Netdevs(module_s=60.0)
        devices = ["far0", "near0", "nothere0"]
        seen = [netdevs.look(devices, lambda at=at: float(at)) for at in range(4)]  # type: ignore[misc]
        read = [[name for name in devices if look[name].module != NOT_YET] for look in seen]
        assert read == [["far0"], ["far0", "near0"], devices, devices]
        assert seen[-1]["far0"].module == Unknown("missing", "the driver does not tell it")
        assert seen[-1]["nothere0"].module == NO_DEVICE
        assert set(netdevs.look(["far0"], lambda: 5.0)) == {"far0"}
        assert netdevs.look([], lambda: 6.0) == {}
        netdevs.close()
        never = Netdevs(module_s=0)
        assert never.look(["far0"], lambda: 1.0)["far0"].module == OFF
        never.close()


def test_a_kernel_that_cannot_be_asked_is_tried_again_a_minute_later() -> None:
    opened: list[float] = []
    now_s = [0.0]

    class Old(RecordedKernel):
        def open(self) -> Unknown | None:
            opened.append(now_s[0])
            return Unknown("missing", "this kernel has no netlink interface for ethtool") if len(opened) < 2 else None

    kernel = Old("nothere0")
    kernel.answers = {"pause": answer("pause")}
    netdevs = Netdevs(60.0, kernel)
    for at in (0.0, 1.0, ASK_AGAIN_S, ASK_AGAIN_S + 1):
        now_s[0] = at
        look = netdevs.look(["nothere0"], lambda: now_s[0])["nothere0"]
        assert ("this kernel" in str(look.module), look.totals == {}) == (at < ASK_AGAIN_S,) * 2
    assert opened == [0.0, ASK_AGAIN_S]
    assert look.window.of("link_pauses_sent") == 0
    netdevs.close()


def counted(seconds: float = 1.0, **values: int) -> Window:
    return Window("eth7", 1.0, seconds, values)


def test_pauses_are_a_share_of_time_per_priority() -> None:
    window = counted(2.0, paused_us_priority_3=500_000, pausing_us_priority_0=0, link_paused_us=9_000_000)
    told = figures(window, LIMITS, figures_of(window))
    assert told["paused_ratio_priority_3"] == 0.25
    assert told["pausing_ratio_priority_0"] == 0.0
    assert told["link_paused_ratio"] == 1.0  # several readings may fall into one update of the device
    assert isinstance(told["link_pausing_ratio"], Unknown)
    assert not {"paused_ratio_priority_0", "pausing_ratio_priority_3"} & told.keys()
    found = [(one.what, one.kind, one.value) for one in findings(window, LIMITS, figures_of(window))]
    assert found == [("link_paused_ratio", "congestion", 1.0), ("paused_ratio_priority_3", "congestion", 0.25)]
    window = counted(0.0, paused_us_priority_3=1)
    assert isinstance(figures(window, LIMITS, figures_of(window))["paused_ratio_priority_3"], Unknown)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"port_receive_discards": 2, "received_packets": 10_000}, ["receive_discard_ratio"]),
        ({"port_receive_discards": 1, "received_packets": 10_000}, []),
        ({"port_receive_discards": 1}, []),
        ({"fec_uncorrectable_blocks": 1}, ["uncorrectable_blocks_per_s"]),
        ({"fec_uncorrectable_blocks": 0}, []),
        ({"fec_corrected_bit_errors": 2_000_000, "line_bits": 100_000_000_000}, ["corrected_bit_ratio"]),
        ({"fec_corrected_bit_errors": 100_000, "line_bits": 100_000_000_000}, []),
        ({"symbol_errors": 2}, ["symbol_errors_per_s"]),
        ({"crc_errors": 1, "received_packets": 100_000}, ["crc_error_ratio"]),
        ({"pause_storms": 1}, ["pause_storms_per_s"]),
        ({}, []),
    ],
)
def test_findings_are_what_is_above_its_limit(values: dict[str, int], what: list[str]) -> None:
    window = counted(**values)
    assert [one.what for one in findings(window, LIMITS, figures_of(window))] == what


def test_every_figure_names_its_source_and_has_a_limit() -> None:
    window = counted(**{f"paus{way}_us_priority_{n}": 0 for way in ("ed", "ing") for n in range(8)})
    every = figures_of(window)
    assert len({one.name for one in every}) == len(every) == 8 + 16
    assert all(one.source and one.says and one.limit(LIMITS) >= 0 for one in every)


def module(memory: object) -> Module:
    told = parse(memory)  # type: ignore[arg-type]
    assert isinstance(told, Module)
    return told


def beyond(memory: object, limits: Thresholds = LIMITS) -> list[Finding]:
    return list(module_findings("eth7", module(memory), limits))


def test_a_healthy_module_is_no_finding() -> None:
    assert beyond(qsfp28()) == []
    assert beyond(osfp()) == []
    assert beyond({LOWER: QSFP28_LOWER, UPPER: page(b220=0x0C)}) == []  # its limits are not known


def test_a_published_module_without_light_is_one() -> None:
    (found,) = beyond(SFP)
    assert (found.what, found.says) == ("receive_power_dbm_lane_1", "the light received on lane 1 is too weak")
    assert (round(found.value, 2), round(found.limit, 2)) == (-26.78, -18.01)


def test_what_is_out_of_range_is_named_with_its_lane() -> None:
    hot = qsfp28(w22=71 << 8, b34=words(10_000, 0, 10_000, 30_000), b50=words(5_000, 5_000, 100, 5_000))
    assert [(one.what, one.says) for one in beyond(hot)] == [
        ("module_temperature_c", "the module is too hot"),
        ("receive_power_dbm_lane_2", "the light received on lane 2 is too weak"),
        ("transmit_power_dbm_lane_3", "the light sent on lane 3 is too weak"),
        ("receive_power_dbm_lane_4", "the light received on lane 4 is too strong"),
    ]
    assert [one.says for one in beyond(qsfp28(w22=0xFF00))] == ["the module is too cold"]


def test_a_lane_whose_laser_is_off_is_not_in_use() -> None:
    one_wavelength = {"b34": words(10_000, 0, 0, 0), "b42": words(20_000, 0, 0, 0), "b50": words(5_000, 0, 0, 0)}
    assert beyond(qsfp28(**one_wavelength)) == []


def test_a_margin_warns_earlier_or_later() -> None:
    near = qsfp28(w22=66 << 8, b34=words(*[700] * 4))
    assert beyond(near) == []
    assert [one.what for one in beyond(near, Thresholds(module_margin_c=5.0))] == ["module_temperature_c"]
    assert len(beyond(near, Thresholds(optical_margin_db=3.0))) == 4
    assert beyond(SFP, Thresholds(optical_margin_db=-10.0)) == []
