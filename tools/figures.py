"""Write the README's figures from the JSON of the benches: figures.py README.md REROUTE.json REST.json BALANCE.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"


def number(value: float) -> str:
    """A figure as people read it: no more digits than it has meaning."""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def times(metrics: dict[str, Any], name: str) -> str:
    """`p50 / p99` of times in milliseconds; `-` where there are none."""
    found = metrics.get(name)
    return f"{number(found['p50'])} / {number(found['p99'])}" if found else "-"


def reroute(bench: dict[str, Any]) -> Iterator[str]:
    rows = [row for row in bench["rows"] if not row["case"].startswith("info-")]
    n = max(row["n"] for row in rows)
    yield f"p50 / p99 (below 100 injections the latter is the maximum), {n} injections a case, baselines fewer:"
    yield ""
    yield (
        "| fault | first packet on another link | stall, timers tuned | untuned | kernel alone | kernel, timers tuned "
        "| steps lost | same weights |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        metrics, without = row["metrics"], row["without"]
        cells = [
            f"`{row['case']}`",
            times(metrics, "reroute_ms"),
            times(metrics, "stall_ms"),
            times(metrics, "stall_untuned_ms"),
            times(without.get("kernel", {}), "stall_ms"),
            times(without.get("kernel-timers", {}), "stall_ms"),
            str(metrics["steps_lost"]),
            "yes" if metrics["weights_identical"] else "**no**",
        ]
        yield f"| {' | '.join(cells)} |"


def others(bench: dict[str, Any]) -> Iterator[str]:
    for row in bench["rows"]:
        shown = []
        for name, value in row["metrics"].items():
            shown.append(f"{name} {value if not isinstance(value, dict) else value['max']}")
        yield f"- `{bench['bench']}` / `{row['case']}`: {', '.join(shown)}"


def main(readme: str, *files: str) -> None:
    benches: list[dict[str, Any]] = []
    later: dict[str, list[str]] = {}
    for file in files:
        bench = json.loads(Path(file).read_text())
        same = next((one for one in benches if one["bench"] == bench["bench"]), None)
        if same is None:
            benches.append(bench)
            continue
        # A later run: its rows stand for those of the same name.
        fresh = {row["case"]: row for row in bench["rows"] if not row["case"].startswith("info-")}
        same["rows"] = [fresh.get(row["case"], row) for row in same["rows"]]
        if bench["commit"] != same["commit"]:
            later.setdefault(bench["commit"], []).extend(fresh)
    machine = benches[0]["machine"]
    commits = [f"commit {benches[0]['commit'][:9]}"]
    commits += [f"{', '.join(f'`{case}`' for case in cases)}: commit {commit[:9]}" for commit, cases in later.items()]
    lines = [
        f"Measured by `linkpass lab bench` in the namespace lab on {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['kernel']}, {'; '.join(commits)}. Daemons and training share the cores.",
        "",
    ]
    for bench in benches:
        lines += [*(reroute(bench) if bench["bench"] == "reroute" else others(bench)), ""]
    text = Path(readme).read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    Path(readme).write_text(f"{before}{BEGIN}\n{chr(10).join(lines)}{END}{after}")


if __name__ == "__main__":
    main(*sys.argv[1:])
