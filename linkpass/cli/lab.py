"""`linkpass lab`: a fabric of network namespaces on this machine, and its faults. Imports the lab only when it runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkpass.cli.bench import bench_group
from linkpass.cli.capture import capture_options
from linkpass.cli.common import NotPermittedError, TroubleError, WrongInputError, console, json_option, print_json
from linkpass.cli.demo import demo
from linkpass.cli.udp_port import udp_port

if TYPE_CHECKING:
    from lab.faults import AnyFault
    from lab.netns.lab import NetnsLab
    from topology.model import Fabric

lab_argument = click.argument("lab_name", metavar="LAB")
name_option = click.option("--name", help="Name of the lab instead of the file's own.")


@click.group(
    epilog="Example: linkpass lab up lab/leaf-spine.clab.yml · linkpass lab fault leaf-spine blackhole:leaf1-spine1 "
    "--for 3 · linkpass lab down leaf-spine"
)
def lab_group() -> None:
    """Build a fabric of network namespaces from a topology file, and break it.

    LAB is a topology file (lab/leaf-spine.clab.yml) or the name of a lab that is up (leaf-spine). Everything runs on
    this machine and needs root; nothing outside the lab's own namespaces is changed.
    """


lab_group.add_command(demo)
lab_group.add_command(bench_group)
lab_group.add_command(udp_port)


@lab_group.command(epilog="Example: linkpass lab up lab/leaf-spine.clab.yml --name try")
@click.argument("file", type=click.Path(path_type=Path))
@name_option
@click.option("--dir", "run_dir", type=click.Path(path_type=Path), help="Run directory. [build/lab/NAME]")
@click.option("--hosts", "kind", type=click.Choice(["netns", "qemu"]), default="netns", show_default=True,
              help="What hosts are: namespaces, or emulated machines with soft-RoCE devices.")  # fmt: skip
@json_option
def up(file: Path, name: str | None, run_dir: Path | None, kind: str, *, as_json: bool) -> None:
    """Build the fabric of FILE: namespaces, links, addresses, routes.

    FILE is containerlab's, or any other that `linkpass topology --help` names and that tells of cables.

    With --hosts qemu each host is a guest (Debian's kernel, plain emulation, half a gigabyte of memory) that starts in
    some seconds; the first time its kernel is fetched.
    """
    from lab.netns.lab import NetnsLab

    fabric = read(file)
    guests = [host.name for host in fabric.hosts] if kind == "qemu" else []
    with told(), NetnsLab(fabric, name=name, run_dir=run_dir, guests=guests) as made:
        report = made.up()
        if as_json:
            print_json({"name": made.name, "run_dir": str(made.run_dir), "seconds": report.seconds,
                        "nodes": report.nodes, "links": report.links, "notes": list(report.notes)})  # fmt: skip
            return
        click.echo(f"{made.name}: {report.nodes} nodes, {report.links} links in {report.seconds:.2f} s")
        for note in (*made.fabric.notes, *report.notes):
            click.echo(f"  {note}")
        click.echo(
            f"  linkpass lab status {made.name} · linkpass lab exec {made.name} {made.fabric.nodes[0].name} -- bash"
        )


@lab_group.command(epilog="Example: linkpass lab down lab/leaf-spine.clab.yml")
@lab_argument
@name_option
def down(lab_name: str, name: str | None) -> None:
    """Take a lab away: its processes, namespaces and state, whatever state it is in."""
    from lab.netns.removal import remove

    with told():
        called = name or name_of(lab_name)
        there = remove(called)
    click.echo(f"{called} is gone" if there else f"{called} was not up")


@lab_group.command(epilog="Examples: linkpass lab status · linkpass lab status leaf-spine --json")
@click.argument("lab_name", metavar="[LAB]", required=False)
@name_option
@json_option
def status(lab_name: str | None, name: str | None, *, as_json: bool) -> None:
    """Show a lab: nodes, links with what they carried and lost, faults in force, processes. Without LAB: all labs."""
    from lab.netns.report import describe

    if lab_name is None:
        return list_labs(as_json=as_json)
    with told(), load(lab_name, name) as made:
        view = describe(made)
    if as_json:
        return print_json(view)
    return show(view)


@lab_group.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Examples: linkpass lab exec leaf-spine host1 -- ip -6 route · linkpass lab exec leaf-spine leaf1",
)
@lab_argument
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_(lab_name: str, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND (a shell, if none is given) inside NODE, with a /sys of its own.

    It takes this process's place; `linkpass lab down` ends it. In a host that is a guest COMMAND runs to its end,
    without input.
    """
    from lab.netns.enter import enter

    with told(), load(lab_name, None) as made:
        namespace = made.namespace(node)
        if node in made.guests:
            sys.exit(_in_guest(made, node, command))
        program = list(command[1:] if command[:1] == ("--",) else command) or [os.environ.get("SHELL", "/bin/sh")]
        made.adopt(node, os.getpid(), program)
    sys.exit(enter(namespace, program))


def _in_guest(made: NetnsLab, node: str, command: tuple[str, ...]) -> int:
    from lab.qemu.hosts import guest_of

    program = list(command[1:] if command[:1] == ("--",) else command)
    if not program:
        raise WrongInputError(f"{node} is a guest: expected a command", "there is no terminal into a guest")
    guest = guest_of(made, node).connect()
    try:
        done = guest.run(program, timeout_s=3600, check=False)
    finally:
        guest.close()
    click.echo(done.out, nl=False)
    click.echo(done.err, nl=False, err=True)
    return done.rc


@lab_group.command(
    "capture",
    epilog="Examples: linkpass lab capture leaf-spine leaf1-spine1 · linkpass lab capture leaf-spine 'host1>leaf1' "
    "--label 0x1a2b",
)
@lab_argument
@click.argument("link")
@name_option
@capture_options
def capture_(lab_name: str, link: str, name: str | None, **options: Any) -> None:
    """Show the probes on a link of a lab (leaf1-spine1), or on one direction of it (leaf1>spine1), decoded.

    They are seen where they enter the link, before any fault takes them. The lab's own key checks their HMACs.
    """
    from lab.faults import directions_of, place_of
    from lab.netns import namespace
    from linkpass.cli.capture import Decoder, signer_of, wanted_of, watch
    from linkpass.cli.scapy_here import need_scapy
    from linkpass.core.settings import Probing
    from linkpass.edges.tap import Tap

    need_scapy()
    with told(), load(lab_name, name) as made:
        directions = directions_of(place_of(link, made.fabric), made.fabric)
        ports = {direction: made.wire_port(direction) for direction in directions}
        key = next((key for host in made.fabric.hosts if (key := made.host_dir(host.name) / "key").is_file()), None)
        port = Probing().port
        decoder = Decoder(port=port, signer=signer_of(options["key_file"], key), names=made.names)
        tap = Tap(
            {one.device: direction for direction, one in ports.items()},
            port=None if options["everything"] else port,
            incoming=True,
        )
        with tap:
            with namespace.inside(next(iter(ports.values())).namespace):
                tap.open()
            watch(tap, decoder, wanted_of(options), options, shared_clock=True)


class FaultCommand(click.Command):
    """Help that lists every fault with an example, from the lab's own table."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from lab.faults import EXAMPLES

        with formatter.section("Faults"):
            formatter.write_dl(EXAMPLES)
        with formatter.section("Examples"):
            formatter.write_dl([
                ("linkpass lab fault leaf-spine blackhole:leaf1-spine1 --for 3", "break it for three seconds"),
                ("linkpass lab fault leaf-spine loss:leaf1-spine1:5%", "until it is undone; prints its id"),
                ("linkpass lab fault leaf-spine --list", "what is in force"),
                ("linkpass lab fault leaf-spine --undo 3", "undo one, or all: --undo all"),
            ])  # fmt: skip


@lab_group.command(cls=FaultCommand)
@lab_argument
@click.argument("spec", required=False)
@click.option("--for", "for_s", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="Wait, then undo it (Ctrl-C undoes it at once).")  # fmt: skip
@click.option("--undo", metavar="ID|all", help="Undo a fault by its id, or all.")
@click.option("--list", "list_", is_flag=True, help="Show the faults in force.")
@name_option
@json_option
def fault(
    lab_name: str,
    spec: str | None,
    for_s: float | None,
    undo: str | None,
    name: str | None,
    *,
    list_: bool,
    as_json: bool,
) -> None:
    """Break a lab on purpose, or undo it.

    SPEC is the kind of fault, then what it hits, then how much, joined by colons.
    """
    if (spec is not None) + (undo is not None) + list_ != 1:
        raise WrongInputError("expected one of SPEC, --undo ID and --list", "linkpass lab fault --help shows them all")
    with told(), load(lab_name, name) as made:
        if spec is not None:
            inject(made, spec, for_s, as_json=as_json)
        elif undo is not None:
            take_off(made, undo)
        else:
            from lab.netns.report import describe

            faults = describe(made)["faults"]
            if as_json:
                print_json(faults)
            else:
                console().print(fault_table(faults))


def inject(made: NetnsLab, spec: str, for_s: float | None, *, as_json: bool) -> None:
    from lab.faults import Flap, parse
    from lab.netns import flap

    wanted: AnyFault = parse(spec, made.fabric)
    if isinstance(wanted, Flap) and for_s is None:
        active = made.fault_elsewhere(wanted, lambda number: flap.start(made, number))
    else:
        active = made.fault(wanted)
    record = {"id": active.id, "fault": str(wanted), "injected_at_s": active.injected_at_s, "took_s": active.took_s}
    if as_json:
        print_json(record)
    else:
        until = "" if for_s is not None else f"; undo it: linkpass lab fault {made.name} --undo {active.id}"
        click.echo(f"fault {active.id}: {wanted} in force after {active.took_s * 1e3:.1f} ms{until}")
    if for_s is not None:
        try:
            time.sleep(for_s)
        finally:
            active.undo()
        if not as_json:
            click.echo(f"fault {active.id} undone")


def take_off(made: NetnsLab, which: str) -> None:
    from lab.netns.breaker import unknown_fault

    if which == "all":
        click.echo(f"{made.undo_all()} fault(s) undone")
    elif which.isdigit() and made.undo(int(which)):
        click.echo(f"fault {which} undone")
    else:
        raise unknown_fault(which, made.faults())


# finding a lab, and its errors
@contextmanager
def told() -> Iterator[None]:
    """The lab's errors as this command line's: one line and the next step."""
    from lab.errors import LabError
    from topology.model import FabricError

    try:
        yield
    except LabError as error:
        kind = NotPermittedError if os.geteuid() != 0 else TroubleError
        raise kind(str(error), error.hint) from None
    except FabricError as error:
        raise WrongInputError(str(error), "linkpass topology FILE shows what a file means") from None
    except PermissionError as error:
        raise NotPermittedError(str(error), "the lab needs root: sudo linkpass lab …") from None
    except OSError as error:
        raise TroubleError(str(error), "is this a kernel with namespaces, veth and nftables?") from None


def read(file: Path) -> Fabric:
    """The fabric of a topology file, of any format that tells of cables."""
    from linkpass.config.fabric_file import FabricFileError, cables_of, read_file

    try:
        return cables_of(file, read_file(file, variables=dict(os.environ))).fabric
    except FabricFileError as error:
        raise WrongInputError(str(error)) from None


def name_of(lab: str) -> str:
    """The name of a lab given as a file or by name."""
    from lab.netns import state

    if state.find(lab) is None and (Path(lab).is_file() or os.sep in lab or lab.endswith((".yml", ".yaml"))):
        return read(Path(lab)).name
    return lab


def load(lab: str, name: str | None) -> NetnsLab:
    from lab.netns.lab import NetnsLab
    from lab.netns.removal import need_root

    need_root()
    return NetnsLab.load(name or name_of(lab))


# tables
def list_labs(*, as_json: bool) -> None:
    from lab.netns import state
    from linkpass.cli.tables import table

    rows = []
    with told():
        for name, run_dir in state.labs().items():
            stored = state.read(run_dir / "state.json", state.State)
            nodes = len(stored.fabric.nodes) if stored else 0
            rows.append(
                {"name": name, "phase": stored.phase if stored else "lost", "nodes": nodes, "run_dir": str(run_dir)}
            )
    if as_json:
        return print_json(rows)
    if not rows:
        return click.echo("no lab is up; build one: linkpass lab up FILE")
    return console().print(
        table("Labs", "lab", "state", "nodes", "run directory", rows=[list(r.values()) for r in rows])
    )


def show(view: dict[str, Any]) -> None:
    from linkpass.cli.tables import table

    out = console()
    out.print(f"{view['name']} · {view['run_dir']}")
    for note in view["notes"]:
        out.print(f"  {note}")
    out.print()
    out.print(table("Nodes", "node", "role", "IPv6", "IPv4", "ports", "processes", rows=map(node_row, view["nodes"])))
    out.print()
    columns = ("direction", "carrier", "packets", "bytes", "lost on the wire")
    rows = [direction_row(way) for link in view["links"] for way in link["directions"]]
    out.print(table("Links", *columns, rows=rows))
    out.print()
    out.print(fault_table(view["faults"]))


def node_row(node: dict[str, Any]) -> Sequence[Any]:
    stopped = {"T": " (stopped)"}
    running = [f"{one['pid']}{stopped.get(one['state'], '')} {' '.join(one['argv'])[:60]}" for one in node["processes"]]
    return node["name"], node["role"], node["address6"], node["address4"], " ".join(node["ports"]), "\n".join(running)


def direction_row(way: dict[str, Any]) -> Sequence[Any]:
    from linkpass.cli.tables import word

    carrier = word("up" if way["carrier"] else "down")
    return way["id"], carrier, f"{way['packets']:,}", f"{way['bytes']:,}", f"{way['lost']:,}" if way["lost"] else ""


def fault_table(faults: Sequence[dict[str, Any]]) -> Any:
    from linkpass.cli.tables import seconds, table

    if not faults:
        return "no faults in force"
    rows = [
        (one["id"], one["fault"], seconds(one["age_s"]), "down" if one["down"] else "up",
         "-" if one["dropped"] is None else f"{one['dropped']:,}")
        for one in faults
    ]  # fmt: skip
    return table("Faults in force", "id", "fault", "since", "now", "packets dropped", rows=rows)
