"""What the demo does: its faults in their order, and the values that its runs come out as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.cases import CASES, Case
from lab.job import Job
from lab.trial import Injection
from topology.model import Fabric

BOUND_S = 10.0
"""The kernel alone gets this long after a fault to bring the job back."""


@dataclass(frozen=True, slots=True)
class Act:
    """One fault of the demo. `without`: the kernel has to face it too; `wait_return`: the way back is shown."""

    case: Case
    hold_s: float = 3.0
    without: bool = True
    wait_return: bool = True


HANGS = Case("spine-hangs", "spine", "dead:{node}:silent", "a spine hangs: its ports stay up, nothing gets through")

ACTS: tuple[Act, ...] = (
    Act(CASES["carrier"]),
    Act(CASES["blackhole-both"]),
    Act(CASES["blackhole-oneway"], without=False),
    Act(CASES["blackhole-hostleaf"]),
    Act(CASES["bucket"]),
    Act(CASES["loss-5pct"]),
    Act(HANGS),
    Act(CASES["drain"], 2.0, without=False),
    Act(CASES["flap"], 6.0, without=False, wait_return=False),
)
QUICK: tuple[Act, ...] = (
    Act(CASES["carrier"], 1.5),
    Act(CASES["blackhole-both"], 1.5),
    Act(CASES["bucket"], 1.5, without=False),
)


@dataclass(frozen=True, slots=True)
class DemoSpec:
    """`fabric`: of the topology file `topology`; `out`: folder for the page and the figures."""

    fabric: Fabric
    topology: Path
    out: Path
    acts: Sequence[Act] = ACTS
    name: str = "demo"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """An act and what came of it; `without`: the same with the kernel alone, if that was tried."""

    act: Act
    found: Injection
    identical: bool | None = None
    without: Injection | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    tried: tuple[Tried, ...]
    identical: bool | None
    weights: str
    steps: int
    lost: int
    median_step_s: float
    page: Path
    figures: Path
    notes: tuple[str, ...]

    @property
    def failures(self) -> list[str]:
        """What went wrong, in words; empty: training went on through everything and ended as if nothing had been."""
        found = [f"{one.found.fault}: the job did not survive it" for one in self.tried if not one.found.recovered]
        if self.lost:
            found.append(f"{self.lost} steps were lost")
        if self.identical is not True:
            found.append("the weights are not those of the undisturbed run")
        return found


@dataclass(frozen=True, slots=True)
class Played:
    """A run with faults: what each did, and the job."""

    found: tuple[tuple[Act, Injection], ...]
    jobs: tuple[Job, ...]
    notes: tuple[str, ...]

    @property
    def job(self) -> Job:
        return self.jobs[-1]


def note_on(found: Injection) -> str:
    """How the job without linkpass came out of a fault, where that was not by itself."""
    if not found.recovered:
        return f"did not go on within {BOUND_S:g} s of its end"
    return "ended only with the fault" if found.stall.until_s > found.undone_at_s else ""
