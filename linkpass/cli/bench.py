"""`linkpass lab bench`: figures of this machine, as a table or as JSON. Imports the lab only when it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from linkpass.cli.common import TroubleError, WrongInputError, console

if TYPE_CHECKING:
    from lab.bench.reroute import Progress
    from lab.bench.shape import Bench, Target
    from topology.model import Fabric

F = TypeVar("F", bound=Callable[..., Any])


case_option = click.option(
    "--case", "cases", multiple=True, metavar="NAME", help="Only this row (may be given again). [all]"
)


def bench_options(command: F) -> F:
    """What every bench takes."""
    options = (
        click.option("--file", "lab_file", type=click.Path(path_type=Path),
                     help="Topology file. [the leaf-spine fabric that comes with linkpass]"),
        click.option("--n", type=click.IntRange(min=1), default=10, show_default=True, help="Measurements of a row."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of where it is measured."),
        click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Write JSON to FILE; the table goes to stderr."),
        click.option("--name", default="bench", show_default=True, help="Name of the lab."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group("bench", epilog="Example: linkpass lab bench reroute --n 10 --json build/bench/reroute.json")
def bench_group() -> None:
    """Measure linkpass on this machine, beside the kernel alone and beside its targets.

    A bench builds its own lab and takes it down again. Figures are worth as much as the machine is quiet.
    """


@bench_group.command(epilog="Example: linkpass lab bench reroute --n 3 --case drain --case flap")
@bench_options
@case_option
def reroute(
    lab_file: Path | None, n: int, seed: int, json_file: Path | None, name: str, cases: tuple[str, ...]
) -> None:
    """Break a fabric under a training job: how soon is traffic elsewhere, how long does training stand still?

    N counts the injections of each case with linkpass; without it there are N/3, and three at least. N = 10 takes a
    quarter of an hour.
    """
    need("torch", "the job")
    from lab.bench.reroute import ROWS, Plan, behind, run, targets

    plan = Plan(n, seed, chosen(cases, ROWS))
    with watched("reroute", plan.total) as tell:
        bench = run(fabric_of(lab_file), plan, tell, name=name)
    show(bench, targets(bench), json_file, behind(bench))


@bench_group.command(epilog="Example: linkpass lab bench rest --stress 60")
@bench_options
@click.option("--stress", "stress_s", type=click.FloatRange(min=1), default=600.0, show_default=True, metavar="SECONDS",
              help="How long all cores are kept busy.")  # fmt: skip
def rest(lab_file: Path | None, n: int, seed: int, json_file: Path | None, name: str, stress_s: float) -> None:
    """Run daemons with the shipped configuration while nothing happens: CPU, memory, start, false moves under stress.

    N counts the starts that are timed.
    """
    need("torch", "the job")
    from lab.bench.rest import Plan, run, targets

    plan = Plan(n, seed, stress_s)
    with watched("rest", plan.total) as tell:
        bench = run(fabric_of(lab_file), plan, tell, name=name)
    show(bench, targets(bench), json_file)


@bench_group.command(epilog="Example: linkpass lab bench balance --case flows-64")
@bench_options
@case_option
def balance(
    lab_file: Path | None, n: int, seed: int, json_file: Path | None, name: str, cases: tuple[str, ...]
) -> None:
    """Spread many flows over the fabric: is the fullest link as full as with the kernel alone?

    N counts rounds, each with connections of its own.
    """
    from lab.bench.balance import FLOWS, Plan, run, targets

    plan = Plan(n, seed, chosen(cases, FLOWS))
    with watched("balance", plan.total) as tell:
        bench = run(fabric_of(lab_file), plan, tell, name=name)
    show(bench, targets(bench), json_file)


@bench_group.command(epilog="Example: linkpass lab bench rdma --n 5 --case blackhole")
@bench_options
@case_option
def rdma(lab_file: Path | None, n: int, seed: int, json_file: Path | None, name: str, cases: tuple[str, ...]) -> None:
    """Break a fabric under an RDMA program in emulated hosts: does it survive, with linkpass and without?

    N counts the injections of each case with linkpass; without it there are N/3, and three at least. Needs QEMU, but no
    hardware that can virtualise, and prepares a kernel once. Figures are those of emulated processors.
    """
    from lab.bench.rdma import CASES, Plan, run, targets

    plan = Plan(n, seed, chosen(cases, CASES))
    with watched("rdma", plan.total) as tell:
        bench = run(fabric_of(lab_file), plan, tell, name=name)
    show(bench, targets(bench), json_file)


@bench_group.command(epilog="Example: linkpass lab bench localize --n 20 --case multi --fabric 2-tier-64")
@click.option("--n", type=click.IntRange(min=1), default=200, show_default=True, help="Trials of a row.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of faults, losses and cables.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write JSON to FILE; the table goes to stderr.",
)
@click.option("--fabric", "names", multiple=True, metavar="NAME", help="Only these fabrics (may be given again). [all]")
@case_option
def localize(n: int, seed: int, json_file: Path | None, names: tuple[str, ...], cases: tuple[str, ...]) -> None:
    """Break simulated fabrics: is what fails named, and nothing else? Beside 007 and NetBouncer, on the same paths.

    Needs no lab and no root. The healthy fabric is watched for 24 simulated hours when N is 200, for less when it is
    less. All processors are used; N = 200 takes a quarter of an hour of two.
    """
    need("numpy", "the simulator")
    from lab.bench.localize import behind, run_bench, targets
    from lab.sim.cases import CASES, Plan
    from lab.sim.fabrics import FABRICS

    for name in names:
        if name not in FABRICS:
            raise WrongInputError(f"no fabric {name!r}", f"there are {', '.join(FABRICS)}")
    plan = Plan(n, seed, chosen(cases, CASES), tuple(name for name in FABRICS if not names or name in names))
    with watched("localize", plan.total) as tell:
        bench = run_bench(plan, tell, workers=os.cpu_count() or 1)
    show(bench, targets(bench), json_file, behind(bench))


@bench_group.command(epilog="Example: linkpass lab bench naming --n 13 --case one-way")
@bench_options
@case_option
def naming(lab_file: Path | None, n: int, seed: int, json_file: Path | None, name: str, cases: tuple[str, ...]) -> None:
    """Break a fabric under a training job: do the daemons name what fails, how soon, and nothing else?

    N counts the injections of each case, places and order are drawn. N = 13 (172 injections, three hosts killed among
    them) takes half an hour. Prints a confusion matrix: what failed, and what all daemons together held at the end.
    """
    need("torch", "the job")
    need("numpy", "the diagnosis")
    from lab.bench.naming import CASES, KINDS, Plan, confusion, run, targets
    from linkpass.cli.tables import table

    plan = Plan(n, seed, chosen(cases, CASES))
    with watched("naming", plan.total) as tell:
        bench = run(fabric_of(lab_file), plan, tell, name=name)
    show(bench, targets(bench), json_file)
    matrix = confusion(bench)
    rows = [(kind, *(str(matrix[kind][held] or "") for held in KINDS)) for kind in KINDS if kind in matrix]
    console(stderr=json_file is not None).print(table("Held", "failed", *KINDS, rows=rows))


@bench_group.command(epilog="Example: linkpass lab bench goodput --n 3 --json build/bench/goodput.json")
@click.option("--n", type=click.IntRange(min=1), default=3, show_default=True, help="Events of each kind.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of when they are, and to whom.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write JSON to FILE; the table goes to stderr.")  # fmt: skip
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the logs of all processes there."
)
@case_option
def goodput(n: int, seed: int, json_file: Path | None, folder: Path | None, cases: tuple[str, ...]) -> None:
    """Train one job four times under one schedule of faults: how long does it take, and are the weights the same?

    none: stock DDP without faults. restart: torchrun with checkpoints. torchft. linkpass: ranks move to spares. Hosts
    are asked to leave, killed and frozen, N times each, one each 25 s. N = 3 takes 20 to 35 minutes.
    """
    from lab.bench.goodput import CASES, Plan, behind, run, targets

    need("torch", "the job")
    plan = Plan(n, seed, chosen(cases, CASES))
    if "torchft" in plan.arms:
        need("torchft", "its case", "pip install 'linkpass[bench]'; or leave it out: --case restart --case linkpass")
    if "linkpass" in plan.arms:
        need("nats", "its case", "pip install 'linkpass[torchpass]'")
    with watched("goodput", plan.total) as tell:
        bench = run(plan, tell, folder.absolute() if folder else None)
    show(bench, targets(bench), json_file, behind(bench))


@bench_group.command(epilog="Example: linkpass lab bench healthy --n 5 --json build/bench/healthy.json")
@click.option("--n", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds of three runs.")
@click.option("--steps", type=click.IntRange(min=20), default=60, show_default=True, help="Of a run.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write JSON to FILE; the table goes to stderr.")  # fmt: skip
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the logs of all processes there."
)
def healthy(n: int, steps: int, json_file: Path | None, folder: Path | None) -> None:
    """Train one job without faults, with torchpass and with stock DDP in turns: what does a step cost, and where?

    Processor time, page faults and context switches of each step, by the kernel's counts: of the ranks' training
    threads, of torchpass's threads beside them, of the coordinator and of the store. stock-kept: stock DDP whose C
    library keeps freed memory, as torchpass has it done. Half a minute a run.
    """
    from lab.bench.healthy import Plan, run, targets

    need("torch", "the job")
    need("nats", "the job", "pip install 'linkpass[torchpass]'")
    plan = Plan(n, steps=steps)
    with watched("healthy", plan.total) as tell:
        bench = run(plan, tell, folder.absolute() if folder else None)
    show(bench, targets(bench), json_file)


def need(module: str, what: str, hint: str = "make setup, or pip install 'linkpass[torch,lab]'") -> None:
    if find_spec(module) is None:
        raise TroubleError(f"{what} needs {module}, which is not installed", hint)


def chosen(names: tuple[str, ...], known: Any) -> tuple[str, ...]:
    """The rows that were asked for, in their own order; all when none was."""
    for name in names:
        if name not in known:
            raise WrongInputError(f"no case {name!r}", f"there are {', '.join(known)}")
    return tuple(name for name in known if not names or name in names)


def fabric_of(file: Path | None) -> Fabric:
    import lab
    from linkpass.cli.lab import read

    return read(file or Path(lab.__file__).with_name("leaf-spine.clab.yml"))


@contextmanager
def watched(title: str, total: float) -> Iterator[Progress]:
    """A progress bar on stderr, and the errors of the lab as this command line's. SIGTERM ends it as Ctrl-C does."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from linkpass.cli.lab import told

    def interrupted(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    columns = (TextColumn(title), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    try:
        with told(), Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task("building the lab", total=total)
            yield lambda what, done: bar.update(task, description=what, completed=done)
    finally:
        signal.signal(signal.SIGTERM, before)


def show(bench: Bench, targets: list[Target], json_file: Path | None, behind: list[str] | None = None) -> None:
    """The table with the targets beside; what was missed, line by line; the JSON where it was asked for."""
    from lab.bench import shape

    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_bytes(shape.encode(bench))
    out = console(stderr=json_file is not None)
    out.print(shape.table(bench, targets))
    for line in (*shape.missed(bench, targets), *(behind or ())):
        out.print(f"  {line}")
