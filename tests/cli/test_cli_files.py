"""Commands that work on files, the help, and how fast it comes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from linkpass.cli import cli
from linkpass.cli.group import COMMANDS
from linkpass.core import events as ev
from linkpass.core.machine import Core
from linkpass.core.settings import CoreSettings
from linkpass.edges.recorder import RecorderEdge

ROOT = Path(__file__).parents[2]
LEAF_SPINE = ROOT / "lab" / "leaf-spine.clab.yml"


def linkpass(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


# help
def test_help_lists_the_commands() -> None:
    result = linkpass("--help")
    assert result.exit_code == 0
    for command in cli.list_commands(None):  # type: ignore[arg-type]
        assert f"\n  {command} " in result.output
    assert "Exit status: 0 done" in result.output


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "lab"])
def test_each_command_teaches_by_example(command: str) -> None:
    result = linkpass(command, "--help")
    assert result.exit_code == 0
    assert f"linkpass {command}" in result.output.split("Example", 1)[1]
    if command != "run":
        assert "--json" in result.output


def test_help_loads_no_more_than_click() -> None:
    heavy = ("aiohttp", "rich", "networkx", "msgspec", "structlog", "prometheus_client", "pyroute2", "torch", "asyncio")
    code = (
        "import sys\nfrom linkpass.cli import cli\ncli.main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_unknown_commands_and_the_version() -> None:
    assert linkpass("statsu").exit_code == 2
    assert linkpass("--version").output.startswith("linkpass, version ")


# topology
def test_topology() -> None:
    result = linkpass("topology", str(LEAF_SPINE))
    assert result.exit_code == 0, result.output
    assert "leaf-spine: 4 hosts, 6 switches, 16 links" in result.output
    assert "leaf1-spine1" in result.output
    data = json.loads(linkpass("topology", "--json", str(LEAF_SPINE)).output)
    assert len(data["links"]) == 16
    assert {node["tier"] for node in data["nodes"]} == {0, 1, 2}
    assert data["links"][0]["ports"][0].keys() == {"node", "name", "speed_bps", "rail", "plane"}


def test_topology_of_what_is_none(tmp_path: Path) -> None:
    result = linkpass("topology", str(tmp_path / "none"))
    assert (result.exit_code, result.stderr) == (2, f"linkpass: {tmp_path}/none: No such file or directory\n")
    (tmp_path / "bad.yml").write_text("name: x\ntopology:\n  nodes: 3\n")
    result = linkpass("topology", str(tmp_path / "bad.yml"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"linkpass: {tmp_path}/bad.yml:3: ")
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert "not UTF-8 at byte 0" in linkpass("topology", str(tmp_path / "latin")).stderr


# check-config
def test_check_config(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    file = tmp_path / "linkpass.toml"
    file.write_text('prefixes = ["fd00:ff::/64", "10.255.0.0/24"]\nrungs = [2]\n[auth]\nkey_file = "key"\n')
    result = linkpass("check-config", "--config", str(file), "--root", str(tmp_path))
    assert (result.exit_code, result.output) == (0, f"{file}: valid, mode observe, 0 thing(s) to look at\n")
    result = linkpass("check-config", "--config", str(file), "--root", str(tmp_path), "--health")
    assert result.exit_code == 0
    assert all(f"info: health, {source}: " in result.output for source in ("kernel log", "sensors", "nvml"))
    (tmp_path / "key").chmod(0o644)
    result = linkpass("check-config", "--config", str(file), "--root", str(tmp_path))
    assert result.exit_code == 0
    assert f"  chmod 600 {tmp_path}/key\n" in result.output
    (tmp_path / "key").unlink()
    result = linkpass("check-config", "--config", str(file), "--root", str(tmp_path), "--json")
    assert result.exit_code == 1
    data = json.loads(result.output)
    assert (data["ok"], data["findings"][0]["key"]) == (False, "auth.key_file")


def test_check_config_of_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mode = 'on'\n")
    result = linkpass("check-config", "--config", str(tmp_path / "f"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f'linkpass: {tmp_path}/f:1: mode: expected one of "observe", "act", got "on"\n'
    result = linkpass("check-config", "--config", str(tmp_path / "none"))
    assert (result.exit_code, "annotated example" in result.stderr) == (2, True)


def test_check_config_knows_the_fabric(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    names = '[fabric.names]\n"fd00:ff:1::1" = "leaf9"\n'
    text = f'host = "host9"\n[auth]\nkey_file = "key"\n[fabric]\nfile = "{LEAF_SPINE}"\n{names}'
    (tmp_path / "f").write_text(text)
    result = linkpass("check-config", "--config", str(tmp_path / "f"), "--root", str(tmp_path))
    assert "warning: host: host9 is not a node of" in result.output
    assert "warning: fabric.names: not nodes of" in result.output


# replay
def recorded(path: Path) -> None:
    settings = CoreSettings(host="host1", address="fd00:ff::1", mode="act")
    recorder = RecorderEdge(path, settings, version="1", wall="w")
    recorder.open()
    core = Core(settings)
    for number, event in enumerate(
        (ev.UplinkState(uplink="eth1", usable=True), ev.DrainRequested(link="a-b"), ev.Deadline())
    ):
        recorder.event(float(number), event)
        commands = core.handle(event, float(number))
        if commands:
            recorder.commands(float(number), commands)
    recorder.close()


def test_replay(tmp_path: Path) -> None:
    recorded(tmp_path / "r")
    result = linkpass("replay", str(tmp_path / "r"))
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{tmp_path}/r: the same answers throughout (3 events, ")
    assert json.loads(linkpass("replay", "--json", str(tmp_path / "r")).output)["divergence"] is None


def test_replay_of_another_mind(tmp_path: Path) -> None:
    recorded(tmp_path / "r")
    data = (tmp_path / "r").read_bytes().replace(b"a-b is drained", b"a-b was drained")
    (tmp_path / "r").write_bytes(data)
    result = linkpass("replay", str(tmp_path / "r"))
    assert result.exit_code == 1
    assert "diverges at 1.000000 s, after 2 events" in result.output
    assert "recorded  " in result.output
    assert "a-b was drained" in result.output
    found = json.loads(linkpass("replay", "--json", str(tmp_path / "r")).output)["divergence"]
    assert found["event"]["type"] == "DrainRequested"
    assert "a-b is drained" in msgspec.json.encode(found["replayed"]).decode()


def test_replay_of_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("hello\n")
    result = linkpass("replay", str(tmp_path / "r"))
    assert (result.exit_code, "not a line of a recording" in result.stderr) == (2, True)
