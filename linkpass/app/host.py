"""The sources of evidence about this host that the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from linkpass.config.model import Health
from linkpass.core.events import HostEvidence
from linkpass.edges.host import HostEdge, Watched
from linkpass.edges.host.check import ExecCheck, FileCheck
from linkpass.edges.host.dcgm import Dcgm
from linkpass.edges.host.kernel_log import SOURCE, KernelLog
from linkpass.edges.host.nvml import Nvml
from linkpass.edges.host.reading import AbsentError, Source
from linkpass.edges.host.sensors import Sensors


def host_edge(settings: Health, emit: Callable[[HostEvidence], None]) -> HostEdge:
    log = KernelLog(emit, settings.forget_s) if settings.kernel_log else None
    watched = []
    for source in sources(settings):
        if source.name == "check":  # it has its own mind about how long is long
            watched.append(Watched(source, settings.check.interval_s, 0.0, 0.0))
        else:
            watched.append(Watched(source, settings.interval_s, settings.stands_s, settings.rests_s))
    return HostEdge(log, watched, dict(_off(settings)), emit)


def sources(settings: Health) -> Iterator[Source]:
    """All that are read in threads."""
    margin_c, forget_s = settings.temperature_margin_c, settings.forget_s
    if settings.sensors:
        yield Sensors(margin_c)
    if settings.nvml:
        yield Nvml(margin_c, forget_s)
    if settings.dcgm:
        yield Dcgm(settings.dcgm, margin_c, forget_s)
    if settings.check.exec:
        yield ExecCheck(settings.check.exec, settings.check.timeout_s)
    elif settings.check.file:
        yield FileCheck(settings.check.file)


def missing(settings: Health) -> Iterator[tuple[str, str]]:
    """(source, what is missing; empty: nothing) of each: reads them once, and takes its time. For people who ask."""
    if settings.kernel_log:
        yield SOURCE, KernelLog.readable()
    for source in sources(settings):
        try:
            yield source.name, "; ".join(source.read().unknown)
        except (AbsentError, OSError) as error:
            yield source.name, str(error)
        finally:
            source.close()


def _off(settings: Health) -> Iterator[tuple[str, str]]:
    for name, on in ((SOURCE, settings.kernel_log), ("sensors", settings.sensors), ("nvml", settings.nvml)):
        if not on:
            yield name, "off in the configuration"
    if not settings.dcgm:
        yield "dcgm", "health.dcgm is empty"
    if not (settings.check.exec or settings.check.file):
        yield "check", "health.check is empty"
