"""Which node an address belongs to: by the configuration, by what LLDP tells, or because it can be nobody else's.

All frames over an uplink go to one neighbour's hardware address, so whoever answers at the first hop over it is that
neighbour, under whatever addresses: these are joined, also over several uplinks that have one in common. That is the
one place where it is beyond doubt without any help. Farther off, the published methods need what is not at hand or not
wanted here: counters in IPv4's identification (Ally, MIDAR), which Linux has none of, or point-to-point links numbered
on both ends (kapar: two addresses before a common one), which do not hold where nodes answer with loopback addresses,
as they do in most fabrics. There an address stands for itself. Hardware addresses that several routers share (VRRP, RFC
5798) join nothing, and addresses of different names are never joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from linkpass.edges.traces.telling import names_no_node

SHARED_MACS: Final = (bytes.fromhex("00005e0001"), bytes.fromhex("00005e0002"))
"""How the hardware addresses of VRRP's virtual routers begin, for IPv4 and IPv6."""


class Names(Mapping[str, str]):
    """Address -> name of its node, of all that are known. `told`: by the configuration; it wins."""

    def __init__(self, told: Mapping[str, str]) -> None:
        self._told = told
        self._announced: dict[str, str] = {}
        self._joined: dict[str, str] = {}
        self._macs: dict[str, bytes] = {}
        self._met: dict[str, dict[str, None]] = {}
        """Uplink -> addresses that have answered at the first hop over it, the first one first."""
        self._neighbour: dict[str, str] = {}

    # as a mapping
    def __getitem__(self, address: str) -> str:
        return self._told.get(address) or self._announced.get(address) or self._joined[address]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._told, **self._announced, **self._joined})

    def __len__(self) -> int:
        return len({**self._told, **self._announced, **self._joined})

    def at(self, address: str, uplink: str, hop: int) -> str | None:
        """The name of who answers at a hop: the address where nobody has named it, None where it names no node."""
        known = self.get(address)
        if known is not None:
            return known
        if names_no_node(address):
            return self._neighbour.get(uplink, f"{address}%{uplink}") if hop == 1 else None
        return address

    # what is learnt
    def gateway(self, uplink: str, mac: bytes) -> None:
        """To which hardware address frames over an uplink go; with another one whoever was met there may be another."""
        if mac and self._macs.get(uplink) != mac:
            self._macs[uplink] = mac
            self._met.pop(uplink, None)
            self._join()

    def met(self, uplink: str, address: str) -> None:
        """Somebody has answered at the first hop over an uplink."""
        if address in self._met.get(uplink, ()) or names_no_node(address):
            return
        if self._macs.get(uplink, b"")[:5] in SHARED_MACS:
            return
        self._met.setdefault(uplink, {})[address] = None
        self._join()

    def first(self, uplink: str) -> str | None:
        """An address of the node at the first hop over an uplink; None: it has not answered, or it may be several."""
        return next(iter(self._met.get(uplink, ())), None)

    def announced(self, neighbours: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        """What LLDP tells now: uplink -> node, management address -> node."""
        self._neighbour, self._announced = dict(neighbours), dict(addresses)
        self._join()

    def _join(self) -> None:
        self._joined.clear()
        for uplinks, addresses in self._groups():
            named = {self._told.get(one) or self._announced.get(one) for one in addresses} - {None}
            named |= {self._neighbour[uplink] for uplink in uplinks if uplink in self._neighbour}
            if len(named) > 1:
                continue
            name = next(iter(named), None) or next(iter(addresses))
            for address in addresses:
                if address != name:
                    self._joined[address] = name

    def _groups(self) -> list[tuple[set[str], dict[str, None]]]:
        """Uplinks that have an address in common, with all addresses that were met over them."""
        groups: list[tuple[set[str], dict[str, None]]] = []
        for uplink, met in self._met.items():
            uplinks, addresses = {uplink}, dict(met)
            for other in [one for one in groups if one[1].keys() & addresses.keys()]:
                groups.remove(other)
                uplinks, addresses = uplinks | other[0], {**other[1], **addresses}
            groups.append((uplinks, addresses))
        return groups
