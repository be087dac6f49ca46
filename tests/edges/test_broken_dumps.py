"""A dump that the kernel broke off is not taken for a short table: its errno comes in the message that ends it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from linkpass.edges.kernel.sock import KernelRefusedError, RequestSocket
from linkpass.wire import rtnl

NOBODYS_TABLE = 471_100


@pytest.fixture
def requests() -> Iterator[RequestSocket]:
    made = RequestSocket()
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_dump_that_fails_raises_with_the_kernels_words(requests: RequestSocket, family: int) -> None:
    with pytest.raises(KernelRefusedError, match="FIB table does not exist") as refused:
        requests.dump(rtnl.RTM_GETROUTE, family, table=NOBODYS_TABLE)
    assert refused.value.errno == errno.ENOENT
    assert requests.dump(rtnl.RTM_GETLINK), "the socket goes on"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_table_that_does_not_exist_has_no_routes(requests: RequestSocket, family: int) -> None:
    assert requests.routes(family, table=NOBODYS_TABLE) == []
