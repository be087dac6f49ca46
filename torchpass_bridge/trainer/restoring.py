"""A rank that begins with a snapshot instead of at the start."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from torchpass_bridge import snapshot
from torchpass_bridge.snapshot import Manifest, NotWhole
from torchpass_bridge.trainer.chunks import Chunks
from torchpass_bridge.trainer.endings import Refused
from torchpass_bridge.trainer.inherit import Heir
from torchpass_bridge.trainer.saving import load
from torchpass_bridge.trainer.settings import LATEST, Settings
from torchpass_bridge.trainer.state import State
from torchpass_bridge.wire import Fit

_log = logging.getLogger(__name__)

MAY_DIFFER = ("torch", "device", "threads", "loop")
"""Of a `Fit`: with others than before only the last bits may come out otherwise."""


class Origin(msgspec.Struct, frozen=True):
    path: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """Alike for all ranks that begin with it, whatever they call its folder."""
        return f"{self.manifest.job}/{self.path.name}"


def origin(settings: Settings) -> Origin | None:
    """None: at the start. Refused when what is named is no whole snapshot."""
    if not settings.restore:
        return None
    if settings.restore == LATEST:
        path = snapshot.newest(Path(settings.snapshots) / settings.job)
        if path is None:
            _log.warning("there is no snapshot of %s in %s: it begins at the start", settings.job, settings.snapshots)
            return None
    else:
        path = Path(settings.restore)
    try:
        path = snapshot.find(path)
        found = Origin(path, snapshot.read(path))
        wrong = [why for _, why in snapshot.check(path, found.manifest) if why]
    except NotWhole as error:
        raise Refused(str(error)) from None
    if wrong:
        raise Refused(f"{path} is damaged: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if wrong[1:] else ""))
    return found


def restore(settings: Settings, begin: Origin, state: State, heir: Heir, shards: int) -> int:
    """Fill the state, of which there are `shards` parts, and what belongs to this rank alone; the step, as many as are
    applied. Refused."""
    rank, told = settings.rank, begin.manifest
    assert rank is not None
    if told.world != settings.world:
        raise Refused(f"{begin.path} is of {told.world} ranks; this job has {settings.world}")
    if told.fit.shards != shards:
        raise Refused(f"{begin.path} is of {told.fit.shards} parts of a state; this job has {shards}")
    if state.empty():
        state.materialize()
    bare = told.layout != Chunks(state.pieces()).layout
    if bare:
        state.forget()
        if told.layout != Chunks(state.pieces(bare=True)).layout:
            raise Refused(f"{begin.path} is of another model or optimizer: its tensors are laid out in another way")
    note = told.own_of(rank)
    try:
        load(begin.path, told, state.tensors(bare=bare), rank % shards)
        notes = [told.own_of(other) for other in (rank, *range(told.world))]
        sealed = [(n.rank, n.step, (begin.path / n.name).read_bytes()) for n in notes if n is not None]
        heir.restore(rank, told.step, sealed)
    except (NotWhole, ValueError) as error:  # a wrong key, too
        raise Refused(str(error)) from None
    _log.info("begins with %s: %d steps applied, generators at step %s", begin.path, told.step, note and note.step)
    return told.step


def compare(begin: Origin, fit: Fit) -> None:
    """Refused when it is another job's; a warning when only the last bits may be others."""
    told = begin.manifest.fit
    alike = msgspec.structs.replace(fit, **{name: getattr(told, name) for name in MAY_DIFFER})
    if wrong := told.misfits(alike):
        raise Refused(f"{begin.path} is of another job: {wrong}")
    if other := told.misfits(fit):
        _log.warning("goes on from %s, but not to the last bit as it would have: %s", begin.path, other)
