"""Which element explains the paths that fail: the smallest explanation wins.

A direction of a link that lies on a failing path and on no good one is a candidate. One candidate on all failing
paths is the culprit; else one switch that all failing paths and no good path crosses; else the fewest candidates
that cover what can be covered (greedy set cover). A failing path all of whose links carry good paths too has a
partial fault (one hash bucket of a link): only the path is to blame, no link. Losses are weighed in `core.losses`.
The idea of voting and covering is that of 007 (NSDI 2018) and of NetBouncer (NSDI 2019); the full solver is another
room's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["link", "switch", "host", "path"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`links`: the directions held to be failing (empty for kind `path`); `name`: what people call it."""

    kind: Kind
    name: str
    links: tuple[str, ...]
    why: str


def ends(direction: str) -> tuple[str, str]:
    """The two node names of a direction `a>b`."""
    a, _, b = direction.partition(">")
    return a, b


def explain(
    failing: Sequence[tuple[str, ...]], good: Iterable[tuple[str, ...]], hosts: frozenset[str]
) -> list[Verdict]:
    """Verdicts for failing paths, each given as its directions. `hosts`: names of hosts, whose links are never blamed
    one by one when they all fail: that is the host, and no switch's fault."""
    if not failing:
        return []
    healthy = {link for path in good for link in path}
    suspects = {link for path in failing for link in path if link not in healthy}
    rest = [path for path in failing if any(link in suspects for link in path)]
    verdicts: list[Verdict] = []
    partial = len(failing) - len(rest)
    if partial:
        verdicts.append(Verdict("path", "", (), f"{partial} failing path(s) share all their links with good ones"))
    if not rest:
        return verdicts
    single = [link for link in sorted(suspects) if all(link in path for path in rest)]
    if single:
        why = f"all {len(rest)} failing path(s) cross it, no good one does"
        return [*verdicts, Verdict("link", single[0] if len(single) == 1 else " or ".join(single), tuple(single), why)]
    node = _common_node(rest, suspects, healthy, hosts)
    if node is not None:
        links = tuple(sorted(link for link in suspects if node in ends(link)))
        kind: Kind = "host" if node in hosts else "switch"
        return [*verdicts, Verdict(kind, node, links, f"all {len(rest)} failing paths cross it, no good one does")]
    while rest:
        count = {link: sum(link in path for path in rest) for link in sorted(suspects)}
        best = max(count, key=lambda link: count[link])
        if not count[best]:
            break
        verdicts.append(Verdict("link", best, (best,), f"{count[best]} failing path(s) cross it, no good one does"))
        rest = [path for path in rest if best not in path]
    return verdicts


def _common_node(
    failing: Sequence[tuple[str, ...]], suspects: set[str], healthy: set[str], hosts: frozenset[str]
) -> str | None:
    shared: set[str] | None = None
    for path in failing:
        nodes = {node for link in path if link in suspects for node in ends(link)}
        shared = nodes if shared is None else shared & nodes
    alive = {node for link in healthy for node in ends(link)}
    own = {path[0].partition(">")[0] for path in failing}
    fit = sorted((shared or set()) - alive - own, key=lambda node: (node in hosts, node))
    return fit[0] if fit else None
