"""Write docs/state_machines.md from the tables of the code: `python tools/diagrams.py`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from linkpass.core.decide import ORDER
from linkpass.core.element import TRANSITIONS, State
from linkpass.core.steer import grade_element_state

FILE = Path(__file__).parent.parent / "docs" / "state_machines.md"

HEAD = """# State machines

Generated from the tables of the code by `python tools/diagrams.py`; a test holds this file to them.

## An element: an uplink, a path, a direction of a link

Bad news at once, good news late. The words under the arrows are inputs: `bad`, `good` and `quiet` are evidence,
`floor_passed` and `decayed` are time, `clear` is the operator. What the states mean, and the damping, is told at the
top of `linkpass/core/element.py`. Inputs that change nothing are in the table only.
"""


def mermaid() -> str:
    """The changes of state as a Mermaid state diagram; inputs with one arrow share it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, what), after in TRANSITIONS.items():
        if before != after:
            arrows.setdefault((before, after), []).append(what)
    lines = ["stateDiagram-v2", "    [*] --> unknown"]
    lines += [f"    {before} --> {after}: {', '.join(inputs)}" for (before, after), inputs in arrows.items()]
    return "\n".join(lines)


def table() -> str:
    """Every state with every input; an empty field is a pair that raises."""
    inputs = list(dict.fromkeys(what for _, what in TRANSITIONS))
    rows = ["| | " + " | ".join(f"`{what}`" for what in inputs) + " |", "| --- |" + " --- |" * len(inputs)]
    for state in get_args(State):
        fields = (TRANSITIONS.get((state, what), "") for what in inputs)
        rows.append(f"| **{state}** | " + " | ".join(fields) + " |")
    return "\n".join(rows)


def grades() -> str:
    """What a state means for carrying traffic."""
    rows = ["| state | grade | when packets were lost, not all |", "| --- | --- | --- |"]
    for state in get_args(State):
        hard, soft = (grade_element_state(state, soft=soft) for soft in (False, True))
        rows.append(f"| {state} | {hard} | {soft} |")
    return "\n".join(rows)


def document() -> str:
    order = ", ".join(f"`{grade}`" for grade in sorted(ORDER, key=lambda grade: ORDER[grade]))
    return (
        f"{HEAD}\n```mermaid\n{mermaid()}\n```\n\n{table()}\n\n## What a state means for carrying traffic\n\n"
        f"Grades, best first: {order}. Paths take the worst grade of their uplink, their links\n"
        "and their own probes. A path whose own probes have never answered is `unproven`; a drain or a peer's\n"
        "word makes `soft` of `good`.\n\n"
        f"{grades()}\n"
    )


if __name__ == "__main__":
    FILE.write_text(document())
