"""TOML text -> `Config`. A wrong file gets one error of one line: file, line when it can be found, key, what was
expected and what is there."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import socket
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from linkpass.config.lines import lines_of
from linkpass.config.model import Config
from linkpass.core.settings import CoreSettings

INF = math.inf
KEY_BYTES = 16

RANGES: dict[str, tuple[float, float]] = {
    "damping.penalty": (1, INF),
    "damping.suppress": (1, INF),
    "damping.reuse": (1, INF),
    "damping.ceiling": (1, INF),
    "damping.half_life_s": (0.1, INF),
    "damping.observe_s": (0, INF),
    "damping.observe_max_s": (0, INF),
    "damping.forget_s": (0, INF),
    "probing.interval_s": (0.001, 60),
    "probing.idle_interval_s": (0.01, 3600),
    "probing.sample_peers": (0, 10_000),
    "probing.sample_rotate_s": (0.1, INF),
    "probing.max_packets_per_s": (1, 1_000_000),
    "probing.max_link_packets_per_s": (1, 1_000_000),
    "probing.port": (1, 65535),
    "probing.dscp": (0, 63),
    "probing.size_bytes": (0, 9000),
    "probing.large_ratio": (0, 0.5),
    "probing.verbs_interval_s": (0.01, 3600),
    "tracing.packets_per_s": (10, 1_000_000),
    "tracing.burst_packets": (0, 100_000),
    "tracing.burst_packets_per_s": (10, 1_000_000),
    "detection.blackhole_losses": (1, 1000),
    "detection.loss_ok_ratio": (1e-9, 1),
    "detection.loss_bad_ratio": (1e-9, 1),
    "detection.loss_threshold": (1, 100),
    "detection.queueing_s": (1e-6, 60),
    "detection.queueing_windows": (1, 10_000),
    "detection.silent_s": (0.01, 3600),
    "detection.escalate_s": (0.1, 3600),
    "detection.flowed_s": (0, 86400),
    "detection.clean_s": (0, 3600),
    "detection.slow_host_s": (0.001, 3600),
    "detection.slow_host_ratio": (1, 1000),
    "detection.slow_host_windows": (1, 10_000),
    "detection.grace_s": (0, 3600),
    "limits.max_moved_ratio": (0, 1),
    "limits.reprogram_tries": (0, 1000),
    "limits.notice_ttl_s": (0.1, 3600),
    "limits.labels_per_peer": (1, 64),
    "limits.trace_pool": (1, 1024),
    "limits.retrace_s": (1, INF),
    "limits.escalations_per_hour": (0, 1000),
    "limits.congestion_hold_s": (1, INF),
    "diagnosis.trace_flows": (0, 256),
    "stragglers.interval_s": (0.002, 1),
    "stragglers.cpu_ratio": (0.0001, 1),
    "stragglers.late_ratio": (0.01, 1),
    "stragglers.least_s": (0, 3600),
    "stragglers.threshold": (1, 1000),
    "tcp_timers.rto_min_us": (1000, 1_000_000),
    "tcp_timers.rto_max_ms": (1000, 120_000),
    "routes.metric": (1, 0xFFFFFFFF),
    "routes.rto_min_ms": (1, 60_000),
    "tunnels.port": (1, 65535),
    "tunnels.vni": (1, 0xFF0000),
    "tunnels.first_source_port": (1024, 65000),
    "tunnels.per_uplink": (1, 64),
    "journal.max_bytes": (4096, INF),
    "recorder.max_bytes": (4096, INF),
    "escalate.timeout_s": (0.1, 3600),
    "health.interval_s": (1, 3600),
    "health.stands_s": (0, 3600),
    "health.rests_s": (0, 86400),
    "health.forget_s": (1, 86400),
    "health.temperature_margin_c": (0, 50),
    "health.check.interval_s": (1, 86400),
    "health.check.timeout_s": (0.1, 3600),
    "rdma.evidence.ecn_marked_ratio": (0, 1),
    "rdma.evidence.cnp_per_s": (0, INF),
    "rdma.evidence.out_of_sequence_ratio": (0, 1),
    "rdma.evidence.answer_timeouts_per_s": (0, INF),
    "rdma.evidence.transmit_wait_ratio": (0, 1),
    "rdma.evidence.symbol_errors_per_s": (0, INF),
    "rdma.evidence.receive_error_ratio": (0, 1),
    "rdma.evidence.tick_s": (0, 1),
    "rdma.evidence.paused_ratio": (0, 1),
    "rdma.evidence.discard_ratio": (0, 1),
    "rdma.evidence.uncorrectable_blocks_per_s": (0, INF),
    "rdma.evidence.corrected_bit_ratio": (0, 1),
    "rdma.evidence.optical_margin_db": (-40, 40),
    "rdma.evidence.module_margin_c": (-100, 100),
    "rdma.module_interval_s": (0, 86400),
    "rdma.steer.port": (1, 65535),
    "rdma.steer.patience_s": (0.01, 5),
}
"""Least and greatest value of every number; the kernel's limits where it has some (TCP_RTO_MAX_MS: 1 to 120 s)."""

ORDERED = (
    ("damping.reuse", "damping.suppress", "a suppressed link would be reused at once"),
    ("damping.suppress", "damping.ceiling", "no link could ever be suppressed"),
    ("detection.loss_ok_ratio", "detection.loss_bad_ratio", "the test could not tell good from bad"),
)
"""Pairs of which the first must be smaller, and what would happen otherwise."""

PATHS = (
    "fabric.file",
    "fabric.names_file",
    "auth.key_file",
    "control.socket",
    "journal.dir",
    "recorder.file",
    "health.check.file",
)


class ConfigError(Exception):
    """One thing is wrong with a configuration; the text is one line."""

    def __init__(self, where: str, key: str, problem: str, line: int | None = None) -> None:
        place = f"{where}:{line}" if line else where
        super().__init__(": ".join(part for part in (place, key, problem) if part))
        self.where, self.key, self.problem, self.line = where, key, problem, line


class _WrongError(Exception):
    """A key and what is wrong with it, before file and line are known."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem


def load(path: str | Path) -> Config:
    """Read a file. Relative paths in it count from its folder. Raises ConfigError."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(where, "", "no such file; docs/linkpass.toml is an annotated example to start from") from None
    except UnicodeDecodeError as error:
        raise ConfigError(where, "", f"not UTF-8 at byte {error.start}; TOML is UTF-8 text") from None
    except OSError as error:
        raise ConfigError(where, "", f"cannot be read: {error.strerror}") from None
    return parse(text, where, base=Path(path).resolve().parent)


def parse(text: str, where: str = "<text>", *, base: Path | None = None) -> Config:
    """Read text. `base` is the folder that relative paths count from. Raises ConfigError."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else max(len(text.splitlines()), 1)
        raise ConfigError(where, "", f"not valid TOML: {error}", line) from None
    try:
        _refuse_unknown(raw, Config, "")
        config = _convert(raw)
        _refuse_values(config)
        return _resolve(_canonical(config), base)
    except _WrongError as wrong:
        raise ConfigError(where, wrong.key, wrong.problem, lines_of(text).get(wrong.key)) from None


def core_settings(config: Config, *, address: str = "") -> CoreSettings:
    """The core's part. `address` is what the app found out; the file's own wins.

    Raises ConfigError when neither knows an address: without one no probe has a source."""
    found = config.address or address
    if not found:
        raise ConfigError("configuration", "address", "not set, and no route to `prefixes` shows a source to use")
    return CoreSettings(
        host=config.host or socket.gethostname().split(".")[0],
        address=found,
        mode=config.mode,
        rungs=config.rungs,
        operators=config.operators,
        live_qps=config.rdma.steer.live_qps,
        damping=config.damping,
        probing=config.probing,
        tracing=config.tracing,
        detection=config.detection,
        limits=config.limits,
        diagnosis=config.diagnosis,
        stragglers=config.stragglers,
    )


def read_key(config: Config) -> bytes:
    """The fabric's secret. Raises ConfigError naming the file and the way out."""
    path = config.auth.key_file
    if not path:
        raise ConfigError("configuration", "auth.key_file", "empty: probes and notices need a key")
    try:
        key = Path(path).read_bytes().strip()
    except FileNotFoundError:
        make = f"head -c 32 /dev/urandom | base64 > {path}; chmod 600 {path}"
        raise ConfigError(path, "auth.key_file", f"no such file; make one and copy it to all hosts: {make}") from None
    except OSError as error:
        raise ConfigError(path, "auth.key_file", f"cannot be read: {error.strerror}") from None
    if len(key) < KEY_BYTES:
        raise ConfigError(path, "auth.key_file", f"{len(key)} bytes; expected at least {KEY_BYTES}")
    return key


def keys_of(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a struct as `section.key` with its type; tables of tables as `uplinks.name`."""
    for field in msgspec.structs.fields(kind):
        key = prefix + field.encode_name
        inner = _struct_in(field.type)
        if inner is None:
            yield key, field.type
        else:
            yield from keys_of(inner, key + ".")


def value_at(config: Config, key: str) -> Any:
    """The value of `section.key` in a configuration."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a type is, or is a list of."""
    for candidate in (kind, *typing.get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _refuse_unknown(raw: Mapping[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in known:
            raise _WrongError(prefix + key, _unknown(key, sorted(known), prefix))
        inner = _struct_in(known[key])
        if inner is None:
            continue
        if isinstance(value, dict):
            _refuse_unknown(value, inner, f"{prefix}{key}.")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    _refuse_unknown(item, inner, f"{prefix}{key}[{index}].")


def _unknown(key: str, known: list[str], prefix: str) -> str:
    parts = ["unknown"]
    near = difflib.get_close_matches(key.replace("-", "_"), known, 1)
    elsewhere = [full for full, _ in keys_of(Config) if full.rpartition(".")[2] == key and full != prefix + key]
    if elsewhere:
        section, _, name = elsewhere[0].rpartition(".")
        parts.append(f"did you mean {name} in [{section}]?" if section else f"{name} belongs above the first section")
    elif near:
        parts.append(f"did you mean {near[0]}?")
    parts.append(f"known keys: {', '.join(known)}")
    return "; ".join(parts)


def _convert(raw: Mapping[str, Any]) -> Config:
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        key = at.rstrip("`").lstrip(".")
        missing = re.fullmatch(r"Object missing required field `(\w+)`", problem)
        if missing:
            raise _WrongError(key, f"expected a key {missing[1]}, which is not there") from None
        kind, value = _follow(Config, raw, key)
        raise _WrongError(key, f"expected {_expected(kind)}, got {_shown(value)}") from None


def _follow(kind: Any, raw: Any, key: str) -> tuple[Any, Any]:
    """Type and value at a path such as `uplinks[0].name`; `[...]` stands for a value of a table."""
    value = raw
    for part in re.findall(r"\w+|\[\d+\]|\[\.\.\.\]", key):
        if part == "[...]":
            kind = typing.get_args(kind)[1]
            value = next((item for item in value.values() if not isinstance(item, kind)), value)
        elif part.startswith("["):
            kind, value = typing.get_args(kind)[0], value[int(part[1:-1])]
        else:
            kind = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}[part]
            value = value[part]
    return kind, value


def _expected(kind: Any) -> str:
    words: dict[Any, str] = {
        str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): ""
    }  # fmt: skip
    if kind in words:
        return words[kind]
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(_shown(argument) for argument in arguments)
    if typing.get_origin(kind) is tuple:
        return f"a list, each item {_expected(arguments[0])}"
    if typing.get_origin(kind) is dict or _struct_in(kind) is kind:
        return "a table"
    return " or ".join(filter(None, map(_expected, arguments)))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_values(config: Config) -> None:
    for key, (least, most) in RANGES.items():
        value = value_at(config, key)
        if value is not None and not (least <= value <= most and math.isfinite(value)):
            span = f"at least {least:g}" if most == INF else f"{least:g} to {most:g}"
            raise _WrongError(key, f"expected {span}, got {value:g}")
    for low, high, what in ORDERED:
        if not value_at(config, low) < value_at(config, high):
            raise _WrongError(low, f"expected less than {high} ({value_at(config, high):g}), or {what}")
    if config.probing.port == 4791:
        raise _WrongError("probing.port", "4791 belongs to RoCE devices, which swallow its packets; choose another")
    if config.tunnels.port in (4791, config.probing.port, config.rdma.steer.port):
        what = "expected a port of its own: not RoCE's (4791), nor probing.port or rdma.steer.port"
        raise _WrongError("tunnels.port", f"{what}, got {config.tunnels.port}")
    if ">" in config.host or any(char.isspace() for char in config.host):
        raise _WrongError("host", f"expected a name without `>` and white space, got {_shown(config.host)}")
    if config.limits.trace_pool < config.limits.labels_per_peer:
        raise _WrongError(
            "limits.trace_pool", "expected at least limits.labels_per_peer: labels in use come out of the pool"
        )
    if config.health.check.exec and config.health.check.file:
        raise _WrongError("health.check.file", "expected either exec or file, got both: two opinions may differ")
    if config.health.dcgm and not re.match(r"https?://[^/\s]", config.health.dcgm):
        raise _WrongError(
            "health.dcgm", f"expected a URL such as http://127.0.0.1:9400/metrics, got {_shown(config.health.dcgm)}"
        )
    try:
        split_listen(config.metrics.listen)
    except ValueError as error:
        raise _WrongError("metrics.listen", str(error)) from None
    for key in ("control.socket", "journal.dir"):
        if not value_at(config, key):
            raise _WrongError(key, "expected a path, got an empty one")
    if len(config.control.socket.encode()) > 107:
        raise _WrongError("control.socket", "expected at most 107 bytes, the kernel's limit for a unix socket's path")


def split_listen(listen: str) -> tuple[str, int] | None:
    """`address:port` as a pair; None when off. Raises ValueError."""
    if not listen:
        return None
    host, _, port = listen.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
        number = int(port)
    except ValueError:
        raise ValueError(f"expected address:port, [IPv6]:port or an empty text, got {_shown(listen)}") from None
    if (address.version == 6) != (bare != host) or not 0 <= number <= 65535:
        raise ValueError(f"expected address:port or [IPv6]:port with a port up to 65535, got {_shown(listen)}")
    return bare, number


def _canonical(config: Config) -> Config:
    uplinks = []
    for index, uplink in enumerate(config.uplinks):
        key = f"uplinks[{index}]"
        if not uplink.name:
            raise _WrongError(f"{key}.name", "expected the name of a device, got an empty text")
        gateway4 = uplink.gateway4 and _address(f"{key}.gateway4", uplink.gateway4, 4)
        gateway6 = uplink.gateway6 and _address(f"{key}.gateway6", uplink.gateway6, 6)
        uplinks.append(msgspec.structs.replace(uplink, gateway4=gateway4, gateway6=gateway6))
    names = {_address("fabric.names", address): name for address, name in config.fabric.names.items()}
    return msgspec.structs.replace(
        config,
        address=config.address and _address("address", config.address),
        prefixes=tuple(_prefix(f"prefixes[{index}]", prefix) for index, prefix in enumerate(config.prefixes)),
        peers=tuple(_address(f"peers[{index}]", peer) for index, peer in enumerate(config.peers)),
        operators=tuple(_address(f"operators[{index}]", one) for index, one in enumerate(config.operators)),
        fabric=msgspec.structs.replace(config.fabric, names=names),
        uplinks=tuple(uplinks),
    )


def _address(key: str, text: str, version: int | None = None) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or version not in (None, address.version):
        raise _WrongError(key, f"expected an IP{f'v{version}' if version else ''} address, got {_shown(text)}")
    return str(address)


def _prefix(key: str, text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise _WrongError(key, f"expected a prefix such as fd00:ff::/64, got {_shown(text)}") from None
    if ipaddress.ip_interface(text).ip != network.network_address:
        raise _WrongError(
            key, f"expected no bits beyond the prefix length, got {_shown(text)}; did you mean {network}?"
        )
    return str(network)


def _resolve(config: Config, base: Path | None) -> Config:
    if base is None:
        return config
    for key in PATHS:
        value = value_at(config, key)
        if value and not Path(value).is_absolute():
            config = _with(config, key.split("."), str(base / value))
    return config


def _with(table: Any, names: list[str], value: str) -> Any:
    """A table with one value changed, however deep it lies."""
    inner = _with(getattr(table, names[0]), names[1:], value) if len(names) > 1 else value
    return msgspec.structs.replace(table, **{names[0]: inner})
