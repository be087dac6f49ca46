"""Commands that talk to a daemon: over a real unix socket, and every way of not reaching one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from face_desk import Desk, sample_view, serving

from linkpass.cli import cli
from linkpass.core.events import ClearRequested, DrainRequested, UndrainRequested


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    with serving(tmp_path / "control.sock", made):
        yield made


Linkpass = Callable[..., Result]


@pytest.fixture
def linkpass(tmp_path: Path) -> Linkpass:
    def run(*arguments: str) -> Result:
        return CliRunner(env={"LINKPASS_SOCKET": str(tmp_path / "control.sock")}).invoke(cli, arguments)

    return run


def test_status_for_people(desk: Desk, linkpass: Linkpass) -> None:
    result = linkpass("status")
    assert result.exit_code == 0, result.output
    for text in (
        "host1 fd00:ff::1 · act · linkpass 0.1.0 · up 1 h 02 min",
        "rung 1 armed: labels steer",
        "rung 2 off: no next-hop objects",
        "no carrier; overrun: 12 MB dropped in a second; held down by damping",
        "blackhole on 2 of 2 paths [eth1]",
        "6 good 2 blackhole",
        "blamed: link leaf1>spine1",
        "straggler host2 rank 4 (compute): each step waits 50.0 ms of 200.0 ms for it; linkpass why host1-2",
        "host1-1",
        "· moves: 4",
        "not in netns",
        "stood down",
        "systemd-networkd removed it",
        "probes: 1000 sent, 990 heard, refused 3 bad_mac, 1 truncated, lost 12, daemon late 2 times, intervals",
        "intervals stretched x1.2",
        "probes to fd00:ff::3 are filtered",
        "given up; says of itself: kernel log: hard",
        "the GPU has fallen off the bus",
        "host evidence is read from: kernel log, sensors (not known: sensors: no EDAC driver is loaded; nvml: NVML",
    ):
        assert text in result.output
    assert "Xid 13" not in result.output
    everything = linkpass("status", "--all").output
    assert "Xid 13" in everything and "health.dcgm is empty" in everything
    assert "host1>leaf1" not in result.output
    assert "host1>leaf1" in linkpass("status", "--all").output


def test_status_of_a_lonely_machine(desk: Desk, linkpass: Linkpass) -> None:
    desk.now = {"host": "laptop", "mode": "observe", "version": "0.1.0"}
    result = linkpass("status")
    assert result.exit_code == 0, result.output
    assert "no uplinks: no route to the configured prefixes" in result.output
    assert "no peers: nothing is configured, connected or heard" in result.output


def test_json_is_what_the_daemon_says(desk: Desk, linkpass: Linkpass) -> None:
    assert json.loads(linkpass("status", "--json").output) == sample_view()
    assert json.loads(linkpass("paths", "--json").output) == sample_view()["paths"]
    assert [entry["cause"] for entry in json.loads(linkpass("why", "--json", "host1-1").output)] == ["host1-1"] * 2
    assert json.loads(linkpass("drain", "--json", "eth2").output)["link"] == "host1-leaf2"


def test_paths(desk: Desk, linkpass: Linkpass) -> None:
    lines = linkpass("paths").output.splitlines()
    assert any("0x2345" in line and "leaf1 spine2 leaf3" in line and "in use" in line for line in lines)
    assert any("leaf2 ?" in line and "unknown" in line for line in lines)
    few = linkpass("paths", "fd00:ff::2", "--uplink", "eth1").output
    assert ("0x2345" in few, "0x0009" in few) == (True, False)
    assert "no paths: no peer is known yet, or none fits" in linkpass("paths", "host9").output


def test_why(desk: Desk, linkpass: Linkpass) -> None:
    story = linkpass("why", "host1-1").output
    assert "+31.5 ms" in story
    assert story.index("leaf1>spine1 is down") < story.index("moved 8 labels")
    assert linkpass("why", "leaf1>spine1").output == story
    assert "leaf1-spine2 is drained" in linkpass("why").output
    result = linkpass("why", "host1-9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("linkpass: no story of host1-9 in the journal\n  the newest: host1-")


def test_top(desk: Desk, linkpass: Linkpass) -> None:
    lines = linkpass("top", "--json", "--count", "2", "--interval", "0.1").output.splitlines()
    assert [json.loads(line)["host"] for line in lines] == ["host1", "host1"]
    result = linkpass("top", "--count", "2", "--interval", "0.1")
    assert result.exit_code == 0, result.output
    assert "host1>leaf1" in result.output


def test_drain_undrain_clear(desk: Desk, linkpass: Linkpass) -> None:
    result = linkpass("drain", "leaf1-spine1", "--all")
    assert result.output.startswith("leaf1-spine1 is drained\n  not a link of this host: of the daemons that are told")
    assert result.output.endswith("\n  linkpass why host1-3\n") and "`operators`" in result.output
    assert "or use --all" in linkpass("drain", "leaf1-spine1").output
    assert "`operators`" in linkpass("drain", "--help").output
    assert linkpass("undrain", "spine1-leaf1").output.startswith("spine1-leaf1 is undrained")
    assert linkpass("clear", "leaf1>spine1").output.startswith("the damping of leaf1>spine1 is forgotten")
    assert linkpass("clear", "*").output.startswith("all damping is forgotten")
    assert desk.submitted == [
        DrainRequested(link="leaf1-spine1", everywhere=True),
        DrainRequested(link="leaf1-spine1"),
        UndrainRequested(link="spine1-leaf1"),
        ClearRequested(link="leaf1>spine1"),
        ClearRequested(link="*"),
    ]


def test_what_is_held_against_this_host_is_cleared_by_its_name(desk: Desk, linkpass: Linkpass) -> None:
    result = linkpass("clear", "host1")
    assert result.exit_code == 0 and "what was held against this host" in result.output
    assert desk.submitted == [ClearRequested(link="host1")]


def test_a_link_that_is_not_there(desk: Desk, linkpass: Linkpass) -> None:
    result = linkpass("drain", "leaf1-spine3")
    assert result.exit_code == 1
    assert result.stderr.startswith("linkpass: no link leaf1-spine3\n  did you mean leaf1-spine")
    result = linkpass("drain", "eth1")
    assert (result.exit_code, result.stderr) == (1, "linkpass: host1-leaf1 is the last path\n  repair eth2 first\n")
    assert desk.submitted == []


# not reaching a daemon
@pytest.mark.parametrize("command", [["status"], ["paths"], ["why", "x"], ["top"], ["drain", "x"], ["clear", "x"]])
def test_no_daemon(tmp_path: Path, linkpass: Linkpass, command: list[str]) -> None:
    result = linkpass(*command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"linkpass: no daemon has a socket at {tmp_path}/control.sock\n  start one with")


def test_a_daemon_that_is_gone(tmp_path: Path, linkpass: Linkpass) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    result = linkpass("status")
    assert result.exit_code == 3
    assert f"the daemon that made {tmp_path}/control.sock is gone" in result.stderr


def test_somebody_elses_socket(tmp_path: Path, linkpass: Linkpass) -> None:
    other = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print(flush=True)\n"
    )
    other += "c, _ = s.accept(); c.recv(100); c.sendall(b'SSH-2.0-hello\\r\\n'); c.close()"
    argv = [sys.executable, "-c", other, str(tmp_path / "control.sock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        result = linkpass("status")
    assert result.exit_code == 3
    assert "is this a linkpass daemon's socket?" in result.stderr


AS_NOBODY = """
import os, sys, http.client, encodings.idna
from pathlib import Path
from linkpass.cli.client import Client
from linkpass.cli.common import TroubleError

os.setresuid(65534, 65534, 65534)
try:
    Client(Path(sys.argv[1])).get("status")
except TroubleError as error:
    error.show()
    sys.exit(error.exit_code)
"""


def test_no_permission(tmp_path: Path) -> None:
    """As another user than root, for whom the folder is open but the socket is not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control.sock"
        path.parent.chmod(0o755)
        with serving(path, Desk(tmp_path)):
            argv = [sys.executable, "-c", AS_NOBODY, str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == f"linkpass: {path} is not open to this user\n  ask as root (sudo)\n"


def test_the_configuration_names_the_socket(tmp_path: Path, desk: Desk) -> None:
    (tmp_path / "linkpass.toml").write_text('[control]\nsocket = "control.sock"\n')
    result = CliRunner().invoke(cli, ["status", "--json", "--config", str(tmp_path / "linkpass.toml")])
    assert json.loads(result.output)["host"] == "host1"
    (tmp_path / "linkpass.toml").write_text('[control]\nsocke = "control.sock"\n')
    result = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "linkpass.toml")])
    assert result.exit_code == 2
    assert "linkpass.toml:2: control.socke: unknown; did you mean socket?" in result.stderr
    assert os.environ.get("LINKPASS_SOCKET") is None
