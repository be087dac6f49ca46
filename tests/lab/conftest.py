"""Real labs on the real kernel: namespaces, traffic with chosen flow labels, and a check that nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from talk import left_of

from lab.netns.lab import NetnsLab
from topology.model import Fabric
from topology.sources.containerlab import parse

LAB_FILES = Path(__file__).parents[2] / "lab"


@pytest.fixture(scope="session")
def leaf_spine() -> Fabric:
    file = LAB_FILES / "leaf-spine.clab.yml"
    return parse(file.read_text(), str(file))


@pytest.fixture(scope="session")
def rail() -> Fabric:
    file = LAB_FILES / "rail.clab.yml"
    return parse(file.read_text(), str(file))


@pytest.fixture(scope="module")
def lab(leaf_spine: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetnsLab]:
    """A leaf-spine lab that the tests of a module share."""
    made = NetnsLab(leaf_spine, name=f"tl{os.getpid()}", run_dir=tmp_path_factory.mktemp("lab") / "run")
    made.up()
    yield made
    made.down()
    assert not left_of(made.name)


@pytest.fixture
def whole(lab: NetnsLab) -> Iterator[NetnsLab]:
    """The shared lab, without faults before and after."""
    assert lab.faults() == ()
    yield lab
    lab.undo_all()
