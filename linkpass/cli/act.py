"""Commands that tell the daemon what an operator wants: drain, undrain, clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from linkpass.cli.common import client, daemon_options, print_json

all_option = click.option("--all", "everywhere", is_flag=True, help="Tell every daemon; who follows, see below.")


@click.command(epilog="Examples: linkpass drain eth1 · linkpass drain leaf1-spine1 --all")
@click.argument("link")
@all_option
@daemon_options
def drain(socket_path: Path | None, config_path: Path | None, *, as_json: bool, link: str, everywhere: bool) -> None:
    """Take traffic off a link before you work on it.

    LINK is a link (leaf1-spine1), one direction of it (leaf1>spine1), or an uplink of this host (eth1). The last path
    is never taken: what has no other way stays.

    A link of this host is left by its peers, too. Any other link is left by this host alone: order it on each host, or,
    with --all, on this one for all those whose configuration names its address in `operators`.
    """
    result = client(socket_path, config_path).post("drain", {"link": link, "everywhere": everywhere})
    _say(f"{result['link']} is drained", result, as_json=as_json)


@click.command(epilog="Example: linkpass undrain leaf1-spine1 --all")
@click.argument("link")
@all_option
@daemon_options
def undrain(socket_path: Path | None, config_path: Path | None, *, as_json: bool, link: str, everywhere: bool) -> None:
    """Let traffic use a link again."""
    result = client(socket_path, config_path).post("undrain", {"link": link, "everywhere": everywhere})
    _say(f"{result['link']} is undrained", result, as_json=as_json)


@click.command(epilog="Examples: linkpass clear leaf1-spine1 · linkpass clear '*'")
@click.argument("link")
@daemon_options
def clear(socket_path: Path | None, config_path: Path | None, *, as_json: bool, link: str) -> None:
    """Forget the damping of a link after it was repaired; '*' means all links.

    This host's own name, and '*', forget what its own sources hold against it (`linkpass status`).
    """
    result = client(socket_path, config_path).post("clear", {"link": link})
    what = "all damping is" if result["link"] == "*" else f"the damping of {result['link']} is"
    _say(f"{what} forgotten", result, as_json=as_json)


def _say(text: str, result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    click.echo(text)
    if result.get("note"):
        click.echo(f"  {result['note']}")
    if result.get("cause"):
        click.echo(f"  linkpass why {result['cause']}")
