"""What one host can say of an element: it sees most links one way only, and of a silent peer nothing but silence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.paths import Paths
from linkpass.core.diagnosis.verdict import Verdict

if TYPE_CHECKING:
    from linkpass.core.paths import Peer


def plainly(verdict: Verdict, elements: Elements, failing: Sequence[Peer], hinted: Collection[str]) -> Verdict:
    """The verdict without suspects that are no other suspects. `hinted`: elements of which something else is known.

    A direction and its link explain the same where only one way is seen: the direction is all that can be told. That
    both fail only others can tell. A peer that is silent may not hear or may not be heard: its link is named then."""
    if verdict.kind == "congestion":
        return verdict
    of_silence = bool(failing) and all(peer.silent_since_s is not None for peer in failing)
    if verdict.kind in ("link", "nic") and not of_silence and verdict.element not in hinted:
        verdict = _by_its_direction(verdict, elements)
    elif verdict.kind == "direction" and of_silence:
        link = elements.names[elements.link_of(elements.index[verdict.element])]
        others = tuple(one for one in verdict.others if one != link)
        verdict = msgspec.structs.replace(verdict, kind="link", element=link, others=others)
    mine = elements.parts(elements.index[verdict.element])
    theirs = ((one, elements.parts(elements.index[one])) for one in verdict.others)
    keep = tuple(one for one, parts in theirs if not (parts < mine or mine < parts))
    return msgspec.structs.replace(verdict, others=keep)


def seen_of(verdict: Verdict, paths: Paths) -> str:
    """What a host sees of the element itself: of a link whose other direction none of its paths crosses, one direction.
    A peer that is silent on it may be the one that does not hear: that is no word about a direction."""
    elements = paths.elements
    if verdict.kind != "link" or verdict.element not in elements.index:
        return verdict.element
    link = elements.index[verdict.element]
    seen = [part for part in sorted(elements.parts(link)) if paths.marks[part] == paths.marks[link]]
    return elements.names[seen[0]] if seen else verdict.element


def _by_its_direction(verdict: Verdict, elements: Elements) -> Verdict:
    mine = elements.parts(elements.index[verdict.element])
    parts = [one for one in verdict.others if ">" in one and elements.parts(elements.index[one]) < mine]
    if len(parts) != 1:
        return verdict
    others = tuple(one for one in verdict.suspects if one != parts[0])
    return msgspec.structs.replace(verdict, kind="direction", element=parts[0], others=others)
