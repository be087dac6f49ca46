"""A job's TCP timers tuned from outside: another process's sockets, found, borrowed, set and put back."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from two_uplinks import OWN6, PREFIX6, TwoUplinks

from linkpass.edges import tcp_timers
from linkpass.edges.sockets import SocketEdge
from linkpass.edges.tcp_timers import KIND, TCP_RTO_MAX_MS, TCP_RTO_MIN_US, TcpTimerEdge, put_back
from linkpass.edges.undo import UndoJournal

pytestmark = pytest.mark.netns

JOB = """
import array, json, os, socket, sys
address, port, own = sys.argv[1], int(sys.argv[2]), sys.argv[3]
socks = {}
for line in sys.stdin:
    word, *rest = line.split()
    said = None
    if word == "connect":
        for _ in range(int(rest[0])):
            socks[len(socks)] = socket.create_connection((address, port), 5, source_address=(own, 0))
            socks[len(socks) - 1].settimeout(None)
    elif word == "set":
        socks[int(rest[0])].setsockopt(6, int(rest[1]), int(rest[2]))
    elif word == "close":
        socks.pop(int(rest[0])).close()
    elif word == "move":  # to another descriptor
        old = socks[int(rest[0])]
        socks[int(rest[0])] = old.dup()
        old.close()
    elif word == "reuse":  # another socket takes the descriptor
        old = socks[int(rest[0])]
        fd = old.fileno()
        other = socket.create_connection((address, port), 5, source_address=(own, 0))
        other.settimeout(None)
        moved = old.dup()
        os.dup2(other.fileno(), fd)
        other.close()
        socks[int(rest[0])], socks[1000] = moved, old
    elif word == "fork":  # a child keeps the sockets
        said = os.fork()
        if not said:
            for name in (0, 1):
                os.close(name)
            import signal
            signal.pause()
    elif word == "exit":
        print("null", flush=True)
        os._exit(0)
    elif word == "show":
        said = {i: [s.getsockopt(6, 45), s.getsockopt(6, 44), s.getblocking() and os.get_blocking(s.fileno())]
                for i, s in socks.items()}
    print(json.dumps(said), flush=True)
"""


class Job:
    """A process on the host with connections to a peer; it knows nothing of the timers."""

    def __init__(self, two: TwoUplinks, server: socket.socket) -> None:
        address, port = server.getsockname()[:2]
        argv = [sys.executable, "-c", JOB, address, str(port), OWN6]
        with two.on_host():
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, words: str) -> object:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def timers(self) -> dict[int, tuple[int, int]]:
        """Socket -> TCP_RTO_MIN_US and TCP_RTO_MAX_MS; all must still be blocking, as the job made them."""
        shown = self("show")
        assert isinstance(shown, dict) and all(blocking for _, _, blocking in shown.values())
        return {int(number): (low, high) for number, (low, high, _) in shown.items()}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


class Bench:
    """A job, the sockets that the kernel shows of it, a journal."""

    def __init__(self, two: TwoUplinks, server: socket.socket, folder: Path) -> None:
        self.two, self.job = two, Job(two, server)
        self.sockets = SocketEdge(lambda _: None, (PREFIX6,), OWN6, lambda *_: None)
        with two.on_host():
            self.sockets.open()
        self.undo = UndoJournal(folder)
        self.undo.open()

    def edge(self, rto_min_us: int = 5000, rto_max_ms: int = 1000) -> TcpTimerEdge:
        made = TcpTimerEdge(self.undo, rto_min_us, rto_max_ms)
        made.open()
        return made

    def table(self) -> dict[int, int]:
        self.sockets.poll(0.0)
        return self.sockets.sockets()

    def tune(self, edge: TcpTimerEdge, table: Mapping[int, int] | None = None) -> None:
        """Poll until no owner is looked for any more. As in the daemon, in the host's namespace."""
        until_s = time.monotonic() + 30
        with self.two.on_host():
            while edge.poll(self.table() if table is None else table):
                assert time.monotonic() < until_s

    def close(self) -> None:
        self.job.end()
        self.sockets.close()
        self.undo.close()


@pytest.fixture
def bench(two: TwoUplinks, tmp_path: Path) -> Iterator[Bench]:
    with two.server() as server:
        server.listen(100)
        made = Bench(two, server, tmp_path)
        try:
            yield made
        finally:
            made.close()


KERNEL = (200_000, 120_000)


def rounded(rto_min_us: int) -> int:
    """What this kernel makes of a least timeout: whole ticks of its clock."""
    with socket.socket() as sock:
        sock.setsockopt(6, TCP_RTO_MIN_US, rto_min_us)
        return sock.getsockopt(6, TCP_RTO_MIN_US)


def test_tuned_and_put_back(bench: Bench) -> None:
    bench.job("connect 25")
    assert set(bench.job.timers().values()) == {KERNEL}
    edge = bench.edge()
    bench.tune(edge)
    assert set(bench.job.timers().values()) == {(rounded(5000), 1000)}
    assert edge.summary() == tcp_timers.Summary(tuned=25, refused=0)
    assert len(bench.undo.pending(KIND)) == 50
    bench.job("connect 2")
    bench.tune(edge)
    assert edge.summary().tuned == 27
    edge.close()
    assert set(bench.job.timers().values()) == {KERNEL} and bench.undo.pending(KIND) == {}


def test_nothing_of_the_job_is_held(bench: Bench) -> None:
    bench.job("connect 3")
    before = len(os.listdir("/proc/self/fd"))
    edge = bench.edge()
    bench.tune(edge)
    assert len(os.listdir("/proc/self/fd")) == before
    bench.job("close 0")
    assert len(bench.table()) == 2  # the connection ended with its only holder


def test_shorter_timers_of_the_job_stay_and_what_it_sets_later_too(bench: Bench) -> None:
    bench.job("connect 3")
    bench.job(f"set 0 {TCP_RTO_MIN_US} 8000")
    edge = bench.edge(rto_min_us=20_000)
    bench.tune(edge)
    ours = rounded(20_000)
    assert bench.job.timers() == {0: (8000, 1000), 1: (ours, 1000), 2: (ours, 1000)}
    bench.job(f"set 1 {TCP_RTO_MIN_US} 100000")
    edge.close()
    assert bench.job.timers() == {0: (8000, 120_000), 1: (100_000, 120_000), 2: KERNEL}


def test_a_start_puts_back_what_an_earlier_run_left_and_says_how_many(bench: Bench) -> None:
    bench.job("connect 3")
    bench.tune(bench.edge())
    bench.job("close 1")
    assert bench.edge().restore() == 2
    assert set(bench.job.timers().values()) == {KERNEL} and bench.undo.pending(KIND) == {}


def test_namespaces_do_not_take_one_another_s_sockets_back(bench: Bench) -> None:
    bench.job("connect 2")
    edge = bench.edge()
    bench.tune(edge)
    assert edge.poll({}, "another") is False
    assert edge.summary().tuned == 2 and set(bench.job.timers().values()) == {(rounded(5000), 1000)}


def test_a_closed_connection_leaves_the_journal(bench: Bench) -> None:
    bench.job("connect 2")
    edge = bench.edge()
    bench.tune(edge)
    bench.job("close 0")
    bench.tune(edge)
    assert edge.summary().tuned == 1 and len(bench.undo.pending(KIND)) == 2


def test_a_socket_that_is_no_peer_s_any_more_gets_its_own_timers_back(bench: Bench) -> None:
    bench.job("connect 2")
    edge = bench.edge()
    bench.tune(edge)
    bench.tune(edge, table={})
    assert set(bench.job.timers().values()) == {KERNEL} and bench.undo.pending(KIND) == {}


@pytest.mark.parametrize("twist", ["", "move 0", "reuse 0"])
def test_a_killed_daemon_s_changes_are_put_back_by_the_next(bench: Bench, tmp_path: Path, twist: str) -> None:
    bench.job("connect 2")
    table = bench.table()
    folder = tmp_path / "killed"
    code = f"""
import os, signal
from linkpass.edges.tcp_timers import TcpTimerEdge
from linkpass.edges.undo import UndoJournal
undo = UndoJournal({str(folder)!r})
undo.open()
edge = TcpTimerEdge(undo, 5000, 1000)
edge.open()
while edge.poll({table!r}): pass
assert edge.summary().tuned == 2, edge.summary()
os.kill(os.getpid(), signal.SIGKILL)
"""
    with bench.two.on_host():
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    tuned = (rounded(5000), 1000)
    assert set(bench.job.timers().values()) == {tuned}
    if twist:
        bench.job(twist)
    left = UndoJournal(folder)
    left.open()
    assert len(left.pending(KIND)) == 4
    assert left.restore_all({KIND: put_back}) == []
    assert left.pending(KIND) == {}
    left.close()
    assert set(bench.job.timers().values()) == {KERNEL}


def test_a_socket_that_was_passed_on_is_found_again(bench: Bench) -> None:
    bench.job("connect 1")
    edge = bench.edge()
    bench.tune(edge)
    child = bench.job("fork")
    assert isinstance(child, int)
    try:
        bench.job("exit")
        bench.job.process.wait()
        (inode,) = bench.table()
        edge.close()
        assert bench.undo.pending(KIND) == {}
        assert options_of(child, inode) == KERNEL
    finally:
        os.kill(child, signal.SIGKILL)


def options_of(pid: int, inode: int) -> tuple[int, int]:
    """The timers of another process's socket, read from outside."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]":
            started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            holder = tcp_timers.Holder(pid, started, int(name))
            cookie = tcp_timers._cookie_of
            process = os.pidfd_open(pid)
            fd = tcp_timers._libc().syscall(438, process, holder.fd, 0)
            os.close(process)
            assert cookie(fd)
            with socket.socket(fileno=fd) as sock:
                return sock.getsockopt(6, TCP_RTO_MIN_US), sock.getsockopt(6, TCP_RTO_MAX_MS)
    raise AssertionError("the child has no such socket")


def test_a_dead_job_s_changes_end_with_it(bench: Bench) -> None:
    bench.job("connect 2")
    edge = bench.edge()
    bench.tune(edge)
    bench.job.process.kill()
    bench.job.process.wait()
    assert edge.restore() == 0 and bench.undo.pending(KIND) == {}


def test_another_socket_with_the_same_inode_is_not_touched(bench: Bench) -> None:
    """Numbers of inodes come round; the cookie does not."""
    bench.job("connect 1")
    ((inode, cookie),) = bench.table().items()
    edge = bench.edge()
    bench.tune(edge, table={inode: cookie + 1})
    assert set(bench.job.timers().values()) == {KERNEL}
    assert edge.summary().tuned == 0 and bench.undo.pending(KIND) == {}


def test_a_value_below_the_kernel_s_least_becomes_that(bench: Bench) -> None:
    bench.job("connect 1")
    edge = bench.edge(rto_min_us=1)
    bench.tune(edge)
    ((least, _),) = bench.job.timers().values()
    assert 1000 <= least <= 20_000 and edge.summary().why == ""


def test_without_an_owner_it_is_refused_and_not_sought_again(bench: Bench) -> None:
    edge = bench.edge()
    bench.tune(edge, table={2**40: 1})
    assert edge.summary() == tcp_timers.Summary(
        0, 1, "its owner is not found (in another PID namespace, or not ours to look at)"
    )
    assert edge.poll({2**40: 1}) is False
    bench.tune(edge, table={})
    assert edge.summary().refused == 0


def test_a_journal_that_cannot_be_written_means_no_change(bench: Bench) -> None:
    class Full:
        def note(self, kind: str, changes: Sequence[tcp_timers.Plain], *, sync: bool = True) -> list[int]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def done(self, numbers: Sequence[int]) -> None: ...

        def pending(self, kind: str) -> dict[int, tcp_timers.Plain]:
            return {}

    bench.job("connect 1")
    edge = TcpTimerEdge(Full(), 5000, 1000)
    edge.open()
    bench.tune(edge)
    assert set(bench.job.timers().values()) == {KERNEL}
    assert edge.summary().refused == 1 and "No space" in edge.summary().why


def test_without_the_right_to_borrow_it_says_so(bench: Bench) -> None:
    bench.job("connect 1")
    table = bench.table()
    code = f"""
import os
from linkpass.edges.tcp_timers import TcpTimerEdge, put_back, _descriptors
(found,) = [f[1] for f in _descriptors(set(), []) if f and f[0] in {table!r}]
(inode, cookie), = {table!r}.items()
class Undo:
    def note(self, kind, changes, *, sync=True): return []
    def done(self, numbers): pass
    def pending(self, kind): return {{}}
os.setgid(65534); os.setuid(65534)
edge = TcpTimerEdge(Undo(), 5000, 1000)
edge.open()
edge.poll({{}})
edge._tune(edge._spaces[''], inode, cookie, found)
print(edge.summary())
change = {{"pid": found.pid, "started": found.started, "fd": found.fd, "inode": inode, "cookie": cookie,
          "option": 45, "old": 200000, "new": 5000}}
print(put_back([change, change | {{"pid": 2**22 + 1}}]))
"""
    with bench.two.on_host():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CAP_SYS_PTRACE" in done.stdout and "refused=1" in done.stdout
    assert done.stdout.endswith("[False, False]\n")  # not permitted; gone, or only out of our sight
    assert set(bench.job.timers().values()) == {KERNEL}


def test_an_option_that_the_kernel_lacks_is_named_with_a_way_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_timers, "TCP_RTO_MIN_US", 4545)
    monkeypatch.setattr(tcp_timers, "TCP_RTO_MAX_MS", 4444)
    monkeypatch.setattr(tcp_timers, "_NAMES", {4545: "TCP_RTO_MIN_US", 4444: "TCP_RTO_MAX_MS"})
    edge = bench.edge()
    assert "no TCP_RTO_M" in edge.summary().why and "routes.rto_min_ms" in edge.summary().why
    bench.job("connect 1")
    assert edge.poll(bench.table()) is False
    assert set(bench.job.timers().values()) == {KERNEL}
