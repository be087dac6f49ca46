"""Whom a name of a host, an address or an accelerator means."""

from __future__ import annotations

import pytest
from sim_members import FIT

from torchpass_bridge.core.places import meant, same_accelerator
from torchpass_bridge.wire import Job, Member

JOB = Job(
    "j", 4, 1,
    (
        Member("a", "host1", 1, "[fd00::1]:7000", FIT, "0000:3b:00.0"),
        Member("b", "host1", 2, "[fd00::1]:7001", FIT, "0000:af:00.0"),
        Member("c", "host2.site.example", 3, "10.0.0.2:7000", FIT),
        Member("d", "fd00::3", 4, "host3:7000", FIT),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("host1", ["host1"]),
        ("host1.site.example", ["host1"]),
        ("fd00::1", ["host1"]),
        ("fd00:0::1", ["host1"]),
        ("[fd00::1]", ["host1"]),
        ("host2", ["host2.site.example"]),
        ("10.0.0.2", ["host2.site.example"]),
        ("fd00::3", ["fd00::3"]),
        ("host2.other.example", []),
        ("host", []),
        ("host3", []),
        ("10.0.0.20", []),
        ("", []),
    ],
)
def test_a_host_goes_by_its_name_short_or_long_and_by_its_address(host: str, found: list[str]) -> None:
    assert [name for name, _ in meant(JOB, host)] == found


def test_an_accelerator_goes_by_its_address_in_any_length() -> None:
    for name in ("0000:3b:00.0", "00000000:3B:00.0", "3b:00.0"):
        assert meant(JOB, "host1", name) == [("host1", "0000:3b:00.0")]
    assert meant(JOB, "host1", "0001:3b:00.0") == []
    assert meant(JOB, "host2", "3b:00.0") == []
    assert same_accelerator("gpu0", "gpu0") and not same_accelerator("gpu0", "gpu1")
