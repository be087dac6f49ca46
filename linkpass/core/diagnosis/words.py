"""Evidence and what was ruled out, in words."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from linkpass.core.diagnosis.search import Blamed, Search

WEIGHED = 3


def evidence_of(search: Search, one: Blamed) -> tuple[str, ...]:
    rows, _ = search.paths.crossing(np.array([one.element], dtype=np.intp))
    weak = search.paths.weak
    flows, rows = rows[weak[rows] & (search.n[rows] > 0)], rows[~weak[rows]]
    lossy, hit = rows[search.k[rows] > 0], one.hit[~weak[one.hit]]
    sent, lost = search.n[hit].sum(), search.k[hit].sum()
    told = [f"{len(lossy)} of the {len(rows)} observed paths over it lose: {lost:.0f} of {sent:.0f} packets"]
    if len(flows):
        again = int((search.k[flows] > 0).sum())
        weighed = f"weighed as {search.k[flows].sum():.1f} of {search.n[flows].sum():.0f} packets"
        told.append(f"flows of the job send again on {again} of their {len(flows)} traced ways over it, {weighed}")
    if one.scope == "partial":
        told.append(f"a part of its paths only, about {one.share:.0%}: others over it are clean")
    elif one.scope == "large":
        told.append("large packets only: small ones get through")
    return tuple(told)


def ruled_out(search: Search, one: Blamed, among: Set[int]) -> tuple[str, ...]:
    """The elements that share most of the losing paths, and why it is not they."""
    weak = search.paths.weak
    shown = one.hit[(search.k[one.hit] > 0) & ~weak[one.hit]]
    if not len(shown):
        return ()
    elements = search.paths.elements
    covered = search.paths.sums(np.ones(len(shown)), shown)
    mine = {int(key) for element in among for key in (elements.first[element], elements.second[element])}
    mine |= among
    told: list[str] = []
    for key in np.argsort(-covered, kind="stable")[: WEIGHED + len(mine)].tolist():
        if key in mine or not covered[key] or len(told) == WEIGHED:
            continue
        rows, _ = search.paths.crossing(np.array([key], dtype=np.intp))
        rows = rows[~weak[rows]]
        clean = int((search.k[rows] == 0).sum())
        missing = len(shown) - int(covered[key])
        why = [f"{clean} of its {len(rows)} paths are clean"] if clean else []
        why += [f"{missing} of the {len(shown)} losing paths do not cross it"] if missing else []
        told.append(f"{elements.names[key]}: {' and '.join(why) or 'it would explain less'}")
    return tuple(told)
