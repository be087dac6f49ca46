"""How a process's part in the job ends before its loop does. All end the process unless they are caught."""

from __future__ import annotations

from torchpass_bridge.exits import FENCED, OVER, REFUSED, SAVED


class Ending(SystemExit):
    """`code`: as `exits` says. `why`: for people; it is logged."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Fenced(Ending):
    """Its rank has another holder, or will have: it must not train, nor write what the job writes, ever again."""

    def __init__(self, why: str) -> None:
        super().__init__(FENCED, why)


class HandedOver(Ending):
    """The same in good order: its state was taken over."""

    def __init__(self, why: str) -> None:
        super().__init__(OVER, why)


class Stopped(Ending):
    """The job has ended before its steps were done. `saved`: with a snapshot to go on from."""

    def __init__(self, why: str, *, saved: bool = False) -> None:
        super().__init__(SAVED if saved else 1, why)


class NotNeeded(Ending):
    """A spare whose job has ended without it."""

    def __init__(self, why: str) -> None:
        super().__init__(OVER, why)


class Refused(Ending):
    """It could never take part as it is."""

    def __init__(self, why: str) -> None:
        super().__init__(REFUSED, why)


class Torn(RuntimeError):  # noqa: N818 (what is so)
    """A step was broken between the steps of two optimizers: this process's state is of no step."""
