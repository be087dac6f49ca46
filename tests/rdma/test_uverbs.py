"""The bytes of the uverbs ioctl, against the C layouts written out by hand."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from rdma import uverbs
from rdma.uverbs import Address

ADDRESS = Address("fd00:ff::2", 3, flow_label=0x12345, hop_limit=9, traffic_class=106, sl=2, dlid=7, port=2)


def test_an_address_is_32_bytes_in_the_order_of_the_struct() -> None:
    """struct ib_uverbs_qp_dest: dgid[16], flow_label, dlid, reserved, then eight single bytes."""
    data = ADDRESS.encode()
    assert data[:16] == bytes.fromhex("fd0000ff000000000000000000000002")
    assert struct.unpack_from("=IHH", data, 16) == (0x12345, 7, 0)
    assert list(data[24:]) == [3, 9, 106, 2, 0, 0, 1, 2]
    assert Address.decode(data) == ADDRESS


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**20 - 1), st.integers(0, 255))
def test_addresses_come_back(gid: bytes, label: int, index: int) -> None:
    import ipaddress

    one = Address.decode(Address(str(ipaddress.IPv6Address(gid)), index, flow_label=label).encode())
    assert ipaddress.IPv6Address(one.gid).packed == gid
    assert (one.flow_label, one.sgid_index) == (label, index)


def test_a_change_sets_what_is_given_and_its_mask_alone() -> None:
    """struct ib_uverbs_modify_qp, 112 bytes: the handle at 64, the mask at 68, the state at 96, min_rnr_timer at 103"""
    nothing = uverbs.encode_modify(5)
    assert len(nothing) == 112
    assert struct.unpack_from("=II", nothing, 64) == (5, 0)
    assert not any(nothing[:64] + nothing[72:])
    drained = uverbs.encode_modify(5, "SQD")
    assert struct.unpack_from("=II", drained, 64) == (5, 1)
    assert drained[96] == 4
    moved = uverbs.encode_modify(5, "SQD", ADDRESS)
    assert struct.unpack_from("=II", moved, 64) == (5, 1 | 1 << 7)
    assert moved[:32] == ADDRESS.encode()
    slower = uverbs.encode_modify(5, min_rnr_timer=20)
    assert struct.unpack_from("=II", slower, 64) == (5, 1 << 15)
    assert slower[103] == 20


def test_an_answer_is_read_by_its_offsets() -> None:
    """struct ib_uverbs_query_qp_resp: 128 bytes, sq_psn at 92, dest_qp_num at 96, the state at 108."""
    answer = bytearray(128)
    answer[:32] = ADDRESS.encode()
    struct.pack_into("=III", answer, 88, 11, 22, 33)
    for offset, value in ((108, 3), (110, 3), (112, 1), (115, 12), (116, 1), (117, 14), (118, 6), (119, 7)):
        answer[offset] = value
    assert uverbs.decode_query(bytes(answer)) == uverbs.Queried(
        to=ADDRESS, dest_qpn=33, sq_psn=22, rq_psn=11, state="RTS", path_mtu=1024, sq_draining=True, min_rnr_timer=12,
        port=1, timeout=14, retry_count=6, rnr_retry=7,
    )  # fmt: skip


def test_a_call_is_a_header_and_its_attributes() -> None:
    """struct ib_uverbs_ioctl_hdr, 24 bytes; struct ib_uverbs_attr, 16 bytes each."""
    call = uverbs.encode_call(14, 0, [(2, 8, 25), (0, 16, 0x1122334455667788)])
    assert struct.unpack_from("=HHHHQII", call) == (24 + 32, 0, 0, 2, 0, 14, 0)
    assert struct.unpack_from("=HHHHQ", call, 24) == (2, 8, 1, 0, 25)
    assert struct.unpack_from("=HHHHQ", call, 40) == (0, 16, 1, 0, 0x1122334455667788)
    assert uverbs.IOCTL == 0xC0181B01
