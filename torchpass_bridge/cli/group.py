"""The group of all commands. A command's module is imported when it is called or when help lists it."""

from __future__ import annotations

from importlib import import_module

import click

COMMANDS = {
    "store": ("serve", "store"),
    "coordinator": ("serve", "coordinator"),
    "status": ("show", "status"),
    "migrate": ("act", "migrate"),
    "drain": ("act", "drain"),
    "withdraw": ("act", "withdraw"),
    "escalate": ("escalate", "escalate"),
    "watch": ("watch", "watch"),
    "snapshot": ("snapshot", "snapshot"),
    "restore": ("snapshot", "restore"),
    "ledger": ("ledger", "ledger"),
    "spare": ("spare", "spare"),
    "rank": ("rank", "rank"),
}
"""Command -> module below torchpass_bridge.cli and the name in it, in the order of the help."""


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(import_module(f"torchpass_bridge.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done · 1 refused, or it did not come to a good end · 2 wrong usage · "
    "3 the store or a coordinator does not answer.",
)
@click.version_option(package_name="linkpass", prog_name="torchpass")
def cli() -> None:
    """Moves a rank of a training job to a spare when its host fails, without losing a step.

    A store keeps what is agreed (`torchpass store`), coordinators decide (`torchpass coordinator`), spares wait
    (`torchpass spare`), a job that may be stopped goes on by itself (`torchpass rank`). The other commands show it
    (`status`, `ledger`), ask for moves (`migrate`, `drain`, `escalate`, `watch`), take them back (`withdraw`), save a
    whole job and begin with what was saved (`snapshot`, `restore`).
    """


def main() -> None:
    """The console script."""
    cli(prog_name="torchpass")
