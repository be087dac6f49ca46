"""Recording and replay: whatever a real core answered, a fresh core answers again; a change is found where it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from linkpass.core import events as ev
from linkpass.core.commands import AnyCommand, Command, Record
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.edges.recorder import RecorderEdge
from linkpass.replay import replay
from linkpass.wire.recording import (
    Header,
    In,
    Out,
    RecordingError,
    decode_line,
    encode_line,
    older_part,
    read_recording,
)

SETTINGS = CoreSettings(host="host1", address="fd00:ff::1", mode="act")


def record_core(path: Path, turns: int = 12, max_bytes: int = 1 << 20) -> RecorderEdge:
    """A short life of a real core: uplinks come and go, peers appear, an operator drains."""
    recorder = RecorderEdge(path, SETTINGS, version="1", wall="2026-01-01T00:00:00.000Z", max_bytes=max_bytes)
    recorder.open()
    core = Core(SETTINGS)
    script: list[ev.Event] = [
        ev.UplinkState(uplink="eth1", usable=True, speed_bps=10**10),
        ev.UplinkState(uplink="eth2", usable=True, speed_bps=10**10),
        ev.PeerKnown(peer="fd00:ff::2", name="host2"),
        ev.PeersActive(peers=("fd00:ff::2",)),
        ev.Deadline(),
        ev.UplinkState(uplink="eth1", usable=False, why="no carrier"),
        ev.Deadline(),
        ev.DrainRequested(link="leaf1-spine1"),
        ev.UplinkState(uplink="eth1", usable=True),
        ev.Deadline(),
    ]
    for number in range(turns):
        now_s = 1000.1 + number * 0.3
        event = script[number % len(script)]
        recorder.event(now_s, event)
        commands = core.handle(event, now_s)
        if commands:
            recorder.commands(now_s, commands)
    recorder.close()
    return recorder


def test_a_fresh_core_gives_the_same_answers(tmp_path: Path) -> None:
    record_core(tmp_path / "r")
    recording = read_recording(tmp_path / "r")
    result = replay(recording, Core)
    assert result.divergence is None
    assert (result.events, result.cut) == (12, False)
    assert result.commands > 5
    assert result.spanned_s == pytest.approx(3.3)
    assert msgspec.json.decode(recording.header.settings, type=CoreSettings) == SETTINGS


class Changed:
    """A core of another mind from one event on."""

    def __init__(self, settings: CoreSettings) -> None:
        self._core = Core(settings)

    def handle(self, event: ev.Event, now_s: float) -> Sequence[Command]:
        commands = list(self._core.handle(event, now_s))
        if isinstance(event, ev.DrainRequested):
            return [*commands[:1], Record(cmd_id=0, cause="x", what="another mind", why="")]
        return commands


def test_the_first_divergence_is_named(tmp_path: Path) -> None:
    record_core(tmp_path / "r")
    result = replay(read_recording(tmp_path / "r"), Changed)
    assert result.divergence is not None
    assert isinstance(result.divergence.event, ev.DrainRequested)
    assert result.events == 8
    assert result.divergence.replayed == (Record(cmd_id=0, cause="x", what="another mind", why=""),)
    file, _, line = result.divergence.where.rpartition(":")
    event = decode_line(Path(file).read_bytes().splitlines()[int(line) - 1])
    assert isinstance(event, In)
    assert b"DrainRequested" in bytes(event.event)


def test_a_core_that_fails_is_a_divergence(tmp_path: Path) -> None:
    record_core(tmp_path / "r")

    class Failing(Changed):
        def handle(self, event: ev.Event, now_s: float) -> Sequence[Command]:
            raise KeyError("eth9")

    result = replay(read_recording(tmp_path / "r"), Failing)
    assert result.divergence is not None
    assert "KeyError: 'eth9'" in result.divergence.error


def test_an_end_without_an_answer_is_what_a_crash_leaves(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record_core(path)
    lines = path.read_bytes().splitlines(keepends=True)
    last_in = max(n for n, line in enumerate(lines) if isinstance(decode_line(line), In) and b"Uplink" in line)
    path.write_bytes(b"".join(lines[: last_in + 1]) + b'{"type":"out","now')
    result = replay(read_recording(path), Core)
    assert (result.divergence, result.cut) == (None, True)


def test_an_answer_that_is_missing_in_the_middle_is_a_divergence(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record_core(path)
    lines = path.read_bytes().splitlines(keepends=True)
    out = next(n for n, line in enumerate(lines) if isinstance(decode_line(line), Out))
    path.write_bytes(b"".join(lines[:out] + lines[out + 1 :]))
    result = replay(read_recording(path), Core)
    assert result.divergence is not None
    assert result.divergence.recorded == ()


def test_two_parts_are_one_recording(tmp_path: Path) -> None:
    whole = record_core(tmp_path / "whole", turns=40)
    size = whole.path.stat().st_size
    record_core(tmp_path / "r", turns=40, max_bytes=int(size * 1.4))
    assert older_part(tmp_path / "r").exists()
    result = replay(read_recording(tmp_path / "r"), Core)
    assert (result.events, result.divergence) == (40, None)


def test_a_beginning_that_is_gone_is_refused(tmp_path: Path) -> None:
    record_core(tmp_path / "r", turns=300, max_bytes=16_384)
    assert (tmp_path / "r").stat().st_size <= 8192
    with pytest.raises(RecordingError, match=r"r: part \d+; part 1 to \d+ of this run are not all there any more"):
        read_recording(tmp_path / "r")


def test_a_new_run_keeps_the_one_before(tmp_path: Path) -> None:
    record_core(tmp_path / "r", turns=5)
    record_core(tmp_path / "r", turns=7)
    assert replay(read_recording(tmp_path / "r"), Core).events == 7
    assert replay(read_recording(older_part(tmp_path / "r")), Core).events == 5


def test_a_full_disk_ends_recording_and_nothing_else(tmp_path: Path) -> None:
    recorder = RecorderEdge(tmp_path / "r", SETTINGS, version="1", wall="w", max_bytes=10_000)
    recorder.open()
    (tmp_path / "r").unlink()
    (tmp_path / "r.1").mkdir()
    (tmp_path / "r.1" / "x").touch()
    for number in range(200):
        recorder.event(float(number), ev.Deadline())
        recorder.commands(float(number), ())
    assert recorder.stopped.startswith(f"{tmp_path}/r: ")
    recorder.close()


HEADER = encode_line(Header(version="1", host="h", run="r", settings=msgspec.Raw(b"{}")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "r:1: not a recording: expected a header"),
        (b"hello\n", "r:1: not a line of a recording: JSON is malformed"),
        (encode_line(In(1.0, msgspec.Raw(b"{}"))), "r:1: not a recording: expected a header"),
        (HEADER + HEADER, "r:2: a second header"),
        (HEADER.replace(b'"format":1', b'"format":2'), "r:1: format 2; this version reads format 1"),
        (HEADER + b'{"type":"in"}\n', "r:2: not a line of a recording: Object missing required field `now_s`"),
        (HEADER + b"\xff\n", "r:2: not a line of a recording"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(RecordingError) as caught:
        read_recording(tmp_path / "r")
    assert str(caught.value).startswith(f"{tmp_path}/{message}")


def test_content_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(HEADER)
    with pytest.raises(RecordingError, match=r"header: another version wrote this: .*required field `host`"):
        replay(read_recording(tmp_path / "r"), Core)
    with pytest.raises(RecordingError, match="none: No such file"):
        read_recording(tmp_path / "none")
    settings = HEADER.replace(b'"settings":{}', b'"settings":' + msgspec.json.encode(SETTINGS))
    (tmp_path / "r").write_bytes(settings + encode_line(Out(1.0, msgspec.Raw(b"[]"))))
    with pytest.raises(RecordingError, match="r:2: commands without an event before them"):
        replay(read_recording(tmp_path / "r"), Core)


def test_each_command_survives_a_line() -> None:
    command = Record(cmd_id=1, cause="c", what="w", why="y", rung=2)
    line = decode_line(encode_line(Out(1.25, msgspec.Raw(msgspec.json.encode([command])))))
    assert isinstance(line, Out)
    assert msgspec.json.decode(line.commands, type=list[AnyCommand]) == [command]
