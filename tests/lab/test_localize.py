"""The simulator against the fabric's own paths, the baselines on what they are good at, and the bench as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.bench import localize, shape
from lab.sim import fabrics
from lab.sim.baselines import bouncing, lifted, voting
from lab.sim.cases import Plan, trial
from lab.sim.faults import FAULT_KINDS, FaultKind, draw
from lab.sim.routes import Routes
from lab.sim.trial import Setup, setup
from lab.sim.watch import watch
from lab.sim.weather import Weather
from linkpass.cli.bench import bench_group
from linkpass.core.diagnosis.elements import Elements
from topology.generate import leaf_spine
from topology.model import Fabric


def silent(what: object, done: float = 0.0) -> None:
    del what, done


@pytest.fixture(scope="module")
def two_tier() -> Setup:
    return setup("2-tier-64", 0)


@pytest.mark.parametrize("fabric", [leaf_spine(6, uplinks=2, racks=2, spines=3), fabrics.fat_tree(4)])
def test_paths_are_the_fabrics_shortest_paths_and_all_of_them_are_walked(fabric: Fabric) -> None:
    routes, elements = Routes(fabric), Elements(fabric)
    nics = len(routes.nics)
    source, target = (side.ravel() for side in np.meshgrid(np.arange(nics), np.arange(nics)))
    apart = routes.host_of[source] != routes.host_of[target]
    source, target = np.repeat(source[apart], 60), np.repeat(target[apart], 60)
    entropy = np.random.default_rng(0).integers(0, 2**40, len(source), dtype=np.uint64)
    walked: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for a, b, row in zip(source.tolist(), target.tolist(), routes.walk(source, target, entropy).tolist(), strict=True):
        walked.setdefault((a, b), set()).add(tuple(elements.names[way] for way in row if way >= 0))
    names = [node.name for node in fabric.nodes]
    for (a, b), found in walked.items():
        ends = fabric.links[routes.nics[a]].id, fabric.links[routes.nics[b]].id
        between = fabric.equal_cost_paths(names[routes.host_of[a]], names[routes.host_of[b]])
        shortest = {path.directions for path in between if (path.links[0].id, path.links[-1].id) == ends}
        if shortest:  # else these two uplinks are on no shortest path of their hosts
            assert found == shortest


def test_swapped_cables_keep_their_names_and_lead_elsewhere() -> None:
    straight, crossed = Routes(fabrics.two_tier()), Routes(fabrics.two_tier(), 0.05, seed=3)
    moved = np.flatnonzero(crossed.upper != crossed.planned)
    assert 8 <= len(moved) <= 14
    assert (straight.upper == straight.planned).all()
    assert sorted(crossed.upper.tolist()) == sorted(crossed.planned.tolist())


def test_the_same_seed_is_the_same_trial(two_tier: Setup) -> None:
    one, other = (trial(two_tier, "multi", 3, 5) for _ in range(2))
    assert [fault.element for fault in one[0]] == [fault.element for fault in other[0]]
    assert one[1]["linkpass"].told == other[1]["linkpass"].told
    assert trial(two_tier, "multi", 3, 6)[0][0].element != one[0][0].element


def test_losses_are_where_the_fault_is(two_tier: Setup) -> None:
    chance = np.random.default_rng(1)
    fault = draw(two_tier.traffic, "leaf", 0.05, chance)
    window = Weather(two_tier.traffic, chance, [fault]).window(5.0)
    others = np.setdiff1d(np.arange(len(window.sent)), fault.rows)
    assert window.lost[fault.rows].sum() / window.sent[fault.rows].sum() == pytest.approx(0.05, rel=0.05)
    assert window.lost[others].sum() / window.sent[others].sum() == pytest.approx(4e-5, rel=0.2)


@pytest.mark.parametrize("kind", ["direction", "link", "host"])
def test_baselines_find_what_their_papers_say(two_tier: Setup, kind: FaultKind) -> None:
    chance = np.random.default_rng(2)
    fault = draw(two_tier.traffic, kind, 1.0, chance)
    window = Weather(two_tier.traffic, chance, [fault]).window(1.0)
    paths = two_tier.traffic.paths
    for named in (
        voting(paths, two_tier.believed, window.sent, window.lost),
        bouncing(paths, two_tier.blocks, window.sent, window.lost),
    ):
        assert fault.element in [paths.elements.names[element] for element in lifted(paths, named)]


@pytest.mark.parametrize("fabric", ["2-tier-64", "fat-tree-8"])
def test_right_and_ahead_of_both_baselines_on_the_same_observations(fabric: str) -> None:
    plan = Plan(16, 0, ("single-hard", "single-1pct", "kind"), (fabric,))
    bench = localize.run_bench(plan, silent)
    assert shape.decode(shape.encode(bench)) == bench
    assert localize.behind(bench) == []
    right = [target for target in localize.targets(bench) if target.metric in ("accuracy_ratio", "switches_as_hosts")]
    assert shape.missed(bench, right) == []
    for row in bench.rows:
        assert all(row.metrics["accuracy_ratio"] > row.without[name]["accuracy_ratio"] for name in row.without)


def test_several_faults_at_once_ahead_of_both_baselines() -> None:
    bench = localize.run_bench(Plan(12, 0, ("multi",), ("fat-tree-8",)), silent)
    (row,) = bench.rows
    assert localize.behind(bench) == []
    for metric in ("precision_ratio", "recall_ratio"):
        ratio = row.metrics[metric]
        assert isinstance(ratio, float)
        assert ratio >= 0.9


def test_nobody_is_accused_in_a_healthy_fabric() -> None:
    made = setup("healthy", 0, make=fabrics.healthy)
    seen = watch(made, 0.2, (0,))
    assert seen.accused["linkpass"] == set()
    assert seen.accused["007"] and seen.accused["netbouncer"]
    assert seen.congestion_named == seen.congested > 0


def test_every_kind_of_fault_is_drawn(two_tier: Setup) -> None:
    chance = np.random.default_rng(4)
    for kind in FAULT_KINDS:
        fault = draw(two_tier.traffic, kind, 1.0, chance)
        assert fault.element in two_tier.traffic.paths.elements.index and len(fault.rows)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "localize.json"
    words = ["localize", "--n", "2", "--fabric", "2-tier-64", "--case", "single-hard", "--json", str(file)]
    result = CliRunner().invoke(bench_group, words)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())["rows"]
    assert row["case"] == "single-hard-2-tier-64"
    assert set(row["without"]) == {"007", "netbouncer"}
    wrong = CliRunner().invoke(bench_group, ["localize", "--fabric", "ring"])
    assert wrong.exit_code == 2 and "no fabric 'ring'" in wrong.output


def test_parts_done_in_several_processes_are_the_same_rows() -> None:
    plan = Plan(12, 3, ("single-hard",), ("2-tier-64",))
    alone, together = localize.run_bench(plan, silent), localize.run_bench(plan, silent, workers=2)
    for one, other in zip(alone.rows, together.rows, strict=True):
        assert (one.case, one.n, one.info) == (other.case, other.n, other.info)
        for metric in ("accuracy_ratio", "time_to_name_s", "class_size_ratio"):
            assert one.metrics[metric] == other.metrics[metric]
