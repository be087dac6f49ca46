"""Queue pairs that a program's second thread made, as the kernel tells of them: soft-RoCE in an emulated host."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from guest_pair import Pair

from rdma.flows import NOT_FOUND

pytestmark = pytest.mark.guests
TOOL = Path(__file__).with_name("threads_tool.py")


def test_a_second_threads_queue_pair_is_found_and_outlives_it(pair: Pair) -> None:
    """As NCCL's proxy thread makes them."""
    seen = json.loads(pair.a.python(TOOL, pair.a.v6))
    (listed,), (ended,) = seen["listed"], seen["ended"]
    assert (listed["pid"], ended["pid"], ended["owner"]) == (seen["thread"], 0, "")
    assert seen["thread"] != seen["pid"] and listed["domain"] == ended["domain"] is not None
    (first,), (after,), (anew,), (found,) = seen["first"], seen["after"], seen["anew"], seen["found"]
    for flow in (first, after, found):
        assert (flow["qp"]["pid"], flow["why"], flow["to"]["to"]["gid"]) == (seen["pid"], "", pair.a.v6)
    assert (anew["qp"]["pid"], anew["to"], anew["why"]) == (0, None, NOT_FOUND)
    told, code = seen["broken"]
    assert (told, code) == ([], errno.EINVAL), "how a real kernel says that there is no such device"
