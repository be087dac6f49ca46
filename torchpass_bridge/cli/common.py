"""What the commands share: options, errors with a next step, output, the store."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from torchpass_bridge.store.records import Records
    from torchpass_bridge.wire import Job

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class TroubleError(click.ClickException):
    """An error with the next step; ends the command with exit status 1."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"torchpass: {self.message}", err=True)
        if self.hint:
            click.echo(f"  {self.hint}", err=True)


class WrongInputError(TroubleError):
    exit_code = 2


class AwayError(TroubleError):
    """The store, or a coordinator, does not answer."""

    exit_code = 3


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
job_option = click.option("--job", help="The job. [all that have ranks there]")


def store_option(command: F) -> F:
    """--store: how to find the store."""
    return click.option(
        "--store", "store_url", envvar="TORCHPASS_STORE",
        help="nats://[user:password@]host:port, a file that holds it, or the folder of `torchpass store`. "
        "[TORCHPASS_STORE]",
    )(command)  # fmt: skip


def address(store_url: str | None) -> str:
    """The store's address. WrongInputError when none is named."""
    if not store_url:
        raise WrongInputError(
            "no store is named", "give --store nats://host:port, or set TORCHPASS_STORE; start one: torchpass store"
        )
    if "://" in store_url:
        return store_url
    if Path(store_url).is_file():
        return Path(store_url).read_text().strip()
    from torchpass_bridge.store.server import ServerError, url_of

    try:
        return url_of(Path(store_url))
    except ServerError as error:
        raise WrongInputError(str(error), "start one: torchpass store --folder FOLDER") from None


def with_records(store_url: str | None, work: Callable[[Records], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a connection to the store; what it meets there becomes an error with the next step."""
    import asyncio

    try:
        from torchpass_bridge.store.records import NoCoordinator, Records, StoreAway
    except ModuleNotFoundError as error:
        raise TroubleError(f"{error.name} is not installed", "pip install 'linkpass[torchpass]'") from None

    async def run() -> T:
        async with await Records.connect(url, f"torchpass {os.getpid()}") as records:
            return await work(records)

    url = address(store_url)
    try:
        return asyncio.run(run())
    except (StoreAway, NoCoordinator) as error:
        raise AwayError(str(error)) from None
    except ValueError as error:
        raise WrongInputError(str(error)) from None


async def job_named(records: Records, name: str) -> Job:
    """TroubleError when there is none."""
    held = await records.job(name)
    if held is None:
        known = ", ".join(one.value.name for one in await records.jobs()) or "none"
        seats = await records.seats(name)
        raise TroubleError(
            f"{name} has not begun: {len(seats)} ranks wait" if seats else f"no job {name}", f"jobs: {known}"
        )
    return held.value


def unix_s() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def console(*, stderr: bool = False) -> Console:
    """A console that shows text as it is. In a pipe lines are not folded at 80 columns."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or "COLUMNS" in os.environ else 160
    return Console(markup=False, highlight=False, emoji=False, width=wide, stderr=stderr)


def phases() -> Any:
    """A progress display whose tasks have a `phase`; on stderr, and gone when it is over."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[phase]}"))
    return Progress(*columns, TimeElapsedColumn(), console=console(stderr=True), transient=True)
