"""What all events are."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all events; the class name is the tag in a recording."""
