"""`torchpass spare`: a warm spare for a job, from the job's own training script; also on another job's host."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from torchpass_bridge.cli.common import F, WrongInputError, address, json_option

TOLD = {
    "store": ("TORCHPASS_STORE", "nats://[user:password@]host:port, a file that holds it, or the store's folder."),
    "job": ("TORCHPASS_JOB", "The job's name."),
    "key-file": ("TORCHPASS_KEY_FILE", "A file with the job's key."),
    "world": ("WORLD_SIZE", "How many ranks the job has."),
    "host": ("TORCHPASS_HOST", "This host's name, as the daemon says it. [default: the system's]"),
    "address": ("TORCHPASS_ADDRESS", "Where other hosts reach this one. [default: that on the way to the store]"),
    "domain": ("TORCHPASS_DOMAIN", "What fails together with this host: a leaf, a rack."),
    "accelerator": ("TORCHPASS_ACCELERATOR", "Which accelerator it has."),
}
"""What a member is told by its environment: option -> variable, help."""


def told_options(told: Mapping[str, tuple[str, str]]) -> Callable[[F], F]:
    """An option for each; `environment_of` reads them."""

    def add(command: F) -> F:
        for name, (variable, words) in told.items():
            command = click.option(f"--{name}", envvar=variable, help=f"{words}  [{variable}]")(command)
        return command

    return add


def environment_of(
    told: Mapping[str, tuple[str, str]], given: Mapping[str, str | None], needed: tuple[str, ...]
) -> dict[str, str]:
    """The script's: this process's, and what was given. UsageError names what is missing."""
    environment = dict(os.environ)
    for name, (variable, _) in told.items():
        value = given.get(name.replace("-", "_"))
        if value:
            environment[variable] = value
    missing = [f"--{name}" for name in needed if not environment.get(told[name][0])]
    if not (environment.get("TORCHPASS_KEY") or environment.get("TORCHPASS_KEY_FILE")):
        missing.append("--key-file")
    if missing:
        raise click.UsageError(f"missing: {', '.join(missing)} (each may also be given in the environment)")
    environment["TORCHPASS_STORE"] = address(environment["TORCHPASS_STORE"])
    return environment


def teller(command: str, *, as_json: bool) -> Callable[[str], None]:
    def tell(line: str) -> None:
        click.echo(json.dumps({"told": line}) if as_json else f"torchpass {command}: {line}", err=not as_json)

    return tell


EXAMPLE = (
    "torchpass spare --job llm --key-file /etc/torchpass/key --world 64 -- python train.py · "
    "torchpass spare --lent-from nightly --job llm --key-file /etc/torchpass/key --world 64 -- python train.py"
)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, epilog=f"Examples: {EXAMPLE}"
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--lent-from", help="A preemptible job that runs on this host: the spare is started when it is needed.")
@told_options(TOLD)
@json_option
def spare(*, command: tuple[str, ...], lent_from: str | None, as_json: bool, **told: str | None) -> None:
    """Keep a warm spare: COMMAND is the training script as the job's ranks start it (python train.py …).

    It runs up to its first step, and waits there until a rank's host fails or is to be left. When it has ended and may
    be of use once more, it is started again.

    With --lent-from nothing runs before the job needs a spare and has no other. Then that other job is saved and
    stopped, the spare is started, and the host goes back when it is not needed any more (see: torchpass rank).
    """
    environment = environment_of(TOLD, told, ("store", "job", "world"))
    tell = teller("spare", as_json=as_json)
    if lent_from:
        raise SystemExit(_lend(lent_from, command, environment, tell))
    from torchpass_bridge.spare import Launcher

    raise SystemExit(Launcher(command, environment, tell).run())


def _lend(lender: str, command: tuple[str, ...], environment: dict[str, str], tell: Callable[[str], None]) -> int:
    import re
    import secrets
    import socket

    from torchpass_bridge.launching import connected, until_told
    from torchpass_bridge.lending import Lending
    from torchpass_bridge.wire import Loan, check_name, prove

    job, host = environment["TORCHPASS_JOB"], environment.get("TORCHPASS_HOST") or socket.gethostname()
    try:
        if check_name(job) == check_name(lender):
            raise ValueError(f"{job} cannot lend a host to itself")
        path = environment.get("TORCHPASS_KEY_FILE")
        key = Path(path).read_bytes().strip() if path else environment["TORCHPASS_KEY"].encode()
    except ValueError as error:
        raise WrongInputError(str(error)) from None
    except OSError as error:
        raise WrongInputError(f"{path}: {error.strerror}", "give the file with the job's key: --key-file") from None
    name = f"{re.sub('[^A-Za-z0-9]', '-', host)[:24]}-{os.getpid()}-{secrets.token_hex(4)}"
    loan = Loan(name, job, lender, host, environment.get("TORCHPASS_DOMAIN", ""), prove(key, job, name))

    async def work() -> int:
        async with await connected(environment["TORCHPASS_STORE"], name, tell) as records:
            return await Lending(records, loan, command, environment, tell).run()

    return until_told(work())
