"""The edge that hears RDMA devices, where none can be opened: one line, and nothing else breaks."""

from __future__ import annotations

from pathlib import Path

from sysfs_tree import Tree

from linkpass.core.events import Event
from linkpass.edges.device_events import TRY_AGAIN_POLLS, DeviceEventEdge


async def test_without_rdma_there_is_nothing_to_say(tmp_path: Path) -> None:
    told: list[Event] = []
    edge = DeviceEventEdge(told.append, root=tmp_path)
    assert edge.open() == [] and edge.poll() == []
    assert (edge.why, told) == ("", [])
    edge.close()


async def test_a_device_that_cannot_be_opened_is_one_line_however_often_it_is_tried(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.device("no-such-0")
    tree.port("no-such-0")
    told: list[Event] = []
    edge = DeviceEventEdge(told.append, root=tree.root)
    assert edge.poll() == []  # no character device: its module is not loaded
    tree.write("class/infiniband_verbs/uverbs0/ibdev", "no-such-0")
    (line,) = edge.poll()
    assert line == edge.why and line.startswith("what no-such-0 tells of its ports is not heard: ")
    for _ in range(2 * TRY_AGAIN_POLLS + 4):
        assert edge.poll() == []
    assert edge.gids("no-such-0/1") is None and told == []
    edge.close()
