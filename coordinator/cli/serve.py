"""``cleancut coordinator``: run one coordinator until it is told to stop.

Settings come from the file, then ``CLEANCUT_*`` in the environment, then flags (`coordinator.config`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="Settings file (TOML); flags win over it.")
@click.option("--id", "name", help="This coordinator's name in the group.")
@click.option("--cluster", help="The cluster's name.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of this coordinator alone.")
@click.option("--store", help="Object store of the cluster.")
@click.option("--http", metavar="HOST:PORT", help="Where the API listens.")
@click.option("--raft", metavar="HOST:PORT", help="Where the other coordinators reach it.")
@click.option("--peers", metavar="ID=HOST:RAFTPORT:HTTPPORT,...", help="All coordinators of the group.")
@click.option("--secret-file", type=click.Path(path_type=Path), help="The cluster's secret.")
@click.option(
    "--allow-plain-http", is_flag=True, default=None, help="Let the API speak HTTP beyond loopback: tokens can be read."
)
@click.option(
    "--rejoin",
    is_flag=True,
    default=None,
    help="The data folder was lost, the others run: start empty and take everything from them. Never for a new group.",
)
@click.option("--timing", type=click.Choice(["normal", "slow"]), help="Raft's timeouts; slow for loaded machines.")
@click.option("--log-json", is_flag=True, default=None, help="One JSON document per log line.")
@click.option("--check", is_flag=True, help="Only check the settings.")
def coordinator(
    *,
    path: Path | None,
    name: str | None,
    cluster: str | None,
    data_dir: Path | None,
    store: str | None,
    http: str | None,
    raft: str | None,
    peers: str | None,
    secret_file: Path | None,
    allow_plain_http: bool | None,
    rejoin: bool | None,
    timing: str | None,
    log_json: bool | None,
    check: bool,
) -> None:
    """Run one coordinator, until SIGTERM or Ctrl-C.

    `cleancut keys init` makes the settings file; a group of 3 or 5 goes on while more than half of them run. Logs go to
    standard error. Every setting can also be a variable: CLEANCUT_HTTP is `http`, CLEANCUT_POLICY_INTERVAL_MS is
    `interval_ms` in the table `policy`.
    """
    from coordinator.config import load_config

    if path is None and name is None and not os.environ.get("CLEANCUT_ID"):
        raise click.UsageError(
            "no settings: name the file with --config (`cleancut keys init` makes one per coordinator)"
        )
    config = load_config(
        path,
        env=os.environ,
        flags={
            "id": name,
            "cluster": cluster,
            "data_dir": data_dir,
            "store": store,
            "http": http,
            "raft": raft,
            "peers": peers,
            "secret_file": secret_file,
            "allow_plain_http": allow_plain_http,
            "rejoin": rejoin,
            "timing": timing,
            "log_json": log_json,
        },
    )
    if check:
        click.echo(f"settings of coordinator {config.id} are complete and fit together")
        return
    from coordinator.runtime.service import run

    code = run(config)
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that hangs in a dead store must not keep the process: everything durable is durable already.
    os._exit(code)
