"""`torchpass ledger`, which is `linkpass ledger` too: what was resolved without lost progress, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import (
    WrongInputError,
    console,
    json_option,
    print_json,
    store_option,
    unix_s,
    with_records,
)  # fmt: skip

if TYPE_CHECKING:
    from torchpass_bridge.ledger import Ledger, Line
    from torchpass_bridge.store.records import Records
    from torchpass_bridge.wire import Entry

MOST_CAUSES = 12


def ledger_command(program: str) -> click.Command:
    """The command as `program` has it."""

    @click.command("ledger", epilog=f"Examples: {program} ledger --since 30d · {program} ledger --job JOB --json")
    @click.option("--since", default="30d", show_default=True, help="How far back: a number with min, h, d or w.")
    @click.option("--job", help="Only this one. [all]")
    @click.option("--entries/--no-entries", "listed", default=False, help="List each incident, too.")
    @store_option
    @json_option
    def command(*, since: str, job: str | None, listed: bool, store_url: str | None, as_json: bool) -> None:
        """What became of the incidents: the share resolved without lost progress, pauses, accelerator time lost.

        The commercial promise is 90 % resolved without lost progress. Planned moves that were cancelled moved nobody
        and are left out of the share. The figures are exported to Prometheus by coordinators (`--metrics-port`).
        """
        from torchpass_bridge.ledger import span_s, summarise

        try:
            since_unix_s = unix_s() - span_s(since)
        except ValueError as error:
            raise WrongInputError(str(error)) from None

        async def work(records: Records) -> list[Entry]:
            return await records.entries(since_unix_s, job)

        entries = with_records(store_url, work)
        if as_json:
            import msgspec

            said = {"since": since, "job": job, **msgspec.to_builtins(summarise(entries))}
            print_json({**said, "entries": msgspec.to_builtins(entries)} if listed else said)
            return
        _print(summarise(entries), since)
        if listed:
            _print_entries(entries)

    return command


ledger = ledger_command("torchpass")


def _print(said: Ledger, since: str) -> None:
    from torchpass_bridge.ledger import PROMISE

    out = console()
    if not said.all.incidents:
        out.print(f"no incident in the last {since}")
        return
    ratio = said.all.resolved_ratio
    if ratio is None:
        out.print(f"{said.all.incidents} incidents in the last {since}, all of them cancelled: nobody was moved")
    else:
        out.print(
            f"{ratio:.1%} of {said.all.incidents - said.all.cancelled} incidents of the last {since} were resolved "
            "without lost progress",
            style="green" if ratio >= PROMISE else "red",
        )
    out.print(_table("kind", {**said.by_kind, "all": said.all}))
    out.print(_table("trigger", said.by_trigger))
    out.print(_table("cause", dict(list(said.by_cause.items())[:MOST_CAUSES])))


def _table(title: str, lines: dict[str, Line]) -> Any:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column(title)
    for column in (
        "incidents", "resolved", "cancelled", "stopped", "lost", "detected p50", "pause p50", "p95", "steps lost",
        "accelerator s lost",
    ):  # fmt: skip
        made.add_column(column, justify="right")
    for name, one in lines.items():
        pause = one.pause_s
        made.add_row(
            name, str(one.incidents), "-" if one.resolved_ratio is None else f"{one.resolved_ratio:.1%}",
            str(one.cancelled), str(one.stopped), str(one.lost),
            f"{one.detection_s['p50']:.2f} s" if one.detection_s else "-",
            f"{pause['p50']:.2f} s" if pause else "-", f"{pause['p95']:.2f} s" if pause else "-",
            str(one.steps_lost), f"{one.accelerator_s:.1f}",
        )  # fmt: skip
    return made


def _print_entries(entries: list[Entry]) -> None:
    from datetime import UTC, datetime

    out = console()
    for entry in entries:
        when = datetime.fromtimestamp(entry.ended_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
        ranks = ", ".join(str(rank) for rank in entry.ranks) or "-"
        out.print(
            f"{when}  {entry.job} {entry.number}  {entry.kind}, {entry.trigger}: {entry.cause}; ranks {ranks}: "
            f"{entry.outcome}, {f'detected in {entry.detection_s:.2f} s, ' if entry.detection_s else ''}"
            f"pause {entry.pause_s:.2f} s{f' ({entry.why})' if entry.why else ''}"
        )
