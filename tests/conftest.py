"""What every test shares: which tests wait to be asked for, and a summary that names them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

ASKED_FOR = {
    "gpu": ("LINKPASS_TEST_GPU", "set LINKPASS_TEST_GPU=1 on a machine with an accelerator"),
    "containerlab": ("LINKPASS_TEST_CONTAINERLAB", "set LINKPASS_TEST_CONTAINERLAB=1 where containerlab is installed"),
    "outside": ("CASES", "give a folder of real files: make test CASES=DIR"),
}

_waiting: Counter[str] = Counter()


def pytest_configure() -> None:
    """Where tests run in the background of a shell, SIGINT is ignored, and what they start would ignore it, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what was not asked for; nothing is ever skipped for want of a tool."""
    kept, left_out = [], []
    for item in items:
        marker = next(
            (
                name
                for name, (variable, _) in ASKED_FOR.items()
                if item.get_closest_marker(name) and not os.environ.get(variable)
            ),
            None,
        )
        if marker is None:
            kept.append(item)
        else:
            _waiting[marker] += 1
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist hands its counts to the process that writes the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["waiting"] = dict(_waiting)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _waiting.update(
        {
            name: max(count, _waiting[name]) - _waiting[name]
            for name, count in getattr(node, "workeroutput", {}).get("waiting", {}).items()
        }
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for marker, count in sorted(_waiting.items()):
        terminalreporter.write_line(f"deselected: {count} test(s) marked {marker}: {ASKED_FOR[marker][1]}")
