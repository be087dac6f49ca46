"""Lines of the kernel's log: each kind by lines in the kernel's own forms, and what is no news."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core.events import HostEvidence
from linkpass.edges.host import kernel_log, patterns, xids
from linkpass.edges.host.kernel_log import KernelLog
from linkpass.edges.host.patterns import find, pci_address

GPU = "0000:3b:00.0"
LINES = [
    ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 17", "hard lockup", "fatal", ""),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", "hard lockup", "fatal", ""),
    ("watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python3:4711]", "soft lockup", "degraded", ""),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", "RCU stall", "degraded", ""),
    ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "RCU stall", "degraded", ""),
    ("INFO: task nccl-proxy:9012 blocked for more than 122 seconds.", "hung task", "degraded", ""),
    ("Oops: 0002 [#1] SMP NOPTI", "kernel oops", "degraded", ""),
    ("BUG: unable to handle page fault for address: ffff8880deadbeef", "kernel oops", "degraded", ""),
    ("kernel BUG at mm/slub.c:448!", "kernel oops", "degraded", ""),
    ("mce: [Hardware Error]: CPU 24: Machine Check Exception: 5 Bank 9: be00000800400", "machine check", "fatal", ""),
    ("Memory failure: 0x1a2b3c: recovery action for dirty LRU page: Failed", "memory failure", "degraded", ""),
    ("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x8e)",
     "uncorrected memory error", "fatal", ""),
    ("{1}[Hardware Error]: event severity: fatal", "platform error", "fatal", ""),
    ("{3}[Hardware Error]: event severity: recoverable", "platform error, recoverable", "degraded", ""),
    ("thermal thermal_zone0: critical temperature reached, shutting down", "overheated", "fatal", ""),
    ("thermal thermal_zone2: x86_pkg_temp: critical temperature reached", "overheated", "fatal", ""),
    ("CPU7: Core temperature is above threshold, cpu clock is throttled (total events = 12)",
     "throttled", "degraded", ""),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "GPU off the bus", "fatal", GPU),
    ("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x65:1474)", "GPU without driver", "fatal", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     "Xid 79", "fatal", GPU),
    ("NVRM: Xid (PCI:0000:3B:00): 48, pid=1234, DBE (double bit error) occurred", "Xid 48", "fatal", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 63, pid=1896, Row Remapper: New row marked for remapping", "Xid 63", "degraded", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 94, pid=7, name=python3, Contained: SM (0x1)", "Xid 94", "degraded", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=python3, Graphics Exception: ESR 0x50d73", "Xid 13", "info", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
     "Xid 154", "fatal", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
     "Xid 154", "info", GPU),
    ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
     "Xid 154", "degraded", GPU),
    ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "NVSwitch", "fatal", ""),
    ("nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 11004, Non-fatal, Link 61 Ingress invalid ACL",
     "NVSwitch, not fatal", "degraded", ""),
    ("pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
     "PCIe error, fatal", "fatal", "0000:3a:00.0"),
    ("nvme 0000:5e:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
     "PCIe error", "degraded", "0000:5e:00.0"),
    ("mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
     "NIC firmware", "degraded", ""),
    ("mlx5_core 0000:d2:00.0: poll_health:835:(pid 0): Fatal error 3 detected", "NIC firmware", "degraded", ""),
    ("mlx5_core 0000:d2:00.0: print_health_info:431:(pid 0): synd 0x1: firmware internal error",
     "NIC firmware", "degraded", ""),
    ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", "NIC stands", "degraded", ""),
    ("bnxt_en 0000:01:00.0 eth0: NETDEV WATCHDOG: CPU: 3: transmit queue 7 timed out 5004 ms",
     "NIC stands", "degraded", ""),
    ("Out of memory: Killed process 4242 (python3) total-vm:81234kB, anon-rss:7kB", "out of memory", "degraded", ""),
    ("Memory cgroup out of memory: Killed process 99 (train) total-vm:9kB", "limit of memory", "info", ""),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "file system read-only", "degraded", ""),
    ("XFS (sda1): Metadata I/O Error (0x4) detected at xlog_write. Shutting down filesystem.",
     "file system shut down", "degraded", ""),
    ("I/O error, dev nvme1n1, sector 123456 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
     "disk", "degraded", ""),
]  # fmt: skip
NO_NEWS = [
    "eth0: renamed from veth123",
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC0: 1 CE memory read error on DIMM0",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "mlx5_core 0000:d2:00.0: firmware version: 28.39.1002",
    "pcieport 0000:00:01.0: AER: enabled with IRQ 26",
    "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "{2}[Hardware Error]: event severity: corrected",
    "blk_update_request: I/O error, dev loop0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "EXT4-fs (loop3): Remounting filesystem read-only",
    "XFS (loop12): Metadata I/O Error (0x4) detected at xlog_write. Shutting down filesystem.",
    "",
]


@pytest.mark.parametrize(("line", "what", "severity", "address"), LINES, ids=range(len(LINES)))
def test_a_line_tells_what_it_tells(line: str, what: str, severity: str, address: str) -> None:
    found = find(line)
    assert found is not None
    assert (found.what, found.severity, found.address) == (what, severity, address)
    assert line[:100] in found.why


@pytest.mark.parametrize("line", NO_NEWS)
def test_a_line_that_tells_nothing(line: str) -> None:
    assert find(line) is None


def test_every_row_has_a_line_of_its_own() -> None:
    told = {what for _, what, _, _ in LINES}
    assert {row.what for row in patterns.PATTERNS} <= told
    assert all(row.source and row.meaning for row in patterns.PATTERNS)


def test_xids_that_ask_for_a_reset_are_fatal_and_programs_errors_are_not() -> None:
    assert all(xids.meaning(number)[0] == "fatal" for number in (48, 64, 74, 79, 95, 119, 120))
    assert all(xids.meaning(number)[0] == "degraded" for number in (63, 92, 94))
    assert all(xids.meaning(number)[0] == "info" for number in (13, 31, 43, 45, 999))
    assert xids.meaning(154, "nonsense")[0] == "info"


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    find(text)
    pci_address(text)


@pytest.mark.parametrize("text", ["00000000:3B:00.0", "0000:3b:00", "0000:3B:00.0", " 00000000:3b:00.0 "])
def test_one_device_has_one_name(text: str) -> None:
    assert pci_address(text) == GPU


def test_a_name_that_is_no_address_stays() -> None:
    assert pci_address("GPU-a8394b51") == "GPU-a8394b51"


def test_records_of_the_kernels_log() -> None:
    record = kernel_log.parse(b"6,1234,5678901,-;eth0: link up\n SUBSYSTEM=net\n DEVICE=+net:eth0\n")
    assert record == kernel_log.Record(0, 6, 1234, "eth0: link up")
    assert kernel_log.parse(b"14,1,2,-,caller=T1;hello\n") == kernel_log.Record(1, 6, 1, "hello")
    for broken in (b"", b"x,y;z", b"6", b"6,1,2,-"):
        assert kernel_log.parse(broken) is None


# the real one
class Told:
    def __init__(self, *, facilities: tuple[int, ...], root: Path = Path("/sys")) -> None:
        self.said: list[HostEvidence] = []
        self.log = KernelLog(self.said.append, 600.0, facilities=facilities, root=root)

    async def until(self, count: int) -> list[HostEvidence]:
        async with asyncio.timeout(30):
            while len(self.said) < count:  # noqa: ASYNC110 - the reader is what is waited for
                await asyncio.sleep(0.01)
        return self.said


def write(*lines: str) -> None:
    """As a program: under facility 1, whatever it says. Anew for each line, since the kernel limits what comes through
    one open file (kernel.printk_devkmsg). A line without an end would stay open for more, and be no record yet."""
    for line in lines:
        fd = os.open("/dev/kmsg", os.O_WRONLY)
        try:
            os.write(fd, f"{line}\n".encode())
        finally:
            os.close(fd)


@pytest.mark.netns
async def test_the_kernels_log_is_followed_from_now_on() -> None:
    write("NVRM: Xid (PCI:0000:aa:00): 79, a test of linkpass, before it looks")
    told = Told(facilities=(1,))
    told.log.open()
    try:
        assert told.log.why == ""
        write("a test of linkpass", "NVRM: Xid (PCI:0000:3b:00): 48, a test of linkpass")
        (one,) = await told.until(1)
        assert (one.accelerator, one.what, one.severity, one.lasts_s) == (GPU, "Xid 48", "fatal", None)
        write("INFO: task linkpass-test:1 blocked for more than 120 seconds.")
        assert [(said.what, said.lasts_s) for said in await told.until(2)][1:] == [("hung task", 600.0)]
    finally:
        told.log.close()
    assert told.log.why == "closed"


@pytest.mark.netns
async def test_what_programs_write_there_is_not_the_kernels_word() -> None:
    kernels, programs = Told(facilities=(0,)), Told(facilities=(1,))
    for one in (kernels, programs):
        one.log.open()
    try:
        write("<0>NVRM: Xid (PCI:0000:3b:00): 79, a test of linkpass that claims to be the kernel")
        await programs.until(1)
        await asyncio.sleep(0)
        assert not [said for said in kernels.said if "a test of linkpass" in said.why]
    finally:
        for one in (kernels, programs):
            one.log.close()


@pytest.mark.netns
async def test_a_flood_is_read_in_slices_and_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "PAUSE_S", 0.001)
    told = Told(facilities=(1,))
    told.log.open()
    try:
        write(*(f"NVRM: Xid (PCI:0000:3b:00): 13, a test of linkpass {number}" for number in range(350)))
        await told.until(350)
        assert told.log.records >= 350 and told.log.lost == 0
    finally:
        told.log.close()


@pytest.mark.netns
async def test_a_pcie_error_is_an_accelerators_only_where_one_is(tmp_path: Path) -> None:
    for address, kind in (("0000:3b:00.0", "0x030200"), ("0000:d2:00.0", "0x020000")):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
    told = Told(facilities=(1,), root=tmp_path)
    told.log.open()
    error = "PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, a test of linkpass"
    try:
        write(*(f"pcieport {address}: {error}" for address in ("0000:3b:00.0", "0000:d2:00.0", "0000:11:00.0")))
        said = [(one.accelerator, one.severity, one.what) for one in await told.until(3)]
    finally:
        told.log.close()
    assert said == [
        ("0000:3b:00.0", "fatal", "PCIe error, fatal"),
        ("", "degraded", "PCIe error, fatal of 0000:d2:00.0"),
        ("", "degraded", "PCIe error, fatal of 0000:11:00.0"),
    ]


async def test_a_log_that_is_not_there_is_said(tmp_path: Path) -> None:
    log = KernelLog(lambda _: None, 600.0, path=tmp_path / "kmsg")
    log.open()
    assert log.why == KernelLog.readable(tmp_path / "kmsg") == f"{tmp_path}/kmsg: No such file or directory"
    log.close()
