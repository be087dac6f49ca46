"""The committed diagrams are those of the tables."""

from __future__ import annotations

import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "diagrams.py"


def test_the_committed_diagrams_are_current() -> None:
    spec = importlib.util.spec_from_file_location("diagrams", TOOL)
    assert spec is not None and spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    assert diagrams.FILE.read_text() == diagrams.document(), "run: python tools/diagrams.py"
    assert "watch --> held: floor_passed" in diagrams.mermaid()
