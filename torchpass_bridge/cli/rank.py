"""`torchpass rank`: a rank of a job that may be stopped, and goes on by itself."""

from __future__ import annotations

import os

import click

from torchpass_bridge.cli.common import json_option
from torchpass_bridge.cli.spare import TOLD, environment_of, teller, told_options

RANK_TOLD = {
    **TOLD,
    "rank": ("RANK", "Which rank it is."),
    "snapshots": ("TORCHPASS_SNAPSHOTS", "The folder for snapshots, the same on all hosts."),
}


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: torchpass rank --job nightly --rank 3 --world 64 --key-file /etc/torchpass/key "
    "--snapshots /shared/snapshots -- python train.py",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@told_options(RANK_TOLD)
@json_option
def rank(*, command: tuple[str, ...], as_json: bool, **told: str | None) -> None:
    """Keep a rank of a job: COMMAND is its training script. It begins with the job's latest snapshot, if there is one.

    When the job is stopped with a snapshot (torchpass snapshot --stop, a host that is lent, too few spares) it goes on
    from there by itself: each rank waits until no host of the job is lent, and starts again.
    """
    environment = environment_of(RANK_TOLD, told, ("store", "job", "world", "rank", "snapshots"))
    tell = teller("rank", as_json=as_json)
    from torchpass_bridge.launching import connected, until_told
    from torchpass_bridge.ranks import Rank
    from torchpass_bridge.wire import check_name

    try:
        job = check_name(environment["TORCHPASS_JOB"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def work() -> int:
        async with await connected(environment["TORCHPASS_STORE"], f"rank {job} {os.getpid()}", tell) as records:
            return await Rank(records, job, command, environment, tell).run()

    raise SystemExit(until_told(work()))
