"""`torchpass spare`: a warm spare for a job, from the job's own training script."""

from __future__ import annotations

import json
import os

import click

from torchpass_bridge.cli.common import address, json_option

_TOLD = {
    "store": ("TORCHPASS_STORE", "nats://[user:password@]host:port, a file that holds it, or the store's folder."),
    "job": ("TORCHPASS_JOB", "The job's name."),
    "key-file": ("TORCHPASS_KEY_FILE", "A file with the job's key."),
    "world": ("WORLD_SIZE", "How many ranks the job has."),
    "host": ("TORCHPASS_HOST", "This host's name, as the daemon says it. [default: the system's]"),
    "address": ("TORCHPASS_ADDRESS", "Where other hosts reach this one. [default: that on the way to the store]"),
    "domain": ("TORCHPASS_DOMAIN", "What fails together with this host: a leaf, a rack."),
    "accelerator": ("TORCHPASS_ACCELERATOR", "Which accelerator it has."),
    "lent-from": ("TORCHPASS_LENT_FROM", "The preemptible job that it is taken from."),
}


EXAMPLE = "torchpass spare --job llm --key-file /etc/torchpass/key --world 64 -- python train.py"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, epilog=f"Example: {EXAMPLE}"
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@json_option
def spare(*, command: tuple[str, ...], as_json: bool, **told: str | None) -> None:
    """Keep a warm spare: COMMAND is the training script as the job's ranks start it (python train.py …).

    It runs up to its first step, and waits there until a rank's host fails or is to be left. When it has ended and may
    be of use once more, it is started again."""
    environment = dict(os.environ)
    for name, (variable, _) in _TOLD.items():
        value = told.get(name.replace("-", "_"))
        if value:
            environment[variable] = value
    missing = [f"--{name}" for name in ("store", "job", "world") if not environment.get(_TOLD[name][0])] + (
        [] if environment.get("TORCHPASS_KEY") or environment.get("TORCHPASS_KEY_FILE") else ["--key-file"]
    )
    if missing:
        raise click.UsageError(f"missing: {', '.join(missing)} (each may also be given in the environment)")
    environment["TORCHPASS_STORE"] = address(environment["TORCHPASS_STORE"])
    from torchpass_bridge.spare import Launcher

    def tell(line: str) -> None:
        click.echo(json.dumps({"told": line}) if as_json else f"torchpass spare: {line}", err=not as_json)

    raise SystemExit(Launcher(command, environment, tell).run())


for _name, (_variable, _help) in _TOLD.items():
    spare = click.option(f"--{_name}", envvar=_variable, help=f"{_help}  [{_variable}]")(spare)
