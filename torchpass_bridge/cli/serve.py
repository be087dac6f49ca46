"""Commands that stay: the store, and a coordinator."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchpass_bridge.cli.common import TroubleError, WrongInputError, address, json_option, store_option, unix_s

if TYPE_CHECKING:
    import asyncio

    from torchpass_bridge.core.scene import Limits


@click.command(
    epilog="Examples: torchpass store · torchpass store --host fd00::1 --port 4222 --folder /var/lib/torchpass"
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("torchpass-store"), show_default=True,
    help="Where everything is kept, the password too.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=0, help="0 takes a free one, and keeps it. [0]")
@click.option("--user", default="torchpass", show_default=True)
@click.option(
    "--password-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="[one is made up, and kept]"
)
@json_option
def store(*, folder: Path, host: str, port: int, user: str, password_file: Path | None, as_json: bool) -> None:
    """Run the store on this machine: a NATS server with what it needs, in the foreground.

    It is where jobs, spares and the ledger are kept. After a restart, or a kill, everything is there again at the same
    address. For a fleet use a NATS cluster of your own (JetStream on), and give its address to the other commands.
    """
    import asyncio

    from torchpass_bridge.store.server import Server, ServerError

    password = password_file.read_text().strip() if password_file else ""
    server = Server(folder.absolute(), host, port, user, password)

    async def run() -> int:
        over = _over()  # before anybody can know that it is there, and end it
        url = await server.start()
        if as_json:
            click.echo(json.dumps({"url": url, "pid": server.pid, "folder": str(folder)}))
        else:
            click.echo(f"store at {url}")
            click.echo(f"  export TORCHPASS_STORE={url}")
        sys.stdout.flush()
        ended = asyncio.ensure_future(server.wait())
        await _first(ended, over)
        if ended.done():
            return ended.result() or 1
        await server.stop()
        return 0

    try:
        status = asyncio.run(run())
    except ServerError as error:
        raise TroubleError(str(error)) from None
    if status:
        raise TroubleError(f"the store ended by itself, status {status}", f"its log: {folder / 'nats.log'}")


@click.command(epilog="Examples: torchpass coordinator · torchpass coordinator JOB --key-file KEY --metrics-port 9479")
@click.argument("jobs", nargs=-1)
@click.option(
    "--key-file", envvar="TORCHPASS_KEY_FILE", type=click.Path(path_type=Path, exists=True),
    help="The jobs' key, which spares must know; a folder: one file a job, by its name. [spares are not asked]",
)  # fmt: skip
@click.option("--metrics-port", type=int, help="Serve Prometheus metrics there; 0 takes a free port. [no metrics]")
@click.option("--metrics-host", default="127.0.0.1", show_default=True)
@click.option("--silent-s", type=float, help="A rank that is not heard for so long is gone. [0.7]")
@click.option("--spare-wait-s", type=float, help="After a crash: for a spare; then what is left is saved. [30]")
@click.option("--planned-wait-s", type=float, help="Before a planned move: for a spare; then it is cancelled. [60]")
@click.option("--lend-wait-s", type=float, help="The same when another job's host was called for. [180]")
@click.option("--phase-s", type=float, help="For members to do what a phase of a move asks. [20]")
@click.option("--per-hour", type=int, help="Moves an hour that no operator asked for. [6]")
@store_option
@json_option
def coordinator(
    *, jobs: tuple[str, ...], key_file: Path | None, metrics_port: int | None, metrics_host: str,
    silent_s: float | None, spare_wait_s: float | None, planned_wait_s: float | None, lend_wait_s: float | None,
    phase_s: float | None, per_hour: int | None, store_url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Decide for jobs: found them, notice who is gone, and lead every move from its begin to its end.

    Without JOBS: for every job of the store. Run two or three, on different hosts: any of them goes on with what
    another one began. Training never waits for one.
    """
    import asyncio

    import msgspec

    from torchpass_bridge.core.scene import Limits

    given = {
        "silent_s": silent_s, "spare_wait_s": spare_wait_s, "planned_wait_s": planned_wait_s,
        "lend_wait_s": lend_wait_s, "phase_s": phase_s, "per_hour": per_hour,
    }  # fmt: skip
    limits = msgspec.structs.replace(Limits(), **{name: value for name, value in given.items() if value is not None})
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    url, key = address(store_url), _keys(key_file)
    try:
        asyncio.run(_coordinate(url, jobs, limits, key, metrics_host, metrics_port, as_json=as_json))
    except OSError as error:
        raise TroubleError(
            f"metrics cannot be served at {metrics_host}:{metrics_port}: {error.strerror}",
            "give another --metrics-port",
        ) from None
    except ValueError as error:
        raise WrongInputError(str(error)) from None


async def _coordinate(
    url: str, jobs: tuple[str, ...], limits: Limits, key: Callable[[str], bytes], host: str, port: int | None,
    *, as_json: bool,
) -> None:  # fmt: skip
    import asyncio
    import os
    import time

    from torchpass_bridge import wire
    from torchpass_bridge.coordinator import Coordinator
    from torchpass_bridge.desk import Clock
    from torchpass_bridge.metrics import Exported, serve
    from torchpass_bridge.store.records import Records, StoreAway

    for job in jobs:
        wire.check_name(job)
    over = _over()
    records: Records | None = None
    said = ""
    while records is None and not over.done():
        try:
            records = await Records.connect(url, f"coordinator {os.getpid()}")
        except StoreAway as error:
            if str(error) != said:
                logging.warning("%s; trying again", error)
                said = str(error)
    if records is None:
        return
    async with records:
        made = Coordinator(records, Clock(time.monotonic, unix_s), jobs, limits, key)
        exported = Exported(made, lambda: records.up, unix_s)
        metrics = serve(exported, host, port) if port is not None else None
        words = {"pid": os.getpid(), "jobs": list(jobs) or "all", "metrics_port": metrics}
        click.echo(json.dumps(words) if as_json else f"coordinator of {' '.join(jobs) or 'every job of the store'}")
        if metrics is not None and not as_json:
            click.echo(f"  metrics at http://{host}:{metrics}/metrics")
        sys.stdout.flush()
        running = asyncio.ensure_future(made.run())
        await _first(running, over)
        running.cancel()
        await asyncio.gather(running, return_exceptions=not running.done() or running.cancelled())


def _over() -> asyncio.Future[None]:
    """Done at SIGINT or SIGTERM."""
    import asyncio

    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None if over.done() else over.set_result(None))
    return over


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Until one of them is done."""
    import asyncio

    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _keys(path: Path | None) -> Callable[[str], bytes]:
    """A job's key. In a folder that has none for a job, no spare can prove anything: all are refused."""
    import secrets

    if path is None:
        return lambda job: b""
    if not path.is_dir():
        one = path.read_bytes().strip()
        if not one:
            raise WrongInputError(
                f"{path} is empty", "put some random text into it, and give it to the job's processes"
            )
        return lambda job: one

    def of(job: str) -> bytes:
        try:
            return (path / job).read_bytes().strip() or secrets.token_bytes()
        except OSError:
            logging.error("job %s has no key in %s: no spare is taken for it", job, path)
            return secrets.token_bytes()

    return of
