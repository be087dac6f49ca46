"""One thing that is wrong, and where."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal[
    "missing link", "other link", "slow link", "inactive link", "training", "no answer",
    "hole", "loop", "dead end", "astray", "sick link", "loss", "upstream",
]  # fmt: skip
"""Missing, other: not as the other file has it. Hole to astray: see topology.sources.ways. The last three are counters:
symbols or packets broken here, packets lost here, packets that came broken already."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ports`: where, as the Fabric calls them (NODE:PORT), or a node's name where it is no port's. `counter`, `count`
    (in `unit`, since `since`) for counters; `lids` and `host_pairs` (of host ports that it cuts off) for ways."""

    kind: Kind
    ports: tuple[str, ...]
    says: str
    source: str = ""
    counter: str = ""
    count: int | None = None
    unit: str = ""
    since: str = ""
    lids: tuple[int, ...] = ()
    host_pairs: int | None = None
