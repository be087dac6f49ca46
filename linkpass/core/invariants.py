"""Rules of the house that hold between any two events."""

from __future__ import annotations

from linkpass.core.commands import BUCKETS
from linkpass.core.world import GROUP, World


def check(world: World) -> None:
    """Raise AssertionError when one is broken."""
    for peer in world.table.peers.values():
        assert len(peer.labels) in (0, BUCKETS), f"{peer.title()}: {len(peer.labels)} buckets"
        if world.decide_at_s is None:
            assert set(peer.labels) <= {label for _, label in peer.in_use}, f"{peer.title()}: a label nobody probes"
        assert all(key in peer.paths for key in peer.in_use), "a path in use that is not known"
    group = world.wishes.get(GROUP)
    if group is not None and group.value is not None:
        assert group.value, "the last uplink was taken"
    own = world.settings.address
    assert all(world.table.peer(name).probed_from(own) for name, _, _ in world.planned), "wrong family"
    if not world.acting:
        assert all(wish.programmed is None for wish in world.wishes.values()), "observe mode has steered"
