"""A fabric written in the formats that are read, by the formats' own rules; what lldpd prints is in `lldp/`."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from topology.model import Fabric, Link, Port

FOLDER = Path(__file__).with_name("lldp")

NCCL = """<system version="1">
  <cpu numaid="0" affinity="00ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:16:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:1a:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:05:00.0" count="4" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020700" vendor="0x15b3" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_1" dev="0" speed="400000" port="1" guid="0xa1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:36:00.0" class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:3a:00.0" class="0x030200" vendor="0x10de" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1"/>
      </pci>
      <pci busid="0000:39:00.0" class="0x020700" vendor="0x15b3" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_3" dev="2" speed="200000" port="2" guid="0xb2" maxconn="131072" gdr="1"/>
          <net name="mlx5_3" dev="1" speed="200000" port="1" guid="0xb1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic><net name="eth0" dev="3" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/></nic>
  </cpu>
  <cpu numaid="-1"><pci busid="0000:99:00.0" class="0x020000"><nic><net name="eth9"/></nic></pci></cpu>
</system>
"""


def dot(fabric: Fabric) -> str:
    """A plan for PTM; the nodes' roles are stated."""
    words = {0: "host", 1: "leaf"}
    nodes = [f'  "{node.name}" [function="{words.get(node.tier or 0, "spine")}"];' for node in fabric.nodes]
    return "\n".join((f'graph "{fabric.name}" {{', *nodes, *map(_edge, fabric.links), "}", ""))


def _edge(link: Link) -> str:
    said = {"speed": link.a.speed_bps, "rail": link.a.rail, "plane": link.a.plane}
    own = ", ".join(f'{word}="{value}"' for word, value in said.items() if value is not None)
    a, b = link.a, link.b
    return f'  "{a.node}":"{a.name}" -- "{b.node}":"{b.name}"{f" [{own}]" if own else ""}'


def containerlab(fabric: Fabric) -> str:
    nodes = {
        node.name: {"kind": "linux", "labels": {"linkpass.role": node.role, "linkpass.tier": str(node.tier)}}
        for node in fabric.nodes
    }
    links: list[dict[str, Any]] = [{"endpoints": [link.a.id, link.b.id]} for link in fabric.links]
    for link, made in zip(fabric.links, links, strict=True):
        if link.a.speed_bps is not None:
            made["vars"] = {"linkpass.speed": str(link.a.speed_bps)}
    return json.dumps({"name": fabric.name, "topology": {"nodes": nodes, "links": links}}, indent=1)


def lldp(fabric: Fabric, node: str, form: str = "json", *, chassis: bool = True) -> str:
    """What `lldpcli show chassis` and `lldpctl` of lldpd 1.0.16 would print in `node`."""
    every = [_interface(link.port(node), link.peer(node), form) for link in fabric.links_of(node)]
    own = _chassis(node, form)
    if form == "json0":
        texts = [{"local-chassis": [{"chassis": [own]}]}, {"lldp": [{"interface": every} if every else {}]}]
    else:
        found = {} if not every else {"interface": every[0] if len(every) == 1 else every}
        texts = [{"local-chassis": {"chassis": own}}, {"lldp": found}]
    return "\n".join(json.dumps(text, indent=2) for text in texts[0 if chassis else 1 :])


def _chassis(name: str, form: str) -> dict[str, Any]:
    able = [{"type": "Bridge", "enabled": False}, {"type": "Station", "enabled": True}]
    mac = "02:" + ":".join(f"{byte:02x}" for byte in name.encode()[-5:].rjust(5, b"\0"))
    if form == "json0":
        return {"id": [{"type": "mac", "value": mac}], "name": [{"value": name}], "capability": able}
    return {name: {"id": {"type": "mac", "value": mac}, "capability": able[0]}}


def _interface(own: Port, far: Port, form: str) -> dict[str, Any]:
    current = None if far.speed_bps is None else f"{far.speed_bps // 10**9}GBaseR - whatever"
    if form == "json0":
        port: dict[str, Any] = {"id": [{"type": "ifname", "value": far.name}], "ttl": [{"value": "120"}]}
        if current:
            port["auto-negotiation"] = [{"supported": False, "current": [{"value": current}]}]
        return {"name": own.name, "via": "LLDP", "rid": "1", "chassis": [_chassis(far.node, form)], "port": [port]}
    port = {"id": {"type": "ifname", "value": far.name}, "ttl": "120"}
    if current:
        port["auto-negotiation"] = {"supported": False, "current": current}
    return {own.name: {"via": "LLDP", "rid": "1", "chassis": _chassis(far.node, form), "port": port}}


def slurm(fabric: Fabric) -> str:
    lines = []
    for switch in fabric.switches:
        below = [fabric.node(name) for name in fabric.neighbours(switch.name)]
        hosts = ",".join(node.name for node in below if node.role == "host")
        lower = ",".join(node.name for node in below if node.role == "switch" and (node.tier or 0) < (switch.tier or 0))
        said = " ".join(f"{word}={names}" for word, names in (("Nodes", hosts), ("Switches", lower)) if names)
        if said:
            lines.append(f"SwitchName={switch.name} {said}")
    return "\n".join(lines) + "\n"


def swapped(fabric: Fabric, one: Link, other: Link) -> Fabric:
    """The fabric with the far ends of two cables exchanged."""
    changed = {one.index: Link(one.a, other.b), other.index: Link(other.a, one.b)}
    return recabled(fabric, [changed.get(link.index, link) for link in fabric.links])


def recabled(fabric: Fabric, links: Collection[Link]) -> Fabric:
    return Fabric(fabric.name, fabric.nodes, links)
