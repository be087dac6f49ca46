"""Which labels and which uplinks carry the traffic. Pure choices with their reason; the rules of the ladder live here.

Never take the last path; when all are bad keep the best. Hard verdicts (nothing gets through) move all that can be
moved; soft ones (loss, a drain, a peer's word) at most a set share at once of what works.
What stays is spread evenly, and what need not move does not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Grade = Literal["good", "earning", "soft", "unproven", "hard"]
"""Of a path or uplink, best first. `earning`: answers again, its return is observed; `soft`: works, but something
speaks against it; `unproven`: no probe has answered yet, so nothing that works is left for it. Earning and unproven
ones are not chosen while something good is left, and do not count as capacity that is moved away now: they are away
already."""

ORDER: dict[Grade, int] = {"good": 0, "earning": 1, "soft": 2, "unproven": 3, "hard": 4}

ALL_GOOD = "all paths are good"


@dataclass(frozen=True, slots=True)
class Option:
    """A label or an uplink that may carry traffic. `cost` orders options of one grade (a loss ratio); `carries`: it
    does so now."""

    name: int | str
    grade: Grade
    why: str = ""
    cost: float = 0.0
    carries: bool = False


def select(options: Sequence[Option], max_moved_ratio: float) -> tuple[list[Option], str]:
    """The options to use and the reason for leaving out the others."""
    good = [option for option in options if option.grade == "good"]
    if not good:
        if not options:
            return [], "nothing to choose from"
        best = min(ORDER[option.grade] for option in options)
        keep = [option for option in options if ORDER[option.grade] == best]
        cheapest = min(option.cost for option in keep)
        keep = [option for option in keep if option.cost <= cheapest + 0.01]
        return keep, "no good path: the best of the rest are kept"
    # Costs are compared in whole percents, and what carries traffic stays before what does not: no swapping of equals.
    soft = sorted(
        (option for option in options if option.grade == "soft"),
        key=lambda option: (-round(option.cost, 2), option.carries),
    )
    allowed = int(max_moved_ratio * (len(good) + len(soft)))
    kept = soft[allowed:]
    left_out = [option for option in options if option.grade != "good" and option not in kept]
    reasons = sorted({option.why for option in left_out if option.why})
    reason = "; ".join(reasons) if reasons else ALL_GOOD
    if kept:
        reason += f"; {len(kept)} kept although {kept[0].why}: at most {max_moved_ratio:.0%} may be moved at once"
    chosen = good + kept
    return [option for option in options if option in chosen], reason


def fill(current: Sequence[int], labels: Sequence[int], buckets: int) -> tuple[int, ...]:
    """Spread `labels` evenly over `buckets`, changing as few buckets of `current` as evenness allows."""
    if not labels:
        return ()
    share, extra = divmod(buckets, len(labels))
    count = dict.fromkeys(labels, 0)
    result: list[int | None] = [None] * buckets
    larger = 0
    for bucket, label in enumerate(current[:buckets]):
        if label not in count:
            continue
        if count[label] < share or (count[label] == share and larger < extra):
            larger += count[label] == share
            count[label] += 1
            result[bucket] = label
    for bucket in range(buckets):
        if result[bucket] is None:
            label = min(labels, key=lambda candidate: (count[candidate], labels.index(candidate)))
            count[label] += 1
            result[bucket] = label
    return tuple(label for label in result if label is not None)


def moved_share(before: Sequence[int], after: Sequence[int]) -> float:
    """Share of buckets that change."""
    if not before or not after:
        return 1.0 if before != after else 0.0
    return sum(a != b for a, b in zip(before, after, strict=False)) / len(after)
