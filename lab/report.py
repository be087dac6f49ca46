"""The demo's page: one HTML file that needs nothing else, made from what was measured.

`Story` is everything that it shows. Times in it are seconds from the story's own start; `page()` is pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

import jinja2
from markupsafe import Markup

from lab.bench.shape import Machine
from lab.plot import Axis, Plot
from lab.steps import RankLog, median_step_s

Band = tuple[float, float, str, str]
"""Since, until (seconds), name and explanation."""

SMOOTHING = 15
"""Steps that the bold loss curve averages over."""


@dataclass(frozen=True, slots=True)
class FaultShown:
    """A fault of the story. `since_s`, `until_s`: when it was in force; figures as measured, None when not measured.

    `without_s` and `stall_without_ms`: the same fault in the run without linkpass. `without_note`: what else happened
    there ("ended only with the fault")."""

    name: str
    what: str
    since_s: float
    until_s: float
    reroute_ms: float | None = None
    stall_ms: float | None = None
    stall_without_ms: float | None = None
    without_since_s: float | None = None
    without_until_s: float | None = None
    without_note: str = ""
    steps_lost: int = 0
    weights_identical: bool | None = None
    moves: int = 0


@dataclass(frozen=True, slots=True)
class MoveShown:
    """A line of a daemon's journal worth a mark."""

    at_s: float
    host: str
    what: str
    why: str
    rung: int


@dataclass(frozen=True, slots=True)
class RunShown:
    """One training run: for each step when it ended, how long it took (the slowest rank), and the ranks' mean loss."""

    ends_s: Sequence[float]
    took_s: Sequence[float]
    losses: Sequence[float]
    median_s: float

    @classmethod
    def of(cls, logs: Sequence[RankLog], origin_s: float) -> RunShown:
        """From all ranks' logs; steps that not every rank has finished are left out.

        A step lasts from the end of the one before it to its own end, as a stall does."""
        count = min(len(log.ends_s) for log in logs)
        ends = [max(log.ends_s[step] for log in logs) - origin_s for step in range(count)]
        took = [0.0] * count
        for log in logs:
            for step in range(1, count):
                took[step] = max(took[step], log.ends_s[step] - log.ends_s[step - 1])
        losses = [statistics.fmean(log.losses[step] for log in logs) for step in range(count)]
        return cls(ends[1:], took[1:], losses[1:], median_step_s(logs))


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that the page shows. `weights`: SHA-256 of the weights after the last step."""

    title: str
    fabric: str
    run: RunShown
    faults: Sequence[FaultShown]
    moves: Sequence[MoveShown]
    hosts: Sequence[str]
    machine: Machine
    commit: str
    weights: str
    weights_identical: bool | None
    reference: RunShown | None = None
    without: RunShown | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def page(story: Story) -> str:
    """The whole page as text."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                     lstrip_blocks=True)  # fmt: skip
    environment.filters["ms"] = milliseconds
    template = environment.from_string(resources.files("lab").joinpath("report.html.j2").read_text(encoding="utf-8"))
    ceiling_s = _ceiling(story)
    plots = {
        "loss": _loss(story),
        "timeline": _timeline(story),
        "with": _steps(story.run, _bands(story), ceiling_s, "with linkpass", "ours"),
        "without": _steps(story.without, _bands(story, without=True), ceiling_s, "without", "theirs")
        if story.without
        else "",
    }
    stalls = [fault.stall_ms for fault in story.faults if fault.stall_ms is not None]
    without = [fault.stall_without_ms for fault in story.faults if fault.stall_without_ms is not None]
    return template.render(
        story=story,
        plots={name: Markup(svg) for name, svg in plots.items()},
        style=Markup(resources.files("lab").joinpath("report.css").read_text(encoding="utf-8")),
        worst_ms=max(stalls, default=None),
        worst_without_ms=max(without, default=None),
        lost=sum(fault.steps_lost for fault in story.faults),
    )


def milliseconds(value: float | None) -> str:
    """`43 ms`, `1.7 s`; a dash for what was not measured."""
    if value is None:
        return "–"
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms"


def _ceiling(story: Story) -> float:
    """Both runs' step times share one axis, or the comparison would lie; the faults' names stand in the room above."""
    runs = [run for run in (story.run, story.without) if run is not None]
    return max(2.2 * max((max(run.took_s, default=0.0) for run in runs), default=0.0), 10 * story.run.median_s, 1e-3)


def _loss(story: Story) -> str:
    losses = story.run.losses
    smooth = _smooth(losses)
    low, high = min(losses), max(losses)
    plot = Plot(
        Axis(0, max(len(losses), 2), "step"),
        Axis(low - 0.05 * (high - low), high + 0.05 * (high - low) + 1e-6, "loss"),
        "Training loss by step",
        height=260,
    )
    if story.reference is not None:
        hint = "loss of the undisturbed run"
        plot.line(list(enumerate(_smooth(story.reference.losses), 1)), "reference", hint)
    plot.line(list(enumerate(losses, 1)), "faint")
    plot.line(list(enumerate(smooth, 1)), "ours", "loss while the fabric breaks")
    for fault in story.faults:
        step = sum(end_s <= fault.since_s for end_s in story.run.ends_s)
        if 0 < step < len(losses):
            plot.dot(step + 1, smooth[step], "fault", f"step {step}: {fault.what}")
    return plot.svg()


def _timeline(story: Story) -> str:
    end_s = max([*story.run.ends_s, *(fault.until_s for fault in story.faults), 1.0])
    run = story.run
    ceiling_ms = max(max(run.took_s, default=0.0) * 1150, run.median_s * 6000)
    plot = Plot(
        Axis(0, end_s, "seconds"),
        Axis(0, ceiling_ms, "step, ms"),
        "Step times, faults and moves on one time line",
        height=260 + 18 * len(story.hosts),
        lanes=story.hosts,
    )
    for fault, row in zip(story.faults, _rows([(f.since_s, f.name) for f in story.faults], end_s, plot), strict=True):
        plot.band(fault.since_s, fault.until_s, "fault", fault.name, fault.what, row=row)
    plot.line(_plateaus(run), "ours thin")
    for fault in story.faults:
        stalled = [
            (took, at)
            for at, took in zip(run.ends_s, run.took_s, strict=True)
            if fault.since_s <= at <= fault.until_s + 1.0
        ]
        if fault.stall_ms is not None and stalled:
            took, at = max(stalled)
            plot.dot(at, took * 1000, "ours", f"{fault.name}: stalled {milliseconds(fault.stall_ms)}")
    for move in story.moves:
        if 0 <= move.at_s <= end_s and move.host in story.hosts:
            plot.mark(
                move.at_s, move.host, f"rung{move.rung}", f"{move.at_s:.3f} s · {move.host}: {move.what} ({move.why})"
            )
    return plot.svg()


def _steps(
    run: RunShown, bands: Sequence[tuple[float, float, str, str]], ceiling_s: float, title: str, style: str
) -> str:
    end_s = max([*run.ends_s, *(until for _, until, _, _ in bands), 1.0])
    floor_ms = max(run.median_s * 1000 / 4, 0.1)
    plot = Plot(
        Axis(0, end_s, "seconds"),
        Axis(floor_ms, ceiling_s * 1000, "step, ms", log=True),
        f"Step times {title}",
        height=250,
    )
    for (since, until, name, hint), row in zip(bands, _rows([(b[0], b[2]) for b in bands], end_s, plot), strict=True):
        plot.band(since, until, "fault", name, hint, row=row)
    plot.rule(run.median_s * 1000, "median", f"median {milliseconds(run.median_s * 1000)}")
    plot.line(_plateaus(run), f"{style} thin")
    return plot.svg()


def _plateaus(run: RunShown) -> list[tuple[float, float]]:
    """Each step as a level line as long as it lasted (ms): a stall covers the time in which nothing went on.

    Two ranks may feel one stall in two steps that follow each other: the later one begins where the first ended."""
    points: list[tuple[float, float]] = []
    for end_s, took_s in zip(run.ends_s, run.took_s, strict=True):
        start_s = end_s - took_s if not points else max(end_s - took_s, points[-1][0])
        points += [(start_s, took_s * 1000), (end_s, took_s * 1000)]
    return points


def _bands(story: Story, *, without: bool = False) -> list[Band]:
    if not without:
        return [(fault.since_s, fault.until_s, fault.name, fault.what) for fault in story.faults]
    return [
        (fault.without_since_s, fault.without_until_s, fault.name, fault.what)
        for fault in story.faults
        if fault.without_since_s is not None and fault.without_until_s is not None
    ]


def _rows(texts: Sequence[tuple[float, str]], end_s: float, plot: Plot) -> list[int]:
    """Rows for the bands' texts so that none covers another: about 6.5 units a character."""
    free = [float("-inf")] * 6
    rows = []
    for since_s, text in texts:
        left = plot.place(min(since_s, end_s), plot.y.high)[0]
        row = next((number for number, until in enumerate(free) if until <= left), len(free) - 1)
        free[row] = left + 6.5 * len(text) + 10
        rows.append(row)
    return rows


def _smooth(values: Sequence[float]) -> list[float]:
    """Running mean over the last SMOOTHING values."""
    shown, total = [], 0.0
    for place, value in enumerate(values):
        total += value - (values[place - SMOOTHING] if place >= SMOOTHING else 0.0)
        shown.append(total / min(place + 1, SMOOTHING))
    return shown
