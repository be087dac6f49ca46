"""What a valid file cannot know: keys and files that must be there, budgets that do not add up, other software that
would undo our work. Nothing is changed, and everything is read below `root`."""

from __future__ import annotations

import configparser
import ipaddress
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from linkpass.config.fabric_file import FabricFileError, read_fabric
from linkpass.config.loading import ConfigError, read_key, split_listen
from linkpass.config.model import Config

Level = Literal["error", "warning", "info"]

NETWORKD_KEYS = ("ManageForeignRoutes", "ManageForeignNextHops")
NETWORKD_DIRS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")
"""Where systemd-networkd reads `networkd.conf` and `networkd.conf.d/*.conf`, first wins (networkd.conf(5))."""


class Finding(msgspec.Struct, frozen=True):
    level: Level
    key: str
    text: str
    hint: str = ""


def check(config: Config, path: str | Path, *, root: str | Path = "/") -> list[Finding]:
    """All findings, errors first. `root` is the file system that networkd and processes are looked up in."""
    parts = (_steering(config), _prefixes(config), _budget(config), _key(config), _fabric(config), _rest(config, root))
    found = [*itertools.chain(*parts), *_networkd(config, Path(root))]
    if not _private_enough(Path(path)):
        hint = f"chmod go-w {path}"
        found.append(Finding("warning", "", "the configuration can be changed by anybody", hint))
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.level))


def _private_enough(path: Path) -> bool:
    return not path.exists() or not path.stat().st_mode & stat.S_IWOTH


def _steering(config: Config) -> Iterator[Finding]:
    if config.mode == "act" and not config.prefixes:
        yield Finding("error", "prefixes", "empty: mode is act, but nothing may be steered", "name the job's prefixes")
    if config.mode == "act" and not config.rungs:
        yield Finding("error", "rungs", "empty: mode is act, but no rung may be used", "rungs = [1, 2]")
    if config.mode == "observe" and config.tcp_timers.enabled:
        yield Finding("info", "tcp_timers.enabled", "has no effect while mode is observe")
    if config.tcp_timers.enabled and config.routes.rto_min_ms is None and _kernel() < (6, 15):
        text = f"kernel {'.'.join(map(str, _kernel()))} has no socket options for it (they came with about 6.15)"
        yield Finding("warning", "tcp_timers.enabled", text, "set routes.rto_min_ms")


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split("-")[0].split(".")[:2]
    return int(major), int(minor)


def _prefixes(config: Config) -> Iterator[Finding]:
    networks = [ipaddress.ip_network(prefix) for prefix in config.prefixes]
    versions = {network.version for network in networks}
    for network in networks:
        if network.prefixlen == 0:
            yield Finding("error", "prefixes", f"{network} is the default route", "name the job's own prefixes")
    for one, other in itertools.combinations(networks, 2):
        if one.overlaps(other):
            yield Finding("warning", "prefixes", f"{one} and {other} overlap", "keep the wider one")
    if 4 in versions and 1 in config.rungs:
        yield Finding("info", "prefixes", "IPv4 has no flow label: rung 1 moves IPv6 traffic only, rung 2 moves both")
    if len(versions) == 1:
        left_out = 4 if versions == {6} else 6
        yield Finding("info", "prefixes", f"only IPv{min(versions)}: a job that talks IPv{left_out} is not steered")
    for key, address in (("address", config.address), *(("peers", peer) for peer in config.peers)):
        inside = any(ipaddress.ip_address(address) in network for network in networks) if address else True
        if networks and not inside:
            yield Finding("warning", key, f"{address} lies in none of the prefixes: it is probed but not steered")
    if config.address and config.address in config.peers:
        yield Finding("info", "peers", f"{config.address} is this host itself and is left out")


def _budget(config: Config) -> Iterator[Finding]:
    probing, labels = config.probing, config.limits.labels_per_peer
    rate = labels / probing.interval_s
    most = probing.max_packets_per_s
    if rate > most:
        text = (
            f"{labels} paths every {probing.interval_s:g} s are {rate:.0f} packets/s for one peer; allowed are {most}"
        )
        hint = f"intervals stretch to {labels / most:.4g} s; raise probing.max_packets_per_s or the interval"
        yield Finding("warning", "probing.interval_s", text, hint)
    elif len(config.peers) * rate > most:
        text = f"{len(config.peers)} active peers need {len(config.peers) * rate:.0f} packets/s; allowed are {most}"
        hint = f"intervals then stretch to {len(config.peers) * labels / most:.4g} s"
        yield Finding("info", "probing.max_packets_per_s", text, hint)
    if config.detection.silent_s < 5 * probing.interval_s:
        hint = f"at least {5 * probing.interval_s:g}"
        yield Finding("warning", "detection.silent_s", "shorter than five probes: chance makes a peer silent", hint)


def _key(config: Config) -> Iterator[Finding]:
    try:
        read_key(config)
    except ConfigError as error:
        yield Finding(
            "error", "auth.key_file", f"{config.auth.key_file or 'empty'}: {error.problem}", "no probes without"
        )
        return
    if Path(config.auth.key_file).stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        text = f"{config.auth.key_file} is open to others: who reads it can fake a live path"
        yield Finding("warning", "auth.key_file", text, f"chmod 600 {config.auth.key_file}")


def _fabric(config: Config) -> Iterator[Finding]:
    for key in ("file", "names_file"):
        path = getattr(config.fabric, key)
        if path and not (Path(path).is_file() or (key == "file" and Path(path).is_dir())):
            yield Finding("error", f"fabric.{key}", f"{path}: no such file")
    if config.fabric.names_file and Path(config.fabric.names_file).is_file():
        try:
            msgspec.json.decode(Path(config.fabric.names_file).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError) as error:
            hint = "expected a JSON object: address -> name"
            yield Finding("error", "fabric.names_file", f"{config.fabric.names_file}: {error}", hint)
    if config.fabric.file and Path(config.fabric.file).exists():
        yield from _fabric_file(config)


def _fabric_file(config: Config) -> Iterator[Finding]:
    path = Path(config.fabric.file)
    try:
        source = read_fabric(path)
    except FabricFileError as error:
        yield Finding("error", "fabric.file", str(error))
        return
    for note in source.notes:
        yield Finding("info", "fabric.file", f"{path}: {note}")
    nodes = {node.name for node in source.fabric.nodes}
    if config.host and config.host not in nodes:
        yield Finding("warning", "host", f"{config.host} is not a node of {path}", f"nodes: {', '.join(sorted(nodes))}")
    strangers = sorted(set(config.fabric.names.values()) - nodes)
    if strangers:
        yield Finding("warning", "fabric.names", f"not nodes of {path}: {', '.join(strangers)}")


def _rest(config: Config, root: str | Path) -> Iterator[Finding]:
    for name in config.netns:
        if not (Path(root) / "run/netns" / name).exists():
            yield Finding("warning", "netns", f"no namespace {name} below /run/netns now")
    if config.escalate.hook and shutil.which(config.escalate.hook[0]) is None:
        yield Finding("error", "escalate.hook", f"{config.escalate.hook[0]}: not an executable program")
    if config.health.check.exec and shutil.which(config.health.check.exec[0]) is None:
        yield Finding("error", "health.check.exec", f"{config.health.check.exec[0]}: not an executable program")
    if config.fabric.lldpctl and shutil.which(config.fabric.lldpctl[0]) is None:
        yield Finding("error", "fabric.lldpctl", f"{config.fabric.lldpctl[0]}: not an executable program")
    listen = split_listen(config.metrics.listen)
    if listen and not ipaddress.ip_address(listen[0]).is_loopback:
        text = f"{config.metrics.listen}: everybody who reaches it reads the names of hosts and links"
        yield Finding("info", "metrics.listen", text, "there is no login; filter it or listen on 127.0.0.1")
    folder = Path(config.recorder.file).parent
    if config.recorder.file and not folder.is_dir():
        yield Finding("error", "recorder.file", f"{folder}: no such folder", f"mkdir -p {folder}")


def _networkd(config: Config, root: Path) -> Iterator[Finding]:
    if 2 not in config.rungs or not _networkd_here(root):
        return
    values, sources = networkd_settings(root)
    for key in NETWORKD_KEYS:
        if values[key]:
            text = f"systemd-networkd would delete our routes: {key} is on ({sources[key]})"
            hint = f"in /etc/systemd/networkd.conf.d/linkpass.conf: [Network] {key}=no; restart systemd-networkd"
            yield Finding("warning" if config.mode == "act" else "info", "", text, hint)


def _networkd_here(root: Path) -> bool:
    """networkd runs, or would run: it has a process, a state folder or files that give it links to manage."""
    if (root / "run/systemd/netif").is_dir() or any((root / "etc/systemd/network").glob("*.network")):
        return True
    for comm in (root / "proc").glob("[0-9]*/comm"):
        try:
            if comm.read_bytes().strip() == b"systemd-network":  # the kernel keeps 15 characters
                return True
        except OSError:
            continue  # the process has ended meanwhile
    return False


def networkd_settings(root: Path) -> tuple[dict[str, bool], dict[str, str]]:
    """What networkd does with foreign routes and next hops, and where it says so: (values, sources)."""
    values, sources = dict.fromkeys(NETWORKD_KEYS, True), dict.fromkeys(NETWORKD_KEYS, "its default")
    main = next(
        (root / part / "networkd.conf" for part in NETWORKD_DIRS if (root / part / "networkd.conf").is_file()), None
    )
    drops: dict[str, Path] = {}
    for part in reversed(NETWORKD_DIRS):
        drops |= {file.name: file for file in (root / part / "networkd.conf.d").glob("*.conf")}
    for file in filter(None, (main, *(drops[name] for name in sorted(drops)))):
        parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True, delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        try:
            parser.read_string(file.read_text(encoding="utf-8", errors="replace"), str(file))
        except (OSError, configparser.Error):
            continue  # networkd skips what it cannot read, too
        for key in NETWORKD_KEYS:
            word = (parser.get("Network", key, fallback=None) or "").lower()
            if word in ("1", "yes", "y", "true", "t", "on", "0", "no", "n", "false", "f", "off"):
                values[key] = word in ("1", "yes", "y", "true", "t", "on")
                sources[key] = "/" + str(file.relative_to(root))
    return values, sources
