"""What the ranks' logs of a run are read as: progress, what was done again, what an event cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.goodput import Ran, behind, rows, targets
from lab.bench.shape import Bench, check, machine, missed
from lab.goodput.schedule import EVERY_S, KINDS, Event, length_s, schedule
from lab.goodput.story import Reader, Story

WORLD = 2


def write(folder: Path, name: str, *lines: dict[str, object]) -> None:
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))


def applied(rank: int, step: int, at_s: float) -> dict[str, object]:
    return {"rank": rank, "step": step, "at_s": at_s}


def test_a_step_is_there_once_all_ranks_have_applied_it_whoever_holds_them(tmp_path: Path) -> None:
    reader = Reader(tmp_path, WORLD)
    write(tmp_path, "1", applied(0, 0, 1.0), applied(0, 1, 2.0))
    write(tmp_path, "2", applied(1, 0, 1.1))
    assert reader.update().whole == [(1.1, 0)]
    write(tmp_path, "3", applied(1, 1, 5.0), {"rank": 1, "done": 2, "sha256": "x"})
    assert reader.update().whole == [(1.1, 0), (5.0, 1)]
    assert reader.story.hashes == {1: "x"}


def test_what_is_read_again_and_what_is_half_written_is_not_taken_twice(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 1)
    write(tmp_path, "1", applied(0, 0, 1.0))
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"rank": 0, "step": 1')
    assert reader.update().whole == reader.update().whole == [(1.0, 0)]
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write(', "at_s": 2.0}\n')
    assert reader.update().whole == [(1.0, 0), (2.0, 1)]


def test_steps_that_are_done_again_count_once_for_all_ranks(tmp_path: Path) -> None:
    lines = [applied(rank, step, at_s) for at_s, step in ((1.0, 0), (2.0, 1), (9.0, 0), (10.0, 1)) for rank in (0, 1)]
    write(tmp_path, "1", *lines)
    story = Reader(tmp_path, WORLD).update()
    assert (story.steps_lost, len(story.whole)) == (2, 2)


def told(*times: float) -> Story:
    return Story(1, [(at_s, step) for step, at_s in enumerate(times)], hashes={0: "x"})


def test_an_event_costs_what_the_longest_way_to_a_new_step_was_beyond_a_usual_one() -> None:
    story = told(0.0, 1.0, 2.0, 3.0, 4.1, 9.0, 10.0, 11.0)
    cost = story.cost(4.0, 25.0)
    assert (cost.pause_s, cost.recover_s) == (pytest.approx(3.9), pytest.approx(5.0))
    assert story.cost(6.5, 25.0).pause_s == pytest.approx(3.9)
    assert story.cost(10.5, 25.0).pause_s == pytest.approx(0.0)


def test_events_are_as_many_of_each_kind_and_well_inside_the_run() -> None:
    events = schedule(3, 5, 4)
    assert sorted(event.kind for event in events) == sorted(KINDS * 3)
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert events[-1].at_s < length_s(3) - EVERY_S / 2
    assert schedule(3, 5, 4) == events != schedule(3, 6, 4)


def test_the_rows_say_who_was_slower_than_whom() -> None:
    none = Ran("none", told(*map(float, range(11))), (), complete=True)
    event = ((4.0, Event(4.0, "crash", 0)),)
    mine = Ran("linkpass", told(0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11), event, complete=True)
    slow = Ran("restart", told(0, 1, 2, 3, 4, 16, 17, 18, 19, 20, 21), event, complete=True)
    from lab.bench.goodput import Plan

    made = rows({"none": none, "restart": slow, "linkpass": mine}, Plan(n=1), {})
    bench = check(Bench("goodput", "", machine(), 0, tuple(made)))
    ratios = {row.case: row.metrics.get("time_ratio") for row in bench.rows}
    assert (ratios["none"], ratios["linkpass"], ratios["restart"]) == (1.0, 1.1, 2.1)
    crash = next(row for row in bench.rows if row.case == "crash")
    assert crash.metrics["pause_s"].max == 1.0  # type: ignore[union-attr]
    assert crash.without["restart"]["pause_s"].max == 11.0  # type: ignore[union-attr]
    assert behind(bench) == []
    assert not [line for line in missed(bench, targets(bench)) if "time_ratio" in line]
