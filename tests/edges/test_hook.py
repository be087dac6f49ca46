"""The escalation hook: real programs that succeed, fail, hang and leave children behind."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from linkpass.core.commands import Escalate
from linkpass.core.events import Escalated, EscalateFailed
from linkpass.edges.hook import HookEdge

ESCALATE = Escalate(cmd_id=7, cause="host1-9", host="host3", evidence=("silent on 8 paths", "host2 answers over them"))


def failed(why: str) -> EscalateFailed:
    return EscalateFailed(cmd_id=7, host="host3", why=why)


async def test_the_verdict_comes_on_standard_input(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'cat > "$0"', str(tmp_path / "heard")]
    began = datetime.now(UTC)
    story = msgspec.structs.replace(ESCALATE, since_s=time.monotonic() - 1.0)
    assert await HookEdge(argv).escalate(story) == Escalated(cmd_id=7, host="host3")
    heard = json.loads((tmp_path / "heard").read_text())
    since = datetime.fromisoformat(heard.pop("since"))
    assert heard == {
        "host": "host3", "accelerator": "", "evidence": list(ESCALATE.evidence), "cause": "host1-9"
    }  # fmt: skip
    assert began - timedelta(seconds=1.1) <= since <= datetime.now(UTC) - timedelta(seconds=0.9)


async def test_an_accelerator_is_named_in_question_and_answer(tmp_path: Path) -> None:
    one = Escalate(cmd_id=8, cause="c", host="host3", evidence=("Xid 79",), accelerator="0000:3b:00.0")
    argv = ["sh", "-c", 'cat > "$0"', str(tmp_path / "heard")]
    answer = await HookEdge(argv).escalate(one)
    assert answer == Escalated(cmd_id=8, host="host3", accelerator="0000:3b:00.0")
    assert json.loads((tmp_path / "heard").read_text())["accelerator"] == "0000:3b:00.0"


async def test_without_a_hook_the_journal_is_the_answer() -> None:
    assert await HookEdge(()).escalate(ESCALATE) == Escalated(cmd_id=7, host="host3")


async def test_a_hook_need_not_read() -> None:
    big = Escalate(cmd_id=7, cause="c", host="host3", evidence=("x" * 300_000,))
    assert await HookEdge(["true"]).escalate(big) == Escalated(cmd_id=7, host="host3")


async def test_what_goes_wrong_is_one_line() -> None:
    assert await HookEdge(["/no/such"]).escalate(ESCALATE) == failed("/no/such: No such file or directory")
    said = await HookEdge(["sh", "-c", "printf 'not\\ntoday' >&2; exit 3"]).escalate(ESCALATE)
    assert said == failed("sh: exit status 3: not today")
    noisy = await HookEdge(["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1"]).escalate(ESCALATE)
    assert isinstance(noisy, EscalateFailed)
    assert len(noisy.why) < 2100


async def test_a_hook_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    argv = ["sh", "-c", 'sleep 60 & echo $! > "$0"; wait', str(tmp_path / "pid")]
    assert await HookEdge(argv, 0.5).escalate(ESCALATE) == failed("sh: not done after 0.5 s, ended")
    child = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(30):  # it was killed with its parent; the kernel takes its time on a busy machine
        while not has_ended(child):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that waits for its new parent."""
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
