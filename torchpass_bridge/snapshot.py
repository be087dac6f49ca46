"""A snapshot of a whole job on disk: what is in its folder, how it is published, checked and found again. No torch.

    FOLDER/JOB/step-00000420-3/            a published one: the name appears when all of it is there (rename(2))
      manifest.json                        what it is: step, world size, what fits it, every file with its checksum
      part-2/                              tensors, written by rank 2 with torch.distributed.checkpoint
      own-0-420-by-2                       what belongs to rank 0 alone at step 420, sealed with the job's key
      part-2.json                          what rank 2 has written
    FOLDER/JOB/step-00000420-3.0.partial/  one under way, or left behind

Each writer writes its part and says the digest of its `part-R.json`; the publisher finds in the folder what all have
said, or does not publish: who writes to another disk under the same name is found out.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import xxhash

from torchpass_bridge.wire import Fit

MANIFEST = "manifest.json"
BLOCK_BYTES = 4 << 20
STALE_S = 24 * 3600.0
"""After so long what is not published will not be."""

_NAME = re.compile(r"step-(\d{8,})-(\d+)")
_PARTIAL = re.compile(r"step-(\d{8,})-(\d+)\.(\d+)\.partial")


class NotWhole(Exception):  # noqa: N818 (what is so)
    """Why a folder is no snapshot, or none that can be used."""


class File(msgspec.Struct, frozen=True):
    """`name`: below the snapshot's folder; `digest`: xxh3-128."""

    name: str
    bytes: int
    digest: str


class OwnNote(msgspec.Struct, frozen=True):
    """Where what belongs to `rank` alone is, and the step at which it was taken: not newer than the snapshot's."""

    rank: int
    step: int
    name: str


class Tensors(msgspec.Struct, frozen=True):
    """Those in a DCP folder, by name: some or all of the part `shard` of a sharded state, else of the one part 0."""

    folder: str
    shard: int
    layout: str
    names: tuple[str, ...]


class Part(msgspec.Struct, frozen=True):
    """What one rank has written: of its own tensors, of parts that it has kept for others, and what belongs to ranks
    alone."""

    rank: int
    member: str
    fit: Fit
    tensors: tuple[Tensors, ...]
    own: tuple[OwnNote, ...]
    files: tuple[File, ...]


class Manifest(msgspec.Struct, frozen=True):
    """`step`: so many were applied; `layout`: of the tensors, as `trainer.state.layout` tells it."""

    job: str
    step: int
    number: int
    world: int
    cause: str
    unix_s: float
    fit: Fit
    layout: str
    parts: tuple[Part, ...]
    format: int = 1

    def own_of(self, rank: int) -> OwnNote | None:
        """The newest."""
        notes = [note for part in self.parts for note in part.own if note.rank == rank]
        return max(notes, key=lambda note: note.step, default=None)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for part in self.parts for file in part.files)


def partial(folder: Path, job: str, step: int, number: int, attempt: int) -> Path:
    """Where the parts are written."""
    return folder / job / f"step-{step:08d}-{number}.{attempt}.partial"


def measured(root: Path, names: Iterable[str]) -> tuple[File, ...]:
    """Files of a part as they are on the disk, which they have reached."""
    return tuple(_measured(root, name) for name in sorted(names))


def write_part(root: Path, part: Part) -> str:
    """Its digest."""
    data = msgspec.json.encode(part)
    _write(root / f"part-{part.rank}.json", data)
    return str(xxhash.xxh3_128(data).hexdigest())


def publish(
    root: Path,
    job: str,
    step: int,
    number: int,
    cause: str,
    parts: Iterable[tuple[int, str]],
    unix_s: float,
    world: int,
) -> Path:
    """The published snapshot. `parts`: digests by rank. NotWhole when they are not what is in the folder."""
    final = root.with_name(f"step-{step:08d}-{number}")
    if final.exists():  # published before, and its word was lost
        return final
    found = [_part(root, rank, digest) for rank, digest in parts]
    tensors = [tensors for part in found for tensors in part.tensors]
    shards = found[0].fit.shards if found else 1
    if {part.shard for part in tensors} != set(range(shards)):
        raise NotWhole(f"a part of the {shards} of its state is not there")
    if len({part.layout for part in tensors}) != 1:
        raise NotWhole("its writers hold tensors of different kinds")
    for part in found:
        for file in part.files:
            if not (root / file.name).is_file() or (root / file.name).stat().st_size != file.bytes:
                raise NotWhole(f"{root / file.name}, which rank {part.rank} has written, is not there as it was")
    told = Manifest(
        job, step, number, world, cause, unix_s, fit=found[0].fit, layout=tensors[0].layout, parts=tuple(found)
    )
    _write(root / MANIFEST, msgspec.json.format(msgspec.json.encode(told)))
    _settle(root)
    root.rename(final)
    _settle(final.parent)
    return final


def read(path: Path) -> Manifest:
    """NotWhole when it is none."""
    try:
        found = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise NotWhole(f"{path} is no snapshot: {error.strerror} ({MANIFEST})") from None
    except msgspec.DecodeError as error:
        raise NotWhole(f"{path / MANIFEST} is not what it should be: {error}") from None
    if found.format != 1:
        raise NotWhole(f"{path} is of format {found.format}; this version reads 1")
    return found


def check(path: Path, manifest: Manifest) -> Iterator[tuple[File, str]]:
    """Each file after it was read, and what is wrong with it; empty: nothing."""
    for part in manifest.parts:
        for file in part.files:
            try:
                found = _measured(path, file.name)
            except OSError as error:
                yield file, f"{file.name}: {error.strerror}"
            else:
                yield file, "" if found == file else f"{file.name} is not as it was written"


def newest(folder: Path) -> Path | None:
    """The latest published one in a job's folder; None: there is none."""
    return max(_published(folder), key=_order, default=None)


def find(path: Path) -> Path:
    """A snapshot, given it or the folder of a job. NotWhole."""
    if (path / MANIFEST).is_file():
        return path
    found = newest(path) if path.is_dir() else None
    if found is None:
        raise NotWhole(f"{path} is no snapshot, and no folder of some")
    return found


def tidy(folder: Path, keep: int, number: int, now_unix_s: float) -> list[Path]:
    """What was removed: all but the `keep` latest published ones, and what was left behind up to snapshot `number`."""
    published = sorted(_published(folder), key=_order)
    gone = published[:-keep] if keep > 0 else []
    for path in folder.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match and (int(match[2]) <= number or now_unix_s - path.stat().st_mtime > STALE_S):
            gone.append(path)
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return gone


def _published(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]


def _order(path: Path) -> tuple[float, str]:
    """By when it was taken: a job that was restored from an older one may be behind a later one of before."""
    try:
        return read(path).unix_s, path.name
    except NotWhole:
        return 0.0, path.name


def _part(root: Path, rank: int, digest: str) -> Part:
    try:
        data = (root / f"part-{rank}.json").read_bytes()
    except OSError as error:
        raise NotWhole(
            f"{error.strerror}: {root}/part-{rank}.json, written by rank {rank}: is the folder shared by all hosts?"
        ) from None
    if xxhash.xxh3_128(data).hexdigest() != digest:
        raise NotWhole(
            f"{root}/part-{rank}.json is not what rank {rank} has written: is the folder shared by all hosts?"
        )
    return msgspec.json.decode(data, type=Part)


def _measured(root: Path, name: str) -> File:
    told, size = xxhash.xxh3_128(), 0
    with open(root / name, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            told.update(block)
            size += len(block)
    return File(name, size, str(told.hexdigest()))


def _write(path: Path, data: bytes) -> None:
    """It is on the disk, whole, or is not there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def _settle(folder: Path) -> None:
    """Names in a folder reach the disk with the folder itself."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
