"""Rung 1 for IPv4: packets marked on their way out, per peer and flow bucket; each mark leads into one tunnel.

The same table, map and life as of flow labels (`labels.py`), in the family `ip`: elements expire when the daemon no
longer refreshes them, and then nothing is marked and all goes by the kernel's own routes. What somebody else has marked
is left alone. A flow's bucket is that of its ports: IPv4 has no label that the kernel would roll anew.
"""

from __future__ import annotations

from linkpass.edges.kernel.labels import BUCKETS, MAP, SEED, LabelEdge
from linkpass.wire import nfnl


class MarkEdge(LabelEdge):
    """Owns the table `ip linkpass`. A label is a tunnel's source port."""

    NAME, FAMILY = "ip", nfnl.FAMILY_IPV4

    def using(self, ports: set[int]) -> list[str]:
        """The peers some of whose flows go by one of these tunnels."""
        return sorted(peer for peer, labels in self._entries.items() if ports & set(labels))

    def _rules(self) -> str:
        protocols = ", ".join(self._protocols)
        table = f"{self.NAME} {self._table}"
        flow = "ip saddr . th sport . th dport"
        return f"""add table {table}
delete table {table}
table {table} {{
  map {MAP} {{
    typeof ip daddr . numgen inc mod {BUCKETS} : meta mark
    flags timeout
  }}
  chain output {{
    type route hook output priority -150; policy accept;
    meta l4proto != {{ {protocols} }} accept
    meta mark != 0 accept
    th dport {self._probe_port} accept
    meta mark set ip daddr . jhash {flow} mod {BUCKETS} seed {SEED:#x} map @{MAP}
  }}
}}
"""
