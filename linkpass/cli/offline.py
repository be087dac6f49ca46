"""The command that works on a recording: replay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from linkpass.cli.common import WrongInputError, json_option, print_json

existing = click.Path(path_type=Path)


@click.command(epilog="Example: linkpass replay /var/lib/linkpass/recording.jsonl")
@click.argument("file", type=existing)
@json_option
def replay(file: Path, *, as_json: bool) -> None:
    """Feed a recording to a fresh core and report the first answer that differs.

    Exit status 0: the same answers throughout; 1: they diverge; 2: not a recording.
    """
    import msgspec

    from linkpass.core.machine import Core
    from linkpass.replay import replay as run_replay
    from linkpass.wire.recording import RecordingError, read_recording

    try:
        recording = read_recording(file)
        result = run_replay(recording, Core)
    except RecordingError as error:
        raise WrongInputError(str(error)) from None
    differs = result.divergence
    if as_json:
        print_json(msgspec.to_builtins(result, str_keys=True))
    elif differs is None:
        cut = "; the last line was cut and is left out" if result.cut else ""
        spanned = f"{result.events} events, {result.commands} commands, {result.spanned_s:.1f} s"
        click.echo(f"{file}: the same answers throughout ({spanned}){cut}")
    else:
        click.echo(f"{differs.where}: diverges at {differs.now_s:.6f} s, after {result.events} events")
        click.echo(f"  event     {_compact(differs.event)}")
        if differs.error:
            click.echo(f"  the core failed:\n{differs.error.rstrip()}")
        else:
            _side("recorded", differs.recorded)
            _side("replayed", differs.replayed)
    sys.exit(0 if differs is None else 1)


def _side(name: str, commands: tuple[Any, ...]) -> None:
    for command in commands[:5] or ("no further command",):
        click.echo(f"  {name:<9} {command if isinstance(command, str) else _compact(command)}")
    if len(commands) > 5:
        click.echo(f"  {'':<9} and {len(commands) - 5} more")


def _compact(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
