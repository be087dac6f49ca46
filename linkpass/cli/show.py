"""Commands that ask the daemon what it sees: status, top, paths, why."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from linkpass.cli.common import client, console, daemon_options, print_json


@click.command(epilog="Example: linkpass status --all")
@click.option("--all", "everything", is_flag=True, help="Links and peers that are well, too.")
@daemon_options
def status(socket_path: Path | None, config_path: Path | None, *, as_json: bool, everything: bool) -> None:
    """What the daemon sees and can do: uplinks, peers, links, namespaces, steering."""
    view = client(socket_path, config_path).get("status")
    if as_json:
        print_json(view)
        return
    from linkpass.cli.status_tables import status_of

    console().print(status_of(view, everything=everything))


@click.command(epilog="Example: linkpass top --interval 0.5")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many refreshes.")
@daemon_options
def top(
    socket_path: Path | None, config_path: Path | None, *, as_json: bool, interval_s: float, count: int | None
) -> None:
    """The status, live. Ctrl-C ends it. With --json one line per refresh."""
    daemon = client(socket_path, config_path)
    view = daemon.get("status")
    left = count
    try:
        if as_json:
            while True:
                click.echo(json.dumps(view))
                left = None if left is None else left - 1
                if left == 0:
                    return
                time.sleep(interval_s)
                view = daemon.get("status")
        from rich.live import Live

        from linkpass.cli.status_tables import status_of

        screen = console()
        with Live(
            status_of(view, everything=True), console=screen, screen=screen.is_terminal, auto_refresh=False
        ) as live:
            while True:
                left = None if left is None else left - 1
                if left == 0:
                    return
                time.sleep(interval_s)
                view = daemon.get("status")
                live.update(status_of(view, everything=True), refresh=True)
    except KeyboardInterrupt:
        return


@click.command(epilog="Example: linkpass paths host3 --uplink eth1")
@click.argument("peer", required=False)
@click.option("--uplink", help="Only paths over this uplink.")
@daemon_options
def paths(
    socket_path: Path | None, config_path: Path | None, *, as_json: bool, peer: str | None, uplink: str | None
) -> None:
    """Every probed path: label, hops, what probes say of it, whether it carries traffic.

    PEER is a peer's name or address.
    """
    rows = client(socket_path, config_path).get("paths")["paths"]
    rows = [row for row in rows if peer is None or peer in (row["peer"], row.get("peer_name"), row.get("name"))]
    rows = [row for row in rows if uplink is None or row["uplink"] == uplink]
    if as_json:
        print_json(rows)
        return
    from linkpass.cli.tables import paths_table

    console().print(paths_table(rows) if rows else "no paths: no peer is known yet, or none fits")


@click.command(epilog="Examples: linkpass why host1-4 · linkpass why 'leaf1>spine1' · linkpass why")
@click.argument("name", metavar="[ID]", required=False)
@daemon_options
def why(socket_path: Path | None, config_path: Path | None, *, as_json: bool, name: str | None) -> None:
    """The story of a decision, from the first evidence to the last command.

    ID is a causal id, or an element: then its last story. Without it the newest entries of the journal.
    """
    daemon = client(socket_path, config_path)
    entries = daemon.get("why", name)["entries"] if name else daemon.get("journal", since=0)["entries"][-40:]
    if as_json:
        print_json(entries)
        return
    from linkpass.cli.story import story_of
    from linkpass.cli.tables import journal_table

    out = console()
    if name and len({entry["cause"] for entry in entries}) == 1:
        out.print(story_of(entries))
        out.print()
    out.print(journal_table(entries) if entries else "the journal is empty: nothing has happened yet")
