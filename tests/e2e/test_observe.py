"""`mode = "observe"`: it says what it would do, and the kernel does not notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import Rig, says

from lab.daemons import DaemonSpec

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    spec = DaemonSpec(mode="observe", tcp_timers=True, rto_min_ms=5, realtime=True)
    with Rig(tmp_path_factory.mktemp("rig"), spec, daemons_later=True) as made:
        yield made


def test_a_fault_changes_nothing_in_the_kernel(observing: Rig) -> None:
    """Routes, next hops, rules, nftables and sysctls: the same before the daemons start, under a fault, and after."""
    rig = observing
    before = {host: rig.kernel_state(host) for host in rig.hosts}
    rig.start_daemons()
    since_s = rig.calm()
    a, b = rig.busiest(between=(1, 2)).split(">")
    with rig.broken(f"blackhole:{a}-{b}"):
        rig.wait_told(since_s, says(r"^verdict link: "), "somebody names the link")
        rig.wait_told(since_s, says(r"^would have moved .* away: "), "somebody says what it would do")
        during = {host: rig.kernel_state(host) for host in rig.hosts}
    for host in rig.hosts:
        view = rig.daemons.view(host)
        assert (view["mode"], view["moves"]) == ("observe", view["moves"])
        assert all(one["programmed"] is None for one in view["steering"])
        assert "observe" in view["rungs"]["1"]["why"] and "observe" in view["rungs"]["2"]["why"]
    assert not rig.told(since_s, lambda entry: entry.is_move)
    rig.daemons.stop(60.0)
    after = {host: rig.kernel_state(host) for host in rig.hosts}
    for host in rig.hosts:
        assert len(before[host]) > 100  # the sysctls were read
        for name, value in before[host].items():
            assert during[host].get(name) == value, f"{host}: {name} under the fault"
            assert after[host].get(name) == value, f"{host}: {name} afterwards"
        assert before[host].keys() == during[host].keys() == after[host].keys()


def test_the_job_was_the_kernels_and_lost_nothing(observing: Rig) -> None:
    observing.end_with_the_same_weights()
