"""What every bench writes: one JSON shape, and the same as a table with the targets beside.

    {"bench", "commit", "machine": {"cpu", "cores", "kernel"}, "seed", "rows": [
        {"case", "n", "metrics": {NAME: VALUE}, "without": {BASELINE: {NAME: VALUE}}, "info": {…}}]}

A metric's name fixes its type: `…_ms` and `…_s` are distributions {"p50", "p95", "p99", "max"}, `…_ratio` a number,
anything else a count (a whole number, summed over the row) or a flag.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.table import Table
from rich.text import Text


class Times(msgspec.Struct, frozen=True):
    """A distribution of times, in the unit that the metric's name carries."""

    p50: float
    p95: float
    p99: float
    max: float


Value = Times | bool | int | float
Metrics = dict[str, Value]


class Machine(msgspec.Struct, frozen=True):
    cpu: str
    cores: int
    kernel: str


class Row(msgspec.Struct, frozen=True):
    """One case. `n`: injections (or measurements) with linkpass; `without`: each baseline's metrics by its name."""

    case: str
    n: int
    metrics: Metrics
    without: dict[str, Metrics] = {}
    info: dict[str, Any] = {}


class Bench(msgspec.Struct, frozen=True):
    bench: str
    commit: str
    machine: Machine
    seed: int
    rows: tuple[Row, ...]


class ShapeError(ValueError):
    """A bench does not keep to the shape; the text names row and metric."""


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that a row is held to: `stat` of a distribution ("" for other metrics), and how it is compared."""

    case: str
    metric: str
    stat: Literal["p50", "p95", "p99", "max", ""]
    how: Literal["<=", ">=", "=="]
    value: float

    def met(self, metrics: Mapping[str, Value]) -> bool | None:
        """None when the row does not have the metric."""
        got = figure(metrics, self.metric, self.stat)
        if got is None:
            return None
        return {"<=": got <= self.value, ">=": got >= self.value, "==": got == self.value}[self.how]

    def __str__(self) -> str:
        wanted = {0.0: "no", 1.0: "yes"}.get(self.value) if self.metric.endswith("identical") else None
        sign = {"<=": "≤ ", ">=": "≥ ", "==": ""}[self.how]
        return " ".join(filter(None, (self.stat, sign + (wanted or f"{self.value:g}"))))


def percentiles(values: Iterable[float]) -> Times:
    """Nearest-rank percentiles: always values that were measured; below 100 values the 99th is the largest.

    Raises ShapeError for no values or one that is not finite: a time that never came is not a time."""
    ordered = sorted(values)
    if not ordered or not all(map(math.isfinite, ordered)):
        raise ShapeError(f"no distribution of {len(ordered)} values{' with one that is not finite' * bool(ordered)}")
    p50, p95, p99 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.50, 0.95, 0.99))
    return Times(*(round(value, 3) for value in (p50, p95, p99, ordered[-1])))


def figure(metrics: Mapping[str, Value], name: str, stat: str = "") -> float | None:
    value = metrics.get(name)
    if value is None:
        return None
    return float(getattr(value, stat or "p50")) if isinstance(value, Times) else float(value)


def check(bench: Bench) -> Bench:
    """The bench itself, if it keeps to the shape; ShapeError otherwise."""
    cases = [row.case for row in bench.rows]
    for case in cases:
        if others := [other for other in cases if other != case and case in other]:
            raise ShapeError(f"case {case!r} is part of the name of case {others[0]!r}")
        if cases.count(case) > 1:
            raise ShapeError(f"case {case!r} has two rows")
    for row in bench.rows:
        for where, metrics in {"": row.metrics, **row.without}.items():
            for name, value in metrics.items():
                if not _fits(name, value):
                    place = f"{row.case}{f' without {where}' if where else ''}"
                    raise ShapeError(f"{place}: {name} is {value!r}, not {_expected(name)}")
    return bench


def encode(bench: Bench) -> bytes:
    return msgspec.json.format(msgspec.json.encode(check(bench)), indent=1) + b"\n"


def decode(data: bytes) -> Bench:
    """Raises msgspec.ValidationError (wrong types) or ShapeError (wrong names)."""
    return check(msgspec.json.decode(data, type=Bench))


def machine() -> Machine:
    """This machine; the processor's name as the kernel gives it, else its architecture."""
    cpu = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return Machine(cpu, os.cpu_count() or 1, f"{platform.system()} {platform.release()}")


def commit() -> str:
    """The commit that this code was checked out from, `-dirty` behind it if changed; empty outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def table(bench: Bench, targets: Sequence[Target] = ()) -> Table:
    """The bench for people: one line per metric, the baselines and the targets beside (green met, red missed)."""
    baselines = list(dict.fromkeys(name for row in bench.rows for name in row.without))
    shown = Table(
        title=f"{bench.bench} · {bench.machine.cpu}, {bench.machine.cores} cores, {bench.machine.kernel}"
        + (f" · {bench.commit}" if bench.commit else "")
    )
    for heading in ("case", "n", "metric"):
        shown.add_column(heading)
    for heading in ("linkpass", *(f"without: {name}" for name in baselines), "target"):
        shown.add_column(heading, justify="right")
    for row in bench.rows:
        names = list(dict.fromkeys((*row.metrics, *(name for found in row.without.values() for name in found))))
        for place, name in enumerate(names):
            first = place == 0
            shown.add_row(
                row.case if first else "",
                str(row.n) if first else "",
                name,
                text_of(row.metrics.get(name)),
                *(text_of(row.without.get(baseline, {}).get(name)) for baseline in baselines),
                _judged(row, [t for t in targets if (t.case, t.metric) == (row.case, name)]),
                end_section=place == len(names) - 1,
            )
    return shown


def missed(bench: Bench, targets: Sequence[Target]) -> list[str]:
    """Targets that a row does not meet, in words."""
    found = []
    for target in targets:
        metrics = next((row.metrics for row in bench.rows if row.case == target.case), {})
        if target.met(metrics) is False:
            got = figure(metrics, target.metric, target.stat)
            found.append(f"{target.case}: {target.metric} is {got:g}, wanted {target}")
    return found


def text_of(value: Value | None) -> str:
    """A value for people; a distribution as `median / p99`."""
    match value:
        case None:
            return "–"
        case Times():
            return f"{value.p50:g} / {value.p99:g}"
        case bool():
            return "yes" if value else "no"
        case int():
            return str(value)
        case _:
            return f"{value:.4g}"


def _judged(row: Row, targets: Sequence[Target]) -> Text:
    styles = {True: "green", False: "bold red", None: "dim"}
    return Text(", ").join(Text(str(target), style=styles[target.met(row.metrics)]) for target in targets)


def _fits(name: str, value: Value) -> bool:
    if name.endswith(("_ms", "_s")):
        return isinstance(value, Times)
    if name.endswith("_ratio"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool | int)


def _expected(name: str) -> str:
    if name.endswith(("_ms", "_s")):
        return "a distribution (p50, p95, p99, max)"
    return "a number" if name.endswith("_ratio") else "a count or a flag"
