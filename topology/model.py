"""A typed face over a networkx graph of nodes, ports and links. Pure: no files, no health, no time."""

from __future__ import annotations
