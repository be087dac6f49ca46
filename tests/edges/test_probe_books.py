"""The books of a peer and the packet limits, without a socket: which probes count as lost, and which do not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkpass.core.settings import CoreSettings, Detection
from linkpass.core.survey import stretch
from linkpass.edges.probes.books import Books
from linkpass.edges.probes.budget import Bucket
from linkpass.edges.probes.hearing import DRAINS, Listener
from linkpass.edges.probes.paths import RING, HeardPath, SentPath
from linkpass.edges.probes.peers import LARGE_TOLD, Peer
from linkpass.wire import probe

SETTINGS = Detection(grace_s=0.0)


def path_with(sent: int, interval_s: float = 0.01) -> SentPath:
    """Probes 1..sent at interval_s, 2 ms * k after 0; nothing reported yet."""
    path = SentPath("eth1", 1, 0, 0, SETTINGS, 0.0)
    path.interval_s = interval_s
    for number in range(1, sent + 1):
        path.record(number * interval_s)
    return path


def heard(path: SentPath, last: int, count: int, at_s: float) -> tuple[int, int, int]:
    path.step_sent = path.step_lost = 0
    late = path.take(last, count, 0.0, 0.0, at_s)
    return path.step_sent, path.step_lost, late


def test_the_first_entry_is_the_base_and_the_next_ones_settle() -> None:
    path = path_with(20)
    assert heard(path, 5, 3, 0.051) == (1, 0, 0)
    assert heard(path, 10, 7, 0.101) == (5, 1, 0)
    assert heard(path, 10, 8, 0.101) == (0, 0, 1)  # one came out of order
    assert heard(path, 12, 11, 0.121) == (2, 0, 1)
    assert path.lost == 0
    assert heard(path, 9, 99, 0.2) == (0, 0, 0)  # older than what is known
    assert heard(path, 21, 99, 0.2) == (0, 0, 0)  # newer than what was sent
    assert path.rtt_s == pytest.approx(0.001)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.data())
def test_losses_add_up_whatever_reports_are_made_of_them(arrived: list[bool], data: st.DataObject) -> None:
    path = path_with(0)
    count = last = 0
    lost = settled = 0
    base: int | None = None
    for number, arrives in enumerate([True, *arrived], 1):
        path.record(number * 0.01)
        if arrives:
            count, last = count + 1, number
        if number == 1 or data.draw(st.booleans()):
            sent, missed, late = heard(path, last, count, number * 0.01 + 0.001)
            assert late == 0
            base = last if base is None else base
            settled, lost = settled + sent, lost + missed
    assert lost == path.lost
    assert settled == path.settled
    wanted = [True, *arrived][base : path.acked] if base else []
    assert lost == wanted.count(False)


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_clocks_of_different_rates_are_no_queue(drift: float) -> None:
    """The peer's clock against ours: 0.1 ms a second apart, which is 6 ms within the span of a floor."""
    path, theirs = path_with(0), HeardPath()
    late = 0
    for number in range(1, 12_001):
        at_s = number * 0.01
        path.record(at_s)
        theirs.hear(at_s + 0.0005, (at_s + 0.0005) * (1 + drift) - at_s)
        path.step_queueing_s = None
        path.take(number, number, theirs.queueing_s, 0.0, at_s + 0.001)
        assert path.step_queueing_s is not None
        late += path.step_queueing_s > SETTINGS.queueing_s
    assert late == 0


def test_a_queue_on_the_way_there_is_seen_by_both_clocks() -> None:
    path, theirs = path_with(0), HeardPath()
    for number in range(1, 200):
        at_s, more_s = number * 0.01, 0.02 if number > 100 else 0.0
        path.record(at_s)
        theirs.hear(at_s + 0.0005 + more_s, 0.0005 + more_s)
        path.take(number, number, theirs.queueing_s, 0.0, at_s + 0.001 + more_s)
    assert path.queueing_s == pytest.approx(0.02, rel=0.01)


def test_overdue_needs_time_a_witness_and_a_whole_interval() -> None:
    path = path_with(5)
    heard(path, 5, 5, 0.051)  # round trip 1 ms: overdue after 3 ms
    assert path.overdue(9.0, 9.0, 3) == 0
    for at_s in (0.06, 0.07):
        path.record(at_s)
    assert path.overdue(0.062, 9.0, 3) == 0
    assert path.overdue(0.064, 9.0, 3) == 1
    assert path.overdue(0.074, 9.0, 3) == 2
    assert path.overdue(0.074, 0.065, 3) == 1  # of the second nobody knows
    path.record(0.0725)
    assert path.overdue(0.1, 0.0725, 3) == 3
    assert path.overdue(0.1, 0.07, 3) == 2
    close = path_with(5)
    heard(close, 5, 5, 0.051)
    for at_s in (0.06, 0.0625, 0.065):
        close.record(at_s)
    assert close.overdue(0.1, 9.0, 3) == 2  # three in half an interval may be one hiccup
    close.record(0.07)
    assert close.overdue(0.1, 9.0, 3) == 3


def test_without_a_witness_it_takes_twice_as_many() -> None:
    path = path_with(5)
    heard(path, 5, 5, 0.051)
    for number in range(6, 11):
        path.record(number * 0.01)
    assert path.overdue(9.0, -math.inf, 3) == 0
    path.record(0.11)
    assert path.overdue(9.0, -math.inf, 3) == 3


def test_a_path_dead_for_longer_than_the_ring_is_still_dead() -> None:
    path = path_with(3)
    heard(path, 3, 3, 0.031)
    for number in range(4, 2 * RING):
        path.record(number * 0.01)
    assert path.overdue(99.0, 99.0, 3) == 3
    assert path.sent_at(3) == -math.inf


def test_a_report_held_up_on_its_way_is_old_news() -> None:
    """The report says nothing of probes sent after it was made, however late it comes."""
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    paths = [peer.add_path("eth1", label, SETTINGS, 0.0) for label in (1, 2)]
    for path in paths:
        path.interval_s = 0.01
    for number in range(1, 60):
        for path in paths:
            path.record(number * 0.01)
    peer.clock.add(0.0, -5.0)  # their clock is 5 s ahead

    def report(sequence: int, made_s: float, received_s: float, lasts: tuple[int, int]) -> list[int]:
        entries = [probe.Heard(path.index, last, last) for path, last in zip(paths, lasts, strict=True)]
        body = probe.Report(sequence, 1, 0, entries)
        sent_ns = int((made_s + 5.0) * 1e9)
        signer = probe.Signer(b"k")
        packet = probe.decode(signer, b"", probe.encode(signer, b"", body, 9, 0, sequence, sent_ns))
        assert isinstance(packet, probe.Probe)
        peer.take_report(packet, received_s, SETTINGS)
        return [path.missing for path in paths]

    report(1, 0.101, 0.101, (10, 10))
    assert report(2, 0.151, 0.59, (15, 15)) == [0, 0]
    assert report(3, 0.251, 0.59, (25, 15)) == [0, 3]


def test_the_reports_of_many_paths_are_of_those_heard_last() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    for index in range(100):
        heard_path = peer.heard[index] = HeardPath()
        heard_path.window.accept(1)
        heard_path.hear(float(index) / 10, 3.0)
    peer.heard[probe.NO_PATH] = HeardPath()
    report = probe.Report(1, 1, 0, peer.report_entries(10.0))
    assert report.count == probe.MAX_REPORT
    assert sorted(report.body[::16]) == list(range(40, 100))
    assert peer.report_entries(100.0) == []


def test_queueing_in_a_report_saturates() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    heard_path = peer.heard[3] = HeardPath()
    heard_path.window.accept(1)
    heard_path.hear(1.0, 0.0)
    heard_path.hear(2.0, 99.0)
    (entry,) = peer.report_entries(1.5)  # asked before the receive time: no time has passed
    assert entry == probe.raw_entry(3, 0, 0xFFFF, 1, 2, 0)


def test_numbers_of_paths_come_round_and_go_on_counting() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    first = peer.add_path("eth1", 0, SETTINGS, 0.0)
    first.record(1.0)
    kept = peer.add_path("eth1", 1, SETTINGS, 0.0)
    peer.drop_path(first)
    seen = set()
    for label in range(2, 300):
        path = peer.add_path("eth1", label, SETTINGS, 0.0)
        assert path.index not in (kept.index, probe.NO_PATH)
        if path.index == first.index:
            assert path.seq == 1
        seen.add(path.index)
        peer.drop_path(path)
    assert len(seen) == 254


def test_a_new_run_of_the_peer_and_an_overflow_count_anew() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    path = peer.add_path("eth1", 1, SETTINGS, 0.0)
    peer.adopt(5, 0)
    assert list(peer.retired) == []
    for number in range(1, 11):
        path.record(number * 0.01)
    heard(path, 4, 4, 0.041)
    peer.adopt(6, 3)
    assert list(peer.retired) == [5]
    assert heard(path, 10, 1, 0.2) == (0, 0, 0)
    path.record(0.2)
    assert heard(path, 11, 1, 0.201) == (1, 0, 0)
    peer.count_anew(4)
    path.record(0.21)
    assert heard(path, 12, 500, 0.211) == (1, 0, 0)


# large probes beside
def test_a_twin_speaks_for_its_path_only_when_it_alone_fails() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    path = peer.add_path("eth1", 1, SETTINGS, 0.0)
    twin = peer.add_twin(path, SETTINGS, 0.0)
    twin.size_bytes = 9000
    for detector in (path.detector, twin.detector):
        detector.update(0.1, 1, 0, 0, None)
    assert path.opinion().evidence == "good"
    twin.detector.update(1.0, 0, 0, 3, None)
    assert path.opinion().evidence == "blackhole"
    assert path.opinion().why.startswith("large packets (9000 bytes), small ones get through")
    assert path.loss_ratio == 1.0
    path.detector.update(1.0, 0, 0, 3, None)
    assert not path.opinion().why.startswith("large")
    peer.drop_path(path)
    assert (peer.paths, peer.twins, peer.by_key, path.twin) == ({}, {}, {}, None)


def test_a_run_of_large_losses_is_told_by_the_beat_of_the_small_ones() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    path = peer.add_path("eth1", 1, SETTINGS, 0.0)
    twin = peer.add_twin(path, SETTINGS, 0.0)
    path.interval_s, twin.interval_s = 0.01, 0.2
    twin.record(0.2)
    heard(twin, 1, 1, 0.201)
    for at_s in (0.4, 0.405, 0.41):
        twin.record(at_s)
    assert twin.overdue(0.5, 9.0, 3) == 3
    assert twin.nothing_due(0.401)
    assert not twin.nothing_due(0.5)


def test_rare_large_probes_are_reported_a_few_times_each() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    for index, is_large in ((1, False), (2, True)):
        one = peer.heard[index] = HeardPath()
        one.window.accept(1)
        one.large, one.tell = is_large, LARGE_TOLD * is_large
        one.hear(1.0, 0.001)
    for _ in range(LARGE_TOLD):
        assert [entry[0] for entry in peer.report_entries(9.0)] == [1, 2]  # however late: the daemon may have slept
    assert [entry[0] for entry in peer.report_entries(9.0)] == [1]


def test_a_report_without_news_of_large_probes_is_read_quietly() -> None:
    peer = Peer("fd00::2", b"b" * 16, b"a" * 16)
    path = peer.add_path("eth1", 1, SETTINGS, 0.0)
    twin = peer.add_twin(path, SETTINGS, 0.0)
    peer.clock.add(0.0, 0.0)
    signer = probe.Signer(b"k")

    def report(made_s: float, **lasts: int) -> list[SentPath]:
        known = {"small": path, "large": twin}
        entries = [probe.Heard(known[name].index, last, last) for name, last in lasts.items()]
        sent = probe.encode(signer, b"", probe.Report(1, 1, 0, entries), 9, 0, 1, int(made_s * 1e9))
        packet = probe.decode(signer, b"", sent)
        assert isinstance(packet, probe.Probe)
        return peer.take_report(packet, made_s, SETTINGS)[0]

    for number in range(1, 101):
        path.record(number * 0.01)
        if number % 20 == 0:
            twin.record(number * 0.01)
    assert report(0.2001, small=20, large=1) == [path, twin]  # the base
    for one in (path, twin):
        for at_s in (0.1, 0.2):
            one.detector.update(at_s, 1, 0, 0, 0.0)
        assert one.detector.calm
    assert report(0.2101, small=21, large=1) == []
    assert report(0.3001, small=30) == []
    assert report(0.4001, small=40, large=2) == []
    assert (twin.settled, twin.lost) == (2, 0)
    assert report(0.65, small=65) == [path, twin] or twin.missing == 1
    assert twin.missing == 1


# limits
def test_a_bucket_saves_a_tenth_of_a_second_and_forgets_debt_soon() -> None:
    bucket = Bucket(100)
    assert bucket.take(10.0, 10)
    assert not bucket.take(10.0, 1)
    assert bucket.take(10.05, 5)
    bucket.spend(10.05, 1000)
    assert not bucket.take(10.1, 1)
    assert bucket.take(10.3, 10)


@given(
    st.lists(st.tuples(st.sampled_from(["eth1", "eth2"]), st.sampled_from([0.005, 0.01, 1.0])), max_size=60),
    st.integers(10, 5000), st.integers(10, 5000),
)  # fmt: skip
def test_stretched_intervals_keep_both_limits(targets: list[tuple[str, float]], host: int, link: int) -> None:
    factor = stretch(targets, host, link)
    assert factor >= 1
    for name in ("eth1", "eth2"):
        assert sum(1 / (i * factor) for u, i in targets if u == name) <= link
    assert sum(1 / (i * factor) for _, i in targets) <= host
    if factor > 1:
        total = sum(1 / i for _, i in targets)
        worst = max(sum(1 / i for u, i in targets if u == name) for name in ("eth1", "eth2"))
        assert total > 0.94 * host or worst > 0.94 * link


def came(books: Books, peer: Peer, sent_ns: int, *numbers: int) -> None:
    """Probes of one batch of the peer's, on these paths."""
    for number in numbers:
        peer.heard.setdefault(number, HeardPath()).batch_ns = sent_ns
    if sent_ns > peer.batch_ns:
        peer.before_ns, peer.batch_ns = peer.batch_ns, sent_ns
    books.owed.add(peer)


def test_who_was_heard_over_some_of_its_paths_only_is_told_at_once_and_once() -> None:
    books = Books(CoreSettings(host="h1", address="fd00::1"))
    peer = books.peer(b"b" * 16)
    listener = Listener(books, probe.Signer(b"0123456789abcdef"), lambda event: None, lambda: 0.0)

    def told() -> bool:
        peer.asked = False
        listener.note_gaps()
        return peer.asked

    came(books, peer, 100, 1, 2, 3, 4)
    assert not told()  # the first batch: nothing is missed yet
    came(books, peer, 150, 1, 2)
    assert not told()  # the others may be under way
    came(books, peer, 150, 4)
    assert told() and not told()
    came(books, peer, 200, 1, 2, 4)
    assert not told()  # a path that stays dead is in its reports
    peer.heard[3].large = True
    came(books, peer, 250, 1, 2, 3, 4)
    came(books, peer, 300, 1, 2, 4)
    assert not told()  # large probes are in few batches


def test_a_path_is_suspected_for_a_loss_but_for_an_overdue_probe_only_until_it_has_come() -> None:
    books = Books(CoreSettings(host="h1", address="fd00::1"))
    peer = books.peer(b"b" * 16)
    path = peer.add_path("eth1", 1, SETTINGS, 0.0)
    path.interval_s = 0.01
    listener = Listener(books, probe.Signer(b"0123456789abcdef"), lambda event: None, lambda: 0.0)

    def suspected(now_s: float, lost: int, missing: int) -> bool:
        listener._suspect(peer, path, "good", lost, missing, now_s)
        return path.suspect_until_s > now_s

    assert suspected(1.00, 0, 1) and suspected(1.01, 0, 2)
    assert not suspected(1.02, 0, 0)  # it has come
    assert suspected(2.00, 0, 1) and suspected(2.01, 1, 0)
    assert suspected(2.02, 0, 1) and suspected(2.03, 0, 0)  # one was lost: what comes late now acquits nobody
    assert not suspected(3.00, 0, 0)
    assert suspected(4.00, 0, 1) and not suspected(4.01, 0, 0)
    path.interval_s = 0.05
    assert suspected(5.00, 1, 0) and suspected(6.4, 0, 0)  # fewer probes take longer to acquit it
    assert not suspected(6.6, 0, 0)


def test_one_long_delay_is_no_reason_to_wait_for_what_leaves_after_it() -> None:
    """A pause of a host; a queue is long twice in a row."""
    margins = []
    path = path_with(5)
    for number, held_s in enumerate((0.001, 0.1, 0.001, 0.1, 0.1), 1):
        path.take(number, number, held_s, 0.0, number * 0.01 + 0.002 + held_s)
        margins.append(path.margin_s)
    assert max(margins[:4]) < 0.01 < 0.1 < margins[4]


@pytest.mark.parametrize("interval_s", [0.01, 0.05, 1.0])
def test_a_run_of_losses_lasts_longer_than_a_hiccup_however_rare_the_probes(interval_s: float) -> None:
    """Extra probes after the first loss: three within a few milliseconds are no run, over HICCUP_S they are."""
    for gap_s, found in ((0.002, 2), (0.01, 3)):
        path = path_with(1, interval_s)
        heard(path, 1, 1, 0.001)
        for number in range(1, 4):
            path.record(10.0 + number * gap_s)
        assert path.overdue(11.0, 12.0, 3) == found


class _Ring:
    """An empty ring; reading it takes the times given, in turn (a daemon that is stopped meanwhile), then none."""

    def __init__(self, clock: list[float], takes_s: list[float]) -> None:
        self.clock, self.takes_s, self.reads = clock, takes_s, 0

    def drain(self, into: list[object]) -> bool:
        self.clock[0] += self.takes_s[self.reads] if self.reads < len(self.takes_s) else 0.0
        self.reads += 1
        return False


@pytest.mark.parametrize(
    ("takes_s", "reads", "anew"), [([], 1, False), ([3.0], 2, False), ([3.0] * DRAINS, DRAINS, True)]
)
def test_a_daemon_stopped_between_two_rings_reports_one_moment_or_counts_anew(
    takes_s: list[float], reads: int, anew: bool
) -> None:
    clock = [100.0]
    books = Books(CoreSettings(host="h1", address="fd00::1"))
    first, second = _Ring(clock, []), _Ring(clock, takes_s)
    books.ports = {"eth1": first, "eth2": second}  # type: ignore[dict-item]
    before = books.epoch
    Listener(books, probe.Signer(b"0123456789abcdef"), lambda event: None, lambda: clock[0]).drain()
    assert (first.reads, second.reads) == (reads, reads)
    assert (books.epoch != before) is anew


@pytest.mark.parametrize(("stopped_s", "reads"), [(0.0, 1), (0.001, 1), (0.07, 2), (3.0, 2)])
def test_a_daemon_stopped_between_reading_and_reporting_reads_again(stopped_s: float, reads: int) -> None:
    """What lies in the rings by then was heard at the time of the report: its peers would miss it on all paths."""
    clock = [100.0]
    books = Books(CoreSettings(host="h1", address="fd00::1"))
    ring = _Ring(clock, [])
    books.ports = {"eth1": ring}  # type: ignore[dict-item]
    listener = Listener(books, probe.Signer(b"0123456789abcdef"), lambda event: None, lambda: clock[0])
    listener.drain()
    clock[0] += stopped_s
    assert listener.fresh() == clock[0]
    assert ring.reads == reads
