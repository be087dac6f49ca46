"""What the commands share: options, errors with a next step, output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from linkpass.cli.client import Client
    from linkpass.config import Config

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CONFIG = "/etc/linkpass/linkpass.toml"


class TroubleError(click.ClickException):
    """An error with the next step; ends the command with exit status 1."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"linkpass: {self.message}", err=True)
        if self.hint:
            click.echo(f"  {self.hint}", err=True)


class WrongInputError(TroubleError):
    """A file or the configuration is wrong."""

    exit_code = 2


class NoDaemonError(TroubleError):
    """Nobody answers."""

    exit_code = 3


class NotPermittedError(TroubleError):
    """Somebody else may."""

    exit_code = 4


class FirstGroup(click.Group):
    """A group whose command `first` needs no name: `linkpass capture eth1` is `linkpass capture probes eth1`."""

    def __init__(self, *args: Any, first: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [self._first, *args])


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option = click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help=f"Configuration file. [{DEFAULT_CONFIG}]"
)


def daemon_options(command: F) -> F:
    """--socket, --config and --json: how to find the daemon, and how to print."""
    socket = click.option(
        "--socket", "socket_path", type=click.Path(path_type=Path), envvar="LINKPASS_SOCKET",
        help="The daemon's control socket. [control.socket of the configuration]",
    )  # fmt: skip
    return socket(config_option(json_option(command)))


def load_config(path: Path | None) -> tuple[Config, Path]:
    """The configuration and where it lies. Without a file at the default place all defaults hold."""
    from linkpass.config import Config, ConfigError, load

    if path is None and not Path(DEFAULT_CONFIG).exists():
        return Config(), Path(DEFAULT_CONFIG)
    try:
        return load(path or DEFAULT_CONFIG), path or Path(DEFAULT_CONFIG)
    except ConfigError as error:
        raise WrongInputError(str(error)) from None


def client(socket_path: Path | None, config_path: Path | None) -> Client:
    """A client for the daemon that the options name."""
    from linkpass.cli.client import Client

    return Client(socket_path or Path(load_config(config_path)[0].control.socket))


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is. In a pipe lines are not folded at 80 columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else 160
    return Console(markup=False, highlight=False, emoji=False, width=wide, stderr=stderr)
