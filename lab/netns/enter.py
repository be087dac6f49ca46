"""Run a program inside a namespace, with a `/sys` of its own: `python -m lab.netns.enter NAMESPACE -- PROGRAM ARG…`.

For people and tools that look into `/sys/class/net`. The program takes this process's place (same pid)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lab.netns import namespace


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--":
        print("usage: python -m lab.netns.enter NAMESPACE -- PROGRAM ARG…", file=sys.stderr)
        return 2
    return enter(arguments[0], arguments[2:])


def enter(name: str, program: Sequence[str]) -> int:
    """Become a program inside a namespace; returns (an exit status) only when that fails."""
    try:
        handle = os.open(namespace.path_of(name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        print(f"namespace {name}: {error.strerror}", file=sys.stderr)
        return 125
    namespace.setns(handle)
    namespace.own_sysfs()
    try:
        os.execvp(program[0], list(program))
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
