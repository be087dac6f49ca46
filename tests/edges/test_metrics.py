"""Metrics: what is exported, checked by promtool, over real HTTP."""

from __future__ import annotations

import re
import socket
import subprocess
from typing import Any

import aiohttp
import pytest
from face_desk import PEERS, path_row, sample_view
from prometheus_client.parser import text_string_to_metric_families

from linkpass.edges.metrics import MetricsEdge, MetricsError, exposition


def samples(view: dict[str, Any]) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(exposition(lambda: view).decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_promtool_has_no_complaint() -> None:
    text = exposition(sample_view)
    assert text.count(b"\n") > 60  # promtool is content with nothing at all
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_values() -> None:
    found = samples({**sample_view(), "faults": 2})
    assert found["linkpass_faults_total", ()] == 2
    assert found["linkpass_info", ("host1", "act", "0.1.0")] == 1
    assert found["linkpass_cpu_seconds_total", ()] == 12.5
    assert found["linkpass_rung_armed", ("1",)] == 1
    assert found["linkpass_rung_armed", ("2",)] == 0
    assert found["linkpass_uplink_speed_bytes_per_second", ("eth1",)] == 1.25e9
    assert found["linkpass_uplink_suppressed", ("eth2",)] == 1
    assert [found["linkpass_uplink_overrun", (name,)] for name in ("eth1", "eth2")] == [0, 1]
    assert found["linkpass_peer_slow", ("host2", PEERS[0])] == 1
    assert found["linkpass_link_state", ("leaf1>spine1", "down")] == 1
    assert found["linkpass_paths", ("blackhole", PEERS[0], "eth1")] == 1
    assert found["linkpass_path_worst_loss_ratio", (PEERS[0], "eth1")] == 1.0
    assert found["linkpass_peer_steerable", ("host2", PEERS[0], "1")] == 1
    assert found["linkpass_probes_refused_total", ("bad_mac",)] == 3
    assert found["linkpass_verdict", ("leaf1>spine1", "link")] == 1
    assert found["linkpass_daemon_late_total", ()] == 2
    assert found["linkpass_trace_notes", ("limited", "eth1")] == 1
    assert found["linkpass_steering_programmed", ("group all",)] == 0
    assert found["linkpass_steering_stood_down", ("group all",)] == 1
    assert found["linkpass_host_evidence", ("0000:3b:00.0", "fatal", "kernel log", "Xid 79")] == 1
    assert found["linkpass_host_source_read", ("sensors",)] == 1
    assert found["linkpass_host_source_read", ("nvml",)] == 0
    assert ("linkpass_host_source_read", ("dcgm",)) not in found
    assert found["linkpass_host_temperature_celsius", ("acpitz (thermal_zone0)", "sensors")] == 41.5
    assert found["linkpass_kernel_log_records_total", ()] == 12
    assert found["linkpass_peer_given_up", ("", PEERS[1])] == 1


def test_what_is_unknown_is_absent_and_not_zero() -> None:
    found = samples(sample_view())
    assert ("linkpass_peer_stale_seconds", ("", PEERS[1])) not in found
    assert ("linkpass_path_worst_loss_ratio", (PEERS[1], "eth2")) not in found
    assert ("linkpass_path_least_rtt_seconds", (PEERS[1], "eth2")) not in found
    assert ("linkpass_uplink_speed_bytes_per_second", ("eth2",)) not in found
    assert ("linkpass_peer_slow", ("", PEERS[1])) not in found
    assert set(samples({})) == {("linkpass_info", ("", "", ""))}


def test_series_do_not_grow_with_labels() -> None:
    view = sample_view()
    few = len(samples(view))
    view["paths"] += [path_row(PEERS[0], "eth1", label, "good", ["leaf1"]) for label in range(500)]
    assert len(samples(view)) == few


def test_one_name_in_two_namespaces_is_two_series() -> None:
    view = sample_view()
    for key in ("uplinks", "peers", "links", "paths", "steering"):
        view[key] += [{**row, "netns": "pod7"} for row in view[key]]
    found = samples(view)
    assert found["linkpass_uplink_speed_bytes_per_second", ("", "eth1")] == 1.25e9
    assert found["linkpass_uplink_speed_bytes_per_second", ("pod7", "eth1")] == 1.25e9
    assert found["linkpass_paths", ("blackhole", "pod7", PEERS[0], "eth1")] == 1
    done = subprocess.run(["promtool", "check", "metrics"], input=exposition(lambda: view), check=False)
    assert done.returncode == 0


def test_one_name_twice_does_not_spoil_the_page() -> None:
    view = sample_view()
    once = samples(view)
    view["uplinks"] += view["uplinks"]
    assert samples(view) == once


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_served_over_tcp(address: str) -> None:
    edge = MetricsEdge(address, 0, lambda: exposition(sample_view))
    async with edge, aiohttp.ClientSession() as session:
        host = f"[{address}]" if ":" in address else address
        async with session.get(f"http://{host}:{edge.port}/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert re.search(rb"^linkpass_moves_total 4\.0$", await response.read(), re.M)
        async with session.get(f"http://{host}:{edge.port}/healthz") as response:
            assert await response.json() == {"ok": True}
        async with session.post(f"http://{host}:{edge.port}/drain") as response:
            assert response.status == 404  # nothing can be asked of the daemon here


async def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MetricsError) as caught:
            await MetricsEdge("127.0.0.1", port, lambda: b"").open()
    assert str(caught.value) == f'metrics 127.0.0.1:{port}: port in use; set metrics.listen, or "" for none'


async def test_an_address_of_nobody_is_one_line() -> None:
    with pytest.raises(MetricsError, match=r"metrics 192\.0\.2\.1:9478: .*; set metrics\.listen"):
        await MetricsEdge("192.0.2.1", 9478, lambda: b"").open()
