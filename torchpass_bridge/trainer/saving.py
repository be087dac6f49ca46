"""This process's part of a snapshot: taken at a boundary between two steps, written beside training, published by one.

Taking it is a copy of this rank's share of the tensors, which with DDP is one of as many shares as there are ranks:
that is all that training waits for. A thread writes it with torch.distributed.checkpoint, each rank into a folder of
its own and without a collective (`no_dist`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from torchpass_bridge import snapshot
from torchpass_bridge.core.duty import Save
from torchpass_bridge.trainer.aside import Aside
from torchpass_bridge.trainer.giving import Giver
from torchpass_bridge.trainer.inherit import Heir
from torchpass_bridge.trainer.own import sealed
from torchpass_bridge.trainer.settings import Settings
from torchpass_bridge.trainer.state import State, layout
from torchpass_bridge.wire import Fit

Tell = Callable[..., None]
"""`Agent.tell`."""

_log = logging.getLogger(__name__)

# That each rank saves by itself is what is meant.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)


class Held(msgspec.Struct, frozen=True):
    """Copies of tensors of one part of the state, by name."""

    shard: int
    layout: str
    tensors: Mapping[str, torch.Tensor]


class Taken(msgspec.Struct, frozen=True):
    """What was so at the boundary. `own`: (rank, step) -> sealed bytes."""

    rank: int
    fit: Fit
    held: tuple[Held, ...]
    own: Mapping[tuple[int, int], bytes]


class Saver:
    """`begun`, `publishing`: (number, attempt) of what was last taken and published here."""

    def __init__(self, settings: Settings, tell: Tell) -> None:
        self._settings, self._tell = settings, tell
        self._saying = threading.Lock()
        self.begun = (0, 0)
        self.publishing = (0, 0)

    def begin(self, save: Save, take: Callable[[], Taken]) -> None:
        """Call where the step is the one to be saved. It comes back when the state may change again."""
        key = (save.number, save.attempt)
        with self._saying:
            self.begun = key
        began_s = time.perf_counter()
        try:
            taken = take()
        except (RuntimeError, ValueError) as error:  # not enough memory, or no dense tensor
            self._failed(key, error)
            return
        _log.info(
            "snapshot %d: step %d taken in %.0f ms", *key[:1], save.at_step, (time.perf_counter() - began_s) * 1e3
        )
        self._say(key, saved=(*key, ""))
        self._in_thread(key, lambda: self._write(save, taken))

    def publish(self, save: Save) -> None:
        key = (save.number, save.attempt)
        with self._saying:
            self.publishing = key
        self._in_thread(key, lambda: self._publish(save))

    def _in_thread(self, key: tuple[int, int], work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (disks, and what torch makes of them)
                self._failed(key, error)

        Aside("save", run).start()

    def _failed(self, key: tuple[int, int], error: BaseException) -> None:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        _log.warning("snapshot %d: %s", key[0], why)
        self._say(key, unsaved=(*key, why))

    def _say(self, key: tuple[int, int], **news: Any) -> None:
        """Unless a later one has begun: a status has room for one, and an earlier one's thread may be slower."""
        with self._saying:
            if key >= max(self.begun, self.publishing):
                self._tell(**news)

    def _root(self, save: Save) -> Path:
        settings = self._settings
        return snapshot.partial(Path(settings.snapshots), settings.job, save.at_step, save.number, save.attempt)

    def _write(self, save: Save, taken: Taken) -> None:
        root, rank = self._root(save), taken.rank
        root.mkdir(parents=True, exist_ok=True)
        tensors = []
        for held in taken.held:
            folder = f"part-{rank}" if held.shard == rank % taken.fit.shards else f"part-{held.shard}-kept-by-{rank}"
            (root / folder).mkdir(exist_ok=True)
            if held.tensors:
                writer = FileSystemWriter(str(root / folder), single_file_per_rank=True, sync_files=True)
                save_tensors(dict(held.tensors), storage_writer=writer, no_dist=True)
            tensors.append(snapshot.Tensors(folder, held.shard, held.layout, tuple(held.tensors)))
        notes = []
        for (of, step), data in taken.own.items():
            note = snapshot.OwnNote(of, step, f"own-{of}-{step}-by-{rank}")
            with open(root / note.name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            notes.append(note)
        names = [f"{told.folder}/{path.name}" for told in tensors for path in (root / told.folder).iterdir()]
        files = snapshot.measured(root, names + [note.name for note in notes])
        part = snapshot.Part(rank, self._settings.id, taken.fit, tuple(tensors), tuple(notes), files)
        key, digest = (save.number, save.attempt), snapshot.write_part(root, part)
        self._say(key, saved=(*key, digest))

    def _publish(self, save: Save) -> None:
        settings, now_unix_s = self._settings, time.clock_gettime(time.CLOCK_REALTIME)
        root = self._root(save)
        path = snapshot.publish(
            root, settings.job, save.at_step, save.number, save.cause, save.publish, now_unix_s, settings.world
        )
        _log.info("snapshot %d: published as %s", save.number, path)
        key = (save.number, save.attempt)
        self._say(key, published=(*key, str(path)))
        for gone in snapshot.tidy(path.parent, settings.snapshots_kept, save.number, now_unix_s):
            _log.info("removed %s", gone)


class Holder(msgspec.Struct, frozen=True):
    """Where a rank's part is taken from."""

    rank: int
    fit: Fit
    key: bytes
    state: State
    heir: Heir
    giver: Giver


def taken(save: Save, by: Holder) -> Taken:
    """What `by` has for this snapshot. ValueError: a copy that it kept is gone."""
    copies, at = by.giver.copies, by.heir.at
    own: dict[tuple[int, int], bytes] = {}
    for other, member in save.missing:
        kept = by.giver.kept.newest(other, save.at_step) or by.heir.first_at(member)
        if kept is not None and kept[0] <= save.at_step:
            own[other, kept[0]] = kept[1]
    missing = {other for other, _ in save.missing}
    own |= {(copy.rank, copy.step): copy.own for copy in copies.at(save.at_step) if copy.rank in missing}
    if at <= save.at_step:
        own[by.rank, at] = sealed(by.key, by.rank, at, by.heir.note(by.rank, at))
    held = []
    if save.share is not None:
        bare = by.state.empty()
        shared = share_of(by.state.tensors(bare=bare), save.share)
        held.append(Held(by.rank % by.fit.shards, layout(by.state.pieces(bare=bare)), shared))
    for part in save.kept:
        copy = copies.find(part, save.at_step)
        if copy is None:
            raise ValueError(f"part {part} of the state at step {save.at_step} is not kept here any more")
        held.append(Held(part, copy.layout, by.state.tensors_in(copy.data, copy.layout)))
    return Taken(by.rank, by.fit, tuple(held), own)


def share_of(tensors: Mapping[str, torch.Tensor], share: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Copies of one rank's share: as many bytes as the others', nearly, and alike dealt out by all."""
    which, of = share
    loads = [0] * of
    mine: dict[str, torch.Tensor] = {}
    for name in sorted(tensors, key=lambda name: (-tensors[name].nbytes, name)):
        least = loads.index(min(loads))
        loads[least] += tensors[name].nbytes
        if least == which:
            mine[name] = tensors[name].detach().to("cpu", copy=True)
    return mine


def load(path: Path, manifest: snapshot.Manifest, tensors: Mapping[str, torch.Tensor], shard: int) -> None:
    """Fill `tensors` with those of the snapshot's part `shard`. NotWhole when it has not all of them."""
    left = set(tensors)
    for told in (told for part in manifest.parts for told in part.tensors):
        if told.names and told.shard == shard:
            wanted: dict[str, Any] = {name: tensors[name].detach() for name in told.names if name in tensors}
            if len(wanted) < len(told.names):
                raise snapshot.NotWhole(f"{path}: {told.names[0]} and others are no tensors of this job")
            with torch.no_grad():
                load_tensors(wanted, storage_reader=FileSystemReader(str(path / told.folder)), no_dist=True)
            left -= wanted.keys()
    if left:
        raise snapshot.NotWhole(f"{path} lacks {len(left)} tensors, among them {min(left)}")
