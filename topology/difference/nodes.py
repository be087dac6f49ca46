"""By which nodes are joined at all, where a source does not know ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from topology.difference.found import Cable, Compared, Difference, Pair, Told


def _node_pairs(links: Sequence[Cable]) -> dict[frozenset[str], Pair]:
    return {frozenset((a.node, b.node)): (a.node, b.node) for _, a, b in links}


def compared(
    planned: Sequence[Cable], live: Sequence[Cable], told: tuple[Told, Told], notes: tuple[str, ...], hosts: set[str]
) -> Compared:
    """`told`: of both, the nodes that tell of all their links. `hosts`: what is rather moved than other nodes."""
    wanted, there = _node_pairs(planned), _node_pairs(live)
    lost = [pair for ends, pair in wanted.items() if ends not in there]
    new = [pair for ends, pair in there.items() if ends not in wanted]
    missing = [pair for pair in lost if told[1] is None or not told[1].isdisjoint(pair)]
    extra = [pair for pair in new if told[0] is None or not told[0].isdisjoint(pair)]
    unknown = len(lost) - len(missing) + len(new) - len(extra)
    found = list(_moved(missing, extra, hosts))
    found += [
        Difference("missing", pair, (pair,), (), f"{pair[0]} and {pair[1]} should be joined, and are not")
        for pair in missing
    ]
    found += [
        Difference("extra", pair, (), (pair,), f"{pair[0]} and {pair[1]} are joined, and should not be")
        for pair in extra
    ]
    alike = len(wanted.keys() & there.keys())
    return Compared(tuple(found), alike, unknown, (*notes, "compared by which nodes are joined: ports are not told"))


def _moved(missing: list[Pair], extra: list[Pair], hosts: set[str]) -> Iterator[Difference]:
    """Takes out of both what is one node elsewhere: with one join missing, and one that should not be."""
    lost, got = (_only(side) for side in (missing, extra))
    moved = {name: (lost[name], got[name]) for name in lost if name in got}
    done: set[str] = set()
    for name, (a, b) in sorted(moved.items(), key=lambda item: item[0] not in hosts):
        if name in done or a in done or b in done:
            continue
        other = next((one for one, ends in moved.items() if ends == (b, a) and one not in {a, b, *done}), None)
        group = [name] if other is None else [name, other]
        planned = tuple((one, moved[one][0]) for one in group)
        live = tuple((one, moved[one][1]) for one in group)
        done.update(group)
        for side, pairs in ((missing, planned), (extra, live)):
            ends = {frozenset(pair) for pair in pairs}
            side[:] = [pair for pair in side if frozenset(pair) not in ends]
        says = "; ".join(f"{one} should be at {moved[one][0]}, is at {moved[one][1]}" for one in group)
        if other is not None:
            yield Difference("swapped", (*group, a, b), planned, live, f"{says}: these two are swapped")
        else:
            done |= {a, b}
            yield Difference("moved", (name, a, b), planned, live, says)


def _only(pairs: Sequence[Pair]) -> dict[str, str]:
    """Nodes that are in one of the pairs only -> the other node of it."""
    others: dict[str, list[str]] = {}
    for a, b in pairs:
        others.setdefault(a, []).append(b)
        others.setdefault(b, []).append(a)
    return {name: found[0] for name, found in others.items() if len(found) == 1}
