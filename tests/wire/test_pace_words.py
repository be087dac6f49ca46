"""Claims and arrivals as values of a probe."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkpass.wire import pace, probe

us = st.integers(0, 0xFFFFFFFF).map(lambda n: n * 1e-6)
u32 = st.integers(0, 0xFFFFFFFF)
addresses = st.one_of(st.just(""), st.ip_addresses().filter(int).map(str)).filter(lambda text: "::ffff:" not in text)
claims = st.lists(st.builds(pace.Claim, st.sampled_from(pace.KINDS), addresses, u32, u32, us, us), max_size=7)
arrivals = st.lists(
    st.builds(pace.Arrival, u32, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=pace.MOST_ARRIVALS
)


@settings(deadline=None)
@given(claims, arrivals)
def test_a_round_trip_in_a_probe(said: list[pace.Claim], came: list[pace.Arrival]) -> None:
    signer, ends = probe.Signer(b"a key for tests only"), bytes(32)
    values = [(pace.CLAIMS, pace.claims_value(said)), (pace.ARRIVALS, pace.arrivals_value(came))]
    report = probe.Report(1, 2, 3, acks=[9], values=values)
    packet = probe.decode(signer, ends, probe.encode(signer, ends, report, 5, probe.NO_PATH, 1, 0))
    assert isinstance(packet, probe.Probe)
    (_, one), (_, two) = packet.values(pace.CLAIMS, pace.ARRIVALS)
    assert pace.arrivals_of(two) == came
    for sent, read in zip(said, pace.claims_of(one), strict=True):
        assert read[:4] == sent[:4]
        assert read[4:] == pytest.approx(sent[4:], abs=2e-6)
    assert packet.words() == ([], [9])


def test_what_does_not_fit_saturates_and_the_newest_arrivals_stay() -> None:
    (claim,) = pace.claims_of(pace.claims_value([pace.Claim("late", "", 2**40, 1, 1e9, -1.0)]))
    assert (claim.lag_s, claim.period_s) == (pytest.approx(4294.967295), 0.0)
    many = [pace.Arrival(0, step, step) for step in range(30)]
    assert [one.step for one in pace.arrivals_of(pace.arrivals_value(many))] == list(range(18, 30))
    assert len(pace.arrivals_value(many)) <= 255 and len(pace.claims_value([claim] * 9)) <= 255


@given(st.binary(max_size=255))
def test_garbage_is_no_claim_and_no_traceback(data: bytes) -> None:
    assert all(claim.kind in pace.KINDS for claim in pace.claims_of(data))
    pace.arrivals_of(data)
    assert pace.claims_of(b"\x09" + bytes(32)) == []  # a later version's word
