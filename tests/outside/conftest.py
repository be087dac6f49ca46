"""Tests over a folder of real files from outside, named by the environment variable CASES.

Everything in this directory carries the marker `outside`, which is deselected while CASES is not given.
"""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First of all: what is deselected by marker must see this one."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("outside")


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of cases."""
    folder = Path(os.environ["CASES"])
    if not folder.is_dir():
        pytest.fail(f"CASES={folder}: expected a folder of cases, found none there", pytrace=False)
    return folder
