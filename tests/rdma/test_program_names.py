"""Names of programs are bytes: the kernel cuts them in the midst of a letter, and a program may give itself any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkpass.config.checking import _networkd_here
from linkpass.edges.kernel.remover import Removers
from rdma.program import program, thread_group

NAMED = """
import socket, sys, threading
listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
listener.bind((0, 0))
with open("/proc/self/comm", "wb") as name:
    name.write("vier Ringkampfö".encode())  # 15 bytes end within the umlaut
def wait():
    print(threading.get_native_id(), listener.getsockname()[0], flush=True)
    sys.stdin.read()
threading.Thread(target=wait).start()
"""


@pytest.fixture
def named() -> Iterator[subprocess.Popen[str]]:
    """A process whose name is no UTF-8."""
    with subprocess.Popen([sys.executable, "-c", NAMED], stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


def test_a_name_that_is_no_text_is_shown(named: subprocess.Popen[str]) -> None:
    assert named.stdout is not None
    thread, port = map(int, named.stdout.readline().split())
    raw = Path(f"/proc/{named.pid}/comm").read_bytes()
    with pytest.raises(UnicodeDecodeError):
        raw.decode()
    assert program(named.pid) == raw.decode(errors="replace").strip()
    removers = Removers()
    removers.open()
    assert removers.name(port) == f"{program(named.pid)} (pid {named.pid})"
    removers.close()
    assert isinstance(_networkd_here(Path("/")), bool)
    assert thread != named.pid
    assert (thread_group(thread), thread_group(named.pid)) == (named.pid, named.pid)


def test_nobody_has_a_name_when_he_has_ended(named: subprocess.Popen[str]) -> None:
    named.kill()
    named.wait()
    assert (program(named.pid), thread_group(named.pid)) == ("", None)
