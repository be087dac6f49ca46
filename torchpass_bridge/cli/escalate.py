"""`torchpass escalate`: the daemon's escalation hook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import (
    AwayError,
    TroubleError,
    WrongInputError,
    json_option,
    print_json,
    store_option,
    unix_s,
    with_records,
)

if TYPE_CHECKING:
    from torchpass_bridge.asking import Asked
    from torchpass_bridge.store.records import Records
    from torchpass_bridge.wire import Entry

MAX_BYTES = 1 << 20
SINCE_S = 600.0
"""A verdict that does not say since when is about the last ten minutes."""
CLOCKS_S = 60.0
"""By which the clocks of two hosts may differ."""


@click.command(
    epilog='Example, in linkpass.toml: [escalate] hook = ["torchpass", "escalate", "--store", "nats://fd00::1:4222"] · '
    """by hand: echo '{"host": "host7"}' | torchpass escalate"""
)
@click.option("--patience-s", default=8.0, show_default=True, help="For store and coordinator to answer.")
@store_option
@json_option
def escalate(*, patience_s: float, store_url: str | None, as_json: bool) -> None:
    """Hand a failing host over: the verdict comes as JSON on standard input.

    {"host", "accelerator", "evidence", "cause", "since"}, as the linkpass daemon gives it to its escalation hook. Ranks
    on the host that still answer are moved while the job trains; those that are silent are taken for gone at once. Exit
    status 0 means that every job with a rank there has taken it over, or that its ranks have left it since.
    """
    import msgspec

    class Verdict(msgspec.Struct):
        host: str
        accelerator: str = ""
        evidence: tuple[str, ...] = ()
        cause: str = ""
        since: datetime | None = None

    try:
        verdict = msgspec.json.decode(sys.stdin.buffer.read(MAX_BYTES), type=Verdict)
    except msgspec.DecodeError as error:
        raise WrongInputError(
            f"standard input is no verdict: {error}",
            'it looks like {"host": "host7", "evidence": ["..."], "cause": "..."}',
        ) from None

    async def work(records: Records) -> list[Asked]:
        from torchpass_bridge.asking import ask_all, handed_over, jobs_on

        # The ledger is read by people: the evidence says more than the id of the daemon's story, which is kept too.
        words = verdict.evidence[0] if verdict.evidence else f"{verdict.host} is said to have failed"
        evidence = (*verdict.evidence, f"linkpass why {verdict.cause}") if verdict.cause else verdict.evidence
        jobs = await jobs_on(records, verdict.host, verdict.accelerator)
        if not jobs:
            # Every daemon that misses the host hands it over: the others' word came first.
            since_s = verdict.since.timestamp() - CLOCKS_S if verdict.since else unix_s() - SINCE_S
            done.append(await handed_over(records, verdict.host, since_s))
        return await ask_all(
            records, jobs, "failed", verdict.host, verdict.accelerator, cause=words, evidence=evidence, trigger="daemon"
        )

    done: list[Entry | None] = []
    asked = _patiently(store_url, work, patience_s)
    place = f"accelerator {verdict.accelerator} of {verdict.host}" if verdict.accelerator else verdict.host
    if as_json:
        print_json([{"job": one.job, "taken": one.answer.taken, "why": one.answer.why} for one in asked])
    for one in [] if as_json else asked:
        click.echo(f"{one.job}: {one.answer.why}")
    if not asked and done and done[-1]:
        click.echo(f"{place} was handed over already: incident {done[-1].number} of {done[-1].job}", err=as_json)
        return
    if not asked:
        raise TroubleError(f"no job has a rank on {place}", "there is nothing to take over here")
    refused = [f"{one.job}: {one.answer.why}" for one in asked if not one.answer.taken]
    if refused:
        raise TroubleError(f"not taken over: {'; '.join(refused)}")


def _patiently(
    store_url: str | None, work: Callable[[Records], Coroutine[Any, Any, list[Asked]]], patience_s: float
) -> list[Asked]:
    """What keeps a host from its peers may keep the store from this one for a moment."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return with_records(store_url, work)
        except AwayError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.2)
