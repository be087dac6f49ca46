"""Where members are: which are meant when somebody names a host or an accelerator in words of his own, and who fails
together with whom. Pure.

Trainers call a host by its host name. The daemon calls it by the name that its peers tell, or by the address that it is
probed at; GPUs go by their PCI addresses, which NVIDIA's library, the kernel and people write in different lengths.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from torchpass_bridge.wire import Job, Member

_PCI = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])")


def meant(job: Job, host: str, accelerator: str = "") -> list[tuple[str, str]]:
    """(host, accelerator) as the job's record has them, each once; accelerator empty: all of the host."""
    found = [
        (member.host, member.accelerator if accelerator else "")
        for member in job.members
        if on_host(member, host) and (not accelerator or same_accelerator(member.accelerator, accelerator))
    ]
    return list(dict.fromkeys(found))


def on_host(member: Member, host: str) -> bool:
    address = _address(host)
    if address is not None and address == _address(member.address.rpartition(":")[0]):
        return True
    return same_host(member.host, host)


def same_host(one: str, other: str) -> bool:
    """A name with its domain and one without are the same host; two with different domains are not."""
    if one == other:
        return True
    addresses = _address(one), _address(other)
    if any(addresses):
        return addresses[0] == addresses[1]
    short, other_short = one.partition("."), other.partition(".")
    return short[0] == other_short[0] and not (short[2] and other_short[2])


def same_accelerator(one: str, other: str) -> bool:
    return one == other or (_pci(one) is not None and _pci(one) == _pci(other))


def buddy_of(members: Sequence[Member], rank: int) -> Member | None:
    """The next member by rank that fails together with this one least: neither its domain nor its host, if any such."""
    me = members[rank]
    others = [members[(rank + further) % len(members)] for further in range(1, len(members))]
    return min(
        others,
        key=lambda m: (m.host == me.host) * 2 + (m.domain == me.domain and me.domain != ""),
        default=None,
    )


def keeper_of(members: Sequence[Member], rank: int) -> Member | None:
    """Who keeps copies of this rank's part of a sharded state. None: nobody need, for it has a replica on another host;
    or copies are switched off."""
    me, shards = members[rank], members[rank].fit.shards
    if shards == 1 or not me.fit.buddies:
        return None
    replicas = members[rank % shards :: shards]
    return None if any(m.host != me.host for m in replicas) else buddy_of(members, rank)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None


def _pci(text: str) -> tuple[int, ...] | None:
    found = _PCI.fullmatch(text)
    return tuple(int(part or "0", 16) for part in found.groups()) if found else None
