"""GPUs through DCGM's exporter: its page for Prometheus, fetched over HTTP on this host.

Names are those of dcgm-exporter's default counters and of DCGM's field identifiers (dcgm_fields.h). The value of
`DCGM_FI_DEV_XID_ERRORS` is the last Xid that happened, whenever that was, and its series may appear with the first one:
only a change that was seen is an event.
"""

from __future__ import annotations

from typing import Final

from linkpass.edges.host import gpus
from linkpass.edges.host.gpus import Gpu
from linkpass.edges.host.patterns import pci_address
from linkpass.edges.host.reading import AbsentError, Place, Reading, Trouble

TIMEOUT_S: Final = 2.0
PAGE_BYTES: Final = 16 << 20
"""A page for eight GPUs has some tens of kilobytes."""
PREFIX: Final = "DCGM_FI_DEV_"
THROTTLE: Final = ("CLOCKS_EVENT_REASONS", "CLOCK_THROTTLE_REASONS")
"""Now, and before DCGM 4."""


class Dcgm:
    name = "dcgm"

    def __init__(self, url: str, margin_c: float, forget_s: float) -> None:
        self._url, self._margin_c, self._forget_s = url, margin_c, forget_s
        self._before: dict[str, Gpu] = {}
        self._xids: dict[str, float] | None = None
        """GPU -> its last Xid; None: nothing was read yet."""

    def read(self) -> Reading:
        page = values(self._fetch())
        if not page:
            raise AbsentError(f"{self._url}: no series {PREFIX}… on this page: is it DCGM's exporter?")
        troubles: dict[Place, Trouble] = {}
        figures: dict[Place, float] = {}
        blind: set[Place] = set()
        for address, found in page.items():
            gpu = self._gpu(address, found)
            troubles.update(gpus.troubles(gpu, self._before.get(address), self._margin_c, self._forget_s))
            figures.update(gpus.figures(gpu))
            blind.update(gpus.not_shown(gpu))
            self._before[address] = gpu
        self._xids = {address: found["XID_ERRORS"] for address, found in page.items() if "XID_ERRORS" in found}
        return Reading(troubles, (), frozenset(blind), figures)

    def interrupt(self) -> None:
        """A page takes no longer than its time limit."""

    def close(self) -> None:
        """Nothing is held open."""

    def _fetch(self) -> str:
        import urllib.error  # costs some 10 ms and 3 MB, and few hosts have an exporter
        import urllib.request

        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(self._url, timeout=TIMEOUT_S) as answer:
                return str(answer.read(PAGE_BYTES).decode(errors="replace"))
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise AbsentError(f"{self._url}: {getattr(error, 'reason', error)}") from error

    def _gpu(self, address: str, found: dict[str, float]) -> Gpu:
        xid = found.get("XID_ERRORS")
        happened: tuple[int, ...] = ()
        if xid and self._xids is not None and xid != self._xids.get(address, 0.0):
            happened = (int(xid),)
        errors = found.get("ECC_DBE_VOL_TOTAL")
        throttle = next((found[name] for name in THROTTLE if name in found), None)
        return Gpu(
            address,
            temperature_c=found.get("GPU_TEMP"),
            slowdown_c=found.get("SLOWDOWN_TEMP"),
            shutdown_c=found.get("SHUTDOWN_TEMP"),
            ecc_uncorrected=None if errors is None else int(errors),
            remap_pending=_flag(found.get("ROW_REMAP_PENDING")),
            remap_failed=_flag(found.get("ROW_REMAP_FAILURE")),
            throttle=None if throttle is None else int(throttle),
            xids=happened,
        )


def values(page: str) -> dict[str, dict[str, float]]:
    """GPU (its PCI address, else its UUID or number) -> name without prefix -> value. A MIG instance counts for its
    GPU.

    Raises OSError for a page that is no exposition."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[str, float]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples if family.name.startswith(PREFIX) else ():
                gpu = _name(sample.labels)
                if gpu and sample.value == sample.value:  # DCGM's blank values are not numbers
                    # The parser gives counters an ending of its own beside the exporter's (`…_TOTAL`).
                    name = sample.name.removeprefix(PREFIX).removesuffix("_total")
                    found.setdefault(gpu, {})[name] = sample.value
    except ValueError as error:
        raise OSError(f"not a page for Prometheus: {error}") from error
    return found


def _name(labels: dict[str, str]) -> str:
    return pci_address(labels.get("pci_bus_id", "")) or labels.get("UUID", "") or labels.get("gpu", "")


def _flag(value: float | None) -> bool | None:
    return None if value is None else value > 0
