"""The distribution's pyverbs, and copies of it as a wrong release would be: the real loader refuses them.

Nothing boots here; it is the guests' set-up that brings the package."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from test_verbs import said

from rdma import verbs

pytestmark = pytest.mark.guests
ABI = re.compile(rb"IBVERBS_PRIVATE_\d+")


def copy_with(folder: Path, old: bytes, new: bytes) -> Path:
    """pyverbs with a word of its modules' string tables replaced by another of the same length."""
    assert len(old) == len(new)
    shutil.copytree(verbs.DISTRIBUTION, folder / "pyverbs")
    changed = 0
    for file in folder.glob("pyverbs/*.so"):
        data = file.read_bytes()
        changed += data.count(old)
        file.write_bytes(data.replace(old, new))
    assert changed
    return folder


def test_the_distributions_loads() -> None:
    assert said(verbs.DISTRIBUTION.parent) == ""


def test_one_for_another_release_of_rdma_core_says_what_to_install(tmp_path: Path) -> None:
    built = {word for file in verbs.DISTRIBUTION.glob("*.so") for word in ABI.findall(file.read_bytes())}
    wrong = copy_with(tmp_path, built.pop(), b"IBVERBS_PRIVATE_59")
    assert said(wrong) == (
        "this pyverbs is built for another rdma-core than this host has (it wants IBVERBS_PRIVATE_59): "
        "pip uninstall pyverbs, apt-get install python3-pyverbs, then tools/link-pyverbs links it"
    )


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    wrong = copy_with(tmp_path, b"libibverbs.so.1\0", b"libibverbz.so.1\0")
    assert said(wrong) == (
        "pyverbs needs libibverbz.so.1, which is not installed: apt-get install python3-pyverbs rdma-core"
    )


def test_without_the_device_it_is_said() -> None:
    with pytest.raises(verbs.VerbsError, match=r"no RDMA device|none-such cannot be opened"):
        verbs.open_device("none-such")
