"""Which group is to be built next, and the thread that builds it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torchpass_bridge.core.duty import Duty
from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.groups import Grid, Group, Key, build
from torchpass_bridge.trainer.rendezvous import Call, Rendezvous, Scratch
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.wire import Member


class Building:
    """`done`, `failed`: called in the thread that builds. A group that is not wanted any more is dropped unseen."""

    def __init__(
        self,
        settings: Settings,
        scratch: Scratch,
        call: Call,
        done: Callable[[Group], None],
        failed: Callable[[str], None],
    ) -> None:
        self.device = torch.device("cpu")
        self.grid: Grid | None = None
        self._settings, self._scratch, self._call = settings, scratch, call
        self._done, self._failed = done, failed
        self._lock = threading.Lock()
        self._wanted: Key | None = None
        self._rendezvous: Rendezvous | None = None

    def aim(self, duty: Duty, present: Group | None, following: Group | None) -> bool:
        """Build what the duty asks for, unless it stands or is being built. True: another one than before is begun."""
        key, members = _target(duty, present, self._settings.id)
        if key is None:
            self._stop()
        elif key == self._wanted or (following is not None and following.key == key):
            return False
        else:
            self._stop()
            self._start(key, members)
            return True
        return False

    def _stop(self) -> None:
        with self._lock:
            rendezvous, self._rendezvous, self._wanted = self._rendezvous, None, None
        if rendezvous is not None:
            rendezvous.abort()

    def _start(self, key: Key, members: tuple[Member, ...]) -> None:
        settings = self._settings
        rank = next(rank for rank, member in enumerate(members) if member.id == settings.id)
        prefix = f"{settings.job}-{key[0]}-{key[1]}."
        with self._lock:
            rendezvous = Rendezvous(self._scratch, self._call, prefix, settings.times.build_s)
            self._wanted, self._rendezvous = key, rendezvous
        Aside("build", self._build, key, rank, len(members), rendezvous).start()

    def _build(self, key: Key, rank: int, world: int, rendezvous: Rendezvous) -> None:
        times = self._settings.times
        found: Any = None
        why = ""
        try:
            found = build(
                key, rank, world, rendezvous, self.device, self._settings.address, times.build_s, times.group_s,
                self.grid,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 (what the backends raise is not theirs alone)
            why = f"the group {key} could not be built: {str(error).splitlines()[0]}"
        with self._lock:
            wanted = self._rendezvous is rendezvous
        if not wanted:
            return
        if found is not None:
            self._done(found)
        else:
            self._failed(why)


def _target(duty: Duty, present: Group | None, me: str) -> tuple[Key | None, tuple[Member, ...]]:
    if duty.fenced or duty.ended:
        return None, ()
    if duty.build is not None:
        return duty.build, duty.build_members
    holds = duty.rank is not None and duty.rank < len(duty.members) and duty.members[duty.rank].id == me
    if holds and (present is None or present.key < duty.group):  # a spare that is only claimed holds none yet
        return duty.group, duty.members
    return None, ()
