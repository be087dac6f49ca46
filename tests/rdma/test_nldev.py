"""The kernel's list of queue pairs, as it is laid out in netlink messages: also where it breaks off."""

from __future__ import annotations

import errno
import socket
import struct
import threading

import pytest

from rdma.netlink import DONE, ERROR, HEADER, encode
from rdma.nldev import Bound, Nldev, RdmaNetlinkError

NLDEV = 5 << 10


def u32(kind: int, value: int) -> bytes:
    return encode(kind, struct.pack("=I", value))


def device(index: int, name: str) -> bytes:
    return u32(1, index) + encode(2, name.encode() + b"\0")


def pair(lqpn: int) -> bytes:
    entry = u32(21, lqpn) + u32(22, 70) + encode(26, b"\x02") + encode(27, b"\x03") + u32(28, 4711) + u32(60, 3)
    return encode(19, encode(20, entry))


class Kernel(Nldev):
    """The other end of its connection answers each question with the next of these: messages, and how they end."""

    def __init__(self, *answers: tuple[list[bytes], int, int]) -> None:
        super().__init__()
        self.asked: list[bytes] = []
        self._socket, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(10.0)
        self._thread = threading.Thread(target=self._answer, args=(answers,))
        self._thread.start()

    def _answer(self, answers: tuple[tuple[list[bytes], int, int], ...]) -> None:
        for told, end, code in answers:
            self.asked.append(self._far.recv(4096))
            _, kind, _, sequence, _ = HEADER.unpack_from(self.asked[-1])
            for body in told:
                self._far.send(HEADER.pack(HEADER.size + len(body), kind, 2, sequence, 0) + body)
            ending = struct.pack("=i", -code) + (bytes(HEADER.size) if end == ERROR else b"")
            self._far.send(HEADER.pack(HEADER.size + len(ending), end, 2, sequence, 0) + ending)

    def close(self) -> None:
        self._thread.join(10)
        self._far.close()
        super().close()


DEVICES = ([device(0, "mlx5_0"), device(1, "mlx5_1")], DONE, 0)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENODEV, errno.ENOENT])
@pytest.mark.parametrize("end", [DONE, ERROR])
def test_a_list_that_breaks_off_is_unknown_and_hides_no_other_device(code: int, end: int) -> None:
    """How a dump fails is told in the message that ends it (netlink_dump_done()), or instead of it."""
    kernel = Kernel(DEVICES, ([pair(17)], end, code), ([pair(18), pair(19)], DONE, 0))
    listing = kernel.listing()
    kernel.close()
    assert [(one.device, one.lqpn, one.pid, one.domain) for one in listing.queue_pairs] == [
        ("mlx5_0", 17, 4711, 3), ("mlx5_1", 18, 4711, 3), ("mlx5_1", 19, 4711, 3),
    ]  # fmt: skip
    assert list(listing.unknown) == ["mlx5_0"]
    assert listing.unknown["mlx5_0"].startswith("the kernel broke off its list of the queue pairs of mlx5_0: ")


def test_devices_that_cannot_be_listed_are_not_none() -> None:
    kernel = Kernel(([device(0, "mlx5_0")], DONE, errno.ENOMEM))
    with pytest.raises(RdmaNetlinkError, match="refused to list its RDMA devices: Cannot allocate memory"):
        kernel.listing()
    kernel.close()


def counter(number: int, pairs: list[int], counted: dict[str, int]) -> bytes:
    """As the kernel lays one out (fill_res_counter_entry(), drivers/infiniband/core/nldev.c), with the empty attribute
    before numbers of 64 bits that some machines need."""
    of = b"".join(
        encode(81, encode(82, name.encode() + b"\0") + encode(0, b"") + encode(83, struct.pack("=Q", value)))
        for name, value in counted.items()
    )
    bound = b"".join(encode(20, u32(21, pair)) for pair in pairs)
    return encode(78, u32(3, 1) + u32(79, number) + u32(74, 2) + encode(19, bound) + encode(80, of))


def test_counters_that_are_bound_to_queue_pairs_are_read() -> None:
    """Numbers of commands and attributes: include/uapi/rdma/rdma_netlink.h."""
    counted = {"packet_seq_err": 2**40 + 3, "local_ack_timeout_err": 1}
    told = [
        device(1, "mlx5_1") + encode(77, counter(5, [18], counted) + counter(6, [19, 20], {"out_of_sequence": 7})),
        device(1, "mlx5_1") + encode(77, counter(9, [], {})),
    ]
    kernel = Kernel(DEVICES, (told, DONE, 0))
    assert kernel.bound("mlx5_1") == [
        Bound("mlx5_1", 1, 5, (18,), counted), Bound("mlx5_1", 1, 6, (19, 20), {"out_of_sequence": 7}),
        Bound("mlx5_1", 1, 9, (), {}),
    ]  # fmt: skip
    kernel.close()
    size, kind, flags, *_ = HEADER.unpack_from(kernel.asked[1])
    assert (size, kind, flags) == (32, NLDEV + 17, 0x301)
    assert kernel.asked[1][HEADER.size :] == u32(1, 1) + u32(75, 19)


@pytest.mark.parametrize("end", [DONE, ERROR])
def test_a_kernel_that_tells_of_no_counters_is_no_kernel_without_any(end: int) -> None:
    kernel = Kernel(DEVICES, ([], end, errno.EINVAL), DEVICES, DEVICES, ([], DONE, 0))
    assert kernel.bound("mlx5_0") is None
    assert kernel.bound("mlx5_9") is None
    assert kernel.bound("mlx5_0") == []
    kernel.close()
