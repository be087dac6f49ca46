"""One `Escalate`, within a budget an hour: hosts fail rarely, and a judge who gives up many is wrong himself.

A hook that fails is run again for the same host, a few times with pauses that double, as long as what the handover
rests on lasts: the silence, or this host's own fatal evidence. That is the handover which the budget has counted, so
that a hook which is broken takes no other host's turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from linkpass.core.commands import Escalate
from linkpass.core.events import Escalated, EscalateFailed
from linkpass.core.host_state import Handover
from linkpass.core.world import Tray, World

HOUR_S = 3600.0
PENDING = 64
AGAIN_S = 30.0
"""After the first failure of the hook; doubles with each."""
MOST_TRIES = 6
"""The last one a quarter of an hour after the first: what it needs (a control plane, a network) may be away as well."""


def escalate(
    world: World, tray: Tray, host: str, evidence: tuple[str, ...], cause: str, since_s: float, now_s: float,
    accelerator: str = "",
) -> float | None:  # fmt: skip
    """Hand a host (or one accelerator of it) over, which fails since `since_s`; None when that was done, else until
    when the budget is used up."""
    book = world.hosts
    while book.escalated_at_s and book.escalated_at_s[0] <= now_s - HOUR_S:
        book.escalated_at_s.popleft()
    most = world.settings.limits.escalations_per_hour
    name = _name(host, accelerator)
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
    book.refused.pop((host, accelerator), None)
    _run_hook(world, tray, Handover(host, accelerator, evidence, cause, since_s))
    return None


def on_escalated(world: World, tray: Tray, event: Escalated | EscalateFailed, now_s: float) -> None:
    """How it ended, in the story that it belongs to."""
    one = world.hosts.pending.pop(event.cmd_id, None)
    if one is not None:
        cause = one.cause
    else:
        peers = world.table.peers.values()
        cause = next((peer.cause for peer in peers if peer.title() == event.host), "")
    name = _name(event.host, event.accelerator)
    if isinstance(event, Escalated):
        tray.record(cause, f"{name} was handed over", "the escalation hook took it", rung=3)
        return
    why = event.why
    if one is not None and _stands(world, one):
        if one.tries < MOST_TRIES:
            pause_s = AGAIN_S * 2 ** (one.tries - 1)
            one.again_s = now_s + pause_s
            world.hosts.refused[one.host, one.accelerator] = one
            why = f"{why}; tried again in {pause_s:.0f} s"
        else:
            why = f"{why}; it failed {one.tries} times, and is not tried again"
    tray.record(cause, f"{name} was not handed over", why, rung=3, level="warning")


def deadlines(world: World) -> Iterator[float]:
    yield from (one.again_s for one in world.hosts.refused.values() if one.again_s is not None)


def tick(world: World, tray: Tray, now_s: float) -> None:
    """Run the hook again where it is time. Whoever is heard again, or is well again, needs it no more."""
    refused = world.hosts.refused
    for key, one in list(refused.items()):
        if not _stands(world, one):
            del refused[key]
        elif one.again_s is not None and one.again_s <= now_s:
            del refused[key]
            _run_hook(world, tray, one)


def _run_hook(world: World, tray: Tray, one: Handover) -> None:
    one.tries, one.again_s = one.tries + 1, None
    cmd_id = tray.take_id()
    pending = world.hosts.pending
    pending[cmd_id] = one
    if len(pending) > PENDING:
        del pending[next(iter(pending))]
    tray.put(
        Escalate(
            cmd_id=cmd_id, cause=one.cause, host=one.host, evidence=one.evidence, accelerator=one.accelerator,
            since_s=one.since_s,
        )
    )  # fmt: skip


def _stands(world: World, one: Handover) -> bool:
    """Whether what it rests on still does."""
    if one.host == world.settings.host:
        return world.hosts.handed_over.get(one.accelerator) == one.cause
    return any(
        peer.escalated and peer.cause == one.cause and peer.title() == one.host for peer in world.table.peers.values()
    )


def _name(host: str, accelerator: str) -> str:
    return f"{accelerator} of {host}" if accelerator else host
