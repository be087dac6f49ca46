"""Each fault of the lab under a real job: training goes on, the right element is named, the weights are the same."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from rig import RETURN_S, Match, Rig, blamed, moved, says

from lab.bucket import bucket_of
from lab.daemons import Entry
from lab.faults import directions_of

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

HOST_LEAF, LEAF_SPINE = (0, 1), (1, 2)
SILENCE = says(r"^blackhole on ")
NO_CARRIER = says(r"^eth\d is down$|says that .* is down$")
LOSSES = says(r" loses packets$|^(lossy|blackhole) on ")
NOTHING_PASSES = says(r"^verdict (link|switch): ")
PACKETS_ARE_LOST = says(r" loses packets$")


@dataclass(frozen=True, slots=True)
class Case:
    """`fault`: chosen when the job runs. `evidence`: what somebody must say before traffic moves; `verdict`: what must
    be said of the guilty element, if anything. `heals_itself`: the switches may be faster than any daemon."""

    name: str
    fault: Callable[[Rig], str]
    evidence: Match = SILENCE
    verdict: Match | None = NOTHING_PASSES
    heals_itself: bool = False


def on_link(kind: str, between: tuple[int, int], rest: str = "", *, one_way: bool = False) -> Callable[[Rig], str]:
    """The fault on the link that carries most of the job's bytes now."""

    def choose(rig: Rig) -> str:
        direction = rig.busiest(between=between)
        return f"{kind}:{direction if one_way else '-'.join(direction.split('>'))}{rest}"

    return choose


def a_bucket_in_use(rig: Rig) -> str:
    """The ECMP bucket of the busiest direction that some daemon's labels fall into."""
    direction = rig.busiest(between=LEAF_SPINE)
    for host in rig.hosts:
        view = rig.daemons.view(host)
        for path in view["paths"]:
            route = [host, *path["hops"], path["peer_name"]]
            if path["in_use"] and direction in [f"{a}>{b}" for a, b in itertools.pairwise(route)]:
                return f"bucket:{direction}:{bucket_of(view['address'], path['peer'], path['label'], 4)}/4"
    raise AssertionError(f"no daemon has a path over {direction}")


CASES = (
    Case("carrier of a host's uplink", on_link("carrier", HOST_LEAF), NO_CARRIER, None),
    Case("carrier between switches", on_link("carrier", LEAF_SPINE), verdict=None, heals_itself=True),
    Case("blackhole both ways", on_link("blackhole", LEAF_SPINE)),
    Case("blackhole one way", on_link("blackhole", LEAF_SPINE, one_way=True)),
    Case("blackhole of a host's uplink", on_link("blackhole", HOST_LEAF)),
    Case("one bucket of four", a_bucket_in_use, verdict=None),
    Case("large packets one way", on_link("large", LEAF_SPINE, ":1000", one_way=True)),
    Case("loss of 5 %", on_link("loss", LEAF_SPINE, ":5%"), LOSSES, PACKETS_ARE_LOST),
    Case("spine dead", lambda rig: f"dead:{rig.busiest(between=LEAF_SPINE).split('>')[1]}", verdict=None,
         heals_itself=True),
    Case("spine hangs", lambda rig: f"dead:{rig.busiest(between=LEAF_SPINE).split('>')[1]}:silent"),
    Case("leaf dead", lambda rig: f"dead:{rig.busiest(between=HOST_LEAF).split('>')[1]}",
         NO_CARRIER, None),
)  # fmt: skip


def guilty(rig: Rig, text: str) -> set[str]:
    """Every name under which the broken thing may be blamed."""
    where = rig.fault(text).where
    if any(node.name == where for node in rig.fabric.nodes):
        return {where} | {way for link in rig.fabric.links_of(where) for way in link.directions()}
    return set(directions_of(where, rig.fabric))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_training_goes_on(acting: Rig, case: Case) -> None:
    goes_on_through(acting, case)


def goes_on_through(rig: Rig, case: Case) -> None:
    since_s = rig.calm()
    text = case.fault(rig)
    with rig.broken(text):
        if not case.heals_itself:
            rig.wait_told(since_s, case.evidence, f"somebody notices {text}")
            rig.wait_told(since_s, moved("away"), f"somebody moves traffic off {text}")
            rig.wait_told(since_s, says(r"verified after the move$"), "somebody has verified the move")
        if case.verdict is not None:
            rig.wait_told(since_s, case.verdict, f"somebody names {text}")
        rig.goes_on(20)
        held = rig.verdicts()
        accused = blamed(rig.told(since_s, says("")))
        movers = {entry.host for entry in rig.told(since_s, moved("away"))}
    may_be = guilty(rig, text)
    assert held <= may_be, f"{text}: {held - may_be} are held to be broken as well"
    assert accused & may_be or case.verdict is None
    if case.verdict is not PACKETS_ARE_LOST:  # losses are a matter of chance, and so is who is suspected meanwhile
        assert accused <= may_be, f"{text}: {accused - may_be} were blamed as well"
    if movers:
        rig.wait_told(since_s, moved("back"), "all who moved have moved back", movers, RETURN_S)
    rig.goes_on()
    for host in movers:
        in_order(rig.told(since_s, says(""), [host]), case.evidence)


def in_order(entries: list[Entry], evidence: Match) -> None:
    """Evidence, the way out, the way back: one story under one causal id."""
    first = next(entry for entry in entries if moved("away")(entry))
    story = [entry for entry in entries if entry.cause == first.cause]
    assert evidence(story[0]), story[0]
    out, back = story.index(first), next(n for n, entry in enumerate(story) if moved("back")(entry))
    assert 0 < out < back
    assert any(says(r"verified after the move$")(entry) for entry in story[out:back])


def test_an_overloaded_link_is_left_and_is_no_failure(acting: Rig) -> None:
    rig = acting
    since_s = rig.calm()
    text = on_link("rate", LEAF_SPINE, ":5mbit")(rig)
    with rig.broken(text):
        rig.wait_told(since_s, says(r"^verdict congestion: "), f"somebody finds {text} overloaded")
        rig.wait_told(since_s, moved("away"), f"somebody moves traffic off {text}")
        rig.goes_on(20)
        links = [link for host in rig.hosts for link in rig.daemons.view(host)["links"]]
        assert not [link for link in links if link["penalty"]], "a queue damps nothing"
    rig.goes_on(10)


def test_a_flapping_link_is_left_once(acting: Rig) -> None:
    """It swallows packets twice a second; what carries traffic must not follow it."""
    rig = acting
    since_s = rig.calm()
    text = on_link("flap", LEAF_SPINE, ":2hz")(rig)
    with rig.broken(text):
        rig.wait_told(since_s, NOTHING_PASSES, f"somebody names {text}")
        for _ in range(6):  # the job makes some steps in each half of a period
            rig.goes_on(15)
        while_it_flaps = rig.told(since_s, lambda entry: entry.is_move)
        assert rig.verdicts() <= guilty(rig, text)
    movers = {entry.host for entry in while_it_flaps}
    assert movers
    assert not [entry for entry in while_it_flaps if moved("back")(entry)]
    stories = {(entry.host, entry.cause) for entry in while_it_flaps}
    assert len(stories) == len(movers), "one story a host"

    def earning() -> bool:
        paths = [path for host in movers for path in rig.daemons.view(host)["paths"]]
        return any(path["state"] in ("watch", "held") for path in paths)

    rig.wait("its return has to be earned", earning)


def test_a_slow_link_is_nobodys_death(acting: Rig) -> None:
    """A link held to a fraction of what the job wants queues and drops; the job slows down at most."""
    rig = acting
    since_s = rig.calm()
    text = on_link("rate", LEAF_SPINE, ":20mbit")(rig)
    with rig.broken(text):
        rig.goes_on(60)
        assert rig.verdicts() <= guilty(rig, text)
    assert not rig.told(since_s, says("^verdict host"))


def test_why_tells_the_whole_story(acting: Rig) -> None:
    rig = acting
    since_s = rig.calm()
    direction = rig.busiest(between=LEAF_SPINE)
    with rig.broken(f"blackhole:{direction}"):
        first = rig.wait_told(since_s, moved("away"), "somebody moves")[0]
        rig.wait_told(since_s, says(r"^verdict link: "), "somebody names the link", [first.host])
        rig.goes_on(20)
    rig.wait_told(since_s, moved("back"), "it has moved back", [first.host], RETURN_S)
    story = json.loads(rig.cli(first.host, "why", "--json", first.cause).output)
    texts = [entry["what"] for entry in story]
    assert {entry["cause"] for entry in story} == {first.cause}
    assert [entry["now_s"] for entry in story] == sorted(entry["now_s"] for entry in story)
    assert texts[0].startswith("blackhole on "), texts
    order = [
        next(n for n, text in enumerate(texts) if part in text)
        for part in ("blackhole on", " away: ", "verified after the move", "is up", " back: ")
    ]
    assert order == sorted(order), texts
    assert any(text == f"verdict link: {direction} lets nothing through" for text in texts)
    shown = rig.cli(first.host, "why", direction).output
    assert f"verdict link: {direction} lets nothing through" in shown and first.cause in shown


def test_drain_takes_traffic_off_before_the_work(acting: Rig) -> None:
    """A fabric link, everywhere: told to one daemon, heeded by all whose paths cross it, until it is undone."""
    rig = acting
    since_s = rig.calm()
    a, b = rig.busiest(between=LEAF_SPINE).split(">")
    result = rig.cli("host1", "drain", f"{a}-{b}", "--all")
    assert result.exit_code == 0, result.output
    others = [host for host in rig.hosts if host != "host1"]
    rig.wait_told(since_s, says(rf"^host1 says that {a}-{b} is drained$"), "all others have heard", others)
    rig.wait_told(since_s, moved("away"), "all have moved off it", rig.hosts)

    def crosses(host: str) -> bool:
        view = rig.daemons.view(host)
        steered = {one["object"]: set(one["programmed"] or ()) for one in view["steering"]}
        return any(
            path["label"] in steered.get(f"labels {path['peer']}", ())
            for path in view["paths"]
            if path["in_use"] and {a, b} <= set(path["hops"])
        )

    rig.wait("no daemon sends over the drained link", lambda: not any(map(crosses, rig.hosts)))
    rig.goes_on(20)
    assert rig.verdicts() == set()
    shown = rig.cli("host1", "status").output
    assert "drained" in shown

    assert rig.cli("host1", "undrain", f"{a}-{b}", "--all").exit_code == 0
    rig.wait_told(since_s, moved("back"), "all have moved back", rig.hosts, RETURN_S)
    rig.wait("they send over it again", lambda: any(map(crosses, rig.hosts)))


def test_drain_of_an_uplink_reaches_the_peers(acting: Rig) -> None:
    rig = acting
    since_s = rig.calm()
    assert rig.cli("host1", "drain", "eth1").exit_code == 0
    rig.wait_told(since_s, moved("away"), "host1 and its peers have moved", rig.hosts)
    rig.goes_on(20)
    assert rig.cli("host1", "undrain", "eth1").exit_code == 0
    rig.wait_told(since_s, moved("back"), "they have moved back", rig.hosts, RETURN_S)


TALK = """
import socket, sys
ours, there, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if there:
    talk = socket.create_connection((there, port), timeout=20, source_address=(ours, 0))
else:
    talk, _ = socket.create_server((ours, port)).accept()
print("connected", flush=True)
sys.stdin.read()
"""


def test_a_connection_of_the_other_family_is_seen_and_in_nobodys_way(acting: Rig) -> None:
    """A launcher's IPv4 connection beside a job over IPv6: the daemon probes one family, and all else goes on."""
    rig = acting
    rig.calm()
    one, other = rig.lab.address("host1", 4), rig.lab.address("host3", 4)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ends = [rig.lab.popen("host3", [sys.executable, "-c", TALK, other, "", "29400"], **pipes)]
    try:
        rig.wait("it listens", lambda: ":29400" in rig.in_host("host3", "ss", "-Htln"))
        ends.append(rig.lab.popen("host1", [sys.executable, "-c", TALK, one, other, "29400"], **pipes))
        assert [end.stdout.readline() for end in ends] == ["connected\n"] * 2
        for host, peer in (("host1", other), ("host3", one)):
            rig.wait(
                f"{host} sees it",
                lambda host=host, peer=peer: any(  # type: ignore[misc]
                    row["address"] == peer and row["active"] for row in rig.daemons.view(host)["peers"]
                ),
            )
        goes_on_through(rig, next(case for case in CASES if case.name == "blackhole both ways"))
        for host in rig.hosts:
            assert rig.daemons.view(host)["notes"] == []
    finally:
        for end in ends:
            end.kill()
            end.communicate()
    rig.wait("it is forgotten", lambda: not any(row["active"] for row in rig.daemons.view("host1")["peers"]
                                               if row["address"] == other))  # fmt: skip


def test_the_weights_are_those_of_the_undisturbed_run(acting: Rig) -> None:
    acting.calm()
    acting.end_with_the_same_weights()


def test_recordings_replay_to_the_same_decisions(acting: Rig) -> None:
    """After all these faults: each daemon's recording, fed to a fresh core, gives every command again."""
    rig = acting
    rig.daemons.stop(60.0)
    for host in rig.hosts:
        result = rig.cli(host, "replay", str(rig.daemons.path(host, "recording.jsonl")))
        assert result.exit_code == 0, result.output
        assert "the same answers throughout" in result.output
