"""Which of Debian's kernel packages guests run, and where it comes from.

The newest that this machine's own package sources offer. Where that one is too old, the backports of its release, with
package lists of our own: the machine's stay as they are.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from lab.errors import LabError

META_PACKAGE: Final = "linux-image-amd64"
TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "depmod": "kmod", "cpio": "cpio",
    "zstd": "zstd", "dpkg-deb": "dpkg", "apt-get": "apt", "apt-cache": "apt",
}  # fmt: skip
"""Command -> Debian package."""
LEAST: Final = (6, 12)
"""Before Linux 6.4 soft-RoCE arms its retransmit timer only in RTS (rxe_comp.c), so that one lost packet leaves a queue
that is stopped draining for ever; 6.12 is the first of Debian's kernels in which a running queue pair can be moved."""
_PACKAGE: Final = re.compile(r"^\s*Depends: (linux-image-\d\S*)", re.MULTILINE)
_TARGET: Final = "$(SITE) $(CODENAME) $(ORIGIN) $(COMPONENT) $(RELEASE)"


class Offer(msgspec.Struct, frozen=True):
    """A package, and the options with which apt finds it."""

    package: str
    options: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """As `uname -r` says it."""
        return self.package.removeprefix("linux-image-")


def newest(folder: Path, *, update: bool = False) -> Offer:
    """Raises LabError: neither this machine's sources nor their backports have one. `folder` keeps package lists;
    `update`: fetch these anew."""
    if update:
        run(["apt-get", "update", "-q"], "the package lists")
    own = _depended(())
    if own is not None and new_enough(own.removeprefix("linux-image-")):
        return Offer(own)
    return _backported(folder / "apt", own, update=update)


def download(offer: Offer, folder: Path) -> Path:
    """The package's file in `folder`."""
    run(["apt-get", *offer.options, "download", "-q", offer.package], f"package {offer.package}", cwd=folder)
    (file,) = folder.glob("*.deb")
    return file


def new_enough(version: str) -> bool:
    """Of a kernel, `6.12.95+deb12-amd64`."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= LEAST


def backports(targets: str) -> str | None:
    """The line of sources.list for the backports of the Debian release in `apt-get indextargets`; None without one."""
    for line in targets.splitlines():
        site, codename, origin, component, release = line.split(" ")
        if origin == "Debian" and component == "main" and "-" not in release:
            return f"deb {site} {codename}-backports main\n"
    return None


def _backported(folder: Path, own: str | None, *, update: bool) -> Offer:
    wanted = backports(
        run(["apt-get", "indextargets", "--format", _TARGET, "Created-By: Packages"], "the sources").decode()
    )
    needs = f"guests need Linux {LEAST[0]}.{LEAST[1]} or newer"
    if wanted is None:
        raise LabError(f"{needs}, the package sources have {own or 'none'}", "add a Debian release to them")
    lists, source = folder / "lists", folder / "sources.list"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = (
        "-o", f"Dir::Etc::SourceList={source}", "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}",
    )  # fmt: skip
    if update or not source.exists() or source.read_text() != wanted:
        source.write_text(wanted)
        run(["apt-get", *options, "update", "-q"], "the package lists of the backports")
    found = _depended(options)
    if found is None or not new_enough(found.removeprefix("linux-image-")):
        raise LabError(f"{needs}, {wanted.split()[2]} has {found or 'none'}", "apt-get update")
    return Offer(found, options)


def _depended(options: Sequence[str]) -> str | None:
    """What `linux-image-amd64` stands for."""
    try:
        told = run(["apt-cache", *options, "depends", META_PACKAGE], "the package list").decode()
    except LabError:  # apt-cache ends with 100 for a package that it does not know
        return None
    match = _PACKAGE.search(told)
    return match[1] if match is not None else None


def run(argv: list[str], what: str, given: bytes | None = None, cwd: Path | None = None) -> bytes:
    """What a command prints. Raises LabError."""
    path = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, input=given, capture_output=True, cwd=cwd, env=path, timeout=300, check=False)
    except FileNotFoundError:
        raise LabError(
            f"{what}: {argv[0]} is not installed", f"apt-get install {TOOLS.get(argv[0], argv[0])}"
        ) from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        raise LabError(f"{what}: {argv[0]} ended with {done.returncode}: {last[0]}", "")
    return done.stdout
