"""`linkpass lab udp-port`: what no hardware was seen to do yet, tried by hand on one queue pair."""

from __future__ import annotations

from pathlib import Path

import click

from linkpass.cli.common import TroubleError, config_option, json_option, load_config, print_json


@click.command("udp-port", epilog="Example: linkpass lab udp-port 4711 1234 --config try.toml; linkpass cleanup")
@click.argument("pid", type=int)
@click.argument("qpn", type=int)
@click.option("--port", type=click.IntRange(0xC000, 0xFFFF), default=None, help="[any other than it has]")
@config_option
@json_option
def udp_port(config_path: Path | None, pid: int, qpn: int, port: int | None, *, as_json: bool) -> None:
    """Give a queue pair of a running program another UDP source port while it runs (mlx5).

    PID and QPN are those of `linkpass status`. It was never run on hardware: the configuration must allow it (mode =
    "act", rdma.steer.live_qps, rdma.steer.unproven). The old port is written down, and put back by `linkpass cleanup`
    or by the next start of the daemon, which must not run meanwhile.
    """
    import msgspec

    from linkpass.app.udp_port import change
    from linkpass.edges.undo import JournalBusyError
    from rdma.nldev import RdmaNetlinkError
    from rdma.remote_qp import RefusedError

    config, _ = load_config(config_path)
    try:
        done = change(config, pid, qpn, port or 0)
    except (RefusedError, RdmaNetlinkError) as error:
        raise TroubleError(f"refused: {error}", "docs/rdma.md says what it takes") from None
    except JournalBusyError:
        raise TroubleError("the undo journal is a running daemon's", "stop the daemon first") from None
    except OSError as error:
        raise TroubleError(f"the undo journal cannot be written: {error}", "journal.dir, and root") from None
    if as_json:
        print_json(msgspec.to_builtins(done))
    else:
        click.echo(f"{done.flow}, to {done.peer}: UDP source port {done.before} -> {done.asked}")
        click.echo("  linkpass cleanup puts it back")
    if done.told != done.asked:
        raise TroubleError(f"the device tells another port afterwards: {done.told or 'none'}", "look at its packets")
