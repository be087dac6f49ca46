"""Errors of the lab that a person reads: what is wrong and what to do about it, in one line each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabError(Exception):
    """The lab cannot do what was asked. `str()` is one line; `hint` says the next step."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean …` for a wrong name, or the list of the right ones when nothing is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    shown = ", ".join(names[:12])
    return f"known: {shown}" + (f", and {len(names) - 12} more" if len(names) > 12 else "")
