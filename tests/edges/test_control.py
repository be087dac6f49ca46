"""The control socket: a real unix socket, real HTTP, and every way in which it can be in the way."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from face_desk import Desk, sample_view

from linkpass.core.events import ClearRequested, DrainRequested, UndrainRequested
from linkpass.edges.control import OBSERVED, ORDERED, ControlEdge, ControlError, RefusedError, find_link


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    made.open()
    async with ControlEdge(tmp_path / "run" / "control.sock", made):
        yield made
    made.book.close()


async def ask(tmp_path: Path, method: str, url: str, **more: Any) -> tuple[int, Any]:
    connector = aiohttp.UnixConnector(str(tmp_path / "run" / "control.sock"))
    async with (
        aiohttp.ClientSession("http://linkpass", connector=connector) as session,
        session.request(method, url, **more) as response,
    ):
        body = await response.read()
        return response.status, json.loads(body) if response.content_type == "application/json" else body


async def test_status_is_the_view(tmp_path: Path, desk: Desk) -> None:
    assert await ask(tmp_path, "GET", "/status") == (200, sample_view())


async def test_paths_journal_health_and_metrics(tmp_path: Path, desk: Desk) -> None:
    _, body = await ask(tmp_path, "GET", "/paths")
    assert [row["label"] for row in body["paths"]] == [0x2345, 0x1111, 0x9]
    _, body = await ask(tmp_path, "GET", "/journal?since=1")
    assert [entry["seq"] for entry in body["entries"]] == [2, 3]
    assert await ask(tmp_path, "GET", "/healthz") == (200, {"ok": True, "pid": os.getpid()})
    status, text = await ask(tmp_path, "GET", "/metrics")
    assert status == 200
    assert b"linkpass_moves_total 4.0" in text


async def test_why_takes_an_id_or_an_element(tmp_path: Path, desk: Desk) -> None:
    for name in ("host1-1", "leaf1%3Espine1"):
        status, body = await ask(tmp_path, "GET", f"/why/{name}")
        assert (status, [entry["what"] for entry in body["entries"]]) == (
            200,
            ["leaf1>spine1 is down", "moved 8 labels"],
        )
    status, body = await ask(tmp_path, "GET", "/why/host1-11")
    assert status == 404
    assert body["error"] == "no story of host1-11 in the journal"
    assert "host1-1" in body["hint"]


async def test_drain_undrain_clear_become_events(tmp_path: Path, desk: Desk) -> None:
    status, body = await ask(tmp_path, "POST", "/drain", json={"link": "leaf1-spine1", "everywhere": True})
    assert (status, body) == (200, {"ok": True, "link": "leaf1-spine1", "note": ORDERED, "cause": "host1-3"})
    _, body = await ask(tmp_path, "POST", "/drain", json={"link": "spine1>leaf1"})
    assert body["note"].startswith("not a link of this host")
    _, body = await ask(tmp_path, "POST", "/undrain", json={"link": "eth2"})
    assert body["link"] == "host1-leaf2"
    await ask(tmp_path, "POST", "/clear", json={"link": "*"})
    assert desk.submitted == [
        DrainRequested(link="leaf1-spine1", everywhere=True),
        DrainRequested(link="spine1>leaf1"),
        UndrainRequested(link="host1-leaf2"),
        ClearRequested(link="*"),
    ]


async def test_an_observer_says_that_a_drain_moves_nothing(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "view", lambda: {**sample_view(), "mode": "observe"})
    for link in ("leaf1-spine1", "eth2"):
        _, body = await ask(tmp_path, "POST", "/drain", json={"link": link})
        assert body["note"] == OBSERVED


@pytest.mark.parametrize(
    ("method", "url", "body", "status", "error"),
    [
        ("POST", "/drain", '{"link": "leaf1-spine9"}', 404, "no link leaf1-spine9"),
        ("POST", "/drain", '{"link": "host1-leaf1"}', 409, "host1-leaf1 is the last path"),
        ("POST", "/drain", "not json", 400, "not a request: JSON is malformed"),
        ("POST", "/drain", '{"lnk": "x"}', 400, "not a request: Object contains unknown field `lnk`"),
        ("POST", "/drain", b"\xff\xfe", 400, "not a request: "),
        ("POST", "/drain", "x" * 70_000, 413, "POST /drain: "),
        ("GET", "/journal?since=x", None, 400, "since=x: expected a sequence number"),
        ("GET", "/nowhere", None, 404, "GET /nowhere: Not Found"),
        ("GET", "/drain", None, 405, "GET /drain: Method Not Allowed"),
    ],
)
async def test_every_error_is_json(
    tmp_path: Path, desk: Desk, method: str, url: str, body: Any, status: int, error: str
) -> None:
    got, answer = await ask(tmp_path, method, url, data=body)
    assert got == status
    assert set(answer) == {"error", "hint"}
    assert answer["error"].startswith(error)
    assert desk.submitted == []


async def test_a_fault_of_our_own_is_an_answer_too(
    tmp_path: Path, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.broken = True
    status, answer = await ask(tmp_path, "GET", "/status")
    assert (status, answer["error"]) == (500, "internal error: ZeroDivisionError: nobody expected this")
    assert "control request failed" in capsys.readouterr().out


def test_links_by_all_their_names() -> None:
    view = sample_view()
    for name in ("leaf1>spine1", "leaf1-spine1", "spine1-leaf1", "spine1>leaf1"):
        assert find_link(name, view) == name
    assert find_link("eth1", view) == "host1-leaf1"
    assert find_link("leaf9-spine9", view, ["leaf9-spine9"]) == "leaf9-spine9"
    with pytest.raises(RefusedError) as caught:
        find_link("leaf1-spin1", view)
    assert "did you mean leaf1-spine" in caught.value.hint
    with pytest.raises(RefusedError) as caught:
        find_link("eth1", {"host": "host1"})
    assert "traced no path yet" in caught.value.hint


# the socket itself
async def test_the_socket_is_for_its_owner_alone_and_leaves_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with ControlEdge(path, Desk(tmp_path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_live_daemon_is_not_pushed_aside(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with ControlEdge(path, Desk(tmp_path)):
        with pytest.raises(ControlError, match=rf"in use by process {os.getpid()}; `linkpass status --socket"):
            await ControlEdge(path, Desk(tmp_path)).open()
        assert path.exists()


async def test_a_stranger_that_listens_there_is_not_pushed_aside(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ControlError, match="in use by another program"):
            await ControlEdge(path, Desk(tmp_path)).open()


KILLED_DAEMON = """
import asyncio, sys
from pathlib import Path
from face_desk import Desk
from linkpass.edges.control import ControlEdge

async def main():
    await ControlEdge(sys.argv[1], Desk(Path(sys.argv[2]))).open()
    print("open", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """The socket of a daemon that was killed."""
    path = tmp_path / "control.sock"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    argv = [sys.executable, "-c", KILLED_DAEMON, str(path), str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"open\n"
        daemon.kill()
    return path


async def test_what_a_killed_daemon_left_is_taken_over(tmp_path: Path, left_behind: Path) -> None:
    assert stat.S_ISSOCK(os.lstat(left_behind).st_mode)
    async with ControlEdge(left_behind, Desk(tmp_path)):
        assert stat.S_ISSOCK(os.lstat(left_behind).st_mode)


async def test_other_files_are_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(ControlError, match="something else is there; move it, or set"):
        await ControlEdge(path, Desk(tmp_path)).open()
    assert path.read_text() == "precious"


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ControlError, match=r"file/control.sock: (Not a directory|File exists); set control.socket"):
        await ControlEdge(tmp_path / "file" / "control.sock", Desk(tmp_path)).open()


async def test_a_trainer_says_that_a_rank_has_come_to_a_step(tmp_path: Path, desk: Desk) -> None:
    assert await ask(tmp_path, "POST", "/arrived", json={"rank": 3, "step": 1200}) == (200, {"ok": True})
    assert desk.came == [(3, 1200)]
    status, body = await ask(tmp_path, "POST", "/arrived", json={"rank": 9, "step": 1})
    assert (status, body["hint"]) == (409, "set stragglers.enabled = true")
    for wrong in ({"rank": -1, "step": 1}, {"rank": 1}, {"rank": 1, "step": "x"}, {"rank": 1, "step": 1, "at": 2}):
        status, body = await ask(tmp_path, "POST", "/arrived", json=wrong)
        assert status == 400 and body["hint"] == 'expected {"rank": 3, "step": 1200}'
