"""The guests' kernel: Debian's own package, unpacked once, with an initial RAM disk that mounts this machine's root.

An uncompressed kernel boots twice as fast under emulation as one that unpacks itself. Sources: the x86 boot protocol
(Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length), kmod's modules.dep.
"""

from __future__ import annotations

import fcntl
import gzip
import lzma
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from lab.errors import LabError
from lab.qemu import package
from lab.qemu.package import TOOLS, Offer, run

BOOT_MODULES: Final = ("virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay")
"""What the initial RAM disk loads, and what those need; the rest is found on the root file system."""
FILES: Final = Path(__file__).with_name("guest_files")


class Kernel(msgspec.Struct, frozen=True):
    """A kernel ready to boot. `modules`: a folder that holds `lib/modules/VERSION`."""

    version: str
    vmlinux: Path
    initrd: Path
    modules: Path


def cache_folder() -> Path:
    """Where it is kept between runs: `$XDG_CACHE_HOME/linkpass/qemu`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "linkpass/qemu"


def missing_packages() -> list[str]:
    """Debian packages without which no guest can be prepared or run."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None})


def prepare(folder: Path | None = None) -> Kernel:
    """The newest kernel on offer (`lab.qemu.package`), or the one that is there already.

    Takes about ten seconds the first time. Raises LabError: a tool is missing, the package cannot be had."""
    folder = (folder or cache_folder()).absolute()
    if missing := missing_packages():
        raise LabError(f"guests need {', '.join(missing)}", f"apt-get install {' '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        try:
            ready = _offered(folder, package.newest(folder))
        except LabError:
            there = _newest(folder)
            if there is not None:
                ready = there  # without the network what is there serves
            else:  # package lists that were never fetched, or are too old
                ready = _offered(folder, package.newest(folder, update=True))
        _refresh_initrd(ready)
        return ready


def _offered(folder: Path, offer: Offer) -> Kernel:
    ready = _at(folder, offer.version)
    if not ready.initrd.exists():
        _fetch(offer, ready)
    return ready


def unpack(image: bytes) -> bytes:
    """The uncompressed kernel (ELF) in a bzImage."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise LabError("the kernel image is no bzImage", "")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (sectors + 1) * 512 + offset
    payload = image[begin : begin + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        raw = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        raw = gzip.decompress(payload[: len(payload) - 4])
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        raw = run(["zstd", "-dc"], "the kernel", payload[: len(payload) - 4])  # behind it: its size
    else:
        raise LabError(f"the kernel is packed in an unknown way ({payload[:4].hex()})", "")
    if not raw.startswith(b"\x7fELF"):
        raise LabError("the kernel's payload is no ELF image", "")
    return raw


def load_order(modules_dep: str, wanted: Iterable[str]) -> list[str]:
    """Files (as modules.dep names them) to load for these modules, what is needed before who needs it."""
    by_name: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    for line in modules_dep.splitlines():
        file, _, rest = line.partition(":")
        by_name[module_name(file)] = file
        needs[file] = rest.split()
    order: list[str] = []

    def add(file: str) -> None:
        for other in reversed(needs.get(file, [])):  # depmod lists the nearest first
            if other not in order:
                order.append(other)
        if file not in order:
            order.append(file)

    for name in wanted:
        found = by_name.get(module_name(name))
        if found is not None:
            add(found)
    return order


def module_name(file: str) -> str:
    return Path(file).name.partition(".")[0].replace("-", "_")


def _at(folder: Path, version: str) -> Kernel:
    at = folder / version
    return Kernel(version, at / "vmlinux", at / "initrd.gz", at / "root")


def _newest(folder: Path) -> Kernel | None:
    found = [one for one in folder.iterdir() if (one / "initrd.gz").exists() and package.new_enough(one.name)]
    return _at(folder, max(found, key=lambda one: one.stat().st_mtime).name) if found else None


def _fetch(offer: Offer, kernel: Kernel) -> None:
    """Download, unpack, extract; the initial RAM disk comes last, so that its presence says all is there."""
    work = kernel.initrd.parent
    shutil.rmtree(work, ignore_errors=True)
    (work / "root").mkdir(parents=True)
    deb = package.download(offer, work)
    run(["dpkg-deb", "-x", str(deb), str(kernel.modules)], f"package {offer.package}")
    deb.unlink()
    kernel.vmlinux.write_bytes(unpack((kernel.modules / f"boot/vmlinuz-{kernel.version}").read_bytes()))
    usr = kernel.modules / "usr/lib/modules"
    if usr.exists() and not (kernel.modules / "lib").exists():  # Debian 13 on
        (kernel.modules / "lib").symlink_to("usr/lib")
    run(["depmod", "-b", str(kernel.modules), kernel.version], "the modules' dependencies")


def _refresh_initrd(kernel: Kernel) -> None:
    """Made anew when the files that go into it are newer: they are part of this project, the kernel is not."""
    newest = max(file.stat().st_mtime for file in FILES.iterdir())
    if kernel.initrd.exists() and kernel.initrd.stat().st_mtime > newest:
        return
    tree = kernel.initrd.with_name("initrd")
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "m", "proc", "sys", "dev", "lower", "rw", "new"):
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    assert busybox is not None, "missing_packages() was asked"
    shutil.copy(busybox, tree / "bin/busybox")
    base = kernel.modules / "lib/modules" / kernel.version
    for number, file in enumerate(load_order((base / "modules.dep").read_text(), BOOT_MODULES)):
        raw = (base / file).read_bytes()
        (tree / f"m/{number:02}-{module_name(file)}.ko").write_bytes(
            lzma.decompress(raw) if file.endswith(".xz") else raw
        )
    init = (FILES / "init.sh").read_text().replace("@MODULES@", str(base)).replace("@VERSION@", kernel.version)
    (tree / "init").write_text(init)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in [tree, *sorted(tree.rglob("*"))]).encode()
    archive = run(["cpio", "-o", "-H", "newc", "--quiet"], "the initial RAM disk", names, cwd=tree)
    fresh = kernel.initrd.with_suffix(".new")
    fresh.write_bytes(gzip.compress(archive, 1))
    fresh.replace(kernel.initrd)
    shutil.rmtree(tree)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
