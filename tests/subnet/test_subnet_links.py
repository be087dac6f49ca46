"""Links held against another file, and what ports tell of their own."""

from __future__ import annotations

from pathlib import Path

from linkpass.subnet.links import compared, faults_of
from topology.sources import iblinkinfo, ibnetdiscover
from topology.sources.infiniband import Subnet, renamed

HERE = Path(__file__).parents[1] / "topology" / "ib"
NET = (HERE / "ibnetdiscover.txt").read_text()
LINKS = (HERE / "iblinkinfo.txt").read_text()


def named(subnet: Subnet) -> list[tuple[str, tuple[str, ...], str]]:
    return [(one.kind, one.ports, one.says) for one in faults_of(subnet)]


def test_a_slow_link_is_named_once_and_others_are_not() -> None:
    ((kind, ports, says),) = named(iblinkinfo.read(LINKS))
    assert (kind, ports, says) == ("slow link", ("leaf1:8", "spine2:1"), "runs at 4xQDR, both ends could do 12x")


def test_two_cables_that_were_swapped_are_four_links() -> None:
    swapped = NET
    for a, b in (('"S-0000000000200002"[1]', '"S-0000000000200003"[1]'), ("spine1", "spine2")):
        lines = swapped.splitlines()
        start = next(place for place, line in enumerate(lines) if line.startswith('Switch\t8 "S-0000000000200000"'))
        for place in range(start + 1, start + 5):
            lines[place] = lines[place].replace(a, "@").replace(b, a).replace("@", b)
        swapped = "\n".join(lines)
    for spine, (old, new) in {"0000000000200002": ("7", "8"), "0000000000200003": ("8", "7")}.items():
        head, mark, rest = swapped.partition(f'Switch\t8 "S-{spine}"')
        swapped = head + mark + rest.replace(f'"S-0000000000200000"[{old}]', f'"S-0000000000200000"[{new}]', 1)
    planned = ibnetdiscover.read(NET)
    found, unknown = compared(planned, renamed(ibnetdiscover.read(swapped), planned, "f"), whole=True)
    assert unknown == ""
    assert [(one.kind, one.ports) for one in found] == [
        ("missing link", ("leaf1:7", "spine1:1")), ("missing link", ("leaf1:8", "spine2:1")),
        ("other link", ("leaf1:7", "spine2:1")), ("other link", ("leaf1:8", "spine1:1")),
    ]  # fmt: skip
    assert found[0].says == "is not there: leaf1:7 goes to spine2:1, spine1:1 goes to leaf1:8"


def test_what_is_not_listed_is_not_known() -> None:
    planned = ibnetdiscover.read(NET)
    host = "\n".join(LINKS.splitlines()[:2])
    found, unknown = compared(planned, renamed(iblinkinfo.read(host), planned, "f"), whole=False)
    assert (found, unknown) == ([], "not listed, so not compared: 7 links")


def test_training_silence_and_links_without_data_are_named() -> None:
    text = (
        "Switch: 0x0000000000000010 sw:\n"
        '           3    1[  ] ==(                Down/PortConfigurationTraining)==>             [  ] "" ( )\n'
        '           3    2[  ] ==( 4X        53.125 Gbps Active/  LinkUp)==>      "Port not available"\n'
        '           3    3[  ] ==( 4X        53.125 Gbps Initialize/  LinkUp)==>       0    1[  ] "n1 mlx5_0" ( )\n'
        '      3    4[  ] ==( 4X        53.125 Gbps Active/LinkErrorRecovery)==>       9    1[  ] "n2 mlx5_0" ( )\n'
        '           3    5[  ] ==(                Down/Disabled)==>             [  ] "" ( )\n'
    )
    assert [(kind, ports) for kind, ports, _ in named(iblinkinfo.read(text))] == [
        ("training", ("sw:1",)), ("no answer", ("sw:2",)), ("inactive link", ("n1:mlx5_0/1", "sw:3")),
        ("training", ("sw:4",)),
    ]  # fmt: skip
