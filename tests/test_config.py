"""Configuration: the example, the errors, and what `check-config` finds on a machine (a tree below tmp_path)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from linkpass.config import Config, ConfigError, check, core_settings, load, parse, read_key
from linkpass.config.checking import networkd_settings
from linkpass.config.lines import lines_of
from linkpass.config.loading import RANGES, keys_of, split_listen, value_at

EXAMPLE = Path(__file__).parents[1] / "docs" / "linkpass.toml"
KEYS = [key for key, _ in keys_of(Config)]


def flat(raw: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in raw.items():
        if isinstance(value, dict) and key != "names":
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


# the example
def test_the_example_is_valid_and_holds_the_defaults() -> None:
    assert load(EXAMPLE) == Config()


@pytest.mark.parametrize("key", KEYS)
def test_the_example_shows_each_key(key: str) -> None:
    shown = flat(tomllib.loads(EXAMPLE.read_text()))
    if key in shown:
        default = value_at(Config(), key)
        assert shown[key] == (list(default) if isinstance(default, tuple) else default)
    else:
        assert re.search(rf"^# {key.rpartition('.')[2]} = ", EXAMPLE.read_text(), re.M), f"{key} is not in the example"


def test_what_the_example_has_commented_out_is_valid_too() -> None:
    lines = [re.sub(r"^# (?=\w+ = |\[\[)", "", line) for line in EXAMPLE.read_text().splitlines()]
    seen: set[str] = set()
    kept = []
    for line in reversed(lines):  # of a key given twice, the one that was commented out comes either before or after
        name = re.match(r"(prefixes|peers|operators|names|hook|lldpctl) = (.*)", line)
        if name and (name[2] in ("[]", "{}") or name[2].startswith("[]  ") or name[1] in seen):
            continue
        kept.append(line)
    config = parse("\n".join(reversed(kept)))
    assert config.prefixes == ("fd00:ff::/64", "10.255.0.0/24")
    assert config.operators == ("fd00:ff::1",)
    assert config.uplinks[0].gateway4 == "10.128.0.1"
    assert config.fabric.names["fd00:ff:1::1"] == "leaf1"
    assert config.routes.rto_min_ms == 5
    assert config.escalate.hook[0] == "/usr/local/sbin/cordon-host"


def test_each_number_has_a_range() -> None:
    numbers = {key for key, kind in keys_of(Config) if kind in (int, float, int | None)}
    assert numbers == set(RANGES)


# values
def test_addresses_come_out_as_ipaddress_prints_them() -> None:
    config = parse('address = "FD00:00FF::1"\npeers = ["fd00:ff:0::2"]\n[fabric.names]\n"FD00::1" = "leaf1"\n')
    assert (config.address, config.peers, config.fabric.names) == ("fd00:ff::1", ("fd00:ff::2",), {"fd00::1": "leaf1"})


def test_relative_paths_count_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "linkpass.toml"
    file.write_text('[control]\nsocket = "control.sock"\n[recorder]\nfile = "/elsewhere/recording"\n')
    config = load(file)
    assert config.control.socket == str(tmp_path / "control.sock")
    assert config.recorder.file == "/elsewhere/recording"
    assert config.fabric.file == ""


def test_core_settings_take_what_the_core_needs() -> None:
    settings = core_settings(parse('host = "host1"\nmode = "act"\n[damping]\nhalf_life_s = 3\n'), address="fd00:ff::1")
    assert (settings.host, settings.address, settings.mode) == ("host1", "fd00:ff::1", "act")
    assert settings.damping.half_life_s == 3.0
    assert core_settings(parse('address = "::1"'), address="::2").address == "::1"
    with pytest.raises(ConfigError, match="address: not set"):
        core_settings(Config())


BAD = [
    (
        "[damping]\npenaltee = 1",
        "f:2: damping.penaltee: unknown; did you mean penalty?; known keys: ceiling, forget_s,",
    ),
    ("[dampin]\npenalty = 1", "f:1: dampin: unknown; did you mean damping?; known keys: address, auth, control,"),
    ("half_life_s = 1", "f:1: half_life_s: unknown; did you mean half_life_s in [damping]?; known keys:"),
    ("[damping]\nrungs = [1]", "f:2: damping.rungs: unknown; rungs belongs above the first section; known keys:"),
    ("[[uplinks]]\nname = 'a'\n[[uplinks]]\nnam = 'b'", "f:4: uplinks[1].nam: unknown; did you mean name?"),
    ("[[uplinks]]\ngateway4 = '10.0.0.1'", "f:1: uplinks[0]: expected a key name, which is not there"),
    ("\nmode = 'acting'", 'f:2: mode: expected one of "observe", "act", got "acting"'),
    ("rungs = [1, 3]", "f:1: rungs[1]: expected one of 1, 2, got 3"),
    ("prefixes = 'fd00::/64'", 'f:1: prefixes: expected a list, each item text, got "fd00::/64"'),
    (
        "prefixes = ['fd00::1/64']",
        'f:1: prefixes[0]: expected no bits beyond the prefix length, got "fd00::1/64"; did you',
    ),
    ("prefixes = ['leaf1']", 'f:1: prefixes[0]: expected a prefix such as fd00:ff::/64, got "leaf1"'),
    ("peers = ['host2']", 'f:1: peers[0]: expected an IP address, got "host2"'),
    ("operators = ['host2']", 'f:1: operators[0]: expected an IP address, got "host2"'),
    ("[[uplinks]]\nname = 'a'\ngateway4 = '::1'", 'f:3: uplinks[0].gateway4: expected an IPv4 address, got "::1"'),
    ("[probing]\ninterval_s = '10ms'", 'f:2: probing.interval_s: expected a number, got "10ms"'),
    ("[probing]\nport = 3785.5", "f:2: probing.port: expected a whole number, got 3785.5"),
    ("[probing]\nport = 4791", "f:2: probing.port: 4791 belongs to RoCE devices"),
    ("[probing]\nport = 70000", "f:2: probing.port: expected 1 to 65535, got 70000"),
    ("[probing]\ninterval_s = nan", "f:2: probing.interval_s: expected 0.001 to 60, got nan"),
    ("damping.half_life_s = -1", "f:1: damping.half_life_s: expected at least 0.1, got -1"),
    ("[damping]\nreuse = 2000", "f:2: damping.reuse: expected less than damping.suppress (1500), or a suppressed link"),
    ("realtime = 1", "f:1: realtime: expected true or false, got 1"),
    ("damping = 3", "f:1: damping: expected a table, got 3"),
    ("uplinks = {name = 'a'}", "f:1: uplinks: expected a list, each item a table, got a table"),
    ("[routes]\nrto_min_ms = 'x'", 'f:2: routes.rto_min_ms: expected a whole number, got "x"'),
    ("[fabric.names]\n'::1' = 3", "f:1: fabric.names[...]: expected text, got 3"),
    ("fabric = {names = {leaf1 = '::1'}}", 'f:1: fabric.names: expected an IP address, got "leaf1"'),
    ("host = 'a>b'", "f:1: host: expected a name without `>` and white space"),
    ("[metrics]\nlisten = ':9478'", "f:2: metrics.listen: expected address:port, [IPv6]:port or an empty text"),
    ("[metrics]\nlisten = '::1:9478'", "f:2: metrics.listen: expected address:port or [IPv6]:port with a port up to"),
    ("[tunnels]\nport = 3785", "f:2: tunnels.port: expected a port of its own: not RoCE's (4791), nor probing.port or"),
    ("[limits]\ntrace_pool = 4", "f:2: limits.trace_pool: expected at least limits.labels_per_peer"),
    ("[control]\nsocket = ''", "f:2: control.socket: expected a path, got an empty one"),
    ("mode = ", "f:1: not valid TOML: Invalid value (at end of document)"),
    ("mode = 'act'\nmode = 'act'", "f:2: not valid TOML: Cannot overwrite a value"),
]


@pytest.mark.parametrize(
    ("text", "message"), BAD, ids=[message.split(": ")[1] + f"-{n}" for n, (_, message) in enumerate(BAD)]
)
def test_a_wrong_file_gets_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_path_of_a_socket_has_the_kernels_limit() -> None:
    with pytest.raises(ConfigError, match="at most 107 bytes"):
        parse(f'[control]\nsocket = "/{"x" * 107}"')


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; docs/linkpass.toml is an annotated example"):
        load(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"host = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 8"):
        load(tmp_path / "latin")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_lines_skip_what_stands_inside_a_long_text() -> None:
    lines = lines_of('host = """\nmode = 1\n"""\n[a . "b"]\nc.d = 1 # [x]\n')
    assert lines == {"host": 1, "a.b": 4, "a.b.c.d": 5}
    assert lines.get("a.b.c.d[2]") == 5
    assert lines.get("nowhere") is None


@pytest.mark.parametrize(("listen", "pair"), [("", None), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))])
def test_listen_addresses(listen: str, pair: tuple[str, int] | None) -> None:
    assert split_listen(listen) == pair


# keys
def test_the_key_must_be_there_and_long_enough(tmp_path: Path) -> None:
    config = parse('[auth]\nkey_file = "key"', base=tmp_path)
    with pytest.raises(ConfigError, match="no such file; make one and copy it to all hosts: head -c 32"):
        read_key(config)
    (tmp_path / "key").write_text("short\n")
    with pytest.raises(ConfigError, match="5 bytes; expected at least 16"):
        read_key(config)
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert read_key(config) == b"0123456789abcdef"
    with pytest.raises(ConfigError, match="empty: probes and notices need a key"):
        read_key(parse('[auth]\nkey_file = ""'))


# check
def good(tmp_path: Path, extra: str = "", prefixes: str = '["fd00:ff::/64", "10.255.0.0/24"]') -> Config:
    (tmp_path / "key").write_text("0123456789abcdef\n")
    (tmp_path / "key").chmod(0o600)
    text = f'mode = "act"\nrungs = [2]\nprefixes = {prefixes}\n{extra}\n[auth]\nkey_file = "key"\n'
    return parse(text, base=tmp_path)


def said(config: Config, tmp_path: Path, root: Path | None = None) -> list[str]:
    root = root or tmp_path / "no-root"
    return [f"{finding.level} {finding.key}: {finding.text}" for finding in check(config, tmp_path / "f", root=root)]


def test_a_good_configuration_has_no_findings(tmp_path: Path) -> None:
    assert said(good(tmp_path), tmp_path) == []


def test_check_says_what_is_wrong_with_prefixes(tmp_path: Path) -> None:
    found = said(
        good(tmp_path, 'address = "fd01::1"\npeers = ["fd00:ff::2"]', '["fd00:ff::/64", "fd00::/16"]'), tmp_path
    )
    assert found == [
        "warning prefixes: fd00:ff::/64 and fd00::/16 overlap",
        "warning address: fd01::1 lies in none of the prefixes: it is probed but not steered",
        "info prefixes: only IPv6: a job that talks IPv4 is not steered",
    ]
    assert "error prefixes: ::/0 is the default route" in said(good(tmp_path, prefixes='["::/0"]'), tmp_path)
    assert "error prefixes: empty: mode is act, but nothing may be steered" in said(
        good(tmp_path, prefixes="[]"), tmp_path
    )
    both = msgspec.structs.replace(good(tmp_path), rungs=(1, 2))
    assert any("IPv4 has no flow label" in line for line in said(both, tmp_path))


def test_check_adds_up_the_budget(tmp_path: Path) -> None:
    found = said(good(tmp_path, "[probing]\ninterval_s = 0.001"), tmp_path)
    assert found == [
        "warning probing.interval_s: 8 paths every 0.001 s are 8000 packets/s for one peer; allowed are 2000",
    ]
    found = said(good(tmp_path, 'peers = ["fd00:ff::2", "fd00:ff::3", "fd00:ff::4"]'), tmp_path)
    assert found == ["info probing.max_packets_per_s: 3 active peers need 2400 packets/s; allowed are 2000"]
    found = said(good(tmp_path, "[probing]\ninterval_s = 0.1"), tmp_path)
    assert found == ["warning detection.silent_s: shorter than five probes: chance makes a peer silent"]


def test_check_looks_at_the_key(tmp_path: Path) -> None:
    config = good(tmp_path)
    (tmp_path / "key").chmod(0o644)
    assert "is open to others" in said(config, tmp_path)[0]
    (tmp_path / "key").unlink()
    assert said(config, tmp_path)[0].startswith(f"error auth.key_file: {tmp_path}/key: no such file; make one")


def test_check_looks_at_files_hooks_and_namespaces(tmp_path: Path) -> None:
    (tmp_path / "names").write_text('{"::1": 3}')
    extra = (
        'netns = ["pod"]\n[fabric]\nfile = "none"\nnames_file = "names"\n[escalate]\nhook = ["/no/such"]\n'
        '[metrics]\nlisten = "0.0.0.0:9478"\n[recorder]\nfile = "/no/such/recording"'
    )
    found = "\n".join(said(good(tmp_path, extra), tmp_path))
    assert f"error fabric.file: {tmp_path}/none: no such file" in found
    assert "error fabric.names_file" in found
    assert "error escalate.hook: /no/such: not an executable program" in found
    assert "error recorder.file: /no/such: no such folder" in found
    assert "warning netns: no namespace pod" in found
    assert "info metrics.listen: 0.0.0.0:9478" in found


def test_check_says_who_may_write_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    (tmp_path / "f").chmod(0o666)
    assert said(good(tmp_path), tmp_path) == ["warning : the configuration can be changed by anybody"]


def test_networkd_is_named_only_where_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc/77").mkdir(parents=True)
    (root / "proc/77/comm").write_text("bash\n")
    assert said(good(tmp_path), tmp_path, root) == []
    (root / "proc/77/comm").write_text("systemd-network\n")
    found = said(good(tmp_path), tmp_path, root)
    assert found[0] == "warning : systemd-networkd would delete our routes: ManageForeignRoutes is on (its default)"
    assert len(found) == 2


def test_networkd_drop_ins_win_in_their_order(tmp_path: Path) -> None:
    for path, text in {
        "etc/systemd/network/10-eth.network": "",
        "usr/lib/systemd/networkd.conf": "[Network]\nManageForeignRoutes=no\n",
        "usr/lib/systemd/networkd.conf.d/50-vendor.conf": "[Network]\nManageForeignRoutes=yes\n",
        "etc/systemd/networkd.conf.d/50-vendor.conf": "[Network]\nManageForeignNextHops=off\n",
        "run/systemd/networkd.conf.d/60-broken.conf": "no section\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    values, sources = networkd_settings(tmp_path)
    assert values == {"ManageForeignRoutes": False, "ManageForeignNextHops": False}
    assert sources["ManageForeignNextHops"] == "/etc/systemd/networkd.conf.d/50-vendor.conf"
    assert said(good(tmp_path), tmp_path, tmp_path) == []
