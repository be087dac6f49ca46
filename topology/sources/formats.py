"""Texts of any format into a Source: told apart by what is in them, never by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topology.sources import containerlab, dot, iblinkinfo, ibnetdiscover, lldp, nccl, slurm
from topology.sources.cables import Source
from topology.sources.infiniband import Subnet, renamed
from topology.sources.yamltext import TopologyError


def read(text: str, where: str = "<text>", variables: Mapping[str, str] | None = None) -> Source | nccl.Host:
    """The fabric that a text tells of, or the host. `variables`: what a containerlab file may ask for.

    Raises TopologyError, naming file, line and what was expected."""
    if ibnetdiscover.is_output(text):
        subnet = ibnetdiscover.read(text, where)
        return Source("ibnetdiscover", subnet.fabric, subnet=subnet)
    if iblinkinfo.is_output(text):
        subnet = iblinkinfo.read(text, where)
        return Source("iblinkinfo", subnet.fabric, _listed(subnet), subnet=subnet)
    if nccl.is_output(text):
        return nccl.read(text, where)
    if lldp.is_output(text):
        return lldp.read(text, where)
    if dot.is_output(text):
        return dot.read(text, where)
    if slurm.is_output(text):
        return slurm.read(text, where)
    return Source("containerlab", containerlab.parse(text, where, variables))


def read_all(texts: Sequence[tuple[str, str]], heard: Sequence[lldp.Answers] = ()) -> Source:
    """What several nodes hear by LLDP, a text (and what to call it) each, and what was heard otherwise. Raises
    TopologyError."""
    for text, where in texts:
        if not lldp.is_output(text):
            raise TopologyError(where, 1, "", "of several files each has to be what lldpctl -f json prints")
    return lldp.joined([*(lldp.answers(text, where) for text, where in texts), *heard])


def named_like(source: Source, known: Source, where: str) -> Source:
    """The source with the names that its nodes have in `known`, where GUIDs of a subnet tell; else as it is."""
    if source.subnet is None or known.subnet is None:
        return source
    subnet = renamed(source.subnet, known.subnet, where)
    return replace(source, fabric=subnet.fabric, subnet=subnet, told=source.told and _listed(subnet))


def _listed(subnet: Subnet) -> frozenset[str]:
    """The nodes whose ports the text lists, as opposed to those that it knows as other ends."""
    nodes = subnet.nodes.values()
    return frozenset(node.name for node in nodes if any(port.state is not None for port in node.ports.values()))
