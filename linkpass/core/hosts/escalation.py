"""One `Escalate`, within a budget an hour: hosts fail rarely, and a judge who gives up many is wrong himself."""

from __future__ import annotations

from linkpass.core.commands import Escalate
from linkpass.core.events import Escalated, EscalateFailed
from linkpass.core.world import Tray, World

HOUR_S = 3600.0
PENDING = 64


def escalate(
    world: World, tray: Tray, host: str, evidence: tuple[str, ...], cause: str, now_s: float, accelerator: str = ""
) -> float | None:
    """Hand a host (or one accelerator of it) over; None when that was done, else until when the budget is used up."""
    book = world.hosts
    while book.escalated_at_s and book.escalated_at_s[0] <= now_s - HOUR_S:
        book.escalated_at_s.popleft()
    most = world.settings.limits.escalations_per_hour
    name = f"{accelerator} of {host}" if accelerator else host
    if len(book.escalated_at_s) >= most:
        if not book.over_budget:
            book.over_budget = True
            why = (
                f"{most} were within an hour, which limits.escalations_per_hour allows: this looks like no host's fault"
            )
            tray.record(cause, f"{name} is not handed over", why, rung=3, element=host, level="warning")
        return book.escalated_at_s[0] + HOUR_S if book.escalated_at_s else now_s + HOUR_S
    book.over_budget = False
    book.escalated_at_s.append(now_s)
    kind = "accelerator" if accelerator else "host"
    tray.record(
        cause, f"verdict {kind}: {name} fails", "; ".join(evidence), rung=3, element=name, level="warning"
    )  # fmt: skip
    if not world.acting:  # a hook may cordon a host: that is no observation
        tray.record(cause, f"would hand over {name}", "mode is observe", rung=3, element=host)
        return None
    cmd_id = tray.take_id()
    book.pending[cmd_id] = cause
    if len(book.pending) > PENDING:
        del book.pending[next(iter(book.pending))]
    tray.put(Escalate(cmd_id=cmd_id, cause=cause, host=host, evidence=evidence, accelerator=accelerator))
    return None


def on_escalated(world: World, tray: Tray, event: Escalated | EscalateFailed) -> None:
    """How it ended, in the story that it belongs to."""
    cause = world.hosts.pending.pop(event.cmd_id, None)
    if cause is None:
        peers = world.table.peers.values()
        cause = next((peer.cause for peer in peers if peer.title() == event.host), "")
    name = f"{event.accelerator} of {event.host}" if event.accelerator else event.host
    if isinstance(event, Escalated):
        tray.record(cause, f"{name} was handed over", "the escalation hook took it", rung=3)
    else:
        tray.record(cause, f"{name} was not handed over", event.why, rung=3, level="warning")
