"""Each finding of an explained capture, from packets that scapy made, with its exact values."""

from __future__ import annotations

from pathlib import Path

import pytest
from roce_story import (
    CNP,
    DETH,
    READ,
    READ_FIRST,
    READ_LAST,
    READ_MIDDLE,
    READ_ONLY,
    RETH,
    SEND_FIRST,
    SEND_LAST,
    SEND_MIDDLE,
    UC,
    UD,
    A,
    B,
    C,
    Story,
    packet,
    quiet,
)  # fmt: skip
from scapy.packet import Raw

RNR, SEQUENCE, INVALID, ACCESS, OPERATIONAL = 0x20, 0x60, 0x61, 0x62, 0x63


def test_a_connection_without_trouble(tmp_path: Path) -> None:
    """A message of three packets of 1024, 1024 and 101 bytes, over the wrap of the numbers; one acknowledgement."""
    story = Story().a(0.0, 0xFFFFFE, b"x" * 1024, SEND_FIRST).a(0.001, 0xFFFFFF, b"x" * 1024, SEND_MIDDLE)
    found = story.a(0.002, 0, b"x" * 101, SEND_LAST).b(0.003, 0).explained(tmp_path)
    there, back = found.of(A), found.of(B)
    assert quiet(there) and quiet(back) and found.kinds() == set()
    assert (there["qpn"], there["sender_qpn"], back["qpn"], back["sender_qpn"]) == (0x22, 0x11, 0x11, 0x22)
    assert there["paired_by"] == "acknowledged numbers"
    assert (found.flows[there["reverse"]], there["transport"]) == (back, "RC")
    assert (there["payload_bytes"], there["mtu"], back["payload_bytes"], back["mtu"]) == (2149, 1024, 0, None)
    assert there["operations"] == {"RC SEND first": 1, "RC SEND middle": 1, "RC SEND last": 1}
    assert back["operations"] == {"RC ACK": 1}
    assert found.all["began_s"] == pytest.approx(1_700_000_000) and found.all["lasted_s"] == pytest.approx(0.003)


def test_a_timeout_is_sent_again_and_goes_on(tmp_path: Path) -> None:
    story = Story().a(0.0, 5).b(0.001, 5).a(0.1, 6).a(0.101, 7).a(0.168, 6).a(0.169, 7).a(0.236, 6).a(0.237, 7)
    found = story.b(0.238, 6).b(0.239, 7).a(0.3, 8).b(0.301, 8).explained(tmp_path)
    there = found.of(A)
    assert (there["sent_again"], there["payload_bytes"], there["repeated_bytes"]) == (4, 400, 400)
    assert there["stalls_s"] == [pytest.approx(0.070)]
    assert found.says("sent again") == [(
        0.168, "sent again from PSN 6 on: 4 packets, the first 2 times; 68.0 ms after it was sent before; "
        "no NAK seen: a timeout; progress after 70.0 ms"
    )]  # fmt: skip
    assert there["pause"] == {"at_s": 0.0, "seconds": pytest.approx(0.1), "waited": False}
    assert quiet(there, but=["sent_again"]) and quiet(found.of(B))
    assert any("the first copy passed here" in note for note in found.notes)


def test_what_was_acknowledged_and_still_sent_again(tmp_path: Path) -> None:
    found = Story().a(0.0, 5).b(0.001, 5).a(0.067, 5).b(0.068, 5).explained(tmp_path)
    ((_, says),) = found.says("sent again")
    assert "it had been acknowledged: the answer was lost between here and the sender, or late; progress" in says


def test_a_loss_before_the_point_of_capture(tmp_path: Path) -> None:
    """PSN 6 never passes here at first; the receiver asks for it, and the sender goes back."""
    story = Story().a(0.0, 5).a(0.001, 7).a(0.002, 8).b(0.003, 6, SEQUENCE).a(0.004, 6).a(0.005, 7).a(0.006, 8)
    found = story.b(0.007, 8).explained(tmp_path)
    there = found.of(A)
    assert (there["sent_again_unseen"], there["sent_again"], there["out_of_order"], there["missing"]) == (1, 2, 0, 0)
    assert found.says("missing") == [(0.001, "1 packet not seen (PSN 6); came later")]
    assert found.says("nak") == [(0.003, f"{B} answers with a NAK: PSN 6 was expected, a later one came")]
    ((at_s, says),) = found.says("sent again")
    assert at_s == 0.004 and "3 packets" in says and "asked for by a NAK (PSN sequence error); progress after" in says
    assert found.of(B)["naks"] == {"PSN sequence error": 1}


def test_a_sender_that_goes_back_without_a_nak_in_the_capture(tmp_path: Path) -> None:
    """A late packet after which known ones follow was sent again, not overtaken."""
    found = Story().a(0.0, 5).a(0.001, 7).a(0.07, 6).a(0.071, 7).b(0.08, 7).explained(tmp_path)
    there = found.of(A)
    assert (there["sent_again_unseen"], there["sent_again"], there["out_of_order"]) == (1, 1, 0)


def test_out_of_order_is_not_sent_again(tmp_path: Path) -> None:
    story = Story().a(0.0, 5).a(0.001, 8).a(0.0011, 6).a(0.0012, 7).a(0.002, 9).b(0.003, 9)
    found = story.explained(tmp_path)
    there = found.of(A)
    assert (there["out_of_order"], there["sent_again"], there["sent_again_unseen"], there["missing"]) == (2, 0, 0, 0)
    assert found.says("missing") == [(0.001, "2 packets not seen (PSN 6 to 7); came later")]


@pytest.mark.parametrize(
    ("answer", "says", "answered"),
    [(5, "2 packets not seen (PSN 6 to 7): lost before this point, or not captured", 0),
     (8, "2 packets not seen (PSN 6 to 7): acknowledged, so they arrived and this capture missed them", 2)],
)  # fmt: skip
def test_missing_packets(answer: int, says: str, answered: int, tmp_path: Path) -> None:
    found = Story().a(0.0, 5).a(0.001, 8).b(0.002, answer).explained(tmp_path)
    there = found.of(A)
    assert (there["missing"], there["missing_answered"]) == (2, answered)
    assert found.says("missing") == [(0.001, says)]


@pytest.mark.parametrize(
    ("syndrome", "name", "says"),
    [(RNR | 0, "receiver not ready", "receiver not ready for PSN 5, wait 655.4 ms"),
     (RNR | 1, "receiver not ready", "receiver not ready for PSN 5, wait 10 us"),
     (RNR | 12, "receiver not ready", "receiver not ready for PSN 5, wait 640 us"),
     (RNR | 31, "receiver not ready", "receiver not ready for PSN 5, wait 491.5 ms"),
     (SEQUENCE, "PSN sequence error", "PSN 5 was expected, a later one came"),
     (INVALID, "invalid request", "invalid request at PSN 5: fatal for the connection"),
     (ACCESS, "remote access error", "remote access error at PSN 5: fatal for the connection"),
     (OPERATIONAL, "remote operational error", "remote operational error at PSN 5: fatal for the connection"),
     (0x69, "reserved code 9", "reserved code 9 at PSN 5: fatal for the connection")],
)  # fmt: skip
def test_naks(syndrome: int, name: str, says: str, tmp_path: Path) -> None:
    found = Story().a(0.0, 5).b(0.001, 5, syndrome).explained(tmp_path)
    assert found.of(B)["naks"] == {name: 1} and found.of(A)["naks"] == {}
    assert found.says("nak") == [(0.001, f"{B} answers with a NAK: {says}")]


def test_a_receiver_that_is_not_ready_is_why_it_is_sent_again(tmp_path: Path) -> None:
    found = Story().a(0.0, 5).b(0.001, 5, RNR | 12).a(0.002, 5).b(0.003, 5).explained(tmp_path)
    ((_, says),) = found.says("sent again")
    assert says.endswith("asked for by a NAK (receiver not ready); progress after 1.0 ms")
    assert found.of(B)["rnr_s"] == [pytest.approx(0.00064)]


def test_retries_that_run_out(tmp_path: Path) -> None:
    story = Story().a(0.0, 5).b(0.001, 5).a(0.01, 6)
    for n in range(1, 7):
        story.a(0.01 + n * 0.067, 6)
    story.put(2.0, packet(C, B, 0x99, 0x04, 0, b""))  # others go on
    found = story.explained(tmp_path)
    assert found.of(A)["gave_up"] is True and found.of(A)["stalls_s"] == []
    says = "PSN 6 sent again 6 times without progress, then silence for 1.59 s: as when retries are exhausted"
    assert found.says("gave up") == [(0.412, says)]


def test_a_capture_that_ends_too_early_to_say_so(tmp_path: Path) -> None:
    found = Story().a(0.0, 5).b(0.001, 5).a(0.01, 6).a(0.077, 6).a(0.144, 6).explained(tmp_path)
    assert found.of(A)["gave_up"] is None
    ((_, says),) = found.says("gave up")
    assert says.endswith("too early to say whether it gave up")


def test_congestion_is_told_by_marks_and_by_cnps(tmp_path: Path) -> None:
    story = Story().a(0.0, 5, ecn=2).a(0.001, 6, ecn=3).a(0.002, 7, ecn=3).b(0.003, 7, ecn=2)
    for n in range(3):
        story.put(0.004 + n, packet(B, A, Story.QPN_A, CNP, 0))
    found = story.explained(tmp_path)
    assert (found.of(A)["ce"], found.of(A)["ect"], found.of(A)["cnps"]) == (2, 1, 0)
    assert (found.of(B)["cnps"], found.of(B)["transport"], found.of(B)["missing"]) == (3, "RC", 0)
    assert found.says("congestion") == [(0.001, "a switch marked a packet: congestion (ECN CE)")]
    assert found.says("cnp") == [(0.004, f"{B} tells queue pair 17 of {A} to slow down (CNP)")]
    assert not any("ECN" in note for note in found.notes)


def test_moves_to_another_label_and_port(tmp_path: Path) -> None:
    story = Story().a(0.0, 5, label=0x111).a(0.1, 6, label=0x111).a(1.234, 7, label=0x222)
    found = story.a(2.0, 8, label=0x222, port=50001).b(2.1, 8).explained(tmp_path)
    assert found.says("moved") == [
        (1.234, "moved to flow label 0x222 (before: 0x111)"), (2.0, "moved to UDP source port 50001 (before: 50000)"),
    ]  # fmt: skip
    assert found.of(A)["ways"] == [
        {"at_s": 0.0, "source_port": 50000, "label": 0x111},
        {"at_s": pytest.approx(1.234), "source_port": 50000, "label": 0x222},
        {"at_s": pytest.approx(2.0), "source_port": 50001, "label": 0x222},
    ]


def test_a_wrong_icrc_is_named_and_counts_for_nothing_else(tmp_path: Path) -> None:
    story = Story().a(0.0, 5).a(0.001, 6)
    at_s, data = story.frames[1]
    story.frames[1] = (at_s, data[:-20] + b"?" + data[-19:])
    found = story.a(0.01, 6).b(0.011, 6).explained(tmp_path)
    there = found.of(A)
    assert (there["broken"], there["sent_again"], there["payload_bytes"]) == (1, 0, 200)
    assert found.says("broken") == [
        (0.001, "RC SEND only, PSN 6: wrong ICRC; left out of all else, its receiver drops it")
    ]


def test_a_broken_packet_may_name_any_queue_pair(tmp_path: Path) -> None:
    story = Story().a(0.0, 5)
    _, data = story.frames[0]
    wrong = data[: 14 + 40 + 8 + 5] + b"abc" + data[14 + 40 + 8 + 8 :]
    found = story.put(0.001, wrong).b(0.002, 5).explained(tmp_path)
    assert [(one["qpn"], one["packets"], one["broken"]) for one in found.flows] == [
        (0x22, 1, 0), (0x616263, 0, 1), (0x11, 1, 0),
    ]  # fmt: skip
    assert [one["sender_qpn"] for one in found.flows] == [0x11, None, 0x22]


def test_an_opcode_that_is_nobodys(tmp_path: Path) -> None:
    found = Story().a(0.0, 5).put(0.001, packet(A, B, 0x22, 0xDF, 900, b"?")).a(0.002, 6).explained(tmp_path)
    assert quiet(found.of(A)) and found.of(A)["operations"] == {"RC SEND only": 2, "opcode 0xdf": 1}


def test_packets_that_were_cut_are_not_called_broken(tmp_path: Path) -> None:
    found = Story().a(0.0, 5, b"x" * 1000).a(0.001, 6, b"x" * 1000).b(0.002, 6).explained(tmp_path, snap=96)
    there = found.of(A)
    assert (there["broken"], there["unchecked"], there["payload_bytes"]) == (0, 2, 2000)
    assert any("2 packets were cut off" in note for note in found.notes)


@pytest.mark.parametrize("mtu_first", [True, False])
def test_a_read_takes_the_numbers_of_its_answer(mtu_first: bool, tmp_path: Path) -> None:
    """3000 bytes at an MTU of 1024 are three numbers, whether the MTU is known before the next request or not."""
    answers = [(READ_FIRST, 1024), (READ_MIDDLE, 1024), (READ_LAST, 952)]
    story = Story().a(0.0, 9, RETH(length=3000), READ)
    if not mtu_first:
        story.a(0.0001, 12)
    for n, (opcode, size) in enumerate(answers):
        story.b(0.001 + n / 1000, 9 + n, opcode=opcode, payload=b"y" * size)
    if mtu_first:
        story.a(0.005, 12)
    found = story.b(0.006, 12).explained(tmp_path)
    there, back = found.of(A), found.of(B)
    assert quiet(there) and quiet(back), found.all["findings"]
    assert (there["sender_qpn"], back["payload_bytes"], back["mtu"], there["payload_bytes"]) == (0x11, 3000, 1024, 100)


def test_a_long_answer_does_not_undo_its_pair(tmp_path: Path) -> None:
    """Its numbers go far beyond the request's; the first of its packets tells how far."""
    story = Story().a(0.0, 9, RETH(length=40 * 256), READ)
    for n in range(40):
        opcode = READ_FIRST if n == 0 else READ_LAST if n == 39 else READ_MIDDLE
        story.b(0.001 + n / 1e5, 9 + n, opcode=opcode, payload=b"y" * 256)
    found = story.a(0.1, 49).b(0.101, 49).explained(tmp_path)
    assert quiet(found.of(A)) and quiet(found.of(B)), found.all["findings"]
    assert found.of(A)["sender_qpn"] == 0x11


def test_a_read_that_is_asked_again_from_its_middle(tmp_path: Path) -> None:
    story = Story().a(0.0, 9, RETH(length=3000), READ)
    story.b(0.001, 9, opcode=READ_FIRST, payload=b"y" * 1024).b(0.002, 11, opcode=READ_LAST, payload=b"y" * 952)
    story.a(0.003, 10, RETH(length=1976), READ)
    story.b(0.004, 10, opcode=READ_FIRST, payload=b"y" * 1024).b(0.005, 11, opcode=READ_LAST, payload=b"y" * 952)
    found = story.explained(tmp_path)
    there, back = found.of(A), found.of(B)
    assert (there["sent_again"], there["missing"]) == (1, 0)
    assert (back["sent_again"], back["payload_bytes"], back["missing"]) == (1, 3000, 0)


def test_an_answer_that_is_not_complete(tmp_path: Path) -> None:
    """Between two READs there may be other requests: only what is missing within an answer is missing."""
    story = Story().a(0.0, 9, RETH(length=100), READ).b(0.001, 9, opcode=READ_ONLY, payload=b"y" * 100)
    for psn in range(10, 20):
        story.a(0.002, psn)
    story.b(0.003, 19).a(0.004, 20, RETH(length=3000), READ)
    story.b(0.005, 20, opcode=READ_FIRST, payload=b"y" * 1024).b(0.006, 22, opcode=READ_LAST, payload=b"y" * 952)
    found = story.explained(tmp_path)
    assert (found.of(B)["missing"], found.of(A)["missing"]) == (1, 0)


def test_two_connections_are_paired_by_their_numbers(tmp_path: Path) -> None:
    story = Story()
    for n in range(4):
        story.put(n / 10, packet(A, B, 0x22, 4, 100 + n, b"x")).put(
            n / 10 + 0.01, packet(A, B, 0x44, 4, 9000 + n, b"x")
        )
        story.put(n / 10 + 0.02, packet(B, A, 0x33, 17, 9000 + n)).put(n / 10 + 0.03, packet(B, A, 0x11, 17, 100 + n))
    found = story.explained(tmp_path)
    assert {(one["qpn"], one["sender_qpn"]) for one in found.flows} == {
        (0x22, 0x11), (0x11, 0x22), (0x44, 0x33), (0x33, 0x44),
    }  # fmt: skip


def test_connections_with_the_same_numbers_are_not_guessed(tmp_path: Path) -> None:
    story = Story()
    for n in range(4):
        story.put(n / 10, packet(A, B, 0x22, 4, n, b"x")).put(n / 10 + 0.01, packet(A, B, 0x44, 4, n, b"x"))
        story.put(n / 10 + 0.02, packet(B, A, 0x33, 17, n)).put(n / 10 + 0.03, packet(B, A, 0x11, 17, n))
    found = story.explained(tmp_path)
    assert [one["sender_qpn"] for one in found.flows] == [None] * 4
    assert any("4 of 4 directions without a known other one" in note for note in found.notes)


def test_one_direction_alone(tmp_path: Path) -> None:
    """Answers were not captured: a new packet is all that can tell of progress, and nothing of why."""
    found = Story().a(0.0, 5).a(0.067, 5).a(0.07, 6).explained(tmp_path)
    assert found.of(A)["sender_qpn"] is None
    ((_, says),) = found.says("sent again")
    assert "timeout" not in says and says.endswith(
        "progress after 3.0 ms (a new packet; answers are not in this capture)"
    )


def test_another_connection_of_the_same_numbers(tmp_path: Path) -> None:
    found = Story().a(0.0, 5).b(0.001, 5).a(1.0, 0x800000).b(1.001, 0x800000).explained(tmp_path)
    there = found.of(A)
    assert quiet(there) and there["payload_bytes"] == 200
    ((at_s, says),) = found.says("new connection")
    assert at_s == 1.0 and "PSN jumps to 8388608" in says


def test_unreliable_transports(tmp_path: Path) -> None:
    """UC counts as RC does, without answers. Datagrams (UD) tell their sender's queue pair, each with its numbers."""
    story = Story().a(0.0, 5, opcode=UC | 4).a(0.001, 8, opcode=UC | 4)
    for n in range(3):
        for qpn, psn in ((0x51, n), (0x52, 1000 + n)):
            story.put(0.01 + n / 1000, packet(A, C, 0x77, UD | 4, psn, DETH(qpn=qpn) / Raw(b"z" * 8)))
    found = story.explained(tmp_path)
    connected, one, two = found.flows
    assert (connected["transport"], connected["missing"], connected["sender_qpn"]) == ("UC", 2, None)
    assert (one["transport"], one["sender_qpn"], two["sender_qpn"]) == ("UD", 0x51, 0x52)
    assert quiet(one) and quiet(two) and one["payload_bytes"] == 24


def test_the_same_packet_at_two_points_is_one(tmp_path: Path) -> None:
    """Before and after a switch, 0.2 ms apart; what comes 67 ms later with the same hop limit was sent again."""
    story = Story()
    for n in range(3):
        story.a(n / 10, n).a(n / 10 + 0.0002, n, hops=63)
    found = story.a(0.267, 2).a(0.2672, 2, hops=63).b(0.3, 2).explained(tmp_path)
    there = found.of(A)
    assert (there["packets"], there["copies"], there["sent_again"]) == (4, 4, 1)
    assert any("4 packets seen again elsewhere" in note for note in found.notes)


def test_many_findings_are_counted_not_listed(tmp_path: Path) -> None:
    story = Story()
    for n in range(30):
        story.a(n / 10, n, label=n)
    found = story.explained(tmp_path)
    assert len(found.says("moved")) == 20 and found.all["unnamed"] == 9 and found.of(A)["moves"] == 29
