"""`linkpass topology diff`: what is cabled, beside what was planned."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from linkpass.cli.common import WrongInputError, console, json_option, print_json
from linkpass.cli.topology_files import readable, source_of


@click.command(
    epilog="\b\nExamples:\n"
    "  linkpass topology diff plan.dot live/\n"
    "  linkpass topology diff plan.clab.yml live/ --ignore 'mgmt*' --ignore '*:eth0'\n"
    "  ibnetdiscover | linkpass topology diff planned.txt -\n"
    "  linkpass topology diff topology.conf live/ --json          # does Slurm know the racks as they are?\n"
    "\b\nA folder of live neighbours:\n"
    "  for h in $HOSTS; do ssh $h lldpctl -f json > live/$h.json; done"
)
@click.argument("plan", type=readable)
@click.argument("live", type=readable)
@click.option(
    "--ignore",
    multiple=True,
    metavar="PATTERN",
    help="Leave out cables that end in such a node or NODE:PORT (* and ? stand for anything). May be repeated.",
)
@json_option
def diff(plan: Path, live: Path, ignore: tuple[str, ...], *, as_json: bool) -> None:
    """Compare what is cabled with what was planned, port by port.

    Each mistake is named once, from both ends: cables that are swapped, moved, missing, or there without being planned,
    and links that do not run at their planned speed, where both sides tell of one. PLAN and LIVE are any two files or
    folders that `linkpass topology --help` names, LIVE being the one that is told by the network; - is standard input.
    Links of which LIVE hears neither end are not compared, and counted. Slurm's file knows no ports: with it, it is
    compared which nodes are joined.

    Exit status, as of diff(1): 0 nothing differs, 1 something does, 2 a file is wrong.
    """
    from linkpass.cli.difference_tables import difference_data, difference_of
    from topology.difference import compare
    from topology.sources.formats import named_like
    from topology.sources.yamltext import TopologyError

    if plan == live == Path("-"):
        raise WrongInputError("only one file can be standard input")
    try:
        planned = source_of(plan)
        seen = named_like(source_of(live), planned, str(live))
        found = compare(planned, seen, ignore)
    except TopologyError as error:
        raise WrongInputError(str(error)) from None
    if as_json:
        print_json(difference_data(planned, seen, found))
    else:
        console().print(difference_of(planned, seen, found))
    sys.exit(1 if found.differences else 0)
