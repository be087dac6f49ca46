"""The group of all commands. A command's module is imported when it is called or when help lists it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from linkpass import __version__

COMMANDS = {
    "run": ("daemon", "run"),
    "status": ("show", "status"),
    "top": ("show", "top"),
    "paths": ("show", "paths"),
    "why": ("show", "why"),
    "drain": ("act", "drain"),
    "undrain": ("act", "undrain"),
    "clear": ("act", "clear"),
    "topology": ("topology", "topology"),
    "replay": ("offline", "replay"),
    "capture": ("capture", "capture"),
    "check-config": ("daemon", "check_config"),
    "cleanup": ("daemon", "cleanup"),
    "ledger": ("ledger", "ledger"),
    "lab": ("lab", "lab_group"),
}
"""Command -> module below linkpass.cli and the name in it, in the order of the help."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if find_spec(f"linkpass.cli.{module}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(import_module(f"linkpass.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done · 1 refused, or something was found · 2 wrong usage or configuration · "
    "3 no daemon answers · 4 no permission.",
)
@click.version_option(__version__, prog_name="linkpass")
def cli() -> None:
    """Keeps large GPU jobs running while their network and hosts fail.

    One daemon per host (`linkpass run`) watches the fabric and moves traffic off what fails. The other commands ask
    it what it sees (`status`, `paths`, `why`), tell it what you plan (`drain`), or work on files (`topology`,
    `check-config`, `replay`).
    """


def main() -> None:
    """The console script."""
    cli(prog_name="linkpass")
