"""`linkpass lab demo`: break a fabric under a training job, and watch it go on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import click

from linkpass.cli.common import TroubleError, console, json_option


@click.command(epilog="Examples: linkpass lab demo · linkpass lab demo --quick --out /tmp/demo")
@click.argument("file", type=click.Path(path_type=Path), default=Path("lab/leaf-spine.clab.yml"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True,
              help="Folder for index.html and figures.json.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Three faults instead of all.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the training, and of where the fabric breaks.")
@click.option("--name", default="demo", show_default=True, help="Name of the lab.")
@json_option
def demo(file: Path, out: Path, seed: int, name: str, *, quick: bool, as_json: bool) -> None:
    """Train a small GPT across the fabric of FILE, and break the fabric while it trains.

    Once with linkpass, once without, once undisturbed. Exit status 1 when the training did not survive a fault or ended
    with other weights than the undisturbed one.
    """
    from lab.netns.removal import need_root
    from linkpass.cli.lab import read, told

    with told():
        need_root()  # before all else: who is not root may not even see what is installed
    for module, what in (("torch", "the job"), ("jinja2", "the page")):
        if find_spec(module) is None:
            raise TroubleError(
                f"{what} needs {module}, which is not installed", "make setup, or pip install 'linkpass[torch,lab]'"
            )
    from lab.demo import run
    from lab.demo_plan import ACTS, QUICK, DemoSpec
    from lab.demo_screen import TerminalScreen

    spec = DemoSpec(read(file), file, out, QUICK if quick else ACTS, name, seed)
    shown = console(stderr=as_json)
    with told(), _taken_down(), TerminalScreen(shown) as screen:
        screen.introduce(spec)
        outcome = run(spec, screen)
        screen.end(outcome)
    if as_json:
        click.echo(outcome.figures.read_text(encoding="utf-8"), nl=False)
    sys.exit(1 if outcome.failures else 0)


@contextmanager
def _taken_down() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: in order, and a second one does not disturb the clearing up."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        del frame
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        click.echo("\ntaking everything down", err=True)
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
