"""`torchpass status`: jobs, their ranks, what is under way, spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import console, json_option, print_json, store_option, with_records

if TYPE_CHECKING:
    from torchpass_bridge.store.records import Held, Records
    from torchpass_bridge.wire import Job, Loan, Member, Spare, Status

LISTEN_BEATS = 3
"""Beats for which members are listened to."""


@click.command(epilog="Examples: torchpass status · torchpass status JOB --json")
@click.argument("job", required=False)
@store_option
@json_option
def status(*, job: str | None, store_url: str | None, as_json: bool) -> None:
    """Show jobs: who holds which rank, what is under way, which spares wait, and whether a coordinator answers."""

    async def work(records: Records) -> list[dict[str, Any]]:
        import asyncio

        names = {job} if job else {held.value.name for held in await records.jobs()}
        spares, loans = await records.spares(), await records.loans()
        if not job:
            names |= {name for name, _ in await records.all_seats()}
            names |= {held.value.job for held in spares.values()} | {held.value.job for held in loans.values()}
        return list(await asyncio.gather(*(_look(records, name, spares, loans) for name in sorted(names))))

    jobs = with_records(store_url, work)
    if as_json:
        print_json({"jobs": jobs})
    elif not jobs:
        click.echo("no job, and no spare, has ever been here")
    for one in [] if as_json else jobs:
        _print(one)


async def _look(
    records: Records, name: str, spares: dict[str, Held[Spare]], loans: dict[str, Held[Loan]]
) -> dict[str, Any]:
    import asyncio

    import msgspec

    from torchpass_bridge.store.records import NoCoordinator
    from torchpass_bridge.wire import BEAT_S, Ask

    async def heard() -> dict[str, Status]:
        latest: dict[str, Status] = {}
        try:
            async with asyncio.timeout(LISTEN_BEATS * BEAT_S):
                async for said in records.statuses(name):
                    latest[said.member] = said
        except TimeoutError:
            pass
        return latest

    async def decided() -> bool:
        try:  # takes nothing back: no host has no name
            await records.ask(name, Ask("who", "withdraw", ""), 1.0)
        except NoCoordinator:
            return False
        return True

    held, seats, latest, coordinator = await asyncio.gather(
        records.job(name), records.seats(name), heard(), decided()
    )  # fmt: skip
    job: Job | None = held.value if held else None
    here = dict(enumerate(job.members)) if job and not (job.over and _fresh(job, seats)) else seats
    return {
        "job": name,
        "state": _state(job, seats),
        "why": job.why if job else "",
        "coordinator": coordinator,
        "world": job.world if job else None,
        "generation": job.generation if job else None,
        "incident": msgspec.to_builtins(job.incident) if job and job.incident else None,
        "saving": msgspec.to_builtins(job.saving) if job and job.saving else None,
        "saved": [msgspec.to_builtins(one) for one in job.saved] if job else [],
        "waiting": [msgspec.to_builtins(ask) for ask in job.waiting] if job else [],
        "ranks": [_rank(rank, member, latest.get(member.id)) for rank, member in here.items()],
        "spares": [
            _spare(one.value, latest.get(one.value.member.id), job) for one in spares.values() if one.value.job == name
        ],
        "loans": [_loan(one.value, one.value.id in latest) for one in loans.values() if one.value.job == name],
        "lends": [_loan(one.value, None) for one in loans.values() if one.value.lender == name],
    }


def _fresh(job: Job, seats: dict[int, Member]) -> bool:
    return any(not job.knew(member.id) for member in seats.values())


def _state(job: Job | None, seats: dict[int, Member]) -> str:
    if job is None or (job.over and _fresh(job, seats)):
        return f"{len(seats)} ranks wait for the others" if seats else "not begun"
    if job.ended:
        return job.ended
    if job.unheard_unix_s:
        return "none of its ranks is heard"
    return f"{job.incident.kind}: {job.incident.phase}" if job.incident else "trains"


def _rank(rank: int, member: Member, said: Status | None) -> dict[str, Any]:
    return {
        "rank": rank, "host": member.host, "accelerator": member.accelerator, "member": member.id, "pid": member.pid,
        "heard": said is not None, "doing": said.doing if said else None, "step": said.step if said else None,
        "trouble": said.trouble if said else None, "lent_from": member.lent_from,
    }  # fmt: skip


def _spare(spare: Spare, said: Status | None, job: Job | None) -> dict[str, Any]:
    why = spare.refused or (job.members[0].fit.misfits(spare.member.fit) if job and job.members else "")
    state = f"refused: {why}" if why else f"claimed by {spare.claimed_by}" if spare.claimed_by else "free"
    return {
        "member": spare.member.id, "host": spare.member.host, "accelerator": spare.member.accelerator,
        "heard": said is not None, "state": state, "lent_from": spare.member.lent_from,
    }  # fmt: skip


def _loan(loan: Loan, heard: bool | None) -> dict[str, Any]:  # noqa: FBT001
    """`heard` None: it is said to the other job."""
    return {
        "loan": loan.id, "host": loan.host, "lender": loan.lender, "job": loan.job, "state": loan.state,
        "called_by": loan.called_by, "why": loan.why, "heard": heard,
    }  # fmt: skip


def _print(one: dict[str, Any]) -> None:
    from rich.table import Table

    out = console()
    head = f"{one['job']}: {one['state']}"
    if one["generation"] is not None:
        head += f", {one['world']} ranks, generation {one['generation']}"
    out.print(head, style="bold")
    if one["why"]:
        out.print(f"  {one['why']}")
    if not one["coordinator"]:
        out.print("  no coordinator answers: nothing would be moved (start one: torchpass coordinator)", style="red")
    if one["incident"]:
        incident = one["incident"]
        out.print(f"  incident {incident['number']}: {incident['cause']}")
    if one["saving"]:
        saving = one["saving"]
        out.print(
            f"  snapshot {saving['number']}: " + (f"of step {saving['at_step']}" if saving["writers"] else "waits")
        )
    for saved in one["saved"][-1:]:
        out.print(f"  latest snapshot: {saved['path'] or saved['why']}", soft_wrap=True)
    for loan in one["lends"]:
        if loan["state"] != "offered":
            out.print(f"  {loan['host']} is {loan['state']}: by {loan['called_by']}")
    for ask in one["waiting"]:
        place = f"{ask['what']} {ask['host']} {ask['accelerator']}".rstrip()
        out.print(f"  waits: {place}" + (f" ({ask['waits']})" if ask["waits"] else ""))
    made = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "host", "accelerator", "doing", "step", "member"):
        made.add_column(column)
    for rank in one["ranks"]:
        doing = rank["trouble"] or rank["doing"] if rank["heard"] else "not heard"
        lender = rank["lent_from"].partition("/")[0]
        host = f"{rank['host']} (lent by {lender})" if lender else rank["host"]
        row = (rank["rank"], host, rank["accelerator"] or "-", doing, rank["step"], rank["member"])
        made.add_row(*("-" if cell is None else str(cell) for cell in row))
    for spare in one["spares"]:
        state = spare["state"] if spare["heard"] else f"{spare['state']}, not heard"
        made.add_row("spare", spare["host"], spare["accelerator"] or "-", state, "-", spare["member"])
    for loan in one["loans"]:
        state = f"{loan['state']}, of {loan['lender']}" + ("" if loan["heard"] else ", not heard")
        made.add_row("loan", loan["host"], "-", f"{state}: {loan['why']}" if loan["why"] else state, "-", loan["loan"])
    out.print(made)
