"""What NCCL dumps of a host: adapters, the GPUs at their switch, rails."""

from __future__ import annotations

import pytest
from fabric_texts import NCCL

from topology.sources.nccl import Gpu, Nic, is_output, read
from topology.sources.yamltext import TopologyError


def test_adapters_and_rails() -> None:
    host = read(NCCL)
    assert host.gpus == (Gpu(0, "0000:3a:00.0", 0), Gpu(1, "0000:1a:00.0", 0))
    assert host.nics == (
        Nic("mlx5_1", 1, 400 * 10**9, "0xa1", 0, "0000:19:00.0", (1,), 3),
        Nic("mlx5_3", 2, 200 * 10**9, "0xb2", 0, "0000:39:00.0", (0,), 2),
        Nic("mlx5_3", 1, 200 * 10**9, "0xb1", 0, "0000:39:00.0", (0,), 1),
        Nic("eth0", 0, 10 * 10**9, "0x0", 0, None, (), None),
        Nic("eth9", None, None, None, None, "0000:99:00.0", (), None),
    )


def test_where_no_switch_is_shared_there_is_no_rail() -> None:
    flat = '<system><cpu numaid="0"><pci busid="a"><gpu dev="0"/></pci><pci busid="b"><nic><net name="x"/></nic></pci>'
    (nic,) = read(flat + "</cpu></system>").nics
    assert (nic.near, nic.rail, nic.speed_bps) == ((), None, None)


def test_it_is_told_by_its_beginning() -> None:
    assert is_output(NCCL) and is_output('<?xml version="1.0"?>\n<!-- x -->\n<system version="1">')
    assert not is_output("<graph>") and not is_output("system")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '<system>\n<cpu>\n<net name="a" port="x"/></cpu></system>',
            "f:3: key net.port: expected a whole number, got 'x'",
        ),
        ("<system>\n<gpu/></system>", "f:2: key gpu.dev: expected a whole number, got nothing"),
        ("<system>\n<net/></system>", "f:2: key name: expected the name of a net, got nothing"),
        ("<system/>", "f:1: no gpu and no net: expected what NCCL writes to NCCL_TOPO_DUMP_FILE"),
        ("<system>\n<cpu>", "f:2: expected XML, got a mistake: no element found"),
        ("<graphs/>", "f:1: expected <system>, got <graphs>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]>\n<system/>', "f:1: expected no document type"),
        ("<system>" + "<pci>" * 200, "f:1: expected a host, got elements nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(text, "f")
    assert str(caught.value) == said
