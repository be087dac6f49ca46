"""RDMA flows that send again: evidence beside probes, named with what they cross, and nothing alone."""

from __future__ import annotations

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev
from linkpass.core.diagnosis.accounts import Accounts
from linkpass.core.diagnosis.flow_words import KEPT_S
from linkpass.core.settings import Diagnosis

KERNELS = 0x10000
"""Labels from here on are the kernel's own."""


def started() -> FabricSim:
    return FabricSim(diagnosis=Diagnosis(enabled=True)).start()


def name(number: int) -> str:
    return f"writer (pid {number}), queue pair {number} of rxe0"


def count(uplink: str, label: int, again: int, *, number: int = 7, least: bool = False) -> ev.FlowCount:
    return ev.FlowCount(ev.FlowAt(uplink, label, number, -1), 10_000, again, name(number), least)


def over(sim: FabricSim, direction: str) -> list[tuple[str, str, int]]:
    return [key for key in sim.targets if direction in sim.directions(*key)]


def send_again(
    sim: FabricSim, direction: str, again: int, span_s: float, *, flows: int = 1, least: bool = False
) -> None:
    """Each second these flows, all over the first path over `direction`, tell that they went back."""
    peer, uplink, label = over(sim, direction)[0]
    counts = tuple(
        count(uplink, label, again + number - 7, number=number, least=least) for number in range(7, 7 + flows)
    )
    for second in range(1, round(span_s) + 1):
        sim.later(float(second), lambda: ev.FlowWindow(peer=peer, counts=counts))


def said(sim: FabricSim, mark: int) -> list[cmd.Record]:
    return [
        one for one in sim.since(mark, cmd.Record) if one.what.startswith("verdict ") and "no longer" not in one.what
    ]


def test_they_are_named_with_what_they_cross() -> None:
    sim = started()
    mark = sim.mark()
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(8.0)
    send_again(sim, "spine1>leaf3", 1, 8.0, flows=4)
    sim.run(8.0)
    (one,) = said(sim, mark)
    assert one.what.startswith("verdict direction: spine1>leaf3")
    assert f"; flow {name(10)} sent again " in one.why and f"; flow {name(9)} sent again " in one.why
    assert "; 2 more RDMA flows over it sent again" in one.why and name(8) not in one.why
    assert sim.core.world.findings == () or name(10) in "".join(sim.core.world.findings[0].evidence)


def test_the_least_is_called_the_least() -> None:
    sim = started()
    mark = sim.mark()
    sim.loss["spine1>leaf3"] = 0.05
    sim.windows(4.0)
    send_again(sim, "spine1>leaf3", 1, 1.0, least=True)
    sim.run(4.0)
    (one,) = said(sim, mark)
    assert f"flow {name(7)} sent again once or more" in one.why


def test_alone_they_accuse_nobody_and_wake_nobody() -> None:
    sim = started()
    mark = sim.mark()
    send_again(sim, "leaf1>spine1", 3000, 8.0, flows=4)
    sim.run(4.0)
    assert sim.core._diagnosis is not None and sim.core._diagnosis.due_s is None and said(sim, mark) == []
    sim.loss["spine2>leaf4"] = 0.05
    sim.windows(6.0)
    sim.run(6.0)
    (one,) = said(sim, mark)
    assert one.what.startswith("verdict direction: spine2>leaf4") and "sent again" not in one.why


def test_they_make_certain_no_later_what_probes_find() -> None:
    took_s = []
    for again in (0, 200):
        sim = started()
        mark, began_s = sim.mark(), sim.now_s
        sim.loss["spine1>leaf3"] = 0.01
        sim.windows(8.0)
        if again:
            for peer, uplink, label in over(sim, "spine1>leaf3"):
                window = ev.FlowWindow(peer=peer, counts=(count(uplink, label, again),))
                for second in range(1, 9):
                    sim.later(float(second), lambda window=window: window)
        sim.run(8.0)
        assert len(said(sim, mark)) == 1
        named = (at for at, one in sim.log[mark:] if isinstance(one, cmd.Record) and one.what.startswith("verdict "))
        took_s.append(next(named) - began_s)
    assert took_s[1] <= took_s[0]


def test_without_a_way_that_is_known_there_is_no_row_and_no_word() -> None:
    """A label of the kernel's own; a label that is not probed; somebody that nobody knows. None of them is traced: what
    is copied for that are headers of TCP."""
    sim = started()
    mark = sim.mark()
    peer = sim.address["host3"]
    for to, label in ((peer, KERNELS + 1), (peer, 0), ("fd00::99", sim.core.world.table.peer(peer).in_use[0][1])):
        sim.post(ev.FlowWindow(peer=to, counts=(count("eth1", label, 5),)))
    sim.run(1.0)
    diagnosis = sim.core._diagnosis
    assert diagnosis is not None and not diagnosis._accounts._flows and not diagnosis._flow_words._told
    assert sim.since(mark, cmd.TraceFlows) == []


def test_under_one_label_they_count_together_with_tcp() -> None:
    sim = started()
    (peer, uplink, label), *_ = over(sim, "spine1>leaf3")
    accounts = Accounts(sim.core.world)
    tcp = ev.FlowCount(ev.FlowAt(uplink, label, 40000, 5000), 1000, 3)
    accounts.flows(ev.FlowWindow(peer=peer, counts=(tcp, count(uplink, label, 2), count(uplink, label, 4, number=8))))
    assert accounts._flows == {(peer, uplink, label): (21_000, 9)}


def test_what_was_told_long_ago_or_is_repaired_is_not_told_again() -> None:
    sim = started()
    key = over(sim, "spine1>leaf3")[0]
    diagnosis = sim.core._diagnosis
    assert diagnosis is not None
    words, event = diagnosis._flow_words, ev.FlowWindow(peer=key[0], counts=(count(*key[1:], 1),))
    words.take(event, 100.0)
    assert words.over([key], 100.0 + KEPT_S - 0.1) == (f"flow {name(7)} sent again once",)
    assert words.over([key], 100.0 + KEPT_S) == words.over([], 100.0) == ()
    sim.post(ev.ClearRequested(link="*"))
    sim.run(0.1)
    assert words.over([key], 100.0) == ()
