"""The demo for people at a terminal: some lines that say what will be seen, a progress bar, a line per event, a table.

In a pipe the same lines without colours, and instead of the bar a line for each fault.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lab.demo_plan import Act, DemoSpec, Outcome, Tried, note_on
from lab.job import Job
from lab.netns.lab import NetnsLab, UpReport
from lab.report import milliseconds
from lab.telling import Kind, Line, after
from lab.trial import Injection, Live
from topology.model import Fabric

STYLES: dict[Kind, str] = {
    "noticed": "yellow",
    "heard": "yellow",
    "verdict": "bold yellow",
    "moved": "bold green",
    "back": "green",
}
WORDS: dict[Kind, str] = {
    "noticed": "notices",
    "heard": "hears",
    "verdict": "blames",
    "moved": "acts",
    "back": "returns",
}
COLUMNS = ("rerouted", "stall with", "without", "steps lost", "moves", "weights")
WIDE = 100
"""From this many columns on the table has room to say where each fault was."""
WHEN, WHO, DOES = 10, 7, 8
RECENT_STEPS = 20


class TerminalScreen:
    """`lab.demo.Screen` on a rich console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._with, self._total = True, 0.0

    def __enter__(self) -> TerminalScreen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop_bar()

    def introduce(self, spec: DemoSpec) -> None:
        say = self.console.print
        hosts, switches, ways = len(spec.fabric.hosts), len(spec.fabric.switches), len(spec.acts)
        long = "one minute" if ways < 5 else "four minutes"
        say(Text("linkpass demo", "bold"))
        say()
        say(
            f"On this machine a fabric of {hosts} hosts and {switches} switches is built from network namespaces "
            f"({spec.topology}), and a small GPT is trained across it: PyTorch, DistributedDataParallel over Gloo, one "
            f"rank on each host. While it trains, the fabric is broken in {ways} ways, one after the other:"
        )
        say(Text("  1  with linkpass: a daemon on each host finds the fault and moves the traffic", "bold"))
        say("  2  without: the same faults, the kernel alone")
        say("  3  undisturbed: bit for bit these weights are what 1 has to end with")
        say(
            f"That takes about {long}; Ctrl-C takes everything down. The page with all curves will be "
            f"{spec.out / 'index.html'}."
        )
        say()
        say(Text(drawing(spec.fabric)))
        say()

    def built(self, lab: NetnsLab, report: UpReport) -> None:
        self.console.print(
            f"Built in {report.seconds:.1f} s: {report.nodes} namespaces, {report.links} links, addresses, routes."
        )
        self.console.print(f"Look around meanwhile: linkpass lab status {lab.name}")
        for note in report.notes:
            self.console.print(Text(f"  {note}", "dim"))

    def chapter(self, number: int, title: str, text: str, total: float) -> None:
        self._stop_bar()
        self._with, self._total = number == 1, total
        self.console.print()
        self.console.print(Text.assemble((f"{number}  {title}", "bold"), f": {text}"))
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("   training"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=None, state="")
            self._bar.start()

    def waits(self, what: str) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, state=what)
        else:
            self.console.print(Text(f"   {what}", "dim"))

    def progress(self, done: float, job: Job) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=self._total, state=_state(job))

    def broken(self, number: int, of: int, live: Live) -> None:
        self.console.print()
        self.console.print(_row("", f"{number}/{of}", Text("breaks", "bold red"), Text(live.case.what, "bold red")))
        self.console.print(_row("", "", Text(""), Text(live.fault, "dim")))

    def line(self, line: Line) -> None:
        first = line.after_s is not None
        when = after(line.after_s) if line.after_s is not None else ""
        does = Text(WORDS[line.kind], STYLES[line.kind])
        self.console.print(_row(when, line.host if first else "", does if first else Text(""), line.text))

    def healed(self, act: Act, live: Live) -> None:
        assert live.injected_at_s is not None
        assert live.undone_at_s is not None
        what = "back in service" if live.fault.startswith("drain") else "repaired"
        when = after(live.undone_at_s - live.injected_at_s)
        self.console.print(_row(when, "", Text("", "cyan"), Text(f"{what}: {live.place.where}", "cyan")))
        if self._with and not act.wait_return:
            text = "what fails again and again is trusted late; here `linkpass clear` forgives it"
            self.console.print(_row("", "", Text(""), Text(text, "dim")))

    def judged(self, act: Act, found: Injection, steps: int) -> None:
        usual = milliseconds(found.median_step_s * 1e3)
        stall = milliseconds(found.stall.seconds * 1e3)
        parts = [Text.assemble("training stalled ", (stall, "bold"), f" at most (a step takes {usual})")]
        if found.reroute_s is not None:
            parts.append(Text(f"rerouted after {milliseconds(found.reroute_s * 1e3)}"))
        if act.case.fault == "drain" and self._with:
            parts.append(Text(f"{found.retransmissions} packets sent again"))
        if not self._with and (note := note_on(found)):
            parts.append(Text(note, "red"))
        self.console.print(_row("", "", Text("=>", "bold blue"), Text(", ").join(parts)))

    def end(self, outcome: Outcome) -> None:
        self._stop_bar()
        say = self.console.print
        say()
        say(result_table(outcome, self.console.width))
        say()
        same = Text("bit for bit those of the undisturbed run", "bold green")
        if outcome.identical is not True:
            same = Text("not those of the undisturbed run", "bold red")
        head = f"{outcome.steps} steps trained, {outcome.lost} lost; the weights are "
        say(Text.assemble(head, same, f" (SHA-256 {outcome.weights[:16]}…)"))
        for failure in outcome.failures:
            say(Text(f"  {failure}", "bold red"))
        say(f"Curves, moves and stalls on one time line: {outcome.page}   figures: {outcome.figures}")

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def result_table(outcome: Outcome, width: int) -> Table:
    shown = Table(
        title="What the faults did to the training",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
    )
    shown.add_column("fault", no_wrap=True)
    if width >= WIDE:
        shown.add_column("")
    for heading in COLUMNS:
        shown.add_column(heading, justify="left" if heading == "weights" else "right", no_wrap=True)
    for one in outcome.tried:
        name, place, *rest = _cells(one)
        shown.add_row(name, *([place] if width >= WIDE else []), *rest)
    return shown


def _cells(one: Tried) -> list[Text]:
    found, other = one.found, one.without
    words = {True: ("identical", "green"), False: ("different", "bold red"), None: ("not compared", "dim")}
    without = milliseconds(other.stall.seconds * 1e3) if other else "–"
    return [
        Text(one.act.case.name, "bold"),
        Text(found.fault, "dim"),
        Text(milliseconds(None if found.reroute_s is None else found.reroute_s * 1e3)),
        Text(milliseconds(found.stall.seconds * 1e3), "bold green" if found.recovered else "bold red"),
        Text(f"≥ {without}" if other and not other.recovered else without, "red" if other else "dim"),
        Text(str(found.steps_lost)),
        Text(str(found.all_moves)),
        Text(*words[one.identical]),
    ]


def _row(when: str, who: str, does: Text, text: str | Text) -> Table:
    """Moment, host, what it does, text; long text stays in its column."""
    row = Table.grid(padding=(0, 1))
    row.add_column(width=WHEN, justify="right", style="cyan")
    row.add_column(width=WHO)
    row.add_column(width=DOES)
    row.add_column(overflow="fold")
    row.add_row(when, who, does, text)
    return row


def _state(job: Job) -> str:
    if not job.steps:
        return "starting"
    first = job.ranks[0]
    ends = first.ends_s[-RECENT_STEPS:]
    pace = f" · {(ends[-1] - ends[0]) / (len(ends) - 1) * 1e3:.0f} ms a step" if len(ends) > 1 else ""
    return f"step {job.steps} · loss {first.losses[-1]:.2f}{pace}"


def drawing(fabric: Fabric) -> str:
    """The fabric tier by tier from the top, and between two tiers how many of the upper each of the lower joins."""
    tiers: dict[int, list[str]] = {}
    for node in fabric.nodes:
        tiers.setdefault(node.tier or 0, []).append(node.name)
    lines = []
    for tier in sorted(tiers, reverse=True):
        lines.append("   ".join(tiers[tier]))
        if tier - 1 in tiers:
            joined = sorted({len(set(fabric.neighbours(name)) & set(tiers[tier])) for name in tiers[tier - 1]})
            lines.append(f"|   each below joins {' or '.join(map(str, joined))} above   |")
    wide = max(map(len, lines)) + 4
    return "\n".join(line.center(wide).rstrip() for line in lines)
