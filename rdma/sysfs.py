"""Reading sysfs: a value, or why there is none. The root is a parameter: a captured tree reads like a machine.

What drivers do: text behind the number (`4: ACTIVE`, `25 Gb/sec (1X EDR)`), files that others do not have, a read that
is answered with an error, or with the text `N/A (no PMA)`. None of these is a zero."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, Literal

import msgspec

ROOT: Final = Path("/sys")

Why = Literal["missing", "refused", "no number", "saturated", "first reading"]


class Unknown(msgspec.Struct, frozen=True):
    """A value that cannot be known, and why. It is false, so that `value or 0` has to be written on purpose.

    `missing`: the driver has no such file; `refused`: it answered with an error; `no number`: it answered with other
    text; `saturated`: the counter stands at its end and counts no more; `first reading`: there is none to compare with.
    """

    why: Why
    detail: str = ""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"unknown: {self.why}" + (f" ({self.detail})" if self.detail else "")


Value = int | Unknown
Text = str | Unknown


def read_text(path: Path) -> Text:
    """The file's text without white space at its ends."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError as error:
        return unreadable(error)


def unreadable(error: OSError) -> Unknown:
    """A device that is unplugged while its files are read answers ENODEV."""
    gone = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
    return Unknown("missing" if error.errno in gone else "refused", os.strerror(error.errno or 0))


def to_number(text: bytes) -> Value:
    """The number that a file holds; decimal, or hexadecimal with 0x."""
    word = text.strip()
    if word.isdigit():
        return int(word)
    try:
        return int(word, 0)
    except ValueError:
        return Unknown("no number", word[:40].decode("utf-8", "replace"))


def read_number(path: Path) -> Value:
    try:
        return to_number(path.read_bytes())
    except OSError as error:
        return unreadable(error)


def after_colon(text: Text) -> Text:
    """`4: ACTIVE` -> `ACTIVE`. Text without a number before is left as it is."""
    if isinstance(text, Unknown):
        return text
    number, colon, word = text.partition(":")
    return word.strip() if colon and number.strip().isdigit() else text
