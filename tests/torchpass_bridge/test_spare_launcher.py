"""The launcher of spares: real processes that end in all the ways there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchpass_bridge.cli.spare import spare
from torchpass_bridge.exits import FENCED, OVER, REFUSED
from torchpass_bridge.spare import MAX_WAIT_S, SOUND_S, WAIT_S, Launcher, after


def test_what_comes_after_each_end() -> None:
    assert after(OVER, 1.0, 0).wait_s is None
    refused = after(REFUSED, 1.0, 0)
    assert (refused.wait_s, refused.code) == (None, REFUSED)
    assert after(FENCED, 1.0, 9).wait_s == WAIT_S
    waits = [after(1, 0.0, failures).wait_s for failures in range(10)]
    assert waits[:3] == [WAIT_S, 2 * WAIT_S, 4 * WAIT_S]
    assert waits[-1] == MAX_WAIT_S
    assert after(-9, SOUND_S, 9).wait_s == WAIT_S
    assert "signal 9" in after(-9, 0.0, 0).why


def test_it_starts_again_until_the_job_is_over(tmp_path: Path) -> None:
    """The script counts its starts, ends fenced once and then in good order."""
    script = (
        "import os, sys; n = len(open(sys.argv[1]).read()) if os.path.exists(sys.argv[1]) else 0; "
        "open(sys.argv[1], 'a').write(os.environ['TORCHPASS_SPARE']); "
        f"sys.exit({FENCED} if n == 0 else {OVER})"
    )
    told: list[str] = []
    launcher = Launcher([sys.executable, "-c", script, str(tmp_path / "starts")], os.environ, told.append)
    assert launcher.run() == 0
    assert (tmp_path / "starts").read_text() == "11"
    assert "may serve as a spare again" in told[0]
    assert "the job has ended" in told[1]


def test_one_that_is_refused_is_not_started_again() -> None:
    told: list[str] = []
    assert Launcher([sys.executable, "-c", f"raise SystemExit({REFUSED})"], os.environ, told.append).run() == REFUSED
    assert len(told) == 1


def test_a_command_that_is_not_there_is_named() -> None:
    told: list[str] = []
    Launcher(["/no/such/command"], os.environ, told.append).run()
    assert told == ["/no/such/command: No such file or directory"]


def test_it_ends_with_its_script_when_it_is_asked_to() -> None:
    ours = (
        "import os, sys; from torchpass_bridge.spare import Launcher; "
        "sys.exit(Launcher([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'], "
        "os.environ, print).run())"
    )
    process = subprocess.Popen([sys.executable, "-c", ours], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("missing", ["--store", "--job", "--world", "--key-file"])
def test_what_is_missing_is_named(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TORCHPASS_STORE", "TORCHPASS_JOB", "WORLD_SIZE", "TORCHPASS_KEY", "TORCHPASS_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    given = {"--store": "nats://h", "--job": "j", "--world": "4", "--key-file": str(tmp_path / "key")}
    words = [word for name, value in given.items() if name != missing for word in (name, value)]
    found = CliRunner().invoke(spare, [*words, "--", "true"])
    assert found.exit_code == 2
    assert missing in found.output


@pytest.mark.parametrize(
    ("lender", "key", "words"),
    [("a.b", "key", "a name is"), ("j", "key", "cannot lend a host to itself"), ("low", "no", "No such file")],
)
def test_a_loan_that_makes_no_sense_is_refused(lender: str, key: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    given = ["--store", "nats://h", "--job", "j", "--world", "4", "--key-file", str(tmp_path / key)]
    found = CliRunner().invoke(spare, [*given, "--lent-from", lender, "--", "true"])
    assert found.exit_code == 2
    assert words in found.output


def test_what_is_given_reaches_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHPASS_SPARE", raising=False)
    out = tmp_path / "out"
    script = "import os, sys; open(sys.argv[2], 'w').write(' '.join(os.environ[n] for n in sys.argv[1].split(',')))"
    names = "TORCHPASS_STORE,TORCHPASS_JOB,WORLD_SIZE,TORCHPASS_KEY_FILE,TORCHPASS_SPARE"
    given = ["--store", "nats://h", "--job", "j", "--world", "4", "--key-file", "k", "--"]
    began_s = time.monotonic()
    found = CliRunner().invoke(spare, [*given, sys.executable, "-c", script, names, str(out)])
    assert found.exit_code == 0, (found.output, time.monotonic() - began_s)
    assert out.read_text() == "nats://h j 4 k 1"
