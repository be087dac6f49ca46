"""`linkpass lab` as a person uses it: build, look, break, undo, take away; and what it answers to mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from talk import left_of, until

from lab.faults import EXAMPLES
from lab.netns import namespace, state
from linkpass.cli.lab import lab_group

FILE = str(Path(__file__).parents[2] / "lab" / "leaf-spine.clab.yml")


def lab(*arguments: str) -> Result:
    return CliRunner().invoke(lab_group, list(arguments))


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    called = f"tlc{os.getpid()}"
    run_dir = tmp_path_factory.mktemp("cli") / "run"
    result = lab("up", FILE, "--name", called, "--dir", str(run_dir), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["nodes"], report["links"], report["run_dir"]) == (10, 16, str(run_dir))
    yield called
    assert "is gone" in lab("down", called).output
    assert not left_of(called) and not run_dir.exists()
    assert lab("down", called).output == f"{called} was not up\n"


@pytest.mark.netns
def test_status_as_table_and_as_json(name: str) -> None:
    shown = lab("status", name)
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("fd00:ff::1", "spine2>leaf4", "no faults in force"))
    view = json.loads(lab("status", name, "--json").stdout)
    assert [node["name"] for node in view["nodes"]][:2] == ["host1", "host2"]
    assert len(view["links"]) == 16 and view["faults"] == []
    assert all(way["carrier"] and way["lost"] == 0 for link in view["links"] for way in link["directions"])
    assert name in lab("status").output
    assert name in [row["name"] for row in json.loads(lab("status", "--json").stdout)]


@pytest.mark.netns
def test_a_fault_is_put_on_listed_and_undone(name: str) -> None:
    made = json.loads(lab("fault", name, "carrier:leaf1-spine1@leaf1", "--json").stdout)
    assert made["fault"] == "carrier:leaf1-spine1@leaf1" and made["took_s"] > 0
    (listed,) = json.loads(lab("fault", name, "--list", "--json").stdout)
    assert (listed["id"], listed["fault"], listed["down"]) == (made["id"], made["fault"], True)
    assert "carrier:leaf1-spine1@leaf1" in lab("fault", name, "--list").output
    down = [way["id"] for link in json.loads(lab("status", name, "--json").stdout)["links"]
            for way in link["directions"] if not way["carrier"]]  # fmt: skip
    assert down == ["leaf1>spine1"]
    assert lab("fault", name, "--undo", str(made["id"])).output == f"fault {made['id']} undone\n"
    assert "no fault" in lab("fault", name, "--undo", str(made["id"])).output
    assert lab("fault", name, "--undo", "all").output == "0 fault(s) undone\n"


@pytest.mark.netns
def test_a_fault_for_a_time_undoes_itself(name: str) -> None:
    result = lab("fault", name, "flap:leaf1-spine1:20hz", "--for", "0.1")
    assert result.exit_code == 0 and "undone" in result.output
    assert json.loads(lab("fault", name, "--list", "--json").stdout) == []


@pytest.mark.netns
def test_a_flap_goes_on_after_the_command_and_ends_with_its_undo(name: str) -> None:
    made = json.loads(lab("fault", name, "flap:leaf1-spine1:20hz:carrier", "--json").stdout)
    run_dir = state.find(name)
    assert run_dir is not None
    faults = state.read(run_dir / "faults.json", state.Faults)
    assert faults is not None and faults.active[0].driver is not None
    pid = faults.active[0].driver[0]
    seen = set()

    def swings() -> bool:
        found = state.read(run_dir / "faults.json", state.Faults)
        seen.update(record.down for record in (found.active if found else ()))
        return seen == {True, False}

    assert until(swings)
    assert lab("fault", name, "--undo", str(made["id"])).exit_code == 0
    assert until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
    view = json.loads(lab("status", name, "--json").stdout)
    assert all(way["carrier"] for link in view["links"] for way in link["directions"])


@pytest.mark.netns
def test_exec_runs_inside_the_node_with_its_own_sys(name: str) -> None:
    argv = ["linkpass", "lab", "exec", name, "host1", "--", "ls", "/sys/class/net"]
    inside = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment())
    assert inside.returncode == 0, inside.stderr
    assert {"eth1", "eth2", "lo", "lo0"} == set(inside.stdout.split())
    missing = subprocess.run(["linkpass", "lab", "exec", name, "host1", "no-such-program"], capture_output=True,
                             text=True, check=False, env=environment())  # fmt: skip
    assert missing.returncode == 127 and "no-such-program" in missing.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.netns
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("blackhole:leaf1-spine9",), "leaf1-spine1"),
        (("freeze:leaf1",), "is a switch"),
        (("noise:leaf1",), "unknown kind"),
        ((), "expected one of SPEC"),
        (("blackhole:leaf1-spine1", "--list"), "expected one of SPEC"),
        (("--undo", "x"), "no fault x is in force"),
    ],
)
def test_mistakes_with_faults_are_one_line(name: str, arguments: tuple[str, ...], words: str) -> None:
    result = lab("fault", name, *arguments)
    assert result.exit_code in (1, 2) and words in result.output and "Traceback" not in result.output


@pytest.mark.netns
def test_mistakes_with_labs_are_one_line(name: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.clab.yml"
    broken.write_text("name: x\ntopology:\n  nodes:\n    a: {kind: linux}\n  links:\n    - endpoints: [a:eth1]\n")
    for arguments, words in (
        (("up", str(tmp_path / "none.clab.yml")), "No such file"),
        (("up", str(broken)), "broken.clab.yml:6"),
        (("up", FILE, "--name", name), "is up already"),
        (("up", FILE, "--name", "a/b"), "lab name"),
        (("status", "nobody"), "no lab 'nobody' is up"),
        (("exec", name, "host9"), "did you mean host"),
        (("down", str(tmp_path / "none.clab.yml")), "No such file"),
    ):
        result = lab(*arguments)
        assert result.exit_code in (1, 2) and words in result.output, result.output
        assert "Traceback" not in result.output


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for arguments in (("up", FILE, "--name", "tlnobody"), ("down", "tlnobody"), ("status", "tlnobody")):
        result = lab(*arguments)
        assert result.exit_code == 4 and "needs root" in result.output
    assert not left_of("tlnobody") if namespace.NETNS_DIR.exists() else True


def test_help_shows_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = lab("fault", "--help").output
    for example, _ in EXAMPLES:
        assert example in text
    assert {example.partition(":")[0] for example, _ in EXAMPLES} == {
        "carrier", "blackhole", "loss", "bucket", "rate", "large", "delay", "flap", "dead", "freeze",
    }  # fmt: skip


@pytest.mark.netns
def test_a_cabling_plan_is_built_like_any_other_file(tmp_path: Path) -> None:
    called, plan = f"tlp{os.getpid()}", tmp_path / "plan.dot"
    plan.write_text(
        'graph plan {\n "host1" [function="host"]\n "host2" [function="host"]\n'
        ' "host1":"eth1" -- "leaf1":"swp1"\n "host2":"eth1" -- "leaf2":"swp1"\n'
        ' "leaf1":"swp3" -- "spine1":"swp1"\n "leaf2":"swp3" -- "spine1":"swp2"\n}\n'
    )
    result = lab("up", str(plan), "--name", called, "--dir", str(tmp_path / "run"), "--json")
    try:
        assert result.exit_code == 0, result.output
        view = json.loads(lab("status", called, "--json").stdout)
        assert {node["name"] for node in view["nodes"]} == {"host1", "host2", "leaf1", "leaf2", "spine1"}
        ways = {way["id"] for link in view["links"] for way in link["directions"]}
        assert "leaf1>spine1" in ways and all(way["carrier"] for link in view["links"] for way in link["directions"])
    finally:
        assert "is gone" in lab("down", called).output
