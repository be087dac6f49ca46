"""The commands that show a fabric, say what is wrong in an InfiniBand subnet, and compare a fabric with its plan."""

from __future__ import annotations

import click

from linkpass.cli.common import FirstGroup
from linkpass.cli.topology_diff import diff
from linkpass.cli.topology_show import show

FORMATS = """
    \b
    containerlab  a .clab.yml file
    DOT           a cabling plan of Cumulus' PTM: "host1":"eth1" -- "leaf1":"swp1"
    LLDP          what `lldpctl -f json` prints; or a folder of such files, each named after its node
                  (or with `lldpcli -f json show chassis` in it, which names the node);
                  or frames captured: tcpdump -w FILE ether proto 0x88cc (pcap, pcapng; needs scapy)
    InfiniBand    what `ibnetdiscover` or `iblinkinfo` prints
    Slurm         topology.conf: which nodes each switch joins
    NCCL          NCCL_TOPO_DUMP_FILE: the adapters of a host, their GPUs and rails
"""


@click.group(
    cls=FirstGroup,
    first="show",
    epilog="\b\nExamples:\n"
    "  linkpass topology lab/leaf-spine.clab.yml --json\n"
    "  linkpass topology diff plan.dot live/      # which cables are not where they should be?\n"
    "  linkpass topology show --help              # more of InfiniBand subnets\n",
)
def topology() -> None:
    pass


topology.help = f"""Show a fabric, or compare it with its plan.

    `linkpass topology FILE` is short for `linkpass topology show FILE`. A file's format is told by its content:
    {FORMATS}"""


topology.add_command(show)
topology.add_command(diff)
