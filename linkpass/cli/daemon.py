"""The daemon itself and what surrounds it: run, check-config, cleanup."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from linkpass.cli.common import (
    DEFAULT_CONFIG,
    NotPermittedError,
    TroubleError,
    WrongInputError,
    config_option,
    json_option,
    load_config,
    print_json,
)


@click.command(epilog="Example: linkpass run --config /etc/linkpass/linkpass.toml --mode observe")
@config_option
@click.option("--mode", type=click.Choice(["observe", "act"]), help="Instead of the configuration's.")
def run(config_path: Path | None, mode: str | None) -> None:
    """Run the daemon in the foreground, in the network namespace that it is started in.

    It logs to standard error: for people on a terminal, as JSON otherwise. SIGTERM ends it and hands traffic back to
    the kernel. Without a configuration it observes.
    """
    import msgspec

    config, path = load_config(config_path)
    if mode:
        config = msgspec.structs.replace(config, mode=mode)
    from linkpass.app import main as run_daemon

    with _told_in_one_line():
        sys.exit(run_daemon(config, path))


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """What keeps a daemon from starting is one line with the next step, however deep a task group has wrapped it."""
    from linkpass.config import ConfigError
    from linkpass.edges.control import ControlError

    try:
        yield
    except (ConfigError, ControlError, OSError, ExceptionGroup) as error:
        cause = _innermost(error)
        if isinstance(cause, ControlError) and cause.denied:
            raise NotPermittedError(str(cause)) from None
        if isinstance(cause, (ConfigError, ControlError)):
            raise WrongInputError(str(cause)) from None
        if isinstance(cause, PermissionError):
            raise NotPermittedError(f"not permitted: {cause}", "run as root") from None
        if isinstance(cause, OSError):
            raise TroubleError(str(cause)) from None
        raise


def _innermost(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@click.command("check-config", epilog="Example: linkpass check-config --config ./linkpass.toml")
@config_option
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Look at this tree, not at /.")
@click.option("--health", is_flag=True, help="Also read each source of [health] once: what is missing here.")
@json_option
def check_config(config_path: Path | None, root: Path, *, health: bool, as_json: bool) -> None:
    """Read the configuration, and look at the machine for what would get in its way.

    Errors give exit status 1 (2 when the file itself is wrong), warnings 0.
    """
    from linkpass.config import check

    path = config_path or Path(DEFAULT_CONFIG)
    if not path.exists():
        raise WrongInputError(f"{path}: no such file", "docs/linkpass.toml is an annotated example")
    config, _ = load_config(path)
    findings = check(config, path, root=root)
    if health:
        from linkpass.app.host import missing
        from linkpass.config import Finding

        told = ((f"health, {source}", lacks) for source, lacks in missing(config.health))
        findings += [Finding("info", key, lacks or "all of it can be read") for key, lacks in told]
    ok = not any(finding.level == "error" for finding in findings)
    if as_json:
        import msgspec

        print_json({"file": str(path), "ok": ok, "findings": msgspec.to_builtins(findings)})
    else:
        for finding in findings:
            click.echo(f"{finding.level}: {': '.join(filter(None, (finding.key, finding.text)))}")
            if finding.hint:
                click.echo(f"  {finding.hint}")
        count = sum(finding.level != "info" for finding in findings)
        click.echo(f"{path}: {'valid' if ok else 'not usable'}, mode {config.mode}, {count} thing(s) to look at")
    sys.exit(0 if ok else 1)


@click.command(epilog="Example: linkpass cleanup --config /etc/linkpass/linkpass.toml")
@config_option
@json_option
def cleanup(config_path: Path | None, *, as_json: bool) -> None:
    """Remove everything that a daemon left in the kernel, and restore what it changed.

    Needed only after a daemon was killed: `linkpass run` does the same at its start.
    """
    config, _ = load_config(config_path)
    if not _may_administer():
        raise NotPermittedError(
            "cleanup needs root or CAP_NET_ADMIN: without, it could not even see all", "run as root"
        )
    from linkpass.app import cleanup as clean_up

    with _told_in_one_line():
        done = clean_up(config)
    if as_json:
        print_json({"done": done})
        return
    for line in done or ["nothing of linkpass was left"]:
        click.echo(line)


def _may_administer() -> bool:
    """CAP_NET_ADMIN (bit 12, capabilities(7)) is among the effective capabilities."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(mask, 16) & 1 << 12)
