"""How a job begins, by its seats."""

from __future__ import annotations

import msgspec
from sim_members import FIT

from torchpass_bridge.core.founding import FENCED, found, fresh
from torchpass_bridge.wire import Fit, Job, Member

replace = msgspec.structs.replace


def seat(name: str, **fit: object) -> Member:
    return Member(name, f"h-{name}", 1, "a:1", replace(FIT, **{"world": 2, **fit}))


def test_it_is_founded_once_every_rank_is_there() -> None:
    assert found("j", {}, None) is None
    assert found("j", {1: seat("b")}, None) is None
    job = found("j", {1: seat("b"), 0: seat("a")}, None)
    assert job == Job("j", 2, 1, (seat("a"), seat("b")))


def test_what_is_not_alike_is_refused_with_the_reason() -> None:
    def why(**seats: Member) -> str:
        job = found("j", {int(rank[1:]): member for rank, member in seats.items()}, None)
        assert job is not None and job.ended == "refused" and job.members == tuple(seats.values())
        return job.why

    assert why(r0=seat("a"), r1=seat("b", model="x")) == "rank 1 on h-b is not like rank 0 on h-a: model x instead of m"
    assert why(r0=seat("a"), r1=seat("b", world=3)) == (
        "rank 1 on h-b is not like rank 0 on h-a: world size 3 instead of 2"
    )
    assert why(r0=seat("a"), r2=seat("b")) == "rank 2 on h-b does not exist in a job of 2 ranks"
    assert why(r0=seat("a", world=0)) == "rank 0 on h-a does not say of how many ranks the job is made"
    assert why(r0=seat("a"), r1=seat("a")) == "two ranks are held under one id"


def test_over_a_run_that_has_ended_numbers_go_on_and_its_members_stay_out() -> None:
    old = Job(
        "j", 2, 7, (seat("a"), seat("b")), fenced=("z",), incidents=3, moved_unix_s=(1.0,), ended="stopped", why="w"
    )
    seats = {0: seat("a"), 1: seat("c")}
    assert fresh(seats, old) == {1: seat("c")}
    assert found("j", seats, old) is None
    job = found("j", {0: seat("d"), 1: seat("c")}, old)
    assert job is not None
    assert (job.generation, job.incidents, job.fenced, job.moved_unix_s) == (8, 3, ("z", "a", "b"), (1.0,))
    assert (job.ended, job.why) == ("", "")
    many = replace(old, fenced=tuple(str(n) for n in range(FENCED)))
    again = found("j", {0: seat("d"), 1: seat("c")}, many)
    assert again is not None and len(again.fenced) == FENCED and again.fenced[-1] == "b"


def test_a_run_of_which_nobody_is_heard_is_over_once_all_ranks_are_there_anew() -> None:
    old = Job("j", 2, 7, (seat("a"), seat("b")), incidents=3, unheard_unix_s=1.0)
    assert found("j", {0: seat("c"), 1: seat("b")}, old) is None
    job = found("j", {0: seat("c"), 1: seat("d")}, old)
    assert job is not None
    assert (job.generation, job.incidents, job.fenced, job.unheard_unix_s) == (8, 4, ("a", "b"), 0.0)


def test_a_job_that_trains_is_not_founded_again() -> None:
    trains = Job("j", 2, 1, (seat("a"), seat("b")))
    assert found("j", {0: seat("c"), 1: seat("d")}, trains) is None


def test_the_world_size_is_part_of_what_fits() -> None:
    assert Fit("2", "cpu", "m", "o", 1, 1, world=4).misfits(Fit("2", "cpu", "m", "o", 1, 1)) == (
        "world size unknown instead of 4"
    )
