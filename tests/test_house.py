"""Rules of this folder that no other tool checks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their bare names: of two alike the second cannot be collected beside the first."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
