"""The bytes that give an mlx5 queue pair another UDP source port. No such hardware is here: they are compared with
those that libmlx5 sends, and with the layouts of mlx5_ifc.h written out by hand."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdma import mlx5, uverbs

QPN, HANDLE, PORT = 0xABCDEF, 0x1234, 0xC35A
HEADER_BYTES, ATTRIBUTE_BYTES = 24, 16

LIBMLX5 = {
    "call": "4800 0110 0210 0300 0000000000000000 01000000 00000000",
    "attributes": ("0010 0000 0100 0000 3412000000000000", "0110 d001 0100 0000", "0210 1000 0100 0000"),
    "command": ((0, "05050000"), (8, "00abcdef"), (82, "c35a"), (264, "0000000000000004")),
    "command_bytes": 464,
    "query": "4800 0110 0310 0300 0000000000000000 01000000 00000000",
    "general": "3800 0010 0010 0200 0000000000000000 01000000 00000000",
}
"""What libmlx5 44.0 (Debian's ibverbs-providers 44.0-2) gives to ioctl(2) for `mlx5dv_modify_qp_udp_sport(qp, 0xC35A)`,
qp of handle 0x1234 and number 0xABCDEF: caught by a preloaded ioctl, with a context that was made up for it. The
addresses in the last two attributes are left out; of the command all that is not zero is given, by its place.
`query`, `general`: the headers of its calls for `mlx5dv_devx_qp_query` and `mlx5dv_devx_general_cmd`."""


def field(data: bytes, at: int, bits: int) -> int:
    """As DEVX_GET does: a field of so many bits, counted from the most significant bit of the first byte."""
    return int.from_bytes(data) >> len(data) * 8 - at - bits & (1 << bits) - 1


def put(length: int, *fields: tuple[int, int, int]) -> bytes:
    """The opposite: (bit, bits, value)."""
    whole = 0
    for at, bits, value in fields:
        assert value < 1 << bits
        whole |= value << length * 8 - at - bits
    return whole.to_bytes(length)


# struct mlx5_ifc_rts2rts_qp_in_bits: opcode 16, uid 16, reserved 16, op_mod 16, qpc_ext 1, reserved 7, qpn 24,
# reserved 32, opt_param_mask 32, ece 32, qpc; behind it, from 0x800 on: reserved 64, opt_param_mask_95_32 64.
OPCODE, QPN_AT, QPC = 0, 16 + 16 + 16 + 16 + 1 + 7, 16 + 16 + 16 + 16 + 1 + 7 + 24 + 32 + 32 + 32
MASK = 0x800 + 64
# struct mlx5_ifc_qpc_bits: six words, the last of them reserved 3, log_page_size 5, remote_qpn 24; then
# primary_address_path. state: its first 4 bits, st: 8 from the 8th on.
REMOTE, PATH = QPC + 5 * 32 + 3 + 5, QPC + 6 * 32
# struct mlx5_ifc_ads_bits: four words, rgid_rip 128; reserved 4, f_dscp 1, f_ecn 1, reserved 1, f_eth_prio 1, ecn 2,
# dscp 6, udp_sport 16.
UDP_SPORT = PATH + 4 * 32 + 128 + 4 + 1 + 1 + 1 + 1 + 2 + 6


def test_the_command_is_what_libmlx5_sends() -> None:
    expected = bytearray(LIBMLX5["command_bytes"])
    for at, data in LIBMLX5["command"]:
        expected[at : at + len(data) // 2] = bytes.fromhex(data)
    assert mlx5.encode_set_port(QPN, PORT) == expected


def test_the_call_is_what_libmlx5_makes() -> None:
    given_ = mlx5.attributes(HANDLE, (464, 0x1122), (16, 0x3344))
    call = uverbs.encode_call(1, 0x1002, given_, kind=0x1001)
    assert call[:HEADER_BYTES] == bytes.fromhex(LIBMLX5["call"])
    parts = [call[at : at + ATTRIBUTE_BYTES] for at in range(HEADER_BYTES, len(call), ATTRIBUTE_BYTES)]
    assert len(parts) == 3
    for part, told in zip(parts, LIBMLX5["attributes"], strict=True):
        assert part.startswith(bytes.fromhex(told))
    assert [struct.unpack_from("=Q", part, 8)[0] for part in parts] == [HANDLE, 0x1122, 0x3344]


def test_questions_are_asked_as_libmlx5_asks_them() -> None:
    of_qp = uverbs.encode_call(1, 0x1003, mlx5.attributes(HANDLE, (16, 1), (272, 2)), kind=0x1001)
    assert of_qp[:HEADER_BYTES] == bytes.fromhex(LIBMLX5["query"])
    general = uverbs.encode_call(1, 0x1000, mlx5.attributes(None, (16, 1), (4112, 2)), kind=0x1000)
    assert general[:HEADER_BYTES] == bytes.fromhex(LIBMLX5["general"])
    assert [struct.unpack_from("=HH", general, at) for at in (24, 40)] == [(0x1000, 16), (0x1001, 4112)]


def test_the_fields_lie_where_the_layouts_say() -> None:
    command = mlx5.encode_set_port(QPN, PORT)
    assert (QPC, UDP_SPORT // 8, MASK // 8) == (0xC0, 82, 264)
    assert field(command, OPCODE, 16) == 0x505
    assert field(command, QPN_AT, 24) == QPN
    assert field(command, MASK, 64) == 1 << 2
    assert field(command, UDP_SPORT, 16) == PORT
    assert command == put(464, (OPCODE, 16, 0x505), (QPN_AT, 24, QPN), (MASK, 64, 4), (UDP_SPORT, 16, PORT))


@given(st.integers(0, (1 << 24) - 1), st.integers(1, 0xFFFF))
def test_every_port_arrives_and_nothing_else_changes(qpn: int, port: int) -> None:
    command = mlx5.encode_set_port(qpn, port)
    assert (field(command, QPN_AT, 24), field(command, UDP_SPORT, 16)) == (qpn, port)
    without = bytearray(command)
    without[8:12] = bytes(4)
    without[82:84] = bytes(2)
    rest = bytearray(mlx5.encode_set_port(0, 0xC000))
    rest[82:84] = bytes(2)
    assert without == rest


@pytest.mark.parametrize(("qpn", "port"), [(1 << 24, 0xC000), (-1, 0xC000), (1, 0), (1, 1 << 16)])
def test_what_no_queue_pair_can_have_is_not_encoded(qpn: int, port: int) -> None:
    with pytest.raises(ValueError, match="UDP source port"):
        mlx5.encode_set_port(qpn, port)


def test_the_question_for_a_queue_pair() -> None:
    """struct mlx5_ifc_query_qp_in_bits: opcode 16, uid 16, reserved 16, op_mod 16, reserved 8, qpn 24, reserved 32."""
    assert mlx5.encode_query(QPN) == put(16, (0, 16, 0x50B), (16 + 16 + 16 + 16 + 8, 24, QPN))


@given(st.sampled_from([(0, "RC"), (1, "UC"), (2, ""), (3, ""), (5, "")]), st.integers(0, 15),
       st.integers(0, (1 << 24) - 1), st.integers(0, 0xFFFF))  # fmt: skip
def test_the_answer_about_a_queue_pair(kind: tuple[int, str], state: int, remote: int, port: int) -> None:
    """struct mlx5_ifc_query_qp_out_bits: status 8, reserved 24, syndrome 32, reserved 64, opt_param_mask 32, ece 32,
    qpc: where it lies in the command's input, too."""
    assert QPC == 8 + 24 + 32 + 64 + 32 + 32
    answer = put(272, (QPC, 4, state), (QPC + 8, 8, kind[0]), (REMOTE, 24, remote), (UDP_SPORT, 16, port))
    assert mlx5.decode_query(answer) == mlx5.Context(kind[1], state == 3, remote, port)


def test_whether_the_device_can_do_it() -> None:
    """struct mlx5_ifc_query_hca_cap_out_bits: 128 bits, then cmd_hca_cap, whose word at 0x140 ends with
    log_max_ra_req_qp and is followed by reserved 1 and rts2rts_qp_udp_sport 1."""
    assert mlx5.encode_query_caps() == put(16, (0, 16, 0x100), (48, 16, 1))
    able = 128 + 0x150 + 1
    assert mlx5.decode_can_set_port(put(4112, (able, 1, 1)))
    assert not mlx5.decode_can_set_port(put(4112, (able - 1, 1, 1), (able + 1, 1, 1)))
    assert not mlx5.decode_can_set_port(bytes(4112))


@given(st.integers(0, 0xFFFF))
def test_the_next_port_is_another_one_that_roce_may_use(present: int) -> None:
    port = mlx5.next_port(present)
    assert 0xC000 <= port <= 0xFFFF
    assert port != present
    assert mlx5.next_port(present) == port


def test_one_port_after_another_all_are_used_before_the_first_comes_back() -> None:
    seen, port = [], 0xC000
    while port not in seen[:1]:
        seen.append(port)
        port = mlx5.next_port(port)
    assert sorted(seen) == list(range(0xC000, 0x10000))


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_a_fabric_that_takes_the_lowest_bits_is_led_over_every_way_in_turn(bits: int) -> None:
    port, ways = 0xD123, 1 << bits
    met = set()
    for _ in range(ways):
        met.add(port % ways)
        port = mlx5.next_port(port)
    assert met == set(range(ways))


@pytest.mark.parametrize(("status", "why"), mlx5.STATUS.items())
def test_what_the_device_answers_is_said(status: int, why: str) -> None:
    answer = bytes((status, 0, 0, 0)) + (0x123456).to_bytes(4) + bytes(8)
    said = f"the device refuses: {why} (status {status:#04x}, syndrome 0x00123456)"
    assert mlx5.refusal(errno.EREMOTEIO, answer) == said


def test_an_answer_that_is_in_no_table_is_said_by_its_number() -> None:
    said = mlx5.refusal(errno.EREMOTEIO, b"\x7e" + bytes(15))
    assert said == "the device refuses: for a reason that is not known here (status 0x7e, syndrome 0x00000000)"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EPROTONOSUPPORT, "has no DEVX"),
        (errno.EOPNOTSUPP, "opened without DEVX"),
        (errno.EINVAL, "opened without DEVX, or the handle is another queue pair's"),
        (errno.ETIMEDOUT, "may have done it all the same"),
        (errno.EBUSY, "in a call on this queue pair"),
        (errno.ENODEV, "No such device"),
    ],
)
def test_what_the_kernel_refuses_is_said(code: int, said: str) -> None:
    assert said in mlx5.refusal(code, bytes(16))


def test_a_file_that_is_no_device_of_rdma_refuses_every_call() -> None:
    """The system call itself, made on another device."""
    with open("/dev/zero") as file:
        for ask in (
            lambda fd: mlx5.can_set_port(fd),
            lambda fd: mlx5.query(fd, HANDLE, QPN),
            lambda fd: mlx5.set_port(fd, HANDLE, QPN, PORT),
        ):
            with pytest.raises(mlx5.CommandError, match="Inappropriate ioctl"):
                ask(file.fileno())
