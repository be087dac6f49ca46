"""With less than a whole fabric and all privileges: no nftables, an ordinary machine, a broken configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rig import PATIENCE_S, RETURN_S, Rig, moved, says

from lab.daemons import PROGRAM, Daemons, DaemonSpec
from lab.netns import namespace
from linkpass.cli import cli

pytestmark = [pytest.mark.netns, pytest.mark.e2e]


class WithoutNft(Daemons):
    """Daemons on machines where nftables is not installed: each sees another file system, without the program."""

    def start_one(self, host: str) -> None:
        hidden = " && ".join(f"mount --bind /dev/null {place}" for place in _places("nft"))
        run = 'exec "$@"'
        argv = [*PROGRAM, "run", "--config", str(self.path(host, "linkpass.toml"))]
        with open(self.path(host, "log"), "ab") as log:
            self.processes[host] = self.lab.popen(
                host, ["unshare", "--mount", "sh", "-c", f"{hidden} && {run}", "sh", *argv],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip


def test_without_nft_rung_2_works_alone(tmp_path: Path) -> None:
    spec = DaemonSpec(mode="act", tcp_timers=True, realtime=True)
    with Rig(tmp_path, spec, daemons=WithoutNft) as rig:
        for host in rig.hosts:
            rungs = rig.daemons.view(host)["rungs"]
            assert rungs["1"]["armed"] is False
            assert "install the package nftables" in rungs["1"]["why"]
            assert rungs["2"]["armed"] is True
            assert "linkpass" not in rig.in_host(host, "nft", "list", "tables")
        assert "rung 1 off: rung 1 needs the program nft" in rig.cli("host1", "status").output
        since_s = rig.calm()
        host, leaf = rig.busiest(between=(0, 1)).split(">")
        with rig.broken(f"blackhole:{host}-{leaf}"):
            away = rig.wait_told(since_s, moved("away"), "the host leaves the uplink", [host])
            assert {entry.rung for entry in away} == {2}
            rig.wait_told(since_s, says(r"verified after the move$"), "it has verified the move", [host])
        rig.wait_told(since_s, moved("back"), "it has moved back", [host], RETURN_S)
        rig.goes_on()


@pytest.fixture
def machine() -> Iterator[str]:
    """A namespace with one NIC, an address and a default route: an ordinary machine."""
    name, outside = f"td-{os.getpid()}-pc", f"td-{os.getpid()}-gw"
    try:
        for one in (name, outside):
            _ip("netns", "add", one)
            _ip("-n", one, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "port", "netns", outside)
        _ip("-n", name, "addr", "add", "192.0.2.10/24", "dev", "eth0")
        _ip("-n", outside, "addr", "add", "192.0.2.1/24", "dev", "port")
        for where, device in ((name, "eth0"), (outside, "port")):
            _ip("-n", where, "link", "set", device, "up")
        _ip("-n", name, "route", "add", "default", "via", "192.0.2.1")
        yield name
    finally:
        for one in (name, outside):
            subprocess.run(["ip", "netns", "delete", one], check=False, capture_output=True)


def test_an_ordinary_machine_is_observed_without_a_configuration(machine: str) -> None:
    """`linkpass run` and nothing else: no file, one NIC, no peers. Standard places are its own, in a private `/run`."""
    private = "for d in /run /var/lib /etc/linkpass; do test ! -d $d || mount -t tmpfs tmpfs $d; done"
    argv = ["unshare", "--mount", "sh", "-c", f'{private}; exec "$@"', "sh", *PROGRAM, "run"]
    before = _kernel(machine)
    with namespace.inside(machine), subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            socket = Path(f"/proc/{process.pid}/root/run/linkpass/control.sock")
            asked = CliRunner(env={"LINKPASS_SOCKET": str(socket)})
            deadline_s = time.monotonic() + 4 * PATIENCE_S
            while asked.invoke(cli, ["status"]).exit_code != 0:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline_s, "the daemon does not answer"
                time.sleep(0.05)
            while True:  # a carrier may be told a moment after the first answer
                view = json.loads(asked.invoke(cli, ["status", "--json"]).output)
                if [(one["name"], one["usable"]) for one in view["uplinks"]] == [("eth0", True)]:
                    break
                assert time.monotonic() < deadline_s, view
                time.sleep(0.05)
            assert (view["mode"], view["peers"], view["moves"]) == ("observe", [], 0)
            assert not view["rungs"]["1"]["armed"] and not view["rungs"]["2"]["armed"]
            shown = asked.invoke(cli, ["status"]).output
            assert "no prefixes configured" in shown and "no peers" in shown
            with urllib.request.urlopen("http://127.0.0.1:9478/metrics", timeout=10) as answer:
                text = answer.read()
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, b"")
            assert b'uplink="eth0"' in text
            _ip("-n", machine, "link", "set", "eth0", "down")
            down_by_s = time.monotonic() + PATIENCE_S
            while json.loads(asked.invoke(cli, ["why", "--json", "eth0"]).output or "[]") == []:
                assert time.monotonic() < down_by_s, "nothing is said of a NIC that went down"
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read() if process.stderr else ""
        assert process.wait(30) == 0, said
        assert "Traceback" not in said
    _ip("-n", machine, "link", "set", "eth0", "up")
    _ip("-n", machine, "route", "add", "default", "via", "192.0.2.1")
    assert _kernel(machine) == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode = act\n", "linkpass.toml:1:"),
        ('mode = "act"\nprefixs = ["fd00::/64"]\n', "linkpass.toml:2: prefixs: unknown; did you mean prefixes?"),
        ('[probing]\ninterval_s = "fast"\n', "linkpass.toml:2: probing.interval_s:"),
    ],
    ids=["no TOML", "an unknown key", "a wrong type"],
)
def test_a_broken_configuration_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "linkpass.toml"
    file.write_text(text)
    done = subprocess.run(
        [*PROGRAM, "run", "--config", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _kernel(name: str) -> tuple[str, ...]:
    routes = (_ip("-n", name, *family, "route", "show", "table", "all") for family in (["-4"], ["-6"]))
    with namespace.inside(name):
        rules = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    return (*("\n".join(sorted(one.splitlines())) for one in routes), _ip("-n", name, "nexthop"), rules)


def _places(program: str) -> list[str]:
    found = [shutil.which(program, path=folder) for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin")]
    return sorted({os.path.realpath(place) for place in found if place})
