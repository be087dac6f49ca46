"""A moment after a move: do the paths that carry the traffic now answer?"""

from __future__ import annotations

from typing import Any

from linkpass.core.commands import Rung
from linkpass.core.desired import Wish
from linkpass.core.paths import Path
from linkpass.core.world import Tray, World


def verify(world: World, tray: Tray) -> None:
    """Say of each move that has not been looked at yet what has become of it."""
    for wish in world.wishes.values():
        if wish.unverified and wish.value and wish.programmed == wish.value:
            wish.unverified = False
            _verify(world, tray, wish, wish.value)


def _verify(world: World, tray: Tray, wish: Wish, value: tuple[Any, ...]) -> None:
    kind, _, address = wish.name.partition(" ")
    rung: Rung
    used: list[Path]
    if kind == "labels":
        peer = world.table.peer(address)
        used = [path for path in peer.used() if path.label in value]
        whose, rung = f"the flows to {peer.title()}", 1
    else:
        used = [path for path in world.table.witnesses() if path.uplink in value]
        whose, rung = f"traffic over {', '.join(value)}", 2
    bad = [path for path in used if path.element.state == "down"]
    if kind == "labels" and bad:
        what, why = f"{whose}: {len(bad)} of {len(used)} path(s) still fail", bad[0].element.why
    elif bad and len(bad) == len(used):
        what, why = f"{whose} does not get through", bad[0].element.why
    elif used:
        what, why = f"{whose}: verified after the move", "probes get through"
    else:
        what, why = f"{whose}: not verified", "nobody to probe over it"
    tray.record(wish.cause, what, why, rung=rung, level="warning" if bad else "info")
