"""The demo as a newcomer runs it, shortened to one fault: what it says, what it leaves, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rig import FILE

from lab.bench import shape
from lab.cases import CASES
from lab.demo import OWNER, run
from lab.demo_plan import Act, DemoSpec
from lab.demo_screen import TerminalScreen
from lab.netns import namespace, state
from lab.netns.lab import NetnsLab
from linkpass.cli.lab import read

pytestmark = [pytest.mark.netns, pytest.mark.e2e]

PROGRAM = (os.path.join(os.path.dirname(sys.executable), "linkpass"),)


def left_of(name: str) -> list[str]:
    return [entry for entry in os.listdir(namespace.NETNS_DIR) if entry.startswith(f"lp-{name}-")]


def test_one_fault_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = DemoSpec(read(FILE), FILE, tmp_path / "out", (Act(CASES["carrier"], 1.0),), name=f"tdd{os.getpid()}")
    with open(tmp_path / "said", "w+", encoding="utf-8") as said:
        console = Console(file=said, width=120, markup=False, highlight=False, emoji=False)
        with TerminalScreen(console) as screen:
            screen.introduce(spec)
            outcome = run(spec, screen)
            screen.end(outcome)
        said.seek(0)
        text = said.read()
    assert outcome.failures == []
    assert (outcome.identical, outcome.lost) == (True, 0)
    assert left_of(spec.name) == []
    order = [
        "linkpass demo", "spine1   spine2", "1  With linkpass", "an uplink of a host loses carrier", "is down", "acts",
        "repaired: host", "returns", "training stalled", "2  Without linkpass", "training stalled", "3  Undisturbed",
        "What the faults did to the training", "identical", "bit for bit those of the undisturbed run", "index.html",
    ]  # fmt: skip
    places = [0]
    for part in order:
        assert part in text[places[-1] :], f"{part!r} is missing after {text[: places[-1]][-200:]!r}"
        places.append(text.index(part, places[-1]) + 1)
    page = outcome.page.read_text(encoding="utf-8")
    assert "One faults" not in page and "bit for bit" in page and outcome.weights in page
    figures = shape.decode(outcome.figures.read_bytes())
    assert [row.case for row in figures.rows] == ["carrier"]
    assert figures.rows[0].metrics["weights_identical"] is True
    assert "kernel" in figures.rows[0].without


def test_ctrl_c_takes_everything_down(tmp_path: Path) -> None:
    name = f"tdc{os.getpid()}"
    argv = [*PROGRAM, "lab", "demo", str(FILE), "--quick", "--name", name, "--out", str(tmp_path / "out")]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starting the daemons" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "taking everything down" in rest and "Traceback" not in rest
    assert left_of(name) == []
    assert state.find(name) is None
    assert _running_in(tmp_path) == []


def test_what_a_killed_demo_left_is_taken_away_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a lab of that name that somebody else has built is left alone."""
    monkeypatch.chdir(tmp_path)
    name = f"tdk{os.getpid()}"
    argv = [*PROGRAM, "lab", "demo", str(FILE), "--quick", "--name", name, "--out", str(tmp_path / "out")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starting the daemons" in line:
                break
        process.kill()
    assert left_of(name)
    again = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with again:
        assert again.stdout is not None
        for line in again.stdout:
            if "starting the daemons" in line:
                break
        third = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert third.returncode == 1
        assert f"a demo runs already (process {again.pid})" in third.stderr
        again.send_signal(signal.SIGTERM)
        again.stdout.read()
    assert left_of(name) == []
    with NetnsLab(read(FILE), name=name) as mine:
        mine.up()
        try:
            refused = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert refused.returncode == 1
            assert f"lab {name} is up already" in refused.stderr and f"linkpass lab down {name}" in refused.stderr
            assert left_of(name)
        finally:
            mine.down()
    assert not (tmp_path / "build/lab" / name / OWNER).exists()


def test_who_is_not_root_is_told_in_one_line(tmp_path: Path) -> None:
    modules = "lab.demo, lab.demo_screen, linkpass.cli.demo, linkpass.cli.lab"
    as_nobody = f"import os, {modules}; os.setresuid(65534, 65534, 65534); from linkpass.cli import main; main()"
    argv = [sys.executable, "-c", as_nobody, "lab", "demo", str(FILE), "--out", "/tmp/linkpass-no-demo"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 4
    assert "needs root" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_not_there() -> None:
    done = subprocess.run([*PROGRAM, "lab", "demo", "no.clab.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("linkpass: no.clab.yml: ")


def _running_in(folder: Path) -> list[str]:
    """Command lines of processes that still have to do with a folder."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in text:
                found.append(text)
    return found
