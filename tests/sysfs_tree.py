"""Trees as sysfs shows them, written for a test: own ones, with what drivers in the field do."""

from __future__ import annotations

from pathlib import Path

REFUSED = Path("/proc/self/mem")
"""A link to it is a file whose read at offset 0 fails with EIO, for root too."""


class Tree:
    """A `/sys` below `root`. Values are written as given; REFUSED makes a file that cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, value: str | int | Path) -> Path:
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.unlink(missing_ok=True)
        if isinstance(value, Path):
            at.symlink_to(value)
        else:
            at.write_text(f"{value}\n")
        return at

    def device(
        self, name: str, node_type: str = "1: CA", driver: str = "", numa: int | None = None, pci: str = ""
    ) -> None:
        at = f"class/infiniband/{name}"
        self.write(f"{at}/node_type", node_type)
        self.write(f"{at}/node_guid", "0253:00ff:fe12:3456")
        self.write(f"{at}/fw_ver", "28.41.1000")
        if pci:
            hardware = self.root / "devices/pci0000:00" / pci
            hardware.mkdir(parents=True)
            (self.root / at / "device").symlink_to(hardware)
            if numa is not None:
                (hardware / "numa_node").write_text(f"{numa}\n")
            if driver:
                folder = self.root / "bus/pci/drivers" / driver
                folder.mkdir(parents=True, exist_ok=True)
                (hardware / "driver").symlink_to(folder)

    def port(
        self, device: str, number: int = 1, link_layer: str = "Ethernet", state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)", phys_state: str = "5: LinkUp",
    ) -> str:  # fmt: skip
        at = f"class/infiniband/{device}/ports/{number}"
        self.write(f"{at}/link_layer", link_layer)
        self.write(f"{at}/state", state)
        self.write(f"{at}/phys_state", phys_state)
        self.write(f"{at}/rate", rate)
        self.write(f"{at}/lid", "0x0")
        return at

    def gid(self, device: str, index: int, gid: str, kind: str | Path = "RoCE v2", netdev: str | Path = "eth0") -> None:
        at = f"class/infiniband/{device}/ports/1"
        self.write(f"{at}/gids/{index}", gid)
        self.write(f"{at}/gid_attrs/types/{index}", kind)
        self.write(f"{at}/gid_attrs/ndevs/{index}", netdev)

    def counters(self, device: str, folder: str, port: int = 1, **values: str | int | Path) -> None:
        for file, value in values.items():
            self.write(f"class/infiniband/{device}/ports/{port}/{folder}/{file}", value)
