"""Static SVG plots for the report: axes, lines, bands and marks as text, coloured by the page's style sheet.

Only what the report needs: colours are CSS classes, so that one picture serves light and dark pages, and every mark
carries a `<title>` that browsers show on hover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56.0, 16.0, 14.0, 40.0


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `low` … `high` on 0 … 1; logarithmic axes need low > 0 and clip what lies below."""

    low: float
    high: float
    label: str
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values within the axis: about six, or 1-2-5 per decade (decades alone when there are many)."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            digits = (1, 2, 5) if last - first <= 2 else (1,)
            marks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        else:
            rough = (self.high - self.low) / 6
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
            first = math.ceil(self.low / step)
            marks = [step * number for number in range(first, math.floor(self.high / step) + 1)]
        return [mark for mark in marks if self.low * 0.9999 <= mark <= self.high * 1.0001]


@dataclass(slots=True)
class Plot:
    """A plot that is filled by its methods and read by `svg()`. Sizes are units of the view box; CSS scales it.

    `lanes`: names of rows below the plot for marks by place (hosts), `lane_height` each."""

    x: Axis
    y: Axis
    title: str
    width: float = 960.0
    height: float = 300.0
    lanes: Sequence[str] = ()
    lane_height: float = 18.0
    _below: list[str] = field(default_factory=list)
    _above: list[str] = field(default_factory=list)

    @property
    def _bottom(self) -> float:
        return self.height - MARGIN_BOTTOM - self.lane_height * len(self.lanes)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self._px(x), self._py(y)

    def band(self, since: float, until: float, style: str, text: str, hint: str, *, row: int = 0) -> None:
        """A vertical band over the whole height, its text at the top (rows keep neighbours' texts apart)."""
        left, right = self._px(max(since, self.x.low)), self._px(min(until, self.x.high))
        height = self.height - MARGIN_BOTTOM - MARGIN_TOP
        self._below.append(
            f'<g class="band {style}"><title>{escape(hint)}</title>'
            f'<rect x="{left:.1f}" y="{MARGIN_TOP:.1f}" width="{max(right - left, 1):.1f}" height="{height:.1f}"/>'
            f'<text x="{left + 4:.1f}" y="{MARGIN_TOP + 13 + 13 * row:.1f}">{escape(text)}</text></g>'
        )

    def line(self, points: Sequence[tuple[float, float]], style: str, hint: str = "") -> None:
        """A polyline; points that fall on the same pixel column are reduced to their extremes, so files stay small."""
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in self._thin([self.place(x, y) for x, y in points]))
        tip = f"<title>{escape(hint)}</title>" if hint else ""
        self._above.append(f'<polyline class="line {style}" points="{shown}">{tip}</polyline>')

    def rule(self, y: float, style: str, text: str) -> None:
        """A horizontal line at a value, with its text at the right end."""
        at = self._py(y)
        self._below.append(
            f'<line class="rule {style}" x1="{MARGIN_LEFT:.1f}" x2="{self.width - MARGIN_RIGHT:.1f}" '
            f'y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="rule-text" x="{self.width - MARGIN_RIGHT - 4:.1f}" y="{at - 14:.1f}" '
            f'text-anchor="end">{escape(text)}</text>'
        )

    def dot(self, x: float, y: float, style: str, hint: str, text: str = "") -> None:
        px, py = self.place(x, y)
        label = f'<text x="{px + 7:.1f}" y="{py + 4:.1f}">{escape(text)}</text>' if text else ""
        self._above.append(
            f'<g class="dot {style}"><title>{escape(hint)}</title>'
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4"/>{label}</g>'
        )

    def mark(self, x: float, lane: str, style: str, hint: str) -> None:
        """A small diamond in a lane."""
        px = self._px(x)
        py = self._bottom + self.lane_height * (list(self.lanes).index(lane) + 0.5) + 4
        self._above.append(
            f'<path class="mark {style}" d="M{px:.1f} {py - 5:.1f}l5 5l-5 5l-5 -5z">'
            f"<title>{escape(hint)}</title></path>"
        )

    def svg(self) -> str:
        parts = [
            f'<svg class="plot" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escape(self.title, quote=True)}" xmlns="http://www.w3.org/2000/svg">',
            *self._grid(),
            *self._below,
            *self._above,
            "</svg>",
        ]
        return "\n".join(parts)

    def _grid(self) -> list[str]:
        left, right, bottom = MARGIN_LEFT, self.width - MARGIN_RIGHT, self._bottom
        floor = self.height - MARGIN_BOTTOM
        parts = []
        for tick in self.y.ticks():
            at = self._py(tick)
            parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(f'<text class="tick" x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{number(tick)}</text>')
        for tick in self.x.ticks():
            at = self._px(tick)
            parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{floor}" y2="{floor + 4}"/>')
            parts.append(f'<text class="tick" x="{at:.1f}" y="{floor + 17}" text-anchor="middle">{number(tick)}</text>')
        for row, lane in enumerate(self.lanes):
            at = bottom + self.lane_height * (row + 0.5) + 4
            parts.append(f'<line class="lane" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(f'<text class="tick" x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{escape(lane)}</text>')
        middle = (MARGIN_TOP + bottom) / 2
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        parts.append(
            f'<text class="label" x="{(left + right) / 2:.1f}" y="{self.height - 5:.1f}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
        )
        parts.append(
            f'<text class="label" transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        return parts

    def _px(self, value: float) -> float:
        return MARGIN_LEFT + self.x.at(value) * (self.width - MARGIN_LEFT - MARGIN_RIGHT)

    def _py(self, value: float) -> float:
        return self._bottom - self.y.at(value) * (self._bottom - MARGIN_TOP)

    @staticmethod
    def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        columns: dict[int, list[tuple[float, float]]] = {}
        for point in points:
            columns.setdefault(round(point[0]), []).append(point)
        shown: list[tuple[float, float]] = []
        for column in columns.values():
            if len(column) <= 4:
                shown += column
                continue
            extremes = {0, len(column) - 1}
            extremes.add(min(range(len(column)), key=lambda place: column[place][1]))
            extremes.add(max(range(len(column)), key=lambda place: column[place][1]))
            shown += [column[place] for place in sorted(extremes)]
        return shown


def number(value: float) -> str:
    """A tick's text: no more digits than it needs, thousands set apart."""
    text = f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.10g}"
    return text.replace(",", " ")
