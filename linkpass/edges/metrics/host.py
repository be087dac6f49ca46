"""Evidence about this host itself, where it comes from, and hosts that are given up, as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics_core import Metric

from linkpass.edges.metrics.families import View, counter, gauge, rows_of, space_of


def _evidence(view: View) -> Iterator[Metric]:
    space, of = space_of(view, "host_evidence")
    held = [
        ((row["source"], row.get("accelerator") or "", row["what"], row["severity"], *of(row)), 1)
        for row in rows_of(view, "host_evidence")
    ]
    text = "1 for each piece of evidence against this host, or one of its accelerators (PCI address)."
    yield from gauge("host_evidence", text, ("source", "accelerator", "what", "severity", *space), held)
    space, of = space_of(view, "peers")
    given_up = [
        ((row["address"], row.get("name") or "", *of(row)), row["silence"] == "given up")
        for row in rows_of(view, "peers")
        if row.get("silence")
    ]
    text = "1 while a silent peer is given up as a host, 0 while its silence is explained otherwise."
    yield from gauge("peer_given_up", text, ("peer", "name", *space), given_up)


def _sources(view: View) -> Iterator[Metric]:
    rows = [row for row in rows_of(view, "host_sources") if row["state"] != "off"]
    read = [((row["source"],), row["state"] == "read") for row in rows]
    yield from gauge("host_source_read", "1 while a source of evidence about this host is read.", ("source",), read)
    age = [((row["source"],), row.get("age_s")) for row in rows]
    yield from gauge("host_source_age_seconds", "Time since a source was last read.", ("source",), age)
    for name, kind, metric, text, labels in (
        ("temperature_c", gauge, "host_temperature_celsius", "Temperature of a part of this host.", True),
        ("ue_count", counter, "host_memory_uncorrected_errors", "Errors that a memory controller lost data by.", True),
        ("ecc_uncorrected", counter, "accelerator_memory_uncorrected_errors", "Since its driver was loaded.", True),
        ("records", counter, "kernel_log_records", "Lines of the kernel's own log that were looked at.", False),
        ("overwritten", counter, "kernel_log_overwritten", "Times that lines were gone before they were read.", False),
    ):
        found: list[tuple[tuple[str, ...], Any]] = [
            ((row["source"], one["part"]) if labels else (), one["value"])
            for row in rows
            for one in row.get("figures") or ()
            if one["name"] == name
        ]
        yield from kind(metric, text, ("source", "part") if labels else (), found)


PARTS = (_evidence, _sources)
