"""The demo's page as a browser renders it, and the plots on it."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from story import made_up_story

from lab.plot import Axis, Plot, number
from lab.report import RunShown, milliseconds, page
from lab.steps import RankLog

CHROMIUM = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

LOOK = """
<script>
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("svg.plot")].map(svg => {
    const frame = svg.getBoundingClientRect();
    const inside = [...svg.querySelectorAll("polyline, circle, path, text")].every(mark => {
      const box = mark.getBoundingClientRect();
      return box.left >= frame.left - 2 && box.right <= frame.right + 2
        && box.top >= frame.top - 2 && box.bottom <= frame.bottom + 2;
    });
    return {label: svg.getAttribute("aria-label"), width: frame.width, height: frame.height, inside,
      marks: svg.querySelectorAll(".mark").length, bands: svg.querySelectorAll(".band").length,
      tips: svg.querySelectorAll("title").length};
  });
  const text = id => document.getElementById(id)?.innerText;
  const looked = {boxes, wider: document.documentElement.scrollWidth > innerWidth,
    tiles: ["worst", "worst-without", "lost", "identical", "weights"].map(text),
    rows: [...document.querySelectorAll("#faults tbody tr")].map(row => row.innerText),
    ink: getComputedStyle(document.body).color, page: getComputedStyle(document.body).backgroundColor};
  const out = document.createElement("script");
  out.type = "application/json"; out.id = "looked"; out.textContent = JSON.stringify(looked);
  document.body.append(out);
});
</script>
"""


def render(html: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """What a browser makes of the page: sizes, texts and colours as laid out."""
    file = tmp_path / "page.html"
    file.write_text(html.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [*CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", *options, "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    found = re.search(r'<script type="application/json" id="looked">(.*?)</script>', done.stdout, re.DOTALL)
    assert found, done.stderr
    looked: dict[str, Any] = json.loads(found[1])
    return looked


def luminance(colour: str) -> float:
    """WCAG relative luminance of `rgb(r, g, b)`."""
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("scheme", "dark"), [("1", False), ("0", True)])
def test_a_browser_shows_the_whole_story(tmp_path: Path, scheme: str, *, dark: bool) -> None:
    seen = render(
        page(made_up_story()), tmp_path, "--window-size=1100,2000", f"--blink-settings=preferredColorScheme={scheme}"
    )
    assert seen["tiles"][:4] == ["63 ms", "6.2 s", "0", "identical"]
    assert seen["tiles"][4].startswith("b7d40c81")
    assert [row.split("\n")[0] for row in seen["rows"]] == ["carrier", "blackhole", "bucket", "5 % loss"]
    assert "52 ms" in seen["rows"][1] and "6.2 s" in seen["rows"][1] and "ended only with the fault" in seen["rows"][1]
    plots = {box["label"]: box for box in seen["boxes"]}
    assert len(plots) == 4
    assert all(box["width"] > 600 and box["height"] > 150 and box["inside"] for box in plots.values()), plots
    timeline = plots["Step times, faults and moves on one time line"]
    assert (timeline["marks"], timeline["bands"]) == (11, 4)
    assert timeline["tips"] >= 15
    assert not seen["wider"]
    assert contrast(seen["ink"], seen["page"]) > 7
    assert (luminance(seen["page"]) < 0.1) is dark


def test_a_small_window_scrolls_the_plots_and_not_the_page(tmp_path: Path) -> None:
    seen = render(page(made_up_story()), tmp_path, "--window-size=500,900")
    assert not seen["wider"]
    assert all(box["width"] >= 600 for box in seen["boxes"])


def test_the_page_needs_nothing_else() -> None:
    html = page(made_up_story())
    assert re.findall(r"(?:src|href)=", html) == []
    assert "@import" not in html and "url(" not in html
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}
    assert len(html.encode()) < 400_000


def test_text_from_outside_is_text() -> None:
    html = page(made_up_story())
    assert "&lt;of some kind&gt;" in html and "<of some kind>" not in html


def test_a_run_without_comparison_says_so() -> None:
    story = dataclasses.replace(
        made_up_story(), without=None, reference=None, weights_identical=None,
        faults=[dataclasses.replace(f, stall_without_ms=None, weights_identical=None) for f in made_up_story().faults],
    )  # fmt: skip
    html = page(story)
    assert "not compared" in html
    assert "with and without" not in html
    assert "–" in html


def test_a_story_without_faults_is_a_page_too() -> None:
    assert "Every fault" in page(dataclasses.replace(made_up_story(), faults=[], moves=[], without=None))


def test_a_run_is_read_from_the_ranks_logs() -> None:
    logs = [RankLog(0), RankLog(1)]
    for step in range(3):
        for log in logs:
            end_s = 10 + step + 0.25 * log.rank
            log.feed(b'{"step": %d, "start_s": 9.0, "end_s": %f, "loss": %f}\n' % (step, end_s, 4 - log.rank))
    logs[0].feed(b'{"step": 3, "start_s": 9.0, "end_s": 13.0, "loss": 4.0}\n')
    run = RunShown.of(logs, origin_s=10.0)
    assert run == RunShown([1.25, 2.25], [1.0, 1.0], [3.5, 3.5], 1.0)


@given(st.floats(1e-3, 1e5), st.floats(1.5, 1e5), st.booleans())
def test_ticks_lie_on_the_axis(low: float, times: float, log: bool) -> None:
    axis = Axis(low, low * times, "ms", log=log)
    ticks = axis.ticks()
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 14
    assert all(-0.01 <= axis.at(tick) <= 1.01 for tick in ticks)


def test_a_long_line_keeps_its_extremes() -> None:
    plot = Plot(Axis(0, 100_000, "step"), Axis(0, 10, "ms"), "many points")
    values = [(float(n), 9.0 if n == 50_000 else 1.0) for n in range(100_001)]
    plot.line(values, "ours")
    svg = plot.svg()
    assert len(svg) < 120_000
    top = plot.place(0, 9.0)[1]
    assert f",{top:.1f}" in svg


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (43.4, "43 ms"), (999.0, "999 ms"), (1700.0, "1.7 s"), (0.0, "0 ms")]
)
def test_times_for_people(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


def test_numbers_on_axes() -> None:
    assert [number(value) for value in (0.0, 0.5, 10.0, 20_000.0)] == ["0", "0.5", "10", "20 000"]
