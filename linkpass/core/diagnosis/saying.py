"""Verdicts in the words of the journal."""

from __future__ import annotations

from typing import Final

from linkpass.core.diagnosis.verdict import Verdict

NOTHING_RATIO: Final = 0.9
"""What loses so much lets nothing through; the rest is memory from before."""
MOST_OTHERS: Final = 4


def what(verdict: Verdict) -> str:
    """`verdict link: leaf1-spine2 lets nothing through`."""
    others = list(verdict.others[:MOST_OTHERS])
    if len(verdict.others) > MOST_OTHERS:
        others.append(f"{len(verdict.others) - MOST_OTHERS} more")
    among = f" (or {', '.join(others)}: not told apart)" if others else ""
    return f"verdict {verdict.kind}: {verdict.element}{among} {_fact(verdict)}"


def why(verdict: Verdict) -> str:
    """How sure, on what evidence, and what it is not."""
    told = [f"{verdict.confidence:.1%} sure" if verdict.confidence < 0.9995 else "sure", *verdict.evidence]
    if verdict.ruled_out:
        told.append(f"ruled out: {', '.join(verdict.ruled_out)}")
    return "; ".join(told)


def over(verdict: Verdict) -> str:
    return f"verdict {verdict.kind}: {verdict.element} holds no longer"


def _fact(verdict: Verdict) -> str:
    if verdict.kind == "congestion":
        return "is overloaded"
    much = "lets nothing through" if verdict.loss_ratio >= NOTHING_RATIO else f"loses {verdict.loss_ratio:.1%}"
    if verdict.scope == "partial":
        return f"{much} on a part of its paths"
    if verdict.scope == "large":
        return f"{much} of large packets" if much.startswith("loses") else "lets no large packet through"
    return much
