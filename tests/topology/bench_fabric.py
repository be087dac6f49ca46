"""What questions cost in a fabric of 16,384 adapters: `python tests/topology/bench_fabric.py [ROUNDS]`.

2,048 hosts with eight rails in units of 32, so 512 leaves with 32 ports down and 32 up, and 32 spines. Each round one
link fails, chosen at random among those that matter to the question, and the question is asked of the view without it;
the whole fabric has been asked before. Milliseconds: medians and maxima of time, medians of processor time. Maxima of
path sets are Python's collector of garbage, which goes through the whole fabric; `gc.freeze` after loading it avoids
that, as a last block shows.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from topology import generate
from topology.model import Cut, speeds_bps

SPEED_BPS = 400 * 10**9


def once(what: str, question: Callable[[], object]) -> None:
    start_s = time.perf_counter()
    question()
    print(f"{what:64} {(time.perf_counter() - start_s) * 1e3:10.2f}")


def again(what: str, rounds: int, links: Sequence[str], question: Callable[[str], object]) -> None:
    """`question`: what is asked once that link has failed."""
    chance = random.Random(what)
    took_ms, busy_ms = [], []
    for _ in range(rounds):
        link = chance.choice(links)
        start_s, busy_s = time.perf_counter(), time.process_time()
        question(link)
        took_ms.append((time.perf_counter() - start_s) * 1e3)
        busy_ms.append((time.process_time() - busy_s) * 1e3)
    print(f"{what:64} {statistics.median(took_ms):10.2f} {max(took_ms):10.2f} {statistics.median(busy_ms):10.2f}")


def main(rounds: int) -> None:
    print(f"{'made once':64} {'ms':>10}")
    once("2 tiers, 64 hosts", partial(generate.leaf_spine, 64, uplinks=2, racks=8, spines=4))
    once("fat tree, k = 8", partial(generate.fat_tree, 8))
    once("256 hosts with 8 rails", partial(generate.rail, 256, rails=8, units=8, spines=8))
    once("dual plane, 1,024 hosts with 8 rails", partial(generate.dual_plane, 1024, rails=8, units=32, spines=32))
    big = partial(generate.rail, 2048, rails=8, units=64, spines=32, speed_bps=SPEED_BPS)
    once("2,048 hosts with 8 rails", big)
    fabric = big()
    names = [host.name for host in fabric.hosts]
    here, there, others = names[0], names[-1], names[1:]
    near, far = names[: len(names) // 2], names[len(names) // 2 :]
    speeds = speeds_bps(fabric)
    chance = random.Random(0)
    uneven = {key: chance.randrange(SPEED_BPS) for key in speeds}
    between = [link.id for link in fabric.links if fabric.node(link.a.node).role == "switch"]
    ways = sorted({link.id for path in fabric.equal_cost_paths(here, there) for link in path.links})
    once("next hops of a host to all 2,047", lambda: [fabric.next_hops(here, name) for name in others])
    cuts: dict[str, tuple[Cut, Sequence[str]]] = {}
    for what, sides, rooms, links in (
        ("cut between two hosts", ([here], [there]), speeds, ways),
        ("cut between halves", (near, far), speeds, between),
        ("cut between halves, uneven rooms", (near, far), uneven, between),
    ):
        start_s = time.perf_counter()
        cuts[what] = (Cut(fabric, *sides, rooms), links)
        print(f"{what:64} {(time.perf_counter() - start_s) * 1e3:10.2f}")

    def paths(link: str) -> object:
        return fabric.without([link]).equal_cost_paths(here, there)

    def next_hops(link: str) -> object:
        return fabric.without([link]).next_hops(here, there)

    def all_next_hops(link: str) -> object:
        view = fabric.without([link])
        return [view.next_hops(here, name) for name in others]

    print(f"\n{f'after one link failed, {rounds} rounds':64} {'p50 ms':>10} {'max ms':>10} {'CPU p50':>10}")
    for where, links in (("a link between the two", ways), ("any link of leaf and spine", between)):
        again(f"2,048 paths of a pair ({where})", rounds, links, paths)
        again(f"next hops of a host to another ({where})", rounds, links, next_hops)
    again("next hops of a host to all 2,047 (any link)", rounds, ways + between, all_next_hops)
    for what, (cut, links) in cuts.items():
        again(what, rounds, links, lambda link, cut=cut: cut.without([link]).room)
        again(f"{what}, and what limits it", rounds, links, lambda link, cut=cut: cut.without([link]).directions)
    gc.freeze()
    again("after gc.freeze: 2,048 paths of a pair", rounds, ways, paths)
    again("after gc.freeze: next hops of a host to all 2,047", rounds, ways + between, all_next_hops)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
