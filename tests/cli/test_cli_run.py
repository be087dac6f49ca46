"""`linkpass run` for real, in a network namespace of its own: on an ordinary machine it observes, shows and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.netns

NAMESPACE = f"tf-run-{os.getpid()}"
LINKPASS = (sys.executable, "-c", "from linkpass.cli import main; main()")


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        subprocess.run(["ip", "-n", NAMESPACE, "link", "set", "lo", "up"], check=True)
        yield NAMESPACE
    finally:
        subprocess.run(["ip", "netns", "delete", NAMESPACE], check=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    file = tmp_path / "linkpass.toml"
    file.write_text(
        'host = "laptop"\naddress = "::1"\n[auth]\nkey_file = "key"\n[control]\nsocket = "control.sock"\n'
        '[journal]\ndir = "journal"\n[recorder]\nfile = "recording"\n[metrics]\nlisten = "127.0.0.1:9478"\n'
    )
    return file


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def inside(namespace: str) -> Run:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = ["ip", "netns", "exec", namespace, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture
def daemon(namespace: str, config: Path, inside: Run) -> Iterator[subprocess.Popen[str]]:
    argv = ["ip", "netns", "exec", namespace, *LINKPASS, "run", "--config", str(config)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline_s = time.monotonic() + 120
            while inside(*LINKPASS, "status", "--json", "--config", str(config)).returncode != 0:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline_s, "the daemon does not answer"
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def test_a_lonely_machine_is_observed(daemon: subprocess.Popen[str], config: Path, inside: Run) -> None:
    status = json.loads(inside(*LINKPASS, "status", "--json", "--config", str(config)).stdout)
    assert (status["host"], status["mode"], status["moves"]) == ("laptop", "observe", 0)
    shown = inside(*LINKPASS, "status", "--config", str(config))
    assert shown.returncode == 0, shown.stderr
    assert "laptop ::1 · observe" in shown.stdout
    scrape = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9478/metrics').read().decode())"
    text = inside(sys.executable, "-c", scrape).stdout
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert 'linkpass_info{host="laptop",mode="observe"' in text
    refused = inside(*LINKPASS, "drain", "leaf1-spine1", "--config", str(config))
    assert (refused.returncode, "no link leaf1-spine1" in refused.stderr) == (1, True)


def test_a_second_daemon_is_told_of_the_first(daemon: subprocess.Popen[str], config: Path, inside: Run) -> None:
    second = inside(*LINKPASS, "run", "--config", str(config))
    assert second.returncode == 2
    assert "control.sock: in use by process" in second.stderr
    assert "Traceback" not in second.stderr


def test_it_ends_in_order_and_its_recording_replays(daemon: subprocess.Popen[str], config: Path, inside: Run) -> None:
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(30) == 0
    assert not (config.parent / "control.sock").exists()
    gone = inside(*LINKPASS, "status", "--config", str(config))
    assert gone.returncode == 3
    replayed = inside(*LINKPASS, "replay", str(config.parent / "recording"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "the same answers throughout" in replayed.stdout


def test_cleanup_finds_nothing(config: Path, inside: Run) -> None:
    done = inside(*LINKPASS, "cleanup", "--json", "--config", str(config))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"done": []}


AS_NOBODY = """
import os, sys
import concurrent.futures.thread  # the interpreter may lie where nobody may read
import linkpass.app, linkpass.config, linkpass.edges.control, linkpass.edges.metrics, linkpass.cli.daemon
from linkpass.cli import main

os.setresuid(65534, 65534, 65534)
main()
"""


@pytest.mark.parametrize("command", ["run", "cleanup"])
def test_without_privileges_it_is_one_line(config: Path, inside: Run, command: str) -> None:
    text = config.read_text()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        open_to_all = Path(folder) / "linkpass.toml"
        open_to_all.write_text(text)
        done = inside(sys.executable, "-c", AS_NOBODY, command, "--config", str(open_to_all))
    assert (done.returncode, done.stdout) == (4, "")
    assert "Traceback" not in done.stderr
    assert "run as root" in done.stderr
