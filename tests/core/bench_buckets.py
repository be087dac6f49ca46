"""Who is named, how soon and among how many, when one hash bucket of a direction lets nothing through.

    python tests/core/bench_buckets.py --trials 100 --of 4

Four daemons in the small fabric (`fabric_sim`), time is simulated: each sees the fault by its own paths and hears what
its peers name. What lies in the bucket is drawn by a hash of the ends and the label, seeds are fixed. `--paths 0` lets
them ask for no other paths than those in use.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections import Counter

from fabric_sim import ADDRESS, NAME, FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.diagnosis import asking
from linkpass.core.settings import Diagnosis

STEP_S = 0.01
VERDICT = re.compile(r"^verdict (?:direction|link|nic|switch|host): (\S+)(?: \(or (.+): not told apart\))?")
DIRECTIONS = tuple(
    direction
    for leaf in ("leaf1", "leaf2", "leaf3", "leaf4")
    for spine in ("spine1", "spine2")
    for direction in (f"{leaf}>{spine}", f"{spine}>{leaf}")
)


class Daemon(FabricSim):
    """One host of the four. `bucket`: a direction, which of its buckets lets nothing through, of how many."""

    def __init__(self, host: str) -> None:
        others = tuple(name for name in ADDRESS if name != host)
        super().__init__(host=host, peers=others, active=others, diagnosis=Diagnosis(enabled=True))
        self.bucket: tuple[str, int, int] | None = None
        self.most = 0

    def passes(self, peer: str, uplink: str, label: int) -> bool:
        if self.bucket is not None:
            direction, which, of = self.bucket
            if direction in self.directions(peer, uplink, label):
                return zlib.crc32(f"{self.host} {peer} {label} of".encode()) * of >> 32 != which
        return super().passes(peer, uplink, label)

    def turn(self, event: ev.Event) -> None:
        super().turn(event)
        self.most = max(self.most, len(self.telling))


def trial(direction: str, which: int, of: int, span_s: float) -> tuple[float | None, int, Counter[str]]:
    """When the first right name came (None: never), among how many at the end, and counts."""
    daemons = {host: Daemon(host) for host in ADDRESS}
    for daemon in daemons.values():
        daemon.start()
        daemon.bucket = direction, which, of
        daemon.feel()
    began_s = next(iter(daemons.values())).now_s
    seen = {host: daemon.mark() for host, daemon in daemons.items()}
    hit = sum(not daemon.passes(*target) for daemon in daemons.values() for target in daemon.targets)
    first_s, wrong, classes, told = None, set(), {}, []
    for _ in range(round(span_s / STEP_S)):
        for daemon in daemons.values():
            daemon.run(STEP_S)
        for host, daemon in daemons.items():
            fresh, seen[host] = daemon.log[seen[host] :], daemon.mark()
            for at_s, command in fresh:
                if isinstance(command, cmd.SendNotice) and command.notice.kind == "suspect":
                    for peer in command.peers:
                        daemons[NAME[peer]].post(ev.NoticeHeard(peer=ADDRESS[host], notice=command.notice))
                elif isinstance(command, cmd.Record) and (match := VERDICT.match(command.what)):
                    if "longer" in command.what:
                        continue
                    told.append(f"    {at_s - began_s:.3f} s {host}: {command.what}")
                    suspects = {match[1], *(match[2] or "").split(", ")} - {""}
                    classes[host] = len(suspects)
                    if direction not in suspects:
                        wrong.add(host)
                    elif first_s is None:
                        first_s = at_s - began_s
    most = max(daemon.most for daemon in daemons.values())
    left = sum(len(daemon.telling) for daemon in daemons.values())
    print(f"{direction} {which}/{of}: {hit} probed paths in it, named {first_s}, at most {most} more", *told, sep="\n")
    right = [size for host, size in classes.items() if host not in wrong]
    counts = Counter(
        wrong=len(wrong), views=len(classes), none=not hit, unnamed=first_s is None and hit > 0, left=left,
        alone=sum(size == 1 for size in right),
    )  # fmt: skip
    return first_s, most, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--of", type=int, default=4)
    parser.add_argument("--span", type=float, default=4.0, help="seconds that a fault lasts")
    parser.add_argument("--paths", type=int, default=asking.MOST_IN_ALL, help="that one question may take")
    asked = parser.parse_args()
    asking.MOST_IN_ALL = asked.paths  # type: ignore[misc]
    total: Counter[str] = Counter()
    first, most = [], 0
    for number in range(asked.trials):
        direction, which = DIRECTIONS[number % len(DIRECTIONS)], number // len(DIRECTIONS) % asked.of
        first_s, more, counts = trial(direction, which, asked.of, asked.span)
        total += counts
        most = max(most, more)
        if not counts["none"]:
            first.append(asked.span if first_s is None else first_s)
    first.sort()
    p50, p95 = (first[min(len(first) - 1, int(share * len(first)))] for share in (0.5, 0.95))
    print(
        f"{asked.trials} buckets of {asked.of}: {total['none']} without a probed path, {total['unnamed']} others not "
        f"named; {total['views']} daemons named something, {total['wrong']} wrongly, {total['alone']} one element "
        f"alone; first right name p50 {p50:.2f} s, p95 {p95:.2f} s, max {first[-1]:.2f} s; at most {most} more paths "
        f"at one time, {total['left']} left at the end"
    )


if __name__ == "__main__":
    main()
