"""Metric families: samples that are not known are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

View = Mapping[str, Any]
Row = Mapping[str, Any]
Sample = tuple[tuple[str, ...], Any]


def gauge(name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]) -> Iterator[Metric]:
    """One gauge; samples without a value are left out, and so is a gauge without samples."""
    return family(GaugeMetricFamily(f"linkpass_{name}", text, labels=list(labels)), samples)


def counter(name: str, text: str, labels: Iterable[str], samples: Iterable[Sample]) -> Iterator[Metric]:
    return family(CounterMetricFamily(f"linkpass_{name}", text, labels=list(labels)), samples)


def family(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]) -> Iterator[Metric]:
    """Two samples of one name would make Prometheus refuse the whole page: the first one stays."""
    seen = set()
    for values, value in samples:
        if value is not None and values not in seen:
            seen.add(values)
            family.add_metric(list(values), float(value))
    if family.samples:
        yield family


def rows_of(view: View, key: str) -> list[Row]:
    return list(view.get(key) or ())


def space_of(view: View, key: str) -> tuple[tuple[str, ...], Callable[[Row], tuple[str, ...]]]:
    """The label of the network namespace and its value in a row; no label where the daemon acts in its own alone."""
    if any(row.get("netns") for row in rows_of(view, key)):
        return ("netns",), lambda row: (row.get("netns") or "",)
    return (), lambda _: ()
