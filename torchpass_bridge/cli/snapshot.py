"""Commands for snapshots of a whole job: take one, check one and begin with it."""

from __future__ import annotations

import os
import secrets
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import (
    AwayError,
    TroubleError,
    WrongInputError,
    console,
    job_named,
    json_option,
    phases,
    print_json,
    store_option,
    with_records,
)  # fmt: skip

if TYPE_CHECKING:
    from torchpass_bridge.snapshot import Manifest
    from torchpass_bridge.store.records import Records
    from torchpass_bridge.wire import Answer, Job, Saved


@click.command(epilog="Examples: torchpass snapshot llm · torchpass snapshot llm --stop --cause 'power works'")
@click.argument("job")
@click.option("--stop", is_flag=True, help="End the job with it, at that step. [it trains on]")
@click.option("--cause", default="", help="Why, for people.")
@click.option("--wait/--no-wait", default=True, help="Until it is published.")
@store_option
@json_option
def snapshot(*, job: str, stop: bool, cause: str, wait: bool, store_url: str | None, as_json: bool) -> None:
    """Save all of JOB at one step boundary of all ranks, beside training, in its ranks' folder TORCHPASS_SNAPSHOTS.

    It is published when all of it is there, with a checksum of each file, and is called by its name from then on. An
    incident in between lets it begin anew. Go on from it with `torchpass restore`.
    """

    async def work(records: Records) -> tuple[Answer, Saved | None, str]:
        from torchpass_bridge.asking import ANSWER_S
        from torchpass_bridge.wire import Ask

        before = await job_named(records, job)
        if before.ended:
            raise TroubleError(f"{job} has ended ({before.ended})", before.why or "see: torchpass status")
        ask = Ask(secrets.token_hex(8), "stop" if stop else "snapshot", "", cause=cause)
        answer = await records.ask(job, ask, 10 * ANSWER_S)
        if not answer.taken or not wait:
            return answer, None, ""
        with nullcontext() if as_json else phases() as progress:
            return (answer, *await _follow(records, job, before, progress))

    answer, saved, how = with_records(store_url, work)
    if as_json:
        import msgspec

        print_json({
            "job": job, "taken": answer.taken, "why": (saved.why if saved else how) or answer.why,
            "snapshot": msgspec.to_builtins(saved) if saved and saved.path else None,
        })  # fmt: skip
    if not answer.taken:
        raise TroubleError(f"no snapshot of {job}: {answer.why}")
    if not wait:
        if not as_json:
            click.echo(f"{job}: {answer.why}")
        return
    if saved is None or not saved.path:
        raise TroubleError(f"no snapshot of {job}: {saved.why if saved else how}", "see: torchpass status")
    if not as_json:
        click.echo(saved.path)


async def _follow(records: Records, name: str, before: Job, progress: Any) -> tuple[Saved | None, str]:
    """How the one that was asked for ended; or how the job did, without it."""
    known = before.saved[-1].number if before.saved else 0
    task = progress.add_task(name, phase="asked for", total=None) if progress else None
    async for held in records.watch_job(name):
        job = held.value
        new = [saved for saved in job.saved if saved.number > known]
        saving = job.saving
        if new and saving is None:
            return new[-1], ""
        if job.ended:
            return None, f"the job has ended ({job.ended})"
        if progress:
            progress.update(task, phase=_words(job))
    raise AwayError("the store went away")


def _words(job: Job) -> str:
    saving = job.saving
    if saving is None:
        return "done"
    if job.incident is not None and not saving.writers:
        return f"waits for the end of incident {job.incident.number}"
    if saving.at_step < 0:
        return "a step is chosen"
    return f"step {saving.at_step}: " + ("published" if saving.parts else "written")


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: torchpass restore /shared/snapshots/llm · "
    "RANK=3 WORLD_SIZE=64 torchpass restore /shared/snapshots/llm/step-00000420-3 -- python train.py",
)
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@json_option
def restore(*, path: Path, command: tuple[str, ...], as_json: bool) -> None:
    """Check a snapshot and run COMMAND, a rank of the job, so that it begins with it.

    PATH is a snapshot, or a job's folder of them: then the latest one. Every rank is started so, on whichever hosts,
    with the environment it always has; ranks that begin with different snapshots are refused. Without COMMAND the
    snapshot is checked and shown.
    """
    try:
        from torchpass_bridge.snapshot import NotWhole, check, find, read
    except ModuleNotFoundError as error:
        raise TroubleError(f"{error.name} is not installed", "pip install 'linkpass[torchpass]'") from None

    try:
        found = find(path.absolute())
        manifest = read(found)
    except NotWhole as error:
        raise WrongInputError(str(error), "list what is there: ls FOLDER/JOB") from None
    bad = []
    if not command:  # a rank checks it itself
        with nullcontext() if as_json else _reading(manifest) as progress:
            for file, why in check(found, manifest):
                if progress:
                    progress.advance(progress.task_ids[0], file.bytes)
                bad += [why] if why else []
    if as_json:
        print_json(_told(found, manifest, bad))
    elif not command:
        _show(found, manifest)
    if bad:
        raise TroubleError(f"{found} is damaged: {bad[0]}", "" if as_json else f"take another one: ls {found.parent}")
    if command:
        os.environ["TORCHPASS_RESTORE"] = str(found)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            raise TroubleError(f"{command[0]} cannot be run: {error.strerror}") from None


def _reading(manifest: Manifest) -> Any:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    made = Progress(
        TextColumn("checked"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console(stderr=True),
        transient=True,
    )  # fmt: skip
    made.add_task("checked", total=manifest.bytes)
    return made


def _told(path: Path, manifest: Manifest, bad: list[str]) -> dict[str, Any]:
    own = {rank: note.step if (note := manifest.own_of(rank)) else None for rank in range(manifest.world)}
    return {
        "path": str(path), "job": manifest.job, "step": manifest.step, "world": manifest.world,
        "cause": manifest.cause, "unix_s": manifest.unix_s, "bytes": manifest.bytes,
        "files": sum(len(part.files) for part in manifest.parts), "own_at_step": own, "damaged": bad,
    }  # fmt: skip


def _show(path: Path, manifest: Manifest) -> None:
    import datetime

    from rich.table import Table

    lost = [str(rank) for rank in range(manifest.world) if manifest.own_of(rank) is None]
    table = Table(box=None, pad_edge=False, show_header=False)
    at = datetime.datetime.fromtimestamp(manifest.unix_s, datetime.UTC)
    rows = {
        "snapshot": str(path), "job": f"{manifest.job}, {manifest.world} ranks",
        "step": f"{manifest.step} applied", "taken": f"{at:%Y-%m-%d %H:%M:%S} UTC, {manifest.cause}",
        "size": f"{manifest.bytes / 1e6:,.1f} MB in {len(manifest.parts)} parts, all as they were written",
    }  # fmt: skip
    if lost:
        rows["generators"] = f"not of rank {', '.join(lost)}: seeded anew, so the last bits come out otherwise"
    for name, words in rows.items():
        table.add_row(name, words)
    out = console()
    out.print(table)
    out.print(f"\ngo on with it, for each rank: torchpass restore {path} -- COMMAND", soft_wrap=True)
