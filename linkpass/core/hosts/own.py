"""What this host's own sources hold against it, and what is done about it.

Fatal evidence gives up this host, or the one accelerator that it is about, once, and peers are told so: they need not
find out. Evidence that degrades gives up nobody; peers are told, and wait half as long should this host fall silent.
What is over is said to be over; what only happened (a line of the kernel's log) is forgotten after its time.
"""

from __future__ import annotations

from collections.abc import Iterator

from linkpass.core.events import HostEvidence, NoticeKind, Severity
from linkpass.core.host_state import Ailment
from linkpass.core.hosts import words
from linkpass.core.hosts.escalation import escalate
from linkpass.core.world import Tray, World

MOST = 256
"""Pieces of evidence that are kept: sources name what they see, and a broken one may name much. What weighs more takes
the place of what weighs less."""
WEIGHT: dict[Severity, int] = {"info": 0, "degraded": 1, "fatal": 2}
LATE_RATIO = 0.2
"""A daemon that was late for this share of the last half minute runs on a host that gets little done."""
LATE_HALF_LIFE_S = 30.0

Key = tuple[str, str, str]


def on_evidence(world: World, tray: Tray, event: HostEvidence, now_s: float) -> None:
    book = world.hosts
    key = event.source, event.accelerator, event.what
    known = book.own.get(key)
    if event.severity == "well":
        if known is not None:
            _over(world, tray, key, event.why or "it is over", now_s)
            _tell(world, tray, now_s)
        return
    until_s = None if event.lasts_s is None else now_s + event.lasts_s
    if known is not None and known.severity == event.severity:
        known.until_s, known.why = until_s, event.why
    else:
        if known is None and len(book.own) >= MOST and not _make_room(world, WEIGHT[event.severity]):
            return
        cause = known.cause if known is not None else world.incident(now_s)
        book.own[key] = Ailment(event.severity, event.why, now_s, cause, until_s)
        what = f"{event.source}: {event.what}{f' of {event.accelerator}' if event.accelerator else ''}"
        element = event.accelerator or world.settings.host
        tray.record(
            cause, what, event.why, element=element, level="info" if event.severity == "info" else "warning"
        )  # fmt: skip
    _give_up(world, tray, event.accelerator, now_s)
    _tell(world, tray, now_s)


def on_late(world: World, tray: Tray, late_s: float, now_s: float) -> None:
    """This daemon ran late: alone it proves nothing, much of it says that the host gets little done. Peers are not
    told: they would wait less for a host that needs more time to answer."""
    book = world.hosts
    fade = 0.5 ** (max(0.0, now_s - book.late_at_s) / LATE_HALF_LIFE_S)
    book.late_s, book.late_at_s = book.late_s * fade + late_s, now_s
    if book.late_s >= LATE_RATIO * LATE_HALF_LIFE_S:
        why = f"linkpass itself was kept from running for {book.late_s:.1f} s of late"
        lasts_s = 2 * LATE_HALF_LIFE_S
        evidence = HostEvidence(source="scheduling", what="late", severity="info", why=why, lasts_s=lasts_s)
        on_evidence(world, tray, evidence, now_s)


def clear(world: World, tray: Tray, now_s: float) -> int:
    """The operator has repaired it: forget everything, and give it up anew should it fail again."""
    count = len(world.hosts.own)
    for key in list(world.hosts.own):
        _over(world, tray, key, "cleared by the operator", now_s)
    world.hosts.handed_over.clear()
    _tell(world, tray, now_s)
    return count


def deadlines(world: World) -> Iterator[float]:
    yield from (one.until_s for one in world.hosts.own.values() if one.until_s is not None)
    for at_s in (world.hosts.tell_at_s, world.hosts.again_s):
        if at_s is not None:
            yield at_s


def tick(world: World, tray: Tray, now_s: float) -> None:
    book = world.hosts
    for key in [key for key, one in book.own.items() if one.until_s is not None and one.until_s <= now_s]:
        _over(world, tray, key, "nothing more of it since", now_s)
    if book.again_s is not None and book.again_s <= now_s:
        book.again_s = None
        for accelerator in dict.fromkeys(accelerator for _, accelerator, _ in book.own):
            _give_up(world, tray, accelerator, now_s)
    if book.tell_at_s is not None and book.tell_at_s <= now_s:
        book.told = ""
    _tell(world, tray, now_s)


def _make_room(world: World, weight: int) -> bool:
    """Forget the oldest of what weighs least, if that is less."""
    own = world.hosts.own
    key = min(own, key=lambda one: WEIGHT[own[one].severity])
    if WEIGHT[own[key].severity] >= weight:
        return False
    del own[key]
    return True


def _over(world: World, tray: Tray, key: Key, why: str, now_s: float) -> None:
    ailment = world.hosts.own.pop(key)
    source, accelerator, what = key
    text = f"{source}: {what}{f' of {accelerator}' if accelerator else ''} is over"
    tray.record(ailment.cause, text, why, element=accelerator or world.settings.host)
    if not _fatal(world, accelerator):
        world.hosts.handed_over.pop(accelerator, None)


def _fatal(world: World, accelerator: str) -> list[tuple[Key, Ailment]]:
    return [
        (key, one) for key, one in world.hosts.own.items() if key[1] == accelerator and one.severity == "fatal"
    ]  # fmt: skip


def _give_up(world: World, tray: Tray, accelerator: str, now_s: float) -> None:
    fatal = _fatal(world, accelerator)
    if not fatal or accelerator in world.hosts.handed_over or "" in world.hosts.handed_over:
        return
    evidence = [f"{source}: {what}: {one.why}" for (source, _, what), one in fatal]
    evidence += [
        f"besides, {source}: {what}: {one.why}"
        for (source, where, what), one in world.hosts.own.items()
        if where == accelerator and one.severity == "degraded"
    ]
    cause = fatal[0][1].cause
    until_s = escalate(
        world, tray, world.settings.host, tuple(evidence), cause, fatal[0][1].since_s, now_s, accelerator
    )
    if until_s is None:
        world.hosts.handed_over[accelerator] = cause
    else:
        world.hosts.again_s = until_s


def _tell(world: World, tray: Tray, now_s: float) -> None:
    """Tell peers of the worst, whenever it is another than they know, and again while it lasts."""
    book = world.hosts
    worst = min(
        ((key, one) for key, one in book.own.items() if one.severity != "info"),
        key=lambda pair: (pair[1].severity != "fatal", bool(pair[0][1]), pair[0]),
        default=None,
    )
    kind: NoticeKind = "well"
    text = told = cause = ""
    if worst is not None:
        (source, accelerator, what), ailment = worst
        kind = "failing" if ailment.severity == "fatal" and not accelerator else "ailing"
        place = f"{source}: {what}{f' of {accelerator}' if accelerator else ''}"
        # Told anew when it is something else, not whenever the same is said in other words.
        told, text, cause = f"{kind} {place}", f"{place}: {ailment.why}", ailment.cause
    if told == book.told:
        return
    words.tell_of_this_host(world, tray, kind, text, cause, now_s)
    book.told = told
    book.tell_at_s = now_s + words.OWN_WORD_S / 3 if told else None
