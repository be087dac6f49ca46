"""Prometheus metrics from a view of the daemon, and the TCP port that serves them (read only, no control).

Paths are summed per peer and uplink, so that the number of series grows with peers times uplinks and not with labels.
What is not known is not exported: an absent sample is honest, a zero would not be."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from linkpass.edges.metrics import daemon, host, rdma
from linkpass.edges.metrics.families import View

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ViewCollector(Collector):
    """Turns the view of the moment into metrics; nothing is remembered here."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        for part in (*daemon.PARTS, *host.PARTS, *rdma.PARTS):
            yield from part(view)

    def describe(self) -> Iterable[Metric]:
        return ()  # the registry would collect once at registration otherwise, before the daemon has a view


def exposition(view: Callable[[], View]) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ViewCollector(view))
    return generate_latest(registry)


class MetricsError(Exception):
    """The port cannot be opened; the text is one line. The daemon can go on without."""


class MetricsEdge:
    """Serves `GET /metrics` and `GET /healthz` on a TCP port. `expose` gives the exposition of the moment."""

    def __init__(self, address: str, port: int, expose: Callable[[], bytes]) -> None:
        self._address, self._port = address, port
        self._expose = expose
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port in use: the kernel's choice when 0 was asked for."""
        addresses = self._runner.addresses if self._runner else []
        return int(addresses[0][1]) if addresses else self._port

    async def open(self) -> None:
        """Raises MetricsError."""
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._healthz)])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._address, self._port).start()
        except OSError as error:
            await runner.cleanup()
            reason = "port in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            shown = f"[{self._address}]" if ":" in self._address else self._address
            raise MetricsError(f'metrics {shown}:{self._port}: {reason}; set metrics.listen, or "" for none') from None
        self._runner = runner

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> MetricsEdge:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._expose(), headers={"Content-Type": CONTENT_TYPE})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})
