"""What reading the counters of 64 RDMA ports once a second costs: python tests/rdma/bench_counters.py [ROUNDS]

Ports with all standard counters and those of mlx5, on a file system in memory; the eight that count traffic change
between two rounds, as on a port in use. Prints JSON. What a driver does behind a read is not in it: that needs the
hardware."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from at_once import AtOnce  # noqa: E402
from sysfs_tree import Tree  # noqa: E402

from linkpass.edges.counters import CounterEdge  # noqa: E402
from rdma.counters.evidence import Thresholds  # noqa: E402
from rdma.counters.table import COUNTERS  # noqa: E402

PORTS = 64
BUSY = (
    "port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets",
    "unicast_rcv_packets", "rx_write_requests", "np_cnp_sent",
)  # fmt: skip


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        tree = Tree(Path(folder))
        rows = [row for row in COUNTERS if "mlx5" in row.drivers]
        for number in range(PORTS):
            name = f"mlx5_{number}"
            tree.device(name, driver="mlx5_core", pci=f"0000:{number:02x}:00.0")
            tree.port(name)
            for row in rows:
                tree.counters(name, row.folder, **{row.file: 1_000_000})
        now_s = [0.0]
        edge = CounterEdge(Thresholds(), lambda: now_s[0], tree.root, AtOnce())
        edge.poll()
        edge.poll()
        assert edge.why == "", edge.why
        busy = [path for file in BUSY for path in tree.root.glob(f"class/infiniband/*/ports/1/*/{file}")]
        cpu_s = []
        for number in range(rounds):
            for path in busy:
                path.write_text(f"{1_000_000 + 1000 * number}\n")
            begun_s = time.process_time()
            now_s[0] = number + 1.0
            edge.poll()
            cpu_s.append(time.process_time() - begun_s)
        edge.close()
    cpu_s.sort()
    told = {
        "ports": PORTS, "files": PORTS * len(rows), "rounds": rounds,
        "cpu_ratio": {"p50": statistics.median(cpu_s), "max": cpu_s[-1]},
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
