"""What becomes of a spare's record: before it has spoken, when it falls silent, when it can never serve."""

from __future__ import annotations

import msgspec
from sim_members import FIT

from torchpass_bridge.core.coordinate import decide
from torchpass_bridge.core.scene import Drop, Limits, Refuse, Scene
from torchpass_bridge.wire import Fit, Job, Member, Spare, Status, prove

KEY = b"key"


def spare(name: str, fit: Fit = FIT, key: bytes = KEY) -> Spare:
    return Spare(Member(name, f"h-{name}", 1, "a:1", fit), "j", prove(key, "j", name))


class Watched:
    """A job of one rank that trains, watched for a long time."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.sequence = 0
        self.scene = Scene(Job("j", 1, 1, (Member("m", "h", 1, "a:1", FIT),)), Limits(), 0.0, KEY)
        self.beat()

    def beat(self, *others: str) -> None:
        self.sequence += 1
        self.scene.hear(Status("m", self.sequence, "training", 1, self.sequence), self.now_s)
        for other in others:
            self.scene.hear(Status(other, self.sequence, "waiting"), self.now_s)

    def decide(self, *spares: Spare) -> list[object]:
        self.scene.see_spares({one.member.id: one for one in spares}, self.now_s)
        return list(decide(self.scene, self.now_s, 0.0))

    def later(self, span_s: float, *heard: str) -> None:
        for _ in range(round(span_s * 10)):
            self.now_s += 0.1
            self.beat(*heard)


def test_a_new_spare_has_time_to_speak_however_long_the_job_is_watched() -> None:
    watched = Watched()
    watched.later(60.0)
    assert watched.decide(spare("s")) == []
    watched.later(5.0)
    assert watched.decide(spare("s")) == []
    watched.later(5.0)
    assert watched.decide(spare("s")) == [Drop(spare("s"))]


def test_one_that_has_spoken_is_dropped_when_it_is_silent_for_long() -> None:
    watched = Watched()
    watched.later(1.0, "s")
    assert watched.decide(spare("s")) == []
    watched.later(5.0)
    assert watched.decide(spare("s")) == []
    watched.later(5.0)
    assert watched.decide(spare("s")) == [Drop(spare("s"))]


def test_one_that_can_never_serve_is_told_at_once_and_once() -> None:
    watched = Watched()
    wrong = spare("s", key=b"another")
    told = msgspec.structs.replace(wrong, refused="it does not know the job's key")
    assert watched.decide(wrong) == [Refuse(told)]
    assert watched.decide(told) == []
    misfit = spare("t", msgspec.structs.replace(FIT, state_bytes=7))
    assert watched.decide(misfit) == [Refuse(msgspec.structs.replace(misfit, refused="7 bytes of state instead of 1"))]


def test_without_a_key_nobody_has_to_know_one() -> None:
    watched = Watched()
    watched.scene.key = b""
    assert watched.decide(spare("s", key=b"another")) == []
