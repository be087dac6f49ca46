"""What the localiser stands on in a daemon: this host's paths as they were traced, kept up to date."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from linkpass.core.diagnosis.accounts import Key
from linkpass.core.diagnosis.elements import Elements
from linkpass.core.diagnosis.flow_ways import FlowKey, FlowWays
from linkpass.core.diagnosis.localise import Localiser, Settings
from linkpass.core.diagnosis.traced import Row, Step, numbered, traced
from linkpass.core.diagnosis.verdict import Verdict
from linkpass.core.events import FAILING

if TYPE_CHECKING:
    from linkpass.core.paths import Path, Peer
    from linkpass.core.world import World


SETTINGS = Settings(hint_s=0.0)
"""All hints come with each window: what is not said any more does not count any more."""


class Ground:
    """`keys`: the probed paths in the order of the localiser's rows; `flows`: those that go each of the ways whose rows
    come after them."""

    def __init__(self, world: World, ways: FlowWays) -> None:
        self._world, self._ways = world, ways
        self.keys: list[Key] = []
        self.flows: list[list[FlowKey]] = []
        self.alike: list[list[int]] = []
        """Of each of these ways the probed paths that go the same way, as their rows."""
        self.localiser: Localiser | None = None
        self._rows: list[Row] = []
        self._order: list[Key | Row] = []
        """What each row is of: a probed path, or a way of flows."""
        self._numbers: dict[Step, int] | None = None

    def look(self, more: Iterable[Key] = ()) -> Localiser | None:
        """Build the paths anew when traces or plans have changed, memory goes along. None: no path is known. `more`:
        paths that are to be looked at beside those in use."""
        table, host = self._world.table, self._world.settings.host
        used = [(peer.address, *path.key) for peer in table.peers.values() for path in peer.used()]
        keys: list[Key] = []
        rows: list[Row] = []
        for key in dict.fromkeys((*used, *more)):
            path = table.find(*key)
            if path is not None and path.hops is not None and (row := self._row(key)).steps():
                keys.append(key)
                rows.append(row)
        flows: dict[Row, list[FlowKey]] = {}
        for flow, hops in self._ways.known() if keys else ():
            row = Row(flow[1].uplink, (host, *hops, table.peers[flow[0]].title()))
            if row.steps():
                flows.setdefault(row, []).append(flow)
        self.flows = list(flows.values())
        rows += flows
        if rows == self._rows and keys == self.keys:
            return self.localiser
        order: list[Key | Row] = [*keys, *flows]
        before = {key: place for place, key in enumerate(self._order)}
        old_row = np.array([before.get(key, -1) for key in order], dtype=np.intp)
        self.keys, self._rows, self._order, self._numbers = keys, rows, order, None
        alike: dict[Row, list[int]] = {row: [] for row in flows}
        for place, row in enumerate(rows[: len(keys)]):
            if row in alike:
                alike[row].append(place)
        self.alike = list(alike.values())
        if not rows:
            self.localiser = None
            return None
        paths = traced(rows, {host, *(peer.title() for peer in table.peers.values())}, len(keys))
        self.localiser = (
            Localiser(paths, SETTINGS) if self.localiser is None else self.localiser.with_paths(paths, old_row)
        )
        return self.localiser

    def _row(self, key: Key) -> Row:
        peer, path = self.path(key)
        hops = path.hops
        if not peer.hashed and not path.label:
            hops = self._ways.hops(peer.address, self._ways.probe(path.uplink)) or hops
        return Row(path.uplink, (self._world.settings.host, *(hops or (None,)), peer.title()))

    def crosses(self, key: Key) -> set[int]:
        """The keys of elements that a traced path crosses, as far as paths that are looked at cross them."""
        if self.localiser is None:
            return set()
        elements = self.localiser.paths.elements
        if self._numbers is None:
            self._numbers = numbered(self._rows, elements)
        steps = self._row(key).steps()
        nodes = {
            elements.directions + elements.nodes[name] for step in steps for name in step[:2] if name in elements.nodes
        }
        return nodes | {self._numbers[step] for step in steps if step in self._numbers}

    @property
    def elements(self) -> Elements | None:
        return self.localiser.paths.elements if self.localiser is not None else None

    def path(self, key: Key) -> tuple[Peer, Path]:
        address, uplink, label = key
        peer = self._world.table.peers[address]
        return peer, peer.paths[uplink, label]

    def over(self, verdict: Verdict) -> list[Key]:
        """The probed paths over the element of a verdict."""
        if self.localiser is None:
            return []
        paths = self.localiser.paths
        number = np.array([paths.elements.index[verdict.element]], dtype=np.intp)
        return [self.keys[row] for row in paths.crossing(number)[0].tolist() if row < len(self.keys)]

    def only_large(self, verdict: Verdict) -> bool:
        """Whether all that fails over the element fails for large packets alone."""
        found = [path for _, path in map(self.path, self.over(verdict)) if path.evidence in FAILING]
        return bool(found) and all(path.large_only for path in found)

    def failing_peers(self, verdict: Verdict) -> list[Peer]:
        """Those that are silent, or to which a path over the element fails."""
        found: dict[str, Peer] = {}
        for key in self.over(verdict):
            peer, path = self.path(key)
            if peer.silent_since_s is not None or path.evidence in FAILING:
                found[peer.address] = peer
        return list(found.values())
