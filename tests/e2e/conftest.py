"""End to end: real daemons, a real job over Gloo, real faults; everything in a module shares one arrangement."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from rig import Rig

from lab.daemons import DaemonSpec


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Daemons that steer, and that record what they hear."""
    spec = DaemonSpec(mode="act", tcp_timers=True, realtime=True, record=True)
    with Rig(tmp_path_factory.mktemp("rig"), spec) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the daemons have written down meanwhile."""
    report = yield
    if report.failed and report.when == "call":
        for thing in getattr(item, "funcargs", {}).values():
            if isinstance(thing, Rig):
                report.sections.append(("the daemons' journals", thing.story()))
    return report
