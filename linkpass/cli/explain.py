"""`linkpass capture explain`: RoCE traffic from a pcap file, explained per queue pair."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linkpass.cli.common import TroubleError, WrongInputError, console, json_option, print_json
from linkpass.cli.scapy_here import need_scapy

if TYPE_CHECKING:
    from linkpass.pcap import Frame
    from rdma.roce.packet import Packet
    from rdma.roce.report import Report

BAR_BYTES = 5_000_000
"""Smaller files are read before a progress bar would be seen."""
BAR_STEP = 2_000
FLOWS_SHOWN = 40
ROCE_V1 = "0x8915"


@click.command(
    epilog="Examples: linkpass capture explain roce.pcap · linkpass capture explain roce.pcap --json | jq .findings"
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.pcap")
@click.option("--all", "everything", is_flag=True, help=f"Every queue pair, not only {FLOWS_SHOWN}.")
@json_option
def explain(file: Path, *, everything: bool, as_json: bool) -> None:
    """Say what a capture of RoCE traffic shows, queue pair by queue pair: what was sent again, when and why as far as
    packets tell, NAKs, CNPs and congestion marks, gaps, moves to another flow label or UDP port, pauses, wrong ICRCs.

    FILE is a pcap or pcapng (also gzipped) of Ethernet, Linux cooked or raw IP packets, with or without VLAN tags.
    RoCEv2 is what is sent to UDP port 4791, over IPv4 or IPv6.

    \b
    How to capture it:
      tcpdump -i eth1 -s 0 -w roce.pcap udp port 4791
    soft-RoCE, and switches and taps on the way: as it is.
    RoCE hardware passes the kernel by, so that tcpdump sees nothing of it on
    eth1. Use what its driver offers: with mlx5, tcpdump on the RDMA device
    (tcpdump -i mlx5_0, libpcap built with RDMA support), or "sniffer on" of
    ethtool --set-priv-flags where there is that flag; else a mirror port.
    Without tcpdump, as root:
      linkpass capture eth1 --all --count 0 --seconds 20 --write roce.pcap
    VLAN tags: tcpdump ... '(udp port 4791) or (vlan and udp port 4791)'.
    -s 128 keeps the files small; ICRCs can then not be checked.

    Capture both directions at one place. Packets name their receiver's queue pair only: the sender's is found by its
    answers. What passed here and was sent again was lost further on, or its answer was; what is missing here was lost
    before, or the capture did not catch it.
    """
    need_scapy()
    report, there = explained(file)
    if as_json:
        import msgspec

        print_json({"file": str(file), **there.data(), **msgspec.to_builtins(report)})
        return
    from linkpass.cli.explain_tables import shown

    out = console()
    out.print(shown(report, f"{file.name}: {there.words()}", None if everything else FLOWS_SHOWN))


@dataclass(slots=True)
class There:
    """What a file holds. Times in nanoseconds since 1970."""

    frames: int = 0
    roce: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    others: Counter[str] = field(default_factory=Counter)

    def take(self, frame: Frame) -> Packet | None:
        """The RoCE packet in a frame; None, and counted under what it is, for any other."""
        from linkpass.wire.datagram import datagram
        from rdma.roce.packet import PORT, Packet, read

        self.frames += 1
        if self.first_ns is None:
            self.first_ns = frame.at_ns
        self.last_ns = max(self.last_ns, frame.at_ns)
        found = datagram(frame.data, frame.link)
        if isinstance(found, str):
            self.others[found] += 1
            return None
        if found.target_port != PORT:
            self.others["UDP"] += 1
            return None
        transport = read(found.packet, found.network_bytes, found.udp_bytes)
        if transport is None:
            self.others[f"UDP port {PORT}, but no RoCE"] += 1
            return None
        self.roce += 1
        return Packet(
            at_s=(frame.at_ns - self.first_ns) * 1e-9, source=text(found.source), target=text(found.target),
            source_port=found.source_port, label=found.label, hop_limit=found.hop_limit, ecn=found.ecn,
            where=frame.where or ("" if found.where is None else f"interface {found.where}"),
            opcode=transport.opcode, qpn=transport.qpn, psn=transport.psn, payload_bytes=transport.payload_bytes,
            icrc=transport.icrc, icrc_ok=transport.icrc_ok, syndrome=transport.syndrome,
            read_bytes=transport.read_bytes, sender_qpn=transport.sender_qpn,
        )  # fmt: skip

    @property
    def lasted_s(self) -> float:
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) * 1e-9

    def listed(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in self.others.most_common(8))

    def words(self) -> str:
        began = datetime.fromtimestamp((self.first_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
        rest = f"; not looked at: {self.listed()}" if self.others else ""
        return f"{self.roce} RoCE packets in {self.lasted_s:.3f} s from {began} on{rest}"

    def data(self) -> dict[str, object]:
        return {
            "began_s": (self.first_ns or 0) * 1e-9, "lasted_s": self.lasted_s, "frames": self.frames,
            "others": dict(self.others),
        }  # fmt: skip


def explained(file: Path) -> tuple[Report, There]:
    """Raises WrongInputError for what is no capture, TroubleError for one without RoCE packets."""
    from linkpass.pcap import NoCaptureError, frames
    from rdma.roce.explain import Explainer

    there, explainer = There(), Explainer()
    try:
        with progress(file) as advance:
            for frame in frames(file):
                packet = there.take(frame)
                if packet is not None:
                    explainer.add(packet)
                if there.frames % BAR_STEP == 0:
                    advance(frame.read_bytes)
    except OSError as error:
        raise WrongInputError(f"{file}: {error.strerror or error}") from None
    except NoCaptureError as error:
        raise WrongInputError(f"{file}: {error}", "expected a pcap or pcapng file") from None
    if not there.frames:
        raise WrongInputError(
            f"{file}: a capture without a packet", "was there traffic? linkpass capture explain --help"
        )
    if not there.roce:
        raise TroubleError(f"{file}: no RoCEv2 packets among {there.frames}: {there.listed()}", hint(there))
    return explainer.report(there.lasted_s), there


def hint(there: There) -> str:
    """What to do about a capture without RoCE packets."""
    if any(what.startswith("link type") for what in there.others):
        return "capture on an Ethernet device: tcpdump -i eth1 -w roce.pcap udp port 4791"
    if ROCE_V1 in there.others:
        return f"{ROCE_V1} is RoCE v1, which is not routed and not read here: use GIDs of type RoCE v2"
    return "RoCE hardware passes tcpdump by: linkpass capture explain --help says how to capture it"


@contextmanager
def progress(file: Path) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for a long file, where somebody looks at it."""
    size = file.stat().st_size
    err = console(stderr=True)
    if size < BAR_BYTES or not err.is_terminal:
        yield lambda read_bytes: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(file.name), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda read_bytes: bar.update(task, completed=read_bytes)


_texts: dict[bytes, str] = {}


def text(address: bytes) -> str:
    """An address as text; a capture has few of them, a great many times."""
    found = _texts.get(address)
    if found is None:
        if len(_texts) > 65536:
            _texts.clear()
        found = _texts[address] = socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
    return found
