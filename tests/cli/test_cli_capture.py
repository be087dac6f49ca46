"""`linkpass capture` on files: written, read back, filtered; and what it answers to mistakes. No privilege needed."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scapy.utils import RawPcapWriter

from linkpass.cli import cli
from linkpass.wire import probe as wire
from linkpass.wire.frame import TCP, Headers, Template

KEY = b"0123456789abcdef0123456789abcdef"
HOSTS = {name: ipaddress.ip_address(f"fd00:ff::{name[-1]}").packed for name in ("host1", "host2", "host3")}


def linkpass(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["capture", *arguments])


def frame(source: str, target: str, path: int, sequence: int, label: int, sent_ns: int, key: bytes = KEY) -> bytes:
    src, dst = HOSTS[source], HOSTS[target]
    notices = [wire.WireNotice(wire.Kind.DRAIN, 1, 1, 5.0, source, "leaf1-spine1")] if sequence == 2 else []
    report = wire.Report(1, 2, 3, [wire.Heard(7, 40 + sequence, 9, 0.0002)], notices, [6] if sequence == 3 else [])
    body = wire.encode(wire.Signer(key), src + dst, report, 0xAB, path, sequence, sent_ns)
    return Template(Headers(bytes(6), bytes(6), src, dst, TCP, 3785, 3785, label=label)).frame(body, sequence)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of two senders; host2 has another key, one frame is no probe, one is a trace."""
    place = tmp_path_factory.mktemp("capture")
    frames = [frame("host1", "host3", n % 2, n, 0x1000 + n % 2, n * 10_000_000) for n in range(1, 5)]
    frames += [frame("host2", "host3", 0, 9, 0x2000, 0, key=b"somebody else's key")]
    headers = Headers(bytes(6), bytes(6), HOSTS["host1"], HOSTS["host3"], TCP, 3785, 3785)
    frames += [Template(headers).frame(b"hello"), Template(headers).frame(b"\x7f\0\0\0\0\0\0\x05")]
    with RawPcapWriter(str(place / "old.pcap"), linktype=1, nano=True) as writer:
        writer.write_header(None)
        for number, data in enumerate(frames):
            late_ns = 300_000 if number == 2 else 0
            at_ns = 1_700_000_000_000_000_000 + (number + 1) * 10_000_000 + late_ns
            writer.write_packet(data, sec=at_ns // 10**9, usec=at_ns % 10**9)
    (place / "key").write_bytes(KEY + b"\n")
    (place / "linkpass.toml").write_text(
        f'[auth]\nkey_file = "{place / "key"}"\n[fabric.names]\n"fd00:ff::1" = "host1"\n"fd00:ff::3" = "host3"\n'
    )
    return place


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_an_old_capture_is_decoded(folder: Path) -> None:
    found = rows(linkpass("--read", str(folder / "old.pcap"), "--key-file", str(folder / "key"), "--json"))
    assert [one["kind"] for one in found] == ["probe"] * 5 + ["broken", "trace"]
    assert [one["authentic"] for one in found] == [True] * 4 + [False, None, None]
    assert found[0]["at_s"] == pytest.approx(1_700_000_000.01, abs=1e-6)
    assert all(one["age_s"] is None for one in found), "nobody knows that clock any more"
    # Path 1 was sent as number 1 and 3; the third frame took 0.3 ms longer than the first.
    assert found[2]["later_s"] == pytest.approx(0.0003) and found[0]["later_s"] == 0
    assert found[1]["probe"]["notices"] == [
        {"kind": "drain", "id": 1, "seq": 1, "ttl_s": 5.0, "origin": "host1", "link": "leaf1-spine1"}
    ]
    assert found[2]["probe"]["acknowledged"] == [6]


def test_the_same_for_people(folder: Path) -> None:
    result = linkpass("--read", str(folder / "old.pcap"), "--config", str(folder / "linkpass.toml"))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split()[:3] == ["time", "where", "from"] and len(lines) == 9
    assert "host1 > host3" in lines[1] and "0x01001" in lines[1] and " ok " in lines[1] and "7:#41+0.2ms" in lines[1]
    assert "drain leaf1-spine1 of host1 (for 5 s)" in lines[2]
    assert "acknowledges 6" in lines[3] and "+300 µs" in lines[3]
    assert "WRONG" in lines[5] and "fd00:ff::2 > host3" in lines[5]
    assert "no probe: 5 bytes are too few" in lines[6] and "trace 0x00000005" in lines[7]
    counts = "7 packets: 5 probes, 1 of traces, 1 no probes"
    assert lines[8] == f"{counts}; 3 paths of 2 senders; 1 with a wrong HMAC"


@pytest.mark.parametrize(
    ("filters", "count"),
    [(("--peer", "host1"), 6), (("--peer", "fd00:ff:0::2"), 1), (("--label", "0x1001"), 2), (("--label", "8192"), 1),
     (("--count", "3"), 3), (("--kind", "trace", "--kind", "broken"), 2), (("--peer", "nobody"), 0)],
)  # fmt: skip
def test_filters(filters: tuple[str, ...], count: int, folder: Path) -> None:
    config = ("--config", str(folder / "linkpass.toml"))
    assert len(rows(linkpass("--read", str(folder / "old.pcap"), *config, "--json", *filters))) == count


def test_what_is_kept_is_what_was_chosen(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.pcap"
    first = linkpass("--read", str(folder / "old.pcap"), "--label", "0x1000", "--write", str(kept))
    assert first.exit_code == 0 and f"capture --read {kept}" in first.output
    again = rows(linkpass("--read", str(kept), "--json"))
    assert [one["probe"]["sequence"] for one in again] == [2, 4]
    assert [one["at_s"] for one in again] == [
        one["at_s"] for one in rows(linkpass("--read", str(folder / "old.pcap"), "--label", "0x1000", "--json"))
    ]


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    assert linkpass().exit_code == 2 and "expected uplinks, or --read" in linkpass().output
    assert linkpass("eth1", "--read", "x").exit_code == 2
    assert "no device 'eth77' here" in linkpass("eth77").output
    assert "No such file" in linkpass("--read", str(tmp_path / "none.pcap")).output
    (tmp_path / "text").write_text("no packets in here, only words")
    wrong = linkpass("--read", str(tmp_path / "text"))
    assert wrong.exit_code == 2 and "expected a pcap or pcapng file" in wrong.output
    assert "expected a flow label" in linkpass("--read", "x", "--label", "0x100000").output
    assert linkpass("--read", str(folder / "old.pcap"), "--key-file", str(tmp_path / "nokey")).exit_code == 2
    unwritable = linkpass("--read", str(folder / "old.pcap"), "--write", str(tmp_path / "no" / "x.pcap"))
    assert unwritable.exit_code == 2 and "No such file" in unwritable.output
    (tmp_path / "cut.pcap").write_bytes((folder / "old.pcap").read_bytes()[:-7])
    assert linkpass("--read", str(tmp_path / "cut.pcap")).exit_code in (0, 2)


def test_without_scapy_it_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys\nsys.modules['scapy'] = None\nfrom linkpass.cli import main\n"
        f"sys.argv = ['linkpass', 'capture', '--read', {str(folder / 'old.pcap')!r}]\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ("linkpass: capture needs scapy, which is not installed\n  pip install 'linkpass[lab]'\n")


def test_help_does_not_load_scapy() -> None:
    code = (
        "import sys\nfrom linkpass.cli import cli\ncli.main(sys.argv[1:], standalone_mode=False)\n"
        "print('scapy' in sys.modules, 'rich' in sys.modules, file=sys.stderr)"
    )
    for words, expected in (
        (["capture", "--help"], "explain"),
        (["capture", "probes", "--help"], "--write FILE.pcap"),
        (["capture", "explain", "--help"], "tcpdump -i eth1"),
    ):
        argv = [sys.executable, "-c", code, *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stderr == "False False\n" and expected in done.stdout


def test_probes_is_what_is_meant_without_a_word(folder: Path) -> None:
    words = ("--read", str(folder / "old.pcap"), "--json")
    assert linkpass("probes", *words).output == linkpass(*words).output
