"""Probes on the wire: round trips, refusals, the replay window."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.wire import probe

ADDRESSES = bytes(range(32))
SIGNER = probe.Signer(b"a key for tests only")

u32 = st.integers(0, 0xFFFFFFFF)
names = st.text(max_size=20)
entries = st.lists(
    st.builds(
        probe.Heard,
        path=st.integers(0, 254),
        last=u32,
        count=u32,
        queueing_s=st.integers(0, 0xFFFF).map(lambda n: n * 1e-5),
        dwell_s=st.integers(0, 10**9).map(lambda n: n * 1e-6),
    ),
    max_size=20,
)
notices = st.lists(
    st.builds(
        probe.WireNotice,
        kind=st.sampled_from(probe.Kind),
        id=u32,
        seq=u32,
        ttl_s=st.integers(0, 10**6).map(lambda n: n / 1e3),
        origin=names,
        link=names,
    ),
    max_size=3,
)


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=300))
def test_the_signer_is_hmac_sha256_cut_to_16_bytes(key: bytes, data: bytes) -> None:
    assert probe.Signer(key).mac(data) == hmac.digest(key, data, "sha256")[:16]


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ValueError, match="empty key"):
        probe.Signer(b"")


@given(
    entries, notices, st.lists(u32, max_size=4), u32, u32, u32, st.integers(0, 254), st.integers(0, 2**64 - 1),
    st.integers(0, 3), st.integers(0, 255), st.integers(0, 900), st.binary(max_size=8),
)  # fmt: skip
def test_round_trip(
    heard: list[probe.Heard], told: list[probe.WireNotice], acks: list[int], boot: int, peer_boot: int, sequence: int,
    path: int, sent_ns: int, flags: int, epoch: int, size: int, padding: bytes,
) -> None:  # fmt: skip
    report = probe.Report(9, peer_boot, epoch, heard, told, acks, size)
    payload = probe.encode(SIGNER, ADDRESSES, report, boot, path, sequence, sent_ns, flags)
    assert size <= len(payload) <= probe.MAX_BYTES
    got = probe.decode(SIGNER, ADDRESSES, payload + padding)
    assert isinstance(got, probe.Probe)
    assert (got.boot, got.report_boot, got.sequence, got.path, got.sent_ns) == (
        boot,
        peer_boot,
        sequence,
        path,
        sent_ns,
    )
    assert (got.flags, got.epoch, got.report_sequence) == (flags, epoch, 9)
    for back, entry in zip(got.report(), heard, strict=True):
        assert (back.path, back.last, back.count) == (entry.path, entry.last, entry.count)
        assert back.queueing_s == pytest.approx(entry.queueing_s, abs=1.1e-5)
        assert back.dwell_s == pytest.approx(entry.dwell_s, abs=1.1e-6)
    words = got.words()
    assert words is not None
    assert words[1] == acks
    for notice, was in zip(words[0], told, strict=True):
        assert (notice.kind, notice.id, notice.seq, notice.origin, notice.link) == (
            was.kind, was.id, was.seq, was.origin, was.link,
        )  # fmt: skip
        assert notice.ttl_s == pytest.approx(was.ttl_s, abs=2e-3)


def one() -> bytes:
    notice = probe.WireNotice(probe.Kind.DRAIN, 5, 7, 2.5, "host1", "leaf1-spine1")
    report = probe.Report(1, 2, 0, [probe.Heard(0, 10, 9)], [notice], [3])
    return probe.encode(SIGNER, ADDRESSES, report, 1, 2, 3, 4)


def test_a_probe_cut_anywhere_is_truncated() -> None:
    for length in range(len(one())):
        assert probe.decode(SIGNER, ADDRESSES, one()[:length]) is probe.Refusal.TRUNCATED


def test_no_bit_can_be_changed() -> None:
    payload = one()
    for bit in range(len(payload) * 8):
        bad = bytearray(payload)
        bad[bit // 8] ^= 1 << bit % 8
        got = probe.decode(SIGNER, ADDRESSES, bytes(bad))
        wanted = {probe.Refusal.BAD_MAC}
        if bit < 8:
            wanted = {probe.Refusal.BAD_VERSION, probe.Refusal.TRACE}
        elif 30 * 8 <= bit < 32 * 8:
            wanted = {probe.Refusal.BAD_MAC, probe.Refusal.TRUNCATED}
        assert got in wanted


def test_another_key_or_other_addresses_are_refused() -> None:
    turned = ADDRESSES[16:] + ADDRESSES[:16]
    assert probe.decode(probe.Signer(b"other"), ADDRESSES, one()) is probe.Refusal.BAD_MAC
    assert probe.decode(SIGNER, turned, one()) is probe.Refusal.BAD_MAC


def test_a_packet_of_a_trace_is_known_as_one() -> None:
    assert probe.decode(SIGNER, ADDRESSES, bytes((probe.TRACE_VERSION,)) + bytes(7)) is probe.Refusal.TRACE
    assert probe.decode(SIGNER, ADDRESSES, bytes((probe.TRACE_VERSION,)) + bytes(99)) is probe.Refusal.TRACE


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_an_error(data: bytes) -> None:
    assert isinstance(probe.decode(SIGNER, ADDRESSES, data), probe.Refusal)
    assert isinstance(probe.decode(SIGNER, ADDRESSES, b"\x01" + data), probe.Refusal)


def signed(entries: int, tlvs: int, body: bytes) -> probe.Probe | probe.Refusal:
    report = probe.Report(1, 2, 0)
    report.body, report.count, report.tlvs = body, entries, tlvs
    return probe.decode(SIGNER, ADDRESSES, probe.encode(SIGNER, ADDRESSES, report, 1, 2, 3, 4))


def test_more_entries_than_there_are_bytes_is_malformed() -> None:
    assert signed(2, 0, bytes(31)) is probe.Refusal.MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x01\x20" + bytes(8),  # longer than what is there
        b"\x01\x03abc",  # a notice that is too short
        b"\x02\x03abc",  # an acknowledgement that is not four bytes
        b"\x01\x0f" + bytes((1,)) + bytes(12) + b"\x01a",  # no link
        b"\x01\x0f" + bytes((99,)) + bytes(14),  # a kind that does not exist
        b"\x01\x10" + bytes((1,)) + bytes(12) + b"\x01\xff\x00",  # not UTF-8
        b"\x01\x10" + bytes((1,)) + bytes(12) + b"\x00\x00\x00",  # more than the names
    ],
)
def test_malformed_words_are_none(body: bytes) -> None:
    got = signed(0, 1, body)
    assert isinstance(got, probe.Probe)
    assert got.words() is None


@given(st.binary(max_size=120), st.integers(0, 255))
def test_any_words_are_parsed_without_an_error(body: bytes, tlvs: int) -> None:
    got = signed(0, tlvs, body)
    assert isinstance(got, probe.Probe)
    got.words()


def test_words_of_a_later_version_are_skipped() -> None:
    got = signed(0, 2, b"\x63\x02hi" + b"\x02\x04\x00\x00\x00\x09")
    assert isinstance(got, probe.Probe)
    assert got.words() == ([], [9])


def test_what_is_too_large_is_an_error_of_the_caller() -> None:
    long = probe.WireNotice(probe.Kind.DRAIN, 1, 1, 1.0, "h" * 200, "l" * 60)
    with pytest.raises(ValueError, match="names too long"):
        probe.notice_bytes(long)
    with pytest.raises(ValueError, match="at most 1200"):
        probe.Report(1, 1, 0, size_bytes=1201)
    with pytest.raises(ValueError, match="at most 1200"):
        probe.Report(1, 1, 0, [probe.Heard(0, 1, 1)] * 61)


@given(st.lists(st.integers(0, 300), max_size=200))
def test_the_replay_window_takes_each_sequence_once_and_nothing_old(sequences: list[int]) -> None:
    window, taken, newest = probe.ReplayWindow(), set[int](), -1
    for sequence in sequences:
        fresh = sequence not in taken and sequence > newest - probe.ReplayWindow.SIZE
        assert window.accept(sequence) == fresh
        if fresh:
            taken.add(sequence)
            newest = max(newest, sequence)
        assert window.newest == newest


gids = st.binary(min_size=16, max_size=16)
one_place = st.builds(probe.RocePlace, gid=gids, qpn=st.integers(0, 2**24 - 1), qkey=u32, asks=st.booleans())
places = st.lists(one_place, max_size=probe.MAX_PLACES)


@given(places, notices, st.lists(u32, max_size=16))
def test_places_travel_beside_other_words(
    told: list[probe.RocePlace], words: list[probe.WireNotice], acks: list[int]
) -> None:
    report = probe.Report(1, 2, 0, (), words, acks, places=told)
    packet = probe.decode(SIGNER, ADDRESSES, probe.encode(SIGNER, ADDRESSES, report, 3, 4, 5, 6))
    assert isinstance(packet, probe.Probe)
    assert packet.places() == told
    read = packet.words()
    assert read is not None
    assert ([word.id for word in read[0]], read[1]) == ([word.id for word in words], acks)
