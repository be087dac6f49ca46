"""`linkpass capture [probes]` and `linkpass lab capture`: probes as they pass, decoded by scapy, which is loaded when
they run."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from linkpass.cli.common import (
    FirstGroup,
    NotPermittedError,
    TroubleError,
    WrongInputError,
    config_option,
    console,
    load_config,
)
from linkpass.cli.explain import explain
from linkpass.cli.scapy_here import import_scapy_quietly, need_scapy

if TYPE_CHECKING:
    from rich.text import Text

    from linkpass.dissect import Seen
    from linkpass.edges.tap import Captured, Tap
    from linkpass.wire.probe import Signer

F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("probe", "trace", "broken", "other")
LIVE_PACKETS, LIVE_S = 50, 10.0
"""Where a live capture ends when nothing else is said."""


class Label(click.ParamType[int]):
    """A flow label: 0x1a2b or 6699."""

    name = "label"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            label = int(str(value), 0)
        except ValueError:
            label = -1
        if not 0 <= label <= 0xFFFFF:
            self.fail(f"{value!r}: expected a flow label, 0 to 0xfffff", param, ctx)
        return label


def capture_options(command: F) -> F:
    """What both commands share."""
    for option in reversed((
        click.option("--peer", help="Only packets from or to this address (or name)."),
        click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these; may be repeated."),
        click.option("--label", type=Label(), help="Only packets with this flow label (0x1a2b)."),
        click.option("--count", type=click.IntRange(min=0), help=f"End after so many; 0: never. [{LIVE_PACKETS}]"),
        click.option("--seconds", type=click.FloatRange(min=0), help=f"End after this time; 0: never. [{LIVE_S:g}]"),
        click.option("--all", "everything", is_flag=True, help="Not only probes: the job's packets too."),
        click.option("--write", type=click.Path(path_type=Path), metavar="FILE.pcap", help="Keep the packets."),
        click.option("--key-file", type=click.Path(path_type=Path), help="The fabric's key, to check each HMAC."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one line a packet."),
    )):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which packets, and how many."""

    peer: str = ""
    label: int | None = None
    kinds: tuple[str, ...] = ()
    count: int = LIVE_PACKETS
    seconds: float = LIVE_S
    everything: bool = False

    def takes(self, seen: Seen, names: Mapping[str, str]) -> bool:
        ends = {seen.source, seen.target, names.get(seen.source, ""), names.get(seen.target, "")}
        return (
            (not self.peer or self.peer in ends)
            and (self.label is None or self.label == seen.label)
            and (seen.kind in self.kinds if self.kinds else self.everything or seen.kind != "other")
        )


@click.group(
    cls=FirstGroup,
    first="probes",
    epilog="Examples: linkpass capture eth1 · linkpass capture --read probes.pcap · "
    "linkpass capture explain roce.pcap --json",
)
def capture() -> None:
    """Look at packets: our own probes as they pass, or RoCE traffic from a file, explained.

    `linkpass capture UPLINK...` is short for `linkpass capture probes UPLINK...`.
    """


@capture.command(
    epilog="Examples: linkpass capture eth1 · linkpass capture eth1 eth2 --peer fd00:ff::3 --count 200 · "
    "linkpass capture eth1 --write probes.pcap · linkpass capture --read probes.pcap --key-file /etc/linkpass/key"
)
@click.argument("uplinks", nargs=-1, metavar="[UPLINK]...")
@click.option("--read", "source", type=click.Path(path_type=Path), metavar="FILE.pcap", help="Decode an old capture.")
@config_option
@capture_options
def probes(uplinks: tuple[str, ...], source: Path | None, config_path: Path | None, **options: Any) -> None:
    """Show the probes that pass an uplink, decoded: who says what about which path.

    A line has the sender and receiver, the path's number, the probe's sequence, flow label and hop limit, its age,
    whether its HMAC is right, what it reports to have heard, and notices. Ages: from sending to here where the sender's
    clock is this machine's, else `+` what it took longer than the quickest probe of its path. Ctrl-C ends it.
    """
    if (source is None) == (not uplinks):
        found = ", ".join(name for _, name in socket.if_nameindex() if name != "lo")
        raise WrongInputError("expected uplinks, or --read FILE.pcap", f"devices here: {found}")
    need_scapy()
    config, _ = load_config(config_path)
    decoder = Decoder(
        port=config.probing.port,
        signer=signer_of(options["key_file"], None if config_path is None else Path(config.auth.key_file)),
        names=config.fabric.names,
    )
    if source is not None:
        wanted = wanted_of(options, count=0, seconds=0)
        run(decoder, read_file(source), wanted, options)
        return
    from linkpass.edges.tap import Tap

    with permitted(uplinks):
        port = None if options["everything"] else config.probing.port
        with Tap({name: name for name in uplinks}, port=port).open() as tap:
            watch(tap, decoder, wanted_of(options), options, shared_clock=False)


def wanted_of(options: Mapping[str, Any], count: int = LIVE_PACKETS, seconds: float = LIVE_S) -> Wanted:
    """Filters and bounds. A bound that is given lifts the other one's default."""
    given = options["count"] is not None or options["seconds"] is not None
    peer = options["peer"] or ""
    with suppress(ValueError):
        peer = str(ipaddress.ip_address(peer))
    return Wanted(
        peer, options["label"], options["kinds"],
        count=options["count"] if options["count"] is not None else 0 if given else count,
        seconds=options["seconds"] if options["seconds"] is not None else 0 if given else seconds,
        everything=options["everything"],
    )  # fmt: skip


def watch(tap: Tap, decoder: Decoder, wanted: Wanted, options: Mapping[str, Any], *, shared_clock: bool) -> None:
    """A live capture. `shared_clock`: all senders use this machine's clock (a lab)."""
    decoder.offset_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
    decoder.shared_clock = shared_clock
    run(decoder, tap.frames(wanted.seconds or None), wanted, options, tap.missed)


def run(
    decoder: Decoder,
    frames: Iterable[Captured],
    wanted: Wanted,
    options: Mapping[str, Any],
    missed: Callable[[], int] | None = None,
) -> None:
    """Decode, choose, print and keep, until a bound or Ctrl-C. `missed` counts for a live capture."""
    as_json, tally, out = options["as_json"], Tally(), console()
    started = time.monotonic()
    with keeping(options["write"]) as keep, suppress(KeyboardInterrupt):
        for frame in frames:
            seen = decoder.look(frame)
            if not wanted.takes(seen.packet, decoder.names):
                continue
            tally.add(seen.packet)
            keep(frame)
            if as_json:
                click.echo(json.dumps(seen.data(), ensure_ascii=False))
            else:
                if tally.packets == 1:
                    out.print(HEADER, style="dim", soft_wrap=True)
                out.print(line_of(seen, decoder.names), soft_wrap=True)
            if tally.packets == wanted.count:
                break
    if not as_json:
        took_s = time.monotonic() - started
        click.echo(tally.words() if missed is None else tally.words(took_s, missed()))
        if options["write"]:
            click.echo(f"kept in {options['write']}: linkpass capture --read {options['write']}")


# decoding
@dataclass(frozen=True, slots=True)
class Line:
    """A packet with what only its neighbours tell: `later_s`, over the quickest of the same sender, path and boot."""

    frame: Captured
    packet: Seen
    later_s: float | None

    def data(self) -> dict[str, Any]:
        return {
            "at_s": self.frame.at_ns * 1e-9, "where": self.frame.where, "outgoing": self.frame.outgoing,
            **asdict(self.packet), "later_s": self.later_s,
        }  # fmt: skip


@dataclass(slots=True)
class Decoder:
    """Frames in, lines out. `offset_ns`: wall clock minus monotonic clock here; None: not of this moment's machine."""

    port: int
    signer: Signer | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    offset_ns: int | None = None
    shared_clock: bool = False
    quickest_ns: dict[tuple[str, str, Any], int] = field(default_factory=dict)

    def look(self, frame: Captured) -> Line:
        from linkpass.dissect import look, packet_of

        known = self.offset_ns is not None and (frame.outgoing or self.shared_clock)
        now_ns = frame.at_ns - self.offset_ns if known and self.offset_ns is not None else None
        seen = look(packet_of(frame.data), port=self.port, signer=self.signer, now_ns=now_ns)
        later_s = None
        if seen.kind == "probe":
            took_ns = frame.at_ns - seen.probe["sent_ns"]
            key = (seen.source, seen.probe["boot"], seen.probe["path"])
            least = self.quickest_ns[key] = min(took_ns, self.quickest_ns.get(key, took_ns))
            later_s = (took_ns - least) * 1e-9
        return Line(frame, seen, later_s)


def read_file(path: Path) -> Iterator[Captured]:
    """The frames of a pcap or pcapng file."""
    from linkpass.edges.tap import Captured

    import_scapy_quietly()
    from scapy.error import Scapy_Exception
    from scapy.utils import PcapReader

    try:
        with open(path, "rb") as stream, PcapReader(stream) as reader:
            for packet in reader:
                yield Captured(bytes(packet.original), int(packet.time * 1_000_000_000), path.name, False)
    except OSError as error:
        raise WrongInputError(f"{path}: {error.strerror or error}") from None
    except (Scapy_Exception, EOFError) as error:
        raise WrongInputError(f"{path}: {error}", "expected a pcap or pcapng file") from None


@contextmanager
def keeping(path: Path | None) -> Iterator[Callable[[Captured], None]]:
    """A function that appends a frame to a pcap file (nanosecond times); one that does nothing without a file."""
    if path is None:
        yield lambda frame: None
        return
    from scapy.utils import RawPcapWriter

    try:
        writer = RawPcapWriter(str(path), linktype=1, nano=True)
    except OSError as error:
        raise WrongInputError(f"{path}: {error.strerror}") from None
    with writer:
        writer.write_header(None)
        yield lambda frame: writer.write_packet(
            frame.data, sec=frame.at_ns // 1_000_000_000, usec=frame.at_ns % 1_000_000_000
        )


# words
HEADER = (
    f"{'time':<12} {'where':<15} {'from':>16} > {'to':<16} {'path':>4} {'seq':>8} {'label':>7} {'hop':>3} "
    f"{'age':>9} {'hmac':<5} what it says"
)


def line_of(line: Line, names: Mapping[str, str]) -> Text:
    from rich.text import Text

    from linkpass.cli.tables import seconds

    seen, frame = line.packet, line.frame
    at = datetime.fromtimestamp(frame.at_ns * 1e-9).strftime("%H:%M:%S.%f")[:12]
    where = frame.where + (" out" if frame.outgoing else "")
    label = "-" if seen.label is None else f"{seen.label:#07x}"
    ends = f"{names.get(seen.source, seen.source):>16} > {names.get(seen.target, seen.target):<16}"
    probe = seen.probe
    path, sequence = ("-", "-") if not probe else (str(probe["path"]) if probe["path"] is not None else "-",
                                                    str(probe["sequence"]))  # fmt: skip
    age = (
        seconds(seen.age_s) if seen.age_s is not None else "-" if line.later_s is None else f"+{seconds(line.later_s)}"
    )
    word, style = {True: ("ok", "green"), False: ("WRONG", "bold red"), None: ("-", "dim")}[seen.authentic]
    text = Text(f"{at:<12} {where:<15} {ends} {path:>4} {sequence:>8} {label:>7} {seen.hop_limit or '-':>3} {age:>9} ")
    text.append(f"{word:<5}", style)
    text.append(f" {told(seen)}")
    if seen.checksum_ok is False and seen.kind != "trace":
        text.append(" wrong checksum", "red")
    return text


def told(seen: Seen) -> str:
    """What a packet says, in a few words."""
    if seen.kind != "probe":
        return f"no probe: {seen.why}" if seen.kind == "broken" else seen.summary
    probe = seen.probe
    words = [word for word, on in (("asks", probe["ask"]), ("large", probe["large"])) if on]
    words += [f"{one['kind']} {one['link']} of {one['origin']} (for {one['ttl_s']:g} s)" for one in probe["notices"]]
    if probe["acknowledged"]:
        words.append(f"acknowledges {' '.join(map(str, probe['acknowledged']))}")
    heard = " ".join(
        f"{one['path']}:#{one['last']}" + (f"+{one['queueing_s'] * 1e3:.1f}ms" if one["queueing_s"] else "")
        for one in probe["report"]
    )
    words.append(f"hears {heard}" if heard else "has heard nothing yet")
    return "; ".join(words)


@dataclass(slots=True)
class Tally:
    packets: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    paths: set[tuple[str, str, Any]] = field(default_factory=set)

    def add(self, seen: Seen) -> None:
        self.packets += 1
        self.kinds[seen.kind] = self.kinds.get(seen.kind, 0) + 1
        self.wrong += seen.authentic is False
        if seen.kind == "probe" and seen.probe["path"] is not None:
            self.paths.add((seen.source, seen.target, seen.probe["path"]))

    def words(self, took_s: float | None = None, missed: int = 0) -> str:
        """`took_s` for a live capture."""
        span = "" if took_s is None else f" in {took_s:.1f} s"
        if not self.packets:
            return f"no packets{span}" + ("" if took_s is None else "; is a daemon running there? linkpass status")
        called = {"probe": "probes", "trace": "of traces", "broken": "no probes", "other": "others"}
        kinds = ", ".join(f"{self.kinds[kind]} {word}" for kind, word in called.items() if kind in self.kinds)
        parts = [f"{self.packets} packets{span}: {kinds}"]
        if self.paths:
            parts.append(f"{len(self.paths)} paths of {len({source for source, _, _ in self.paths})} senders")
        if self.wrong:
            parts.append(f"{self.wrong} with a wrong HMAC")
        if missed:
            parts.append(f"{missed} missed: more came than could be decoded")
        return "; ".join(parts)


capture.add_command(explain)


# what must be there
def signer_of(key_file: Path | None, configured: Path | None) -> Signer | None:
    """From --key-file, else from the configuration that --config names; None: HMACs are not checked."""
    from linkpass.config import Config, ConfigError, read_key
    from linkpass.config.model import Auth
    from linkpass.wire.probe import Signer

    path = key_file or configured
    if path is None:
        return None
    try:
        return Signer(read_key(Config(auth=Auth(key_file=str(path)))))
    except ConfigError as error:
        raise WrongInputError(str(error)) from None


@contextmanager
def permitted(devices: Iterable[str]) -> Iterator[None]:
    """Errors of opening a device in words."""
    there = [name for _, name in socket.if_nameindex()]
    for device in devices:
        if device not in there:
            raise WrongInputError(f"no device {device!r} here", f"there are: {', '.join(there)}")
    try:
        yield
    except PermissionError:
        raise NotPermittedError("capturing needs root (CAP_NET_RAW)", "sudo linkpass capture …") from None
    except OSError as error:
        raise TroubleError(f"cannot capture: {os.strerror(error.errno or 0)}") from None
