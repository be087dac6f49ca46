"""Lines of the kernel's log that tell of a host which fails: one row a kind, with where the kernel writes it.

Forms are those of Linux 5.4 to 6.18; what drivers outside the kernel write (NVRM, nvidia-nvswitch) is as their vendor
documents it. A row's groups `address` (of a PCI device) and `number` are taken out of the line. What nobody can go on
after is fatal; what costs a program, or may pass, degrades and gives up nobody by itself.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from linkpass.core.events import Severity
from linkpass.edges.host import xids

_PCI: Final = r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

_NO_DISK: Final = r"(?:loop|z?ram|fd|sr)\d"
"""Block devices that are files, memory or a drive without a medium: their errors are no disk's."""


class Pattern(NamedTuple):
    what: str
    severity: Severity
    form: re.Pattern[str]
    meaning: str
    source: str
    """File of the kernel, or document, that has the line's form."""
    device: bool = False
    """`address` is that of the device which fails, and may be an accelerator."""


class Found(NamedTuple):
    what: str
    severity: Severity
    why: str
    address: str = ""
    """PCI device that it is about, `0000:3b:00.0`; empty: the host."""
    device: bool = False
    """It is for the reader to find out whether that device is an accelerator; else it is one, by what the line says."""


def _row(
    what: str, severity: Severity, form: str, meaning: str, source: str, *, device: bool = False
) -> Pattern:  # fmt: skip
    return Pattern(what, severity, re.compile(form), meaning, source, device)


PATTERNS: Final = (
    _row("hard lockup", "fatal", r"Watchdog detected hard LOCKUP on cpu \d+",
         "a processor stands with interrupts off", "kernel/watchdog.c"),
    _row("soft lockup", "degraded", r"BUG: soft lockup - CPU#\d+ stuck for \d+s!",
         "a processor is kept from everything else by one piece of kernel code", "kernel/watchdog.c"),
    _row("RCU stall", "degraded", r"rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stalls? on CPU",
         "a processor has not come to rest for long", "kernel/rcu/tree_stall.h"),
    _row("hung task", "degraded", r"INFO: task .+:\d+ (?:<\S+> )?blocked for more than \d+ seconds",
         "a program waits in the kernel without an end", "kernel/hung_task.c"),
    _row("kernel oops", "degraded", r"(?:Oops: [0-9a-f]+|kernel BUG at |BUG: unable to handle )",
         "an error of the kernel itself: what it held stays locked", "arch/x86/kernel/dumpstack.c, mm/fault.c"),
    _row("machine check", "fatal", r"mce: \[Hardware Error\]: CPU \d+: Machine Check Exception: ",
         "the processor reports an error that it could not correct", "arch/x86/kernel/cpu/mce/core.c"),
    _row("memory failure", "degraded", r"Memory failure: 0x[0-9a-f]+: recovery action for .*: (?:Ignored|Failed)",
         "a page of memory is broken, and could not be taken out of use", "mm/memory-failure.c"),
    _row("uncorrected memory error", "fatal", r"EDAC \S+: \d+ UE ",
         "what stood in memory is lost", "drivers/edac/edac_mc.c"),
    _row("platform error", "fatal", r"\[Hardware Error\]: event severity: fatal",
         "the firmware reports a fatal error", "drivers/firmware/efi/cper.c"),
    _row("platform error, recoverable", "degraded", r"\[Hardware Error\]: event severity: recoverable",
         "the firmware reports an error that may be recovered from", "drivers/firmware/efi/cper.c"),
    _row("overheated", "fatal", r"critical temperature reached",
         "the kernel is about to switch the host off", "drivers/thermal/thermal_core.c"),
    _row("throttled", "degraded", r"temperature is above threshold, cpu clock is throttled",
         "processors are slowed down by heat", "drivers/thermal/intel/therm_throt.c"),
    _row("GPU off the bus", "fatal", rf"NVRM: GPU (?:at PCI:|){_PCI}: GPU has fallen off the bus",
         "the GPU has fallen off the bus", "NVRM"),
    _row("GPU without driver", "fatal", rf"NVRM: GPU {_PCI}: RmInitAdapter failed!",
         "the driver cannot start the GPU", "NVRM"),
    _row("NVSwitch", "fatal", r"nvidia-nvswitch\d+: SXid \(PCI:[0-9a-f:.]+\): \d+, Fatal",
         "the switch between the GPUs of this host fails", "NVIDIA fabric manager guide, SXid errors"),
    _row("NVSwitch, not fatal", "degraded", r"nvidia-nvswitch\d+: SXid \(PCI:[0-9a-f:.]+\): \d+, Non-fatal",
         "the switch between the GPUs of this host reports an error", "NVIDIA fabric manager guide, SXid errors"),
    _row("PCIe error, fatal", "fatal", rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)",
         "the device's link to the processor fails", "drivers/pci/pcie/aer.c", device=True),
    _row("PCIe error", "degraded", rf"{_PCI}: (?:AER: )?PCIe Bus Error: severity=Uncorrect(?:ed|able) \(Non-Fatal\)",
         "the device's link to the processor lost something", "drivers/pci/pcie/aer.c", device=True),
    _row("NIC firmware", "degraded", rf"mlx5_core {_PCI}: .*(?:health compromised|Fatal error \d+ detected|synd 0x)",
         "the firmware of a network adapter fails", "drivers/net/ethernet/mellanox/mlx5/core/health.c"),
    _row("NIC stands", "degraded", r"NETDEV WATCHDOG: .*transmit queue \d+ timed out",
         "a network adapter sends nothing", "net/sched/sch_generic.c"),
    _row("limit of memory", "info", r"Memory cgroup out of memory: Killed process \d+",
         "a container has used up what it was allowed, and the host has more", "mm/oom_kill.c"),
    _row("out of memory", "degraded", r"Out of memory: Killed process \d+",
         "a program was ended for want of memory", "mm/oom_kill.c"),
    _row("file system read-only", "degraded", rf"^(?!.*\({_NO_DISK}).*Remounting filesystem read-only",
         "a file system takes no more writes", "fs/ext4/super.c"),
    _row("file system shut down", "degraded", rf"XFS \((?!{_NO_DISK})\S+\): .*(?:[Ss]hutting down|has been shut down)",
         "a file system takes no more reads or writes", "fs/xfs/xfs_fsops.c"),
    _row("disk", "degraded", rf"I/O error, dev (?!{_NO_DISK})\S+, sector \d+",
         "a disk does not read or write", "block/blk-core.c"),
)  # fmt: skip
"""In order: the first that fits counts."""
_XID: Final = re.compile(rf"NVRM: Xid \(PCI:{_PCI}\): (?P<number>\d+)(?P<text>.*)")
_ANY: Final = re.compile(
    r"NVRM|nvswitch|LOCKUP|lockup|stall|blocked for|Oops|BUG|Hardware Error|Memory failure|EDAC|temperature|PCIe Bus"
    r"|mlx5_core|NETDEV WATCHDOG|ut of memory|ilesystem|I/O error"
)
"""Most lines have none of these, and cost no more than this."""
WHY_CHARS: Final = 200


def find(line: str) -> Found | None:
    """What a line of the kernel's log tells; None: nothing."""
    if _ANY.search(line) is None:
        return None
    if (xid := _XID.search(line)) is not None:
        severity, meaning = xids.meaning(int(xid["number"]), xid["text"])
        what = f"Xid {xid['number']}"
        return Found(what, severity, f"{meaning} ({line[:WHY_CHARS]})", pci_address(xid["address"]))
    for row in PATTERNS:
        if (match := row.form.search(line)) is not None:
            groups = match.groupdict()
            address = pci_address(groups["address"]) if "address" in groups else ""
            if row.what == "NIC firmware":
                address = ""
            return Found(row.what, row.severity, f"{row.meaning} ({line[:WHY_CHARS]})", address, row.device)
    return None


def pci_address(text: str) -> str:
    """`0000:3b:00.0`, from the forms that drivers and libraries write: with eight digits of domain, in capitals,
    without the function. A text that is no address is given back as it is."""
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip().lower())
    if match is None:
        return text.strip()
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4] or '0'}"
