"""A whole arrangement for the end-to-end tests: fabric, a daemon per host, a training job; and what is asked of it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from click.testing import CliRunner, Result

from lab.daemons import Daemons, DaemonSpec, Entry
from lab.faults import AnyFault, parse
from lab.job import Job, JobSpec, undisturbed
from lab.netns.breaker import ActiveFault
from lab.netns.lab import NetnsLab
from lab.steps import RankLog, steps_lost, weights_identical
from linkpass.cli import cli
from topology.model import Fabric
from topology.sources.containerlab import parse as parse_fabric

FILE = Path(__file__).parents[2] / "lab/leaf-spine.clab.yml"
HASH_EVERY = 50
PAUSE = ("--pause-s", "0.03")
"""A job that waits in each step leaves the processors to the daemons, and its undisturbed run, which need not wait, is
soon done."""
PATIENCE_S = 60.0
"""For what takes milliseconds on a quiet machine: the tests ask whether and in what order, never when."""
START_S = 120.0
RETURN_S = 60.0
"""For a return: observation and damping take seconds by design."""

Match = Callable[[Entry], bool]
_references: dict[int, list[RankLog]] = {}
"""By the number of ranks, the longest undisturbed run of these tests so far."""


class Rig:
    """Lab, daemons and job as one; everything is taken down at the end, whatever has happened."""

    def __init__(
        self, folder: Path, spec: DaemonSpec, *, daemons: type[Daemons] = Daemons, daemons_later: bool = False
    ) -> None:
        text = FILE.read_text(encoding="utf-8")
        self.fabric: Fabric = parse_fabric(text, str(FILE))
        self.folder = folder
        self.hosts = [host.name for host in self.fabric.hosts]
        self.lab = NetnsLab(self.fabric, name=f"td{os.getpid()}", run_dir=folder / "lab")
        self.daemons = daemons(self.lab, spec)
        self._daemons_later = daemons_later
        self.job = Job(
            self.lab, self.hosts, folder / "job", JobSpec(steps=1_000_000, hash_every=HASH_EVERY, extra=PAUSE)
        )
        self.calm_at_s = 0.0

    def __enter__(self) -> Rig:
        try:
            self.lab.up()
            self.job.start().wait_steps(20, START_S)
            if not self._daemons_later:
                self.start_daemons()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def start_daemons(self) -> None:
        """For those who want to see a kernel without them first."""
        self.daemons.start().wait_ready(START_S)
        self.wait("every daemon looks after the job", lambda: all(map(self._attends, self.hosts)))

    def close(self) -> None:
        self.job.close()
        self.daemons.close()
        self.lab.down()

    # the job
    def goes_on(self, steps: int = 10) -> None:
        """Training makes so many more steps; LabError when it does not."""
        self.job.update()
        self.job.wait_steps(self.job.steps + steps, PATIENCE_S)

    def end_with_the_same_weights(self) -> None:
        """Stop the job, run it undisturbed for as many steps, and compare, bit for bit."""
        ended_at = self.job.stop(multiple_of=HASH_EVERY)
        reference = self._undisturbed(ended_at)
        assert steps_lost(self.job.ranks) == 0
        assert ended_at >= HASH_EVERY
        assert all(log.hashes.keys() >= set(range(HASH_EVERY, ended_at + 1, HASH_EVERY)) for log in self.job.ranks)
        assert weights_identical(self.job.ranks, reference) is True

    def _undisturbed(self, steps: int) -> list[RankLog]:
        """A run of at least so many steps: what a step does depends on those before it alone, so that one that went
        further for another module will do."""
        known = _references.get(len(self.hosts), [])
        if not known or min(log.done or 0 for log in known) < steps:
            spec = JobSpec(steps=steps, hash_every=HASH_EVERY)
            known = _references[len(self.hosts)] = undisturbed(self.folder / "reference", len(self.hosts), spec)
        assert all(log.hashes.keys() >= set(range(HASH_EVERY, steps + 1, HASH_EVERY)) for log in known)
        return known

    # faults
    @contextmanager
    def broken(self, text: str) -> Iterator[ActiveFault]:
        """A fault in force within the block."""
        active = self.lab.fault(self.fault(text))
        try:
            yield active
        finally:
            active.undo()

    def fault(self, text: str) -> AnyFault:
        return parse(text, self.fabric)

    def busiest(self, *, between: tuple[int, int]) -> str:
        """The direction that carries most of the job's bytes now, among those from one tier to another (0: hosts)."""
        tiers = {node.name: node.tier for node in self.fabric.nodes}
        found: list[str] = []

        def carries() -> bool:  # a job that stands still for a moment carries nothing in it
            ways = [direction.split(">") for direction in self.lab.carrying(over_s=0.3, at_least_bps=1e5)]
            found[:] = [f"{a}>{b}" for a, b in ways if (tiers[a], tiers[b]) == between]
            return bool(found)

        self.wait(f"the job uses a link from tier {between[0]} to tier {between[1]}", carries)
        return found[0]

    def calm(self) -> float:
        """Forget damping and wait until all is well; the moment from which on what happens belongs to the next test."""
        self.lab.undo_all()
        self.daemons.clear()
        if self.daemons.spec.mode == "act":
            self.daemons.wait_settled(RETURN_S)
        # Moves that bring flows back are gathered for a moment after the paths are good.
        self.wait("all daemons use all their paths", lambda: all(map(self._spread, self.daemons.hosts)), RETURN_S)
        self.calm_at_s = time.monotonic()
        return self.calm_at_s

    # what the daemons say
    def story(self) -> str:
        """What all daemons have put down since the last calm, for people who look at a test that failed."""
        return "\n".join(
            f"{(entry.now_s - self.calm_at_s) * 1e3:9.1f} ms  {entry.host}  {entry.cause:9} {entry.what} | {entry.why}"
            for entry in self.daemons.journal(self.calm_at_s)
        )

    def told(self, since_s: float, match: Match, hosts: Iterable[str] | None = None) -> list[Entry]:
        wanted = set(hosts) if hosts is not None else set(self.hosts)
        return [entry for entry in self.daemons.journal(since_s) if entry.host in wanted and match(entry)]

    def wait_told(
        self, since_s: float, match: Match, what: str, hosts: Iterable[str] = (), patience_s: float = PATIENCE_S
    ) -> list[Entry]:
        """Until each of these hosts (or any, if none is named) has such an entry in its journal."""
        names = tuple(hosts)

        def there() -> bool:
            found = {entry.host for entry in self.told(since_s, match)}
            return found >= set(names) if names else bool(found)

        self.wait(what, there, patience_s)
        return self.told(since_s, match, names or None)

    def wait(self, what: str, true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + patience_s
        while not true():
            self.daemons.check()
            self.job.check()
            assert time.monotonic() < deadline_s, f"waited in vain until {what}"
            time.sleep(0.02)

    def verdicts(self) -> set[str]:
        """What all daemons together hold to be broken now: directions, switches, hosts."""
        found: set[str] = set()
        for host in self.daemons.hosts:
            for verdict in self.daemons.view(host)["verdicts"]:
                kind, _, name = verdict.partition(" ")
                if kind != "path":
                    found.update(name.split(" or "))
        return found

    def cli(self, host: str, *arguments: str) -> Result:
        """A `linkpass` command as a person on that host would type it."""
        return CliRunner(env={"LINKPASS_SOCKET": str(self.daemons.path(host, "control.sock"))}).invoke(cli, arguments)

    def in_host(self, host: str, *argv: str) -> str:
        """Output of a program inside a host's namespace: somebody else's hand."""
        with self.lab.in_netns(host):
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def kernel_state(self, host: str) -> dict[str, str]:
        """What steering could change in a host's kernel: routes, next hops, rules, nftables, sysctls."""
        state = {
            " ".join(command): self.in_host(host, *command)
            for command in (
                ("ip", "-d", "-4", "route", "show", "table", "all"),
                ("ip", "-d", "-6", "route", "show", "table", "all"),
                ("ip", "-d", "nexthop"),
                ("ip", "rule"),
                ("ip", "-6", "rule"),
                ("ip", "-d", "link"),
                ("nft", "list", "ruleset"),
            )
        }
        with self.lab.in_netns(host):
            state.update(_sysctls(Path("/proc/sys/net")))
        return state

    def _attends(self, host: str) -> bool:
        view = self.daemons.view(host)
        active = [peer for peer in view["peers"] if peer["active"]]
        steered = all(peer["labels"] for peer in active) or not view["rungs"]["1"]["armed"]
        tuned = view.get("tcp_timers", {}).get("tuned", 1)
        return len(active) >= 2 and steered and bool(tuned)  # in a ring each has two neighbours

    def _spread(self, host: str) -> bool:
        """Each peer's flows are on all paths planned for it, all uplinks take part; observers have nothing to do."""
        view = self.daemons.view(host)
        if view["mode"] != "act":
            return all(path["evidence"] == "good" for path in view["paths"] if path["in_use"])
        group = next((one for one in view["steering"] if one["object"] == "group all"), None)
        in_use: dict[str, set[int]] = {}
        for path in view["paths"]:
            if path["in_use"]:
                in_use.setdefault(path["peer"], set()).add(path["label"])
        wanted = {one["object"]: set(one["programmed"] or ()) for one in view["steering"]}
        labels = all(wanted.get(f"labels {peer}", set()) in (used, set()) for peer, used in in_use.items())
        return labels and group is not None and len(group["programmed"] or ()) == len(self.lab.uplinks(host))


def says(pattern: str) -> Match:
    """Entries whose text matches."""
    found = re.compile(pattern)
    return lambda entry: found.search(entry.what) is not None


def moved(which: str = "away") -> Match:
    return lambda entry: entry.is_move and f" {which}: " in entry.what


def blamed(entries: Sequence[Entry]) -> set[str]:
    """Everything that these entries blame: directions, `a>b or b>c` taken apart, switches, hosts."""
    found: set[str] = set()
    kinds, facts = "direction|link|nic|switch|host", "lets nothing through|lets no large packets through|fails"
    verdict = re.compile(rf"verdict (?:{kinds}): (.+?) (?:{facts})$")
    for entry in entries:
        if match := verdict.match(entry.what):
            found.update(match[1].split(" or "))
        elif match := re.match(r"link (\S+) loses packets$", entry.what):
            found.add(match[1])
    return found


def _sysctls(root: Path) -> dict[str, str]:
    """Settings below `/proc/sys/net`; counters that live there are left out."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in ("nf_conntrack_count", "stable_secret"):
            try:
                found[str(path)] = path.read_text()
            except OSError:
                continue  # write-only ones (flush)
    return found
