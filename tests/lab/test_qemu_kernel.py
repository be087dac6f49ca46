"""Preparing the guests' kernel, as far as it needs no guest: images unpacked, modules in order."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest

from lab.errors import LabError
from lab.qemu.kernel import load_order, module_name, unpack

ELF = b"\x7fELF" + bytes(range(256)) * 40


def image(payload: bytes, sectors: int = 3) -> bytes:
    """A bzImage as the boot protocol lays it out: header, setup code, then the payload 100 bytes into the rest."""
    header = bytearray((sectors + 1) * 512)
    header[0x1F1] = sectors
    header[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", header, 0x248, 100, len(payload))
    return bytes(header) + bytes(100) + payload + b"behind it"


@pytest.mark.parametrize(
    "payload",
    [
        lzma.compress(ELF) + struct.pack("<I", len(ELF)),
        gzip.compress(ELF) + struct.pack("<I", len(ELF)),
    ],
    ids=["xz", "gzip"],
)
def test_a_kernel_is_unpacked(payload: bytes) -> None:
    assert unpack(image(payload)) == ELF


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"MZ", "no bzImage"),
        (bytes(4096), "no bzImage"),
        (image(b"\x00\x01\x02\x03rest"), "unknown way"),
        (image(lzma.compress(b"no kernel")), "no ELF"),
    ],
)
def test_what_is_no_kernel_is_named(wrong: bytes, why: str) -> None:
    with pytest.raises(LabError, match=why):
        unpack(wrong)


def test_modules_come_after_what_they_need() -> None:
    dep = """fs/9p/9p.ko: net/9p/9pnet.ko fs/netfs/netfs.ko
net/9p/9pnet.ko:
fs/netfs/netfs.ko:
net/9p/9pnet_virtio.ko: net/9p/9pnet.ko drivers/virtio/virtio_ring.ko drivers/virtio/virtio.ko
drivers/virtio/virtio_ring.ko: drivers/virtio/virtio.ko
drivers/virtio/virtio.ko:
"""
    order = [module_name(file) for file in load_order(dep, ("9p", "9pnet_virtio", "built-in"))]
    assert sorted(order) == ["9p", "9pnet", "9pnet_virtio", "netfs", "virtio", "virtio_ring"]
    for needed, by in (
        ("9pnet", "9p"), ("netfs", "9p"), ("9pnet", "9pnet_virtio"), ("virtio", "virtio_ring"),
        ("virtio_ring", "9pnet_virtio"),
    ):  # fmt: skip
        assert order.index(needed) < order.index(by), (needed, by)


def test_names_are_the_same_with_dash_and_underscore() -> None:
    assert module_name("kernel/net/ipv4/tcp-foo.ko.xz") == "tcp_foo"
