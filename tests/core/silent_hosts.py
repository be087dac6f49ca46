"""A core whose peers fall silent, and what it says and hands over."""

from __future__ import annotations

from fabric_sim import FabricSim

from linkpass.core import commands as cmd
from linkpass.core import events as ev

SINGLE = {"host1": ("leaf1",), "host2": ("leaf1",), "host3": ("leaf3",), "host4": ("leaf3",)}
"""Every host on one leaf."""
DETECTED_S = 5.0
"""After which whatever is said of a silence has been said, also of peers that are probed slowly."""


def single(**more: object) -> FabricSim:
    return FabricSim(uplinks=("eth1",), leaves=SINGLE, **more).start()  # type: ignore[arg-type]


def flowing(sim: FabricSim, *names: str) -> FabricSim:
    for name in names:
        sim.post(ev.PeerData(peer=sim.address[name], flows=True))
    sim.run(0)
    return sim


def silent(sim: FabricSim, *names: str, stands: str = "") -> None:
    """They fall silent, and their data stops."""
    sim.silence(*names)
    for name in names:
        address = sim.address[name]
        stopped = ev.PeerData(peer=address, flows=False, stands=stands)  # type: ignore[arg-type]
        sim.later(0.5, lambda stopped=stopped: stopped)


def given_up(sim: FabricSim, mark: int = 0) -> list[str]:
    return [command.host for command in sim.since(mark, cmd.Escalate)]


def blamed(sim: FabricSim, mark: int = 0) -> list[str]:
    return [record.what for record in sim.since(mark, cmd.Record) if record.what.startswith("verdict")]


def say(sim: FabricSim, speaker: str, kind: ev.NoticeKind, text: str, seq: int, ttl_s: float = 60.0) -> None:
    notice = ev.Notice(kind=kind, link=text, origin="somebody", seq=seq, ttl_s=ttl_s)
    sim.post(ev.NoticeHeard(peer=sim.address[speaker], notice=notice))
    sim.run(0)
