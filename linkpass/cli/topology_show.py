"""`linkpass topology show`: a fabric, what is wrong in an InfiniBand subnet, the adapters of a host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from linkpass.cli.common import WrongInputError, console, json_option, print_json
from linkpass.cli.topology_files import readable, reading_of, text_of

if TYPE_CHECKING:
    from linkpass.subnet.finding import Finding
    from topology.model import Fabric
    from topology.sources.cables import Source
    from topology.sources.ibqueryerrors import Reading
    from topology.sources.infiniband import Subnet
    from topology.sources.nccl import Host
    from topology.sources.ways import Way, Ways


class Report:
    """What was read and what was found in it."""

    def __init__(self, fabric: Fabric, subnet: Subnet | None) -> None:
        self.fabric = fabric
        self.subnet = subnet
        self.findings: list[Finding] = []
        self.notes: list[str] = list(fabric.notes)
        self.ways: list[Way] = []
        self.counters: list[dict[str, object]] | None = None

    def data(self) -> dict[str, Any]:
        import msgspec

        from linkpass.cli.fabric_tables import fabric_data

        made = {**fabric_data(self.fabric), "notes": self.notes}
        made["findings"] = [msgspec.to_builtins(one) for one in self.findings]
        if self.ways:
            made["ways"] = [
                {
                    "source": way.source, "lid": way.lid, "end": way.end, "why": way.why,
                    "at": list(way.at), "hops": [[hop.port.id, hop.peer.id] for hop in way.hops],
                }
                for way in self.ways
            ]  # fmt: skip
        if self.counters is not None:
            made["counters"] = self.counters
        return made


@click.command(
    epilog="\b\nExamples:\n"
    "  linkpass topology lab/leaf-spine.clab.yml\n"
    "  ibnetdiscover | linkpass topology -\n"
    "  NCCL_TOPO_DUMP_FILE=host.xml all_reduce_perf; linkpass topology host.xml\n"
    "  linkpass topology planned.txt --links now.txt --check      # is every cable where it was?\n"
    "  iblinkinfo -l > links.txt; dump_fts > lfts.txt; ibqueryerrors > errors.txt\n"
    "  linkpass topology links.txt --routes lfts.txt --errors errors.txt\n"
    "  linkpass topology links.txt --routes lfts.txt --way gpu07:mlx5_0/1 12"
)
@click.argument("file", type=readable)
@click.option(
    "--links",
    "links_file",
    type=readable,
    metavar="FILE",
    help="What `iblinkinfo` (or `ibnetdiscover`) prints now: links of the first file that are missing, others that are "
    "there, links slower than both ends could, links that are up and carry nothing.",
)
@click.option(
    "--routes",
    "routes_files",
    type=readable,
    metavar="FILE",
    multiple=True,
    help="What `dump_fts` or `ibroute` prints: destinations without a way, loops, ways into ports that are down.",
)
@click.option(
    "--errors",
    "errors_file",
    type=readable,
    metavar="FILE",
    help="What `ibqueryerrors` or `perfquery` prints: ports whose error counters counted since they were cleared.",
)
@click.option(
    "--errors-before",
    "before_file",
    type=readable,
    metavar="FILE",
    help="An earlier output of the same: only what rose since then is named.",
)
@click.option(
    "--way",
    "ways",
    nargs=2,
    multiple=True,
    metavar="PORT DEST",
    help="Follow the tables from a host's port (NODE:PORT) to a LID or a port. May be repeated.",
)
@click.option("--check", is_flag=True, help="Exit with 1 when something is named.")
@json_option
def show(
    file: Path, links_file: Path | None, routes_files: tuple[Path, ...], errors_file: Path | None,
    before_file: Path | None, ways: tuple[tuple[str, str], ...], *, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the fabric of a file: nodes, tiers, links, and what had to be inferred.

    FILE is any that `linkpass topology --help` names; - is standard input. Of an InfiniBand subnet, more outputs of
    its tools say what is wrong in it, each thing with its node and port. Of what NCCL dumps, the adapters are shown.

    Exit status 0, whatever is named, unless --check asks for 1. 2: a file is wrong.
    """
    from topology.sources.nccl import Host
    from topology.sources.yamltext import TopologyError

    given = [file, *routes_files, *filter(None, (links_file, errors_file, before_file))]
    if given.count(Path("-")) > 1:
        raise WrongInputError("only one file can be standard input")
    if ways and not routes_files:
        raise WrongInputError("--way follows tables: give them with --routes")
    if before_file and not errors_file:
        raise WrongInputError("--errors-before is compared with --errors: give both")
    try:
        found = reading_of(file)
        if isinstance(found, Host):
            if len(given) > 1:
                raise WrongInputError(f"{file}: what NCCL dumps of a host, expected an InfiniBand subnet")
            return _show_host(found, as_json=as_json)
        report = _report(found, file, links_file, routes_files, errors_file, before_file, ways)
    except TopologyError as error:
        raise WrongInputError(str(error)) from None
    if as_json:
        print_json(report.data())
    else:
        from linkpass.cli.fabric_tables import subnet_of

        asked = bool(links_file or routes_files or errors_file)
        console().print(subnet_of(report.fabric, report.findings, report.ways, report.notes, asked=asked))
    sys.exit(1 if check and report.findings else 0)


def _show_host(host: Host, *, as_json: bool) -> None:
    from linkpass.cli.fabric_tables import host_data, host_of

    if as_json:
        print_json(host_data(host))
    else:
        console().print(host_of(host))


def _report(
    source: Source, file: Path, links_file: Path | None, routes_files: tuple[Path, ...], errors_file: Path | None,
    before_file: Path | None, ways: tuple[tuple[str, str], ...],
) -> Report:  # fmt: skip
    from linkpass.subnet import links
    from topology.sources import iblinkinfo, ibnetdiscover
    from topology.sources.infiniband import renamed

    if source.subnet is None:
        if links_file or routes_files or errors_file:
            raise WrongInputError(
                f"{file}: expected the output of ibnetdiscover or iblinkinfo: --links, --routes and --errors are "
                "of an InfiniBand subnet"
            )
        return Report(source.fabric, None)
    planned = seen = source.subnet
    report = Report(planned.fabric, planned)
    if links_file:
        text, where = text_of(links_file)
        other = ibnetdiscover if ibnetdiscover.is_output(text) else iblinkinfo
        seen = renamed(other.read(text, where), planned, where)
        found, unknown = links.compared(planned, seen, whole=other is ibnetdiscover)
        report.findings += found
        report.notes += [unknown] if unknown else []
    report.findings += links.faults_of(seen)
    if routes_files:
        _routes(report, seen, routes_files, ways)
    if errors_file:
        _errors(report, planned, errors_file, before_file)
    return report


def _routes(report: Report, seen: Subnet, files: tuple[Path, ...], ways: tuple[tuple[str, str], ...]) -> None:
    from linkpass.subnet.ways import faults_of, notes_of
    from topology.sources import ibroute
    from topology.sources.ways import Ways

    tables = [table for file in files for table in ibroute.parse(*text_of(file))]
    known = Ways(seen, tables)
    report.findings += faults_of(seen, known)
    report.notes += notes_of(known)
    report.ways += [_way(seen, known, source, target) for source, target in ways]


def _way(subnet: Subnet, ways: Ways, source: str, target: str) -> Way:
    start = subnet.port(source)
    if start is None or start[0].letter == "S":
        raise WrongInputError(f"--way: no host's port is called {source!r}: expected NODE:PORT as the links show it")
    if target.isascii() and target.isdecimal() and len(target) < 6:
        lid = int(target)
    else:
        names = {lid: node.name if at is None else node.port_id(at) for lid, (node, at) in subnet.lids.items()}
        owned = [lid for lid, name in names.items() if name == target]
        if not owned:
            raise WrongInputError(f"--way: {target!r} has no LID: expected a number, NODE:PORT, or a switch's name")
        lid = min(owned)
    return ways.follow(start[0], start[1].number, lid)


def _errors(report: Report, subnet: Subnet, file: Path, before_file: Path | None) -> None:
    from linkpass.subnet.counters import faults_of, rows_of

    later = _reading(file)
    earlier = _reading(before_file) if before_file else None
    found, notes = faults_of(subnet, later, earlier)
    report.findings += found
    report.notes += notes
    report.counters = list(rows_of(subnet, later))


def _reading(file: Path) -> Reading:
    from topology.sources import ibqueryerrors

    return ibqueryerrors.parse(*text_of(file))
