"""The Fabric's face: names, lookups, paths and views on fabrics small enough to know by heart."""

import subprocess
import sys

import pytest

from topology import generate
from topology.model import (
    Fabric,
    FabricError,
    Hop,
    Link,
    Node,
    Path,
    Port,
    UnknownElementError,
    direction_id,
)


def switches(*names: str) -> list[Node]:
    return [Node(name, "switch", 1) for name in names]


def link(a: str, b: str) -> Link:
    return Link(Port(*a.split(":")), Port(*b.split(":")))


@pytest.fixture
def fabric() -> Fabric:
    return generate.leaf_spine()


def test_the_order_of_the_file_is_kept(fabric: Fabric) -> None:
    assert [node.name for node in fabric.hosts] == ["host1", "host2", "host3", "host4"]
    assert [node.name for node in fabric.switches] == [*(f"leaf{k}" for k in range(1, 5)), "spine1", "spine2"]
    assert [each.index for each in fabric.links] == list(range(16))
    assert [each.id for each in fabric.links_of("leaf1")] == [
        "host1-leaf1",
        "host2-leaf1",
        "leaf1-spine1",
        "leaf1-spine2",
    ]
    assert fabric.neighbours("host3") == ("leaf3", "leaf4")
    assert [port.id for port in fabric.ports("spine1")] == ["spine1:eth1", "spine1:eth2", "spine1:eth3", "spine1:eth4"]
    assert [port.name for port in fabric.uplinks("host1")] == ["eth1", "eth2"]


def test_a_link_and_its_directions(fabric: Fabric) -> None:
    one = fabric.link("leaf1-spine1")
    assert one.directions() == ("leaf1>spine1", "spine1>leaf1")
    assert one.direction("spine1") == direction_id("spine1", "leaf1")
    assert one.port("leaf1").id == "leaf1:eth3"
    assert one.peer("leaf1").id == "spine1:eth1"
    assert fabric.direction("spine1>leaf1") == Hop(one.b, one.a)
    assert fabric.link_of("spine1>leaf1") is one
    assert fabric.split_link("leaf1-spine1") == ("leaf1", "spine1")
    with pytest.raises(UnknownElementError, match=r"^link leaf1-spine1 does not end in 'leaf2', but in 'leaf1' and"):
        one.port("leaf2")


@pytest.mark.parametrize("text", ["leaf1-spine1", "spine1-leaf1", "leaf1 spine1", "spine1 leaf1"])
def test_a_link_is_found_by_its_id_or_its_two_nodes(fabric: Fabric, text: str) -> None:
    assert fabric.link(text).id == "leaf1-spine1"


def test_near_matches_are_named(fabric: Fabric) -> None:
    with pytest.raises(
        UnknownElementError, match=r"^no link 'leaf1-spin1' in fabric 'leaf-spine'; near: leaf1-spine1,"
    ):
        fabric.link("leaf1-spin1")
    with pytest.raises(UnknownElementError, match=r"^no node 'spin2' in fabric 'leaf-spine'; near: spine2"):
        fabric.node("spin2")
    with pytest.raises(UnknownElementError, match=r"^no direction 'leaf1>spine3' in .*near: leaf1>spine"):
        fabric.direction("leaf1>spine3")
    with pytest.raises(UnknownElementError, match=r"^no element 'zzz' in fabric 'leaf-spine'$"):
        fabric.without(["zzz"])
    with pytest.raises(UnknownElementError, match="'leaf1' is a switch, expected a host"):
        fabric.uplinks("leaf1")


def test_parallel_links_are_named_by_their_ports() -> None:
    fabric = generate.leaf_spine(2, racks=1, uplinks=1, spines=1, parallel=2)
    assert [each.id for each in fabric.links] == [
        "host1-leaf1",
        "host2-leaf1",
        "leaf1:eth3-spine1:eth1",
        "leaf1:eth4-spine1:eth2",
    ]
    assert fabric.link("leaf1:eth4-spine1:eth2").directions() == (
        "leaf1:eth4>spine1:eth2",
        "spine1:eth2>leaf1:eth4",
    )
    assert fabric.link("spine1:eth2-leaf1:eth4").index == 3
    for text in ("leaf1 spine1", "leaf1-spine1", "spine1 leaf1"):
        with pytest.raises(UnknownElementError, match="are 2 links: leaf1:eth3-spine1:eth1, leaf1:eth4-spine1:eth2"):
            fabric.link(text)


def test_dashes_in_names_never_make_two_things_one() -> None:
    fabric = Fabric("dashes", switches("a", "a-b", "b-c", "c"), [link("a:1", "b-c:1"), link("a-b:1", "c:1")])
    assert [each.id for each in fabric.links] == ["a:1-b-c:1", "a-b:1-c:1"]
    fabric = Fabric("dashes", switches("a", "b", "a-b"), [link("a:1", "b:1"), link("a:2", "a-b:1")])
    assert [each.id for each in fabric.links] == ["a:1-b:1", "a-a-b"]
    assert fabric.expand("a-b") == {"a>a-b", "a-b>a"}
    assert fabric.link("a b").id == "a:1-b:1"


@pytest.mark.parametrize(
    ("nodes", "links", "message"),
    [
        (switches("a", "a"), [], "node 'a' appears twice"),
        (switches("a>b"), [], "node name 'a>b': expected text without '>' and ':'"),
        (switches("a"), [link("a:1", "b:1")], "port 'b:1': no node 'b'"),
        (switches("a", "b"), [link("a:1", "b:1>2")], "port 'b:1>2': expected a name without '>'"),
        (switches("a"), [link("a:1", "a:2")], "link a:1 to a:2 joins a node with itself"),
        (switches("a", "b"), [link("a:1", "b:1"), link("b:1", "a:2")], "port 'b:1' is used by two links"),
    ],
)
def test_what_does_not_fit_together_is_no_fabric(nodes: list[Node], links: list[Link], message: str) -> None:
    with pytest.raises(FabricError) as error:
        Fabric("bad", nodes, links)
    assert str(error.value) == message


def test_equal_cost_paths(fabric: Fabric) -> None:
    across = fabric.equal_cost_paths("host1", "host3")
    assert len(across) == 8
    assert across[0].nodes == ("host1", "leaf1", "spine1", "leaf3", "host3")
    assert across[0].directions == ("host1>leaf1", "leaf1>spine1", "spine1>leaf3", "leaf3>host3")
    assert across[0].uplink == "eth1" and across[-1].uplink == "eth2" and len(across[0]) == 4
    assert [path.nodes for path in fabric.equal_cost_paths("host1", "host2")] == [
        ("host1", "leaf1", "host2"),
        ("host1", "leaf2", "host2"),
    ]
    assert fabric.equal_cost_paths("host1", "host1") == ()
    assert fabric.distance("host1", "host3") == 4 and fabric.distance("host1", "host1") == 0


def test_next_hops(fabric: Fabric) -> None:
    assert [(out.name, peer.node) for out, peer in fabric.next_hops("host1", "host3")] == [
        ("eth1", "leaf1"),
        ("eth2", "leaf2"),
    ]
    assert [peer.node for _, peer in fabric.next_hops("leaf1", "host3")] == ["spine1", "spine2"]
    assert [peer.node for _, peer in fabric.next_hops("spine2", "host3")] == ["leaf3", "leaf4"]
    assert [peer.node for _, peer in fabric.next_hops("host1", "spine1")] == ["leaf1", "leaf2"]
    assert fabric.next_hops("leaf3", "leaf3") == ()


def test_hosts_never_transit() -> None:
    fabric = generate.leaf_spine().without(["spine1", "spine2"])
    assert [peer.node for _, peer in fabric.next_hops("host1", "leaf2")] == ["leaf2"]
    assert fabric.next_hops("leaf1", "leaf2") == ()
    assert fabric.distance("leaf1", "leaf2") is None
    assert fabric.equal_cost_paths("host1", "host3") == ()


def test_disjoint_paths(fabric: Fabric) -> None:
    found = fabric.disjoint_paths("host1", "host3")
    assert len(found) == 2
    assert not set(found[0].nodes[1:-1]) & set(found[1].nodes[1:-1])
    assert len(fabric.without(["spine1"]).disjoint_paths("host1", "host3")) == 1
    assert len(fabric.without(["spine1"]).disjoint_paths("host1", "host3", by="link")) == 2
    assert fabric.disjoint_paths("host1", "host1") == ()
    assert fabric.without(["leaf1", "leaf2"]).disjoint_paths("host1", "host3") == ()


def test_a_trace_becomes_directions(fabric: Fabric) -> None:
    assert fabric.directions_of(["host1", "leaf1", "spine2", "leaf3", "host3"]) == (
        "host1>leaf1",
        "leaf1>spine2",
        "spine2>leaf3",
        "leaf3>host3",
    )
    assert fabric.directions_of(["host1", "leaf1", None, "leaf3", "host3"]) == ("host1>leaf1", "leaf3>host3")
    path = fabric.equal_cost_paths("host1", "host2")[0]
    assert isinstance(path, Path) and fabric.directions_of(path) == path.directions
    with pytest.raises(UnknownElementError, match="no link from 'host1' to 'spine1' in fabric 'leaf-spine'"):
        fabric.directions_of(["host1", "spine1"])
    with pytest.raises(UnknownElementError, match="no link from 'host1' to 'leaf1' by port 'eth2'"):
        fabric.directions_of(["host1", "leaf1"], uplink="eth2")


def test_a_trace_over_parallel_links_may_have_taken_any() -> None:
    host = Node("h", "host", 0)
    fabric = Fabric("twins", [host, *switches("s")], [link("h:eth1", "s:eth1"), link("h:eth2", "s:eth2")])
    assert fabric.directions_of(["h", "s"]) == ("h:eth1>s:eth1", "h:eth2>s:eth2")
    assert fabric.directions_of(["h", "s"], uplink="eth2") == ("h:eth2>s:eth2",)


def test_a_view_hides_and_changes_nothing(fabric: Fabric) -> None:
    view = fabric.without(["leaf1>spine1", "spine2", "host4-leaf4"])
    assert [path.nodes for path in view.equal_cost_paths("host1", "host3")] == [
        ("host1", "leaf2", "spine1", "leaf3", "host3"),
        ("host1", "leaf2", "spine1", "leaf4", "host3"),
    ]
    assert ("host3", "leaf3", "spine1", "leaf1", "host1") in [
        path.nodes for path in view.equal_cost_paths("host3", "host1")
    ], "the other direction of the link stays"
    assert "spine2" not in [node.name for node in view.nodes]
    assert "leaf1-spine1" in [each.id for each in view.links], "half of it is left"
    assert view.expand("leaf1-spine1") == {"spine1>leaf1"}
    assert "host4-leaf4" not in [each.id for each in view.links]
    assert len(fabric.equal_cost_paths("host1", "host3")) == 8 and len(fabric.links) == 16
    again = view.without(["leaf2"])
    assert again.equal_cost_paths("host1", "host3") == ()
    assert len(view.equal_cost_paths("host1", "host3")) == 2
    for ask in (lambda: view.node("spine2"), lambda: view.link("host4-leaf4"), lambda: view.expand("leaf1>spine1")):
        with pytest.raises(UnknownElementError, match=r"it is hidden in this view$"):
            ask()
    assert view.split_link("host4-leaf4") == ("host4", "leaf4"), "names can be told even of what is hidden"


def test_what_an_element_consists_of(fabric: Fabric) -> None:
    assert fabric.expand("host1") == {"host1>leaf1", "leaf1>host1", "host1>leaf2", "leaf2>host1"}
    assert fabric.expand("leaf1-spine1") == {"leaf1>spine1", "spine1>leaf1"}
    assert fabric.expand("spine1>leaf1") == {"spine1>leaf1"}


def test_the_model_imports_no_numpy() -> None:
    code = "import sys, topology.model; sys.exit('numpy' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_that_cannot_be_told_apart_are_refused() -> None:
    ends = [("a:1-b:1", "c:2"), ("a:3", "c:3"), ("a:1", "b:1-c:2"), ("a:4", "b:4")]
    links = [Link(Port(*a.split(":", 1)), Port(*b.split(":", 1))) for a, b in ends]
    with pytest.raises(FabricError, match=r"^two links would both be called 'a:1-b:1-c:2'; rename a node$"):
        Fabric("twins", switches("a", "b", "c"), links)


def test_it_says_what_it_is(fabric: Fabric) -> None:
    assert repr(fabric) == "Fabric('leaf-spine', 10 nodes, 16 links)"
    with pytest.raises(UnknownElementError, match="no link 'leaf1-spine9'"):
        fabric.split_link("leaf1-spine9")
