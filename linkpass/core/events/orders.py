"""The operator's orders, and outcomes of steering."""

from __future__ import annotations

from linkpass.core.events.base import Event


class DrainRequested(Event, frozen=True):
    link: str
    everywhere: bool = False


class UndrainRequested(Event, frozen=True):
    link: str
    everywhere: bool = False


class ClearRequested(Event, frozen=True):
    """Forget the damping of a link (`*`: of all)."""

    link: str


class GroupProgrammed(Event, frozen=True):
    cmd_id: int
    group: str
    took_s: float = 0.0


class GroupLeads(Event, frozen=True):
    """Over which uplinks our routes of a group lead now, told whenever that has changed: fewer than asked for where the
    kernel's own routes below ours lack some. The kernel's hash picks anew among them."""

    group: str
    uplinks: tuple[str, ...]


class GroupFailed(Event, frozen=True):
    cmd_id: int
    group: str
    why: str


class LabelsProgrammed(Event, frozen=True):
    cmd_id: int
    peer: str
    took_s: float = 0.0


class LabelsFailed(Event, frozen=True):
    cmd_id: int
    peer: str
    why: str


class Deadline(Event, frozen=True):
    """The moment asked for by `next_deadline_s()` has come."""
