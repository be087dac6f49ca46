"""Temperatures and memory errors as the kernel shows them: thermal zones, hwmon, EDAC (below `root`).

Documentation/ABI/testing/sysfs-class-thermal, sysfs-class-hwmon (millidegrees), sysfs-devices-edac. Counters are
compared with the reading before: what happened before the daemon began is nobody's news.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from linkpass.edges.host.reading import AbsentError, Place, Reading, Trouble

HOST: Final = ""


class Sensors:
    name = "sensors"

    def __init__(self, margin_c: float, root: Path = Path("/sys")) -> None:
        """`margin_c`: how far below a sensor's critical temperature it counts as reached."""
        self._margin_c, self._root = margin_c, root
        self._counts: dict[str, int] = {}

    def read(self) -> Reading:
        troubles: dict[Place, Trouble] = {}
        figures: dict[Place, float] = {}
        unknown: list[str] = []
        seen = 0
        for zone in sorted((self._root / "class/thermal").glob("thermal_zone*")):
            seen += 1
            self._zone(zone, troubles, figures, unknown)
        for chip in sorted((self._root / "class/hwmon").glob("hwmon*")):
            for file in sorted(chip.glob("temp*_input")):
                seen += 1
                self._chip(chip, file, troubles, figures)
        memories = sorted((self._root / "devices/system/edac/mc").glob("mc[0-9]*"))
        for memory in memories:
            self._memory(memory, troubles, figures, unknown)
        if not seen and not memories:
            raise AbsentError("the kernel shows no temperature and no memory controller here (a virtual machine?)")
        if not memories:
            unknown.append("uncorrected memory errors: no EDAC driver is loaded")
        if not seen:
            unknown.append("temperatures: no thermal zone and no hwmon chip")
        return Reading(troubles, tuple(unknown), frozenset(), figures)

    def interrupt(self) -> None:
        """A read of the kernel's is waited for."""

    def close(self) -> None:
        """Nothing is held open."""

    def _zone(
        self, zone: Path, troubles: dict[Place, Trouble], figures: dict[Place, float], unknown: list[str]
    ) -> None:
        name = f"{_text(zone / 'type') or zone.name} ({zone.name})"
        now_c = _celsius(zone / "temp")
        if now_c is None:
            unknown.append(f"temperature of {name}")
            return
        figures[name, "temperature_c"] = now_c
        for kind in ("critical", "hot"):
            limits = [limit for one, limit in _trips(zone) if one == kind and limit > 0]
            if limits and now_c >= min(limits) - self._margin_c:
                why = f"{now_c:.0f} °C, its {kind} trip is {min(limits):.0f} °C"
                troubles[HOST, f"{name} is {kind}"] = Trouble("fatal" if kind == "critical" else "degraded", why)
                return

    def _chip(
        self, chip: Path, file: Path, troubles: dict[Place, Trouble], figures: dict[Place, float]
    ) -> None:  # fmt: skip
        """A chip's own critical limit: of a processor, disk or adapter; the kernel does nothing by itself about it."""
        stem = file.name.removesuffix("_input")
        name = f"{_text(chip / 'name') or chip.name} {_text(chip / f'{stem}_label') or stem} ({chip.name})"
        now_c, limit_c = _celsius(file), _celsius(chip / f"{stem}_crit")
        if now_c is None:
            return
        figures[name, "temperature_c"] = now_c
        if limit_c is not None and limit_c > 0 and now_c >= limit_c - self._margin_c:
            why = f"{now_c:.0f} °C, its critical temperature is {limit_c:.0f} °C"
            troubles[HOST, f"{name} is critical"] = Trouble("degraded", why)

    def _memory(
        self, memory: Path, troubles: dict[Place, Trouble], figures: dict[Place, float], unknown: list[str]
    ) -> None:
        for file in ("ue_count", "ue_noinfo_count"):
            count = _number(memory / file)
            if count is None:
                unknown.append(f"{file} of {memory.name}")
                continue
            figures[memory.name, file] = count
            key = f"{memory.name}/{file}"
            before = self._counts.get(key)
            self._counts[key] = count
            if before is not None and count > before:
                why = f"{count - before} more on {memory.name} ({_text(memory / 'mc_name')})"
                troubles[HOST, "uncorrected memory error"] = Trouble("fatal", why, happened=True)


def _trips(zone: Path) -> Iterator[tuple[str, float]]:
    for file in sorted(zone.glob("trip_point_*_type")):
        limit_c = _celsius(zone / file.name.replace("_type", "_temp"))
        if limit_c is not None:
            yield _text(file), limit_c


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _celsius(path: Path) -> float | None:
    number = _number(path)
    return None if number is None else number / 1000
