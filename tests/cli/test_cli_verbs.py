"""What `status` shows of RDMA devices that are heard and asked, and of those that cannot be."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from linkpass.cli.status_tables import status_of


def shown(rdma: dict[str, Any], *, everything: bool = False) -> str:
    out = io.StringIO()
    Console(width=200, file=out).print(status_of({"host": "host1", "rdma": rdma}, everything=everything))
    return out.getvalue()


def queue(name: str, evidence: str, **more: Any) -> dict[str, Any]:
    row = {"name": name, "peer": "fd00:ff::3", "evidence": evidence, "why": "said why", "sent": 100, "lost": 0}
    return {**row, "network_s": 0.0000123, "host_s": 0.004, "peer_host_s": 0.002, **more}


def test_network_and_hosts_are_beside_one_another() -> None:
    text = shown({"datagrams": [queue("rxe0 to fd00:ff::3", "good", lost=3)], "datagrams_why": ""})
    (line,) = [line for line in text.splitlines() if "rxe0 to" in line]
    assert " ".join(line.split()) == "rxe0 to fd00:ff::3 fd00:ff::3 good 12 µs 4.0 ms 2.0 ms 3 of 100"


def test_what_fails_is_shown_alone_unless_all_is_asked_for() -> None:
    never = queue("mlx5_1 to fd00:ff::4", "unknown", network_s=None, host_s=None, peer_host_s=None)
    rows = [queue("mlx5_0 to fd00:ff::3", "good"), queue("mlx5_1 to fd00:ff::3", "blackhole"), never]
    text = shown({"datagrams": rows})
    assert "mlx5_0 to" not in text and "mlx5_1 to fd00:ff::3" in text and "said why" in text
    assert "mlx5_0 to" in shown({"datagrams": rows}, everything=True)


def test_what_cannot_be_had_is_one_line() -> None:
    assert "no RoCE datagrams (pyverbs is not installed)" in shown(
        {"datagrams": [], "datagrams_why": "pyverbs is not installed"}
    )
    assert "RoCE datagrams" not in shown({"why": "no RDMA device on this host"})
    port = {"name": "mlx5_0/1", "protocol": "RoCE", "state": "ACTIVE", "netdevs": ["eth0"], "findings": []}
    device = {"name": "mlx5_0", "driver": "mlx5_core", "ports": [port]}
    text = shown({"devices": [device], "why": "", "events_why": "what mlx5_0 tells of its ports is not heard"})
    assert "RDMA ports (what mlx5_0 tells of its ports is not heard)" in text
