"""What processes have taken of the machine, by the kernel's own counts: unlike times, they hold on a busy machine, too.

From /proc/PID/task/TID (proc(5)): `schedstat`, time on a processor in ns; `stat`, field 10, minor page faults;
`status`, context switches, those that the thread asked for (it waited) and those that it did not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

Part = Literal["main", "torchpass", "others"]
"""Of a rank: the thread that trains; those that torchpass has beside it, known by their names; all others (Gloo's)."""

OURS = "torchpass-"


class Spent(NamedTuple):
    """`cpu_ms`: on a processor; `faults`: pages that the kernel had to give; `waits`, `taken`: context switches, by
    waiting and by being taken off the processor."""

    cpu_ms: float = 0.0
    faults: float = 0.0
    waits: float = 0.0
    taken: float = 0.0

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        return Spent(*(mine + its for mine, its in zip(self, other, strict=True)))

    def over(self, count: float) -> Spent:
        """A `count`-th of it."""
        return Spent(*(mine / count for mine in self))


Book = Mapping[tuple[int, int], tuple[Part, Spent]]
"""By process and thread."""


def book(pids: Iterable[int], proc: Path = Path("/proc")) -> Book:
    """What each thread of these processes has taken since it began. What has ended is left out."""
    found = {}
    for pid in pids:
        for task in (proc / str(pid) / "task").glob("*"):
            try:
                found[pid, int(task.name)] = _part(pid, task), _spent(task)
            except OSError:
                continue
    return found


def between(before: Book, after: Book) -> dict[int, dict[Part, Spent]]:
    """By process and part. A thread that has ended meanwhile is not counted, one that has begun is."""
    sums: dict[int, dict[Part, Spent]] = defaultdict(lambda: defaultdict(Spent))
    for (pid, thread), (part, spent) in after.items():
        _, old = before.get((pid, thread), (part, Spent()))
        sums[pid][part] += Spent(*(new - was for new, was in zip(spent, old, strict=True)))
    return {pid: dict(parts) for pid, parts in sums.items()}


def children(pid: int) -> list[int]:
    """Processes that this one has started, and their own."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def _part(pid: int, task: Path) -> Part:
    if int(task.name) == pid:
        return "main"
    return "torchpass" if (task / "comm").read_text().startswith(OURS) else "others"


def _spent(task: Path) -> Spent:
    told = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
    return Spent(
        cpu_ms=int((task / "schedstat").read_text().split()[0]) / 1e6,
        faults=int((task / "stat").read_text().rpartition(")")[2].split()[7]),
        waits=int(told["voluntary_ctxt_switches"]),
        taken=int(told["nonvoluntary_ctxt_switches"]),
    )
