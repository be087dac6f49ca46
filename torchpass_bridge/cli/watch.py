"""`torchpass watch`: measured values of this host as a reason to move."""

from __future__ import annotations

import shlex
import socket
import time
from typing import TYPE_CHECKING, Protocol

import click

from torchpass_bridge.cli.common import (
    AwayError,
    TroubleError,
    WrongInputError,
    json_option,
    print_json,
    store_option,
    with_records,
)

if TYPE_CHECKING:
    from torchpass_bridge.asking import Asked
    from torchpass_bridge.core.thresholds import Limit, Threshold
    from torchpass_bridge.readings import Reading
    from torchpass_bridge.store.records import Records

AGAIN_S = 60.0
"""Before a request that was refused is made again, while its reason stands."""


class Source(Protocol):
    def read(self) -> list[Reading]: ...


@click.command(
    epilog="Examples: torchpass watch --nvml --temperature-c 92 · torchpass watch --exec /usr/local/sbin/check-host"
)
@click.option("--host", help="Its name in the jobs. [the machine's host name]")
@click.option(
    "--exec", "command", help="A program: exit status 1 means that this host is to be left, 0 that it is well."
)
@click.option("--nvml", is_flag=True, help="Read NVIDIA GPUs: temperature, uncorrectable memory errors, fatal Xids.")
@click.option("--temperature-c", default=92.0, show_default=True, help="A GPU at or above it is left.")
@click.option("--temperature-clear-c", default=85.0, show_default=True, help="Below it the reason is over.")
@click.option("--ecc", default=1.0, show_default=True, help="Uncorrectable memory errors for which a GPU is left.")
@click.option("--interval-s", default=5.0, show_default=True, help="Between two readings.")
@click.option("--stands-s", default=10.0, show_default=True, help="A value counts when it stands for so long.")
@click.option("--rests-s", default=60.0, show_default=True, help="The reason is over after so long below.")
@store_option
@json_option
def watch(
    *, host: str | None, command: str | None, nvml: bool, temperature_c: float, temperature_clear_c: float, ecc: float,
    interval_s: float, stands_s: float, rests_s: float, store_url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Ask for moves when values of this host pass their limits; take the request back when they fall before.

    For hosts without the linkpass daemon, which does this better and hands over by itself. Requests count against the
    hourly budget of the job (`torchpass coordinator --per-hour`); what is refused is asked again each minute.
    """
    from torchpass_bridge.core.thresholds import Limit

    if not command and not nvml:
        raise WrongInputError("nothing to watch", "give --nvml, or a program with --exec")
    if temperature_clear_c > temperature_c:
        raise WrongInputError(f"--temperature-clear-c {temperature_clear_c:g} is above --temperature-c")
    limits = {
        "temperature_c": Limit("temperature of the GPU", temperature_c, temperature_clear_c, stands_s, rests_s),
        "ecc": Limit("uncorrectable memory errors", ecc, ecc, 0.0, rests_s),
        "xid": Limit("fatal Xids", 1.0, 1.0, 0.0, rests_s),
        "hook": Limit("the program's verdict", 1.0, 1.0, stands_s, rests_s),
    }
    watcher = Watcher(host or socket.gethostname(), limits, store_url, as_json=as_json)
    sources = _sources(command, nvml=nvml)
    while True:
        now_s = time.monotonic()
        for source in sources:
            watcher.take(source.read(), now_s)
        time.sleep(max(0.0, now_s + interval_s - time.monotonic()))


def _sources(command: str | None, *, nvml: bool) -> list[Source]:
    from torchpass_bridge.readings import Hook, Nvml

    sources: list[Source] = [Hook(tuple(shlex.split(command)))] if command else []
    if nvml:
        try:
            sources.append(Nvml())
        except ImportError:
            raise TroubleError(
                "NVIDIA's library has no Python bindings here", "pip install 'linkpass[nvml]', or use --exec"
            ) from None
        except OSError as error:
            raise TroubleError(str(error), "is the NVIDIA driver installed? --exec needs none") from None
    return sources


class Watcher:
    """Readings in, requests out."""

    def __init__(self, host: str, limits: dict[str, Limit], store_url: str | None, *, as_json: bool) -> None:
        self._host, self._limits, self._store_url, self._as_json = host, limits, store_url, as_json
        self._thresholds: dict[tuple[str, str], Threshold] = {}
        self._words: dict[tuple[str, str], str] = {}
        self._pending: dict[tuple[str, str], float] = {}
        """What is to be asked, and when next."""
        self._asked: set[tuple[str, str]] = set()
        self._accelerators: dict[str, str] = {}

    def take(self, readings: list[Reading], now_s: float) -> None:
        from torchpass_bridge.core.thresholds import Threshold

        for reading in readings:
            # A program names an accelerator only while it is bad: when it is well, that ends what it said before.
            accelerator = reading.accelerator or (self._accelerators.get(reading.what, "") if not reading.value else "")
            self._accelerators[reading.what] = accelerator
            key = (reading.what, accelerator)
            threshold = self._thresholds.setdefault(key, Threshold(self._limits[reading.what]))
            change = threshold.see(reading.value, now_s)
            if change == "raised":
                self._words[key] = reading.words or threshold.words()
                self._pending[key] = now_s
            elif change == "cleared":
                self._pending.pop(key, None)
                if key in self._asked:
                    self._asked.discard(key)
                    self._ask("withdraw", key, f"{threshold.limit.what} is well again")
        for key, due_s in list(self._pending.items()):
            if now_s >= due_s:
                if self._ask("migrate", key, self._words[key]):
                    del self._pending[key]
                    self._asked.add(key)
                else:
                    self._pending[key] = now_s + AGAIN_S

    def _ask(self, what: str, key: tuple[str, str], cause: str) -> bool:
        """True when there is nothing left to ask: all jobs have taken it, or none has a rank here."""
        accelerator = key[1]

        async def work(records: Records) -> list[Asked]:
            from torchpass_bridge.asking import ask_all, jobs_on

            jobs = await jobs_on(records, self._host, accelerator)
            return await ask_all(
                records, jobs, "withdraw" if what == "withdraw" else "migrate", self._host, accelerator,
                cause=cause, evidence=(cause,), trigger="threshold",
            )  # fmt: skip

        try:
            asked = with_records(self._store_url, work)
        except AwayError as error:
            self._say(what, accelerator, cause, False, error.message)
            return False
        for one in asked:
            self._say(what, accelerator, cause, one.answer.taken, f"{one.job}: {one.answer.why}")
        if not asked:
            self._say(what, accelerator, cause, True, "no job has a rank here")
        return all(one.answer.taken for one in asked)

    def _say(self, what: str, accelerator: str, cause: str, taken: bool, why: str) -> None:  # noqa: FBT001
        if self._as_json:
            said = {"host": self._host, "accelerator": accelerator, "asked": what, "cause": cause}
            print_json({**said, "taken": taken, "why": why})
        else:
            place = f"{self._host} {accelerator}".strip()
            click.echo(f"{what} {place} ({cause}): {'taken' if taken else 'not taken'}: {why}")
