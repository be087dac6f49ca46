"""What the diagnosis asks of paths that are not in use: which, how many, for how long, and what it learns from them."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter

import pytest
from fabric_sim import FabricSim
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core import extra
from linkpass.core.diagnosis import asking
from linkpass.core.diagnosis.asking import Suspect, choose, worth
from linkpass.core.settings import Diagnosis

BUCKETS = 4


def bucket(label: int) -> int:
    return zlib.crc32(f"{label}".encode()) % BUCKETS


class Sim(FabricSim):
    """Keeps how many paths beside those in use were probed: (when, which)."""

    def __init__(self, **more: object) -> None:
        self.asked: list[tuple[float, frozenset[tuple[str, str, int]]]] = []
        super().__init__(diagnosis=Diagnosis(enabled=True), **more)  # type: ignore[arg-type]

    def turn(self, event: ev.Event) -> None:
        super().turn(event)
        if not self.asked or self.asked[-1][1] != self.telling:
            self.asked.append((self.now_s, self.telling))

    def break_bucket(self, direction: str, which: int | None = None) -> None:
        """`which` None: the one that holds the fewest of the paths in use, but one."""
        held = Counter(bucket(key[2]) for key in self.targets if direction in self.directions(*key))
        which = min(held, key=lambda one: (held[one], one)) if which is None else which
        pool = {label for peer in self.core.world.table.peers.values() for label in peer.pool}
        self.break_(*((direction, label) for label in pool if bucket(label) == which))

    @property
    def most(self) -> int:
        return max(len(telling) for _, telling in self.asked)

    @property
    def paths(self) -> set[tuple[str, str, int]]:
        return {key for _, telling in self.asked for key in telling}


def started(**more: object) -> Sim:
    sim = Sim(**more)
    sim.start()
    return sim


def verdicts(sim: FabricSim, mark: int) -> list[str]:
    return [record.what for record in sim.since(mark, cmd.Record) if record.what.startswith("verdict ")]


BUCKET_FAULTS = ["leaf1>spine1", "leaf2>spine2", "spine1>leaf3", "spine2>leaf4"]


# the choice
shares = st.floats(0.01, 0.99)
groups = st.lists(st.tuples(st.floats(0.01, 1.0), shares), min_size=1, max_size=5)


@given(groups, st.data())
def test_a_path_tells_no_less_than_nothing_and_no_more_than_a_bit(
    drawn: list[tuple[float, float]], data: st.DataObject
) -> None:
    total = sum(weight for weight, _ in drawn)
    suspects = [Suspect(weight / total, share) for weight, share in drawn]
    crossed = frozenset(data.draw(st.sets(st.integers(0, len(drawn) - 1))))
    assert -1e-12 <= worth(crossed, suspects) <= math.log(2) + 1e-12
    if not crossed:
        assert worth(crossed, suspects) == 0


@given(groups, st.data(), st.integers(0, 20))
def test_no_more_paths_are_chosen_than_asked_for_and_each_once(
    drawn: list[tuple[float, float]], data: st.DataObject, most: int
) -> None:
    total = sum(weight for weight, _ in drawn)
    suspects = [Suspect(weight / total, share) for weight, share in drawn]
    places = st.frozensets(st.integers(0, len(drawn) - 1))
    keys = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["eth1", "eth2"]), st.integers(1, 50))
    candidates = data.draw(st.dictionaries(keys, places, max_size=40))
    chosen = choose(candidates, suspects, most)
    assert len(chosen) == len(set(chosen)) <= most and set(chosen) <= candidates.keys()
    assert chosen == choose(candidates, suspects, most)
    assert all(worth(candidates[key], suspects) >= asking.LEAST_NATS for key in chosen)


def test_paths_are_chosen_that_cross_some_suspects_and_not_others() -> None:
    alike = [Suspect(0.25, 0.25)] * 4
    everything = {("a", "eth1", label): frozenset(range(4)) for label in range(10)}
    single = {("a", "eth1", 100 + label): frozenset({label % 4}) for label in range(20)}
    chosen = choose({**everything, **single}, alike, 8)
    assert set(chosen) <= single.keys()
    assert {next(iter(single[key])) for key in chosen} == set(range(4))
    assert choose(everything, alike, 8) == []


def test_of_paths_that_tell_the_same_all_peers_take_part() -> None:
    suspects = [Suspect(0.5, 0.25)] * 2
    paths = {(peer, "eth1", label): frozenset({0}) for peer in ("a", "b", "c") for label in range(9)}
    assert {key[0] for key in choose(paths, suspects, 3)} == {"a", "b", "c"}


# in the daemon
def named(direction: str, which: int) -> tuple[float, set[str]] | None:
    """When a daemon first names something for a bucket, and among what at the end; None: it names nothing."""
    sim = started()
    mark, began_s = sim.mark(), sim.now_s
    sim.break_bucket(direction, which)
    sim.run(4.0)
    said = [(at_s, one.what) for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record) and "verdict" in one.what]
    if not said:
        assert not sim.paths
        return None
    suspects = set(re.findall(r"\w+>\w+", said[-1][1]))
    assert direction in suspects, said
    return said[0][0] - began_s, suspects


@pytest.mark.parametrize("direction", BUCKET_FAULTS)
def test_a_bucket_is_told_from_what_else_its_paths_cross(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the same daemon that asks for nothing: fewer suspects, sooner, and the fault among them all the time."""
    with_more = [named(direction, which) for which in range(BUCKETS)]
    monkeypatch.setattr(asking, "MOST_IN_ALL", 0)
    without = [named(direction, which) for which in range(BUCKETS)]
    assert [one is None for one in with_more] == [one is None for one in without]
    pairs = [(mine, other) for mine, other in zip(with_more, without, strict=True) if mine and other]
    assert all(mine[1] <= other[1] and mine[0] <= other[0] for mine, other in pairs)
    assert sum(len(mine[1]) for mine, _ in pairs) < sum(len(other[1]) for _, other in pairs)
    assert sum(mine[0] for mine, _ in pairs) < sum(other[0] for _, other in pairs)


@pytest.mark.parametrize("direction", BUCKET_FAULTS)
@pytest.mark.parametrize("mode", ["act", "observe"])
def test_what_is_asked_is_bounded_ends_and_is_asked_once(direction: str, mode: str) -> None:
    sim = started(mode=mode)
    began_s = sim.now_s
    sim.break_bucket(direction)
    sim.run(30.0)
    assert 0 < sim.most <= asking.MOST
    assert len(sim.paths) <= asking.MOST_IN_ALL
    assert sim.telling == frozenset() and sim.core.world.extra == {}
    last_s = max(at_s for at_s, telling in sim.asked if telling)
    assert last_s - began_s < asking.LATEST_S


def test_what_fails_anew_is_asked_about_anew() -> None:
    sim = started()
    sim.break_bucket("leaf1>spine1")
    sim.run(10.0)
    first = len(sim.asked)
    sim.run(10.0)
    assert len(sim.asked) == first
    sim.break_bucket("leaf2>spine2")
    sim.run(5.0)
    assert len(sim.asked) > first
    assert sim.telling == frozenset() and sim.most <= asking.MOST


@pytest.mark.parametrize("what", ["nothing", "loss", "queue", "silence", "large"])
def test_nothing_is_asked_without_a_blackhole_for_all_packets(what: str) -> None:
    sim = started()
    if what == "loss":
        sim.loss["spine1>leaf3"] = 0.05
        sim.windows(5.0)
    elif what == "queue":
        sim.fill("spine1>leaf3")
    elif what == "silence":
        sim.silence("host3")
    elif what == "large":
        for peer, uplink, label in sim.targets:
            if "spine1>leaf3" in sim.directions(peer, uplink, label):
                sim.post(ev.PathEvidence(peer=peer, uplink=uplink, label=label, evidence="blackhole", large_only=True))
    sim.run(30.0)
    assert sim.paths == set()


def test_paths_that_tell_move_nothing_and_are_not_written_down() -> None:
    """Labels outside of those in use fail, too, and only the diagnosis hears of it."""
    sim = started()
    mark = sim.mark()
    used = {(peer.address, *key) for peer in sim.core.world.table.peers.values() for key in peer.in_use}
    sim.break_bucket("spine1>leaf3")
    sim.run(5.0)
    names = {path.element.name for path in (sim.core.world.table.find(*key) for key in used) if path is not None}
    told = {one.element for one in sim.since(mark, cmd.Record) if one.what.startswith("blackhole on")}
    failed = {key for key in sim.paths if not sim.passes(*key)}
    assert failed and told <= names
    for key in sim.paths - used:
        path = sim.core.world.table.find(*key)
        assert path is not None and path.element.state == "unknown" and path.evidence == "unknown"


def test_a_whole_direction_is_named_first_and_looked_into_then() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_("spine1>leaf3")
    sim.run(3.0)
    assert verdicts(sim, mark) == ["verdict direction: spine1>leaf3 lets nothing through"]
    assert 0 < len(sim.paths) <= asking.ENOUGH
    assert all("spine1>leaf3" in sim.directions(*key) for key in sim.paths)
    (named_s,) = [at_s for at_s, one in sim.log[mark:] if isinstance(one, cmd.Record) and "verdict" in one.what]
    assert named_s <= min(at_s for at_s, telling in sim.asked if telling)


def test_what_seems_whole_by_the_paths_in_use_is_found_partial_by_others() -> None:
    sim = started()
    mark = sim.mark()
    over = [key for key in sim.targets if "spine1>leaf3" in sim.directions(*key)]
    sim.break_(*(("spine1>leaf3", label) for _, _, label in over))
    sim.run(3.0)
    said = "verdict direction: spine1>leaf3 lets nothing through"
    assert verdicts(sim, mark) == [said, f"{said} on a part of its paths"]


def test_what_heals_while_it_is_looked_into_is_taken_back() -> None:
    sim = started()
    mark = sim.mark()
    sim.break_bucket("spine1>leaf3", 2)
    sim.run(0.8)
    assert len(verdicts(sim, mark)) == 1 and sim.telling
    sim.heal()
    sim.run(10.0)
    assert verdicts(sim, mark)[1:] == ["verdict direction: spine1>leaf3 holds no longer"]
    assert sim.telling == frozenset() and sim.core.world.findings == ()


def test_what_comes_into_use_takes_what_its_probes_have_said_with_it() -> None:
    sim = started()
    world = sim.core.world
    peer = world.table.peer(sim.address["host3"])
    good, bad = [path for path in peer.paths.values() if path.key not in peer.in_use][:2]
    for path, evidence in ((good, "good"), (bad, "blackhole")):
        key = (peer.address, *path.key)
        world.extra[key] = sim.now_s
        assert extra.take(
            world,
            ev.PathEvidence(peer=key[0], uplink=key[1], label=key[2], evidence=evidence),  # type: ignore[arg-type]
        )
        assert path.evidence == evidence and path.element.state == "unknown"
    assert len(list(extra.targets(world, peer, 0.01, sim.now_s))) == 2
    peer.in_use = (*peer.in_use, good.key, bad.key)
    assert list(extra.targets(world, peer, 0.01, sim.now_s)) == []
    assert world.extra == {} and (good.element.state, bad.element.state) == ("up", "down")
