"""``cleancut keys init | token``: everything that a new cluster needs before its first coordinator starts.

`init` makes one folder with the cluster's secret, a certificate for each coordinator, a settings file for each, and the
description (``cleancut.json``) that ``--dir`` reads. Paths in it are relative, so the folder can be copied. It never
overwrites: a second secret for a running cluster would lock everybody out.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import note, print_json, say
from coordinator.cli.settings import DESCRIPTION_NAME, looks_at_cluster
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.cli.settings import Session
    from coordinator.config import Address, PeerConfig

SECRET_NAME: Final = "cluster.secret"  # noqa: S105 - names a file
TLS_NAME: Final = "tls"


@click.group()
def keys() -> None:
    """Make a cluster's secret, certificates and settings."""


@keys.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--coordinators",
    "listed",
    required=True,
    metavar="ID=HOST:RAFTPORT:HTTPPORT,...",
    help="All coordinators of the cluster: 1, 3 or 5.",
)
@click.option("--cluster", "name", default="cleancut", show_default=True, help="The cluster's name.")
@click.option(
    "--store",
    default="store",
    show_default=True,
    help="Where epochs are kept: a folder that coordinators and participants all see; relative to FOLDER.",
)
@click.option(
    "--https/--http",
    "https",
    default=None,
    help="Whether the API speaks HTTPS; without it: HTTP if all hosts are loopback, else HTTPS.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
def init(folder: Path, *, listed: str, name: str, store: str, https: bool | None, as_json: bool) -> None:
    """Make a new cluster's secret, certificates and settings in FOLDER.

    Every coordinator then starts with `cleancut coordinator --config FOLDER/ID.toml`. On several machines, copy the
    secret, tls/ca.pem, and that coordinator's own settings, certificate and key to each; tls/ca.key stays where it was
    made. The store must be one folder that all of them reach.

    \b
    One coordinator, to try it:
      cleancut keys init ./shop --coordinators c1=127.0.0.1:7500:7400
    Three on one machine:
      cleancut keys init ./shop --cluster shop --coordinators \\
        c1=127.0.0.1:7501:7401,c2=127.0.0.1:7502:7402,c3=127.0.0.1:7503:7403
    """  # noqa: D301 - click wants the character itself
    from coordinator.config import is_loopback
    from protocol.ids import CoordinatorId, cluster_name

    cluster = cluster_name(name)
    peers = parse_coordinators(listed)
    _check_store(store)
    if len(peers) % 2 == 0:
        raise click.UsageError(
            f"{len(peers)} coordinators survive no more failures than {len(peers) - 1}: take 1, 3 or 5"
        )
    _refuse_taken(folder)
    beyond = sorted(each for each, peer in peers.items() if not is_loopback(peer.http.host))
    tls = bool(beyond) if https is None else https
    description = {
        "cluster": cluster,
        "coordinators": [f"{'https://' if tls else ''}{peers[each].http}" for each in sorted(peers)],
        "secret_file": SECRET_NAME,
        "store": store,
        **({"ca": f"{TLS_NAME}/ca.pem"} if tls else {}),
    }
    # Whole or not at all: half a cluster's keys in the folder would only be in the way of a second attempt.
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(building / SECRET_NAME, os.urandom(32).hex() + "\n")
        if len(peers) > 1 or tls:
            from coordinator.certificates import make_certificates

            make_certificates(
                building / TLS_NAME,
                {CoordinatorId(each): sorted({peer.raft.host, peer.http.host}) for each, peer in peers.items()},
                cluster=cluster,
            )
        for each in sorted(peers):
            _write(building / f"{each}.toml", settings_text(each, cluster, store, peers, https=tls))
        _write(building / DESCRIPTION_NAME, json.dumps(description, indent=2) + "\n")
        if ":" not in store:
            (building / store).mkdir(mode=0o700, parents=True, exist_ok=True)
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if as_json:
        print_json({"folder": str(folder), **description, "files": [str(path) for path in files]})
        return
    for path in files:
        say(path)
    for each in sorted(peers):
        note(f"start with: cleancut coordinator --config {folder / each}.toml")
    if beyond and not tls:
        note("the API speaks plain HTTP beyond loopback: whoever sees the network sees tokens and state")
    note("whoever has the secret can read and stop the cluster: keep it and every .key to yourself")


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def parse_coordinators(listed: str) -> dict[str, PeerConfig]:
    """``c1=host:raftport:httpport,...``, as the setting `peers` has it.

    Raises:
        ConfigError: One of them is not that, has port 0, or comes twice.
    """
    from coordinator.config import PeerConfig, parse_address
    from protocol.ids import coordinator_id

    peers: dict[str, PeerConfig] = {}
    for part in listed.split(","):
        name, equals, rest = part.strip().partition("=")
        host, _, http = rest.rpartition(":")
        host, colon, raft = host.rpartition(":")
        if not equals or not colon:
            raise ConfigError("--coordinators", f"{part[:200]!a} is not ID=HOST:RAFTPORT:HTTPPORT")
        if coordinator_id(name) in peers:
            raise ConfigError("--coordinators", f"{name} is named twice")
        peers[name] = PeerConfig(
            raft=parse_address(f"--coordinators: {name}", f"{host}:{raft}"),
            http=parse_address(f"--coordinators: {name}", f"{host}:{http}"),
        )
        if 0 in {peers[name].raft.port, peers[name].http.port}:
            raise ConfigError("--coordinators", f"{name} has port 0; others must know the port")
    seen: dict[Address, str] = {}
    for name, peer in peers.items():
        for what, address in (("raft", peer.raft), ("http", peer.http)):
            if address in seen:
                raise ConfigError("--coordinators", f"{address} is both {seen[address]} and {name}'s {what} address")
            seen[address] = f"{name}'s {what} address"
    return peers


def _check_store(store: str) -> None:
    """Refuse what several processes cannot share, before anything is made."""
    if not store or (":" in store and not store.startswith("file:/")):
        raise ConfigError(
            "--store", f"{store[:200]!a} is not a folder; name one that all processes reach, or file:/path"
        )


def _refuse_taken(folder: Path) -> None:
    """Let only a new or an empty folder pass.

    Raises:
        Failure: Something is there already.
    """
    try:
        taken = sorted(each.name for each in folder.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise Failure(Exit.REFUSED, f"{folder} is not a folder", "name a new one", code="exists") from None
    if taken:
        raise Failure(
            Exit.REFUSED,
            f"{folder} is not empty ({', '.join(taken[:5])}); keys are never overwritten",
            "name a new folder",
            code="exists",
        )


def settings_text(each: str, cluster: str, store: str, peers: dict[str, PeerConfig], *, https: bool) -> str:
    """One coordinator's settings file."""
    # A JSON string of ASCII is a TOML string too.
    from coordinator.config import is_loopback

    quoted = json.dumps
    me = peers[each]
    lines = [
        f"id = {quoted(each)}",
        f"cluster = {quoted(cluster)}",
        f"data_dir = {quoted(f'data-{each}')}",
        f"store = {quoted(store)}",
        f"http = {quoted(str(me.http))}",
        f"raft = {quoted(str(me.raft))}",
        f"secret_file = {quoted(SECRET_NAME)}",
    ]
    if not https and not is_loopback(me.http.host):
        lines.append("allow_plain_http = true")
    if https:
        lines += [
            "",
            "[http_tls]",
            f"ca = {quoted(f'{TLS_NAME}/ca.pem')}",
            f"cert = {quoted(f'{TLS_NAME}/{each}.pem')}",
            f"key = {quoted(f'{TLS_NAME}/{each}.key')}",
        ]
    if len(peers) > 1:
        lines += [
            "",
            "[tls]",
            f"ca = {quoted(f'{TLS_NAME}/ca.pem')}",
            f"cert = {quoted(f'{TLS_NAME}/{each}.pem')}",
            f"key = {quoted(f'{TLS_NAME}/{each}.key')}",
        ]
        for name in sorted(peers):
            if name != each:
                peer = peers[name]
                lines += ["", f"[peers.{name}]", f"raft = {quoted(str(peer.raft))}", f"http = {quoted(str(peer.http))}"]
    return "\n".join(lines) + "\n"


@keys.command()
@click.argument("role", type=click.Choice(["participant", "viewer", "operator"]))
@click.option("--id", "participant", help="The participant that it is for; without it, any may register with it.")
@click.option("--out", type=click.Path(path_type=Path), help="New file for it (mode 600); without it: standard output.")
@looks_at_cluster
def token(session: Session, role: str, *, participant: str | None, out: Path | None) -> None:
    """The bearer token of a role, derived from the secret.

    A viewer reads, an operator reads and writes, a participant takes part and can do neither.

    \b
    For other programs, and for the page at http://127.0.0.1:7400/:
      curl -H "Authorization: Bearer $(cleancut keys token viewer --dir ./shop)" \\
        http://127.0.0.1:7400/v1/status
    """  # noqa: D301 - click wants the character itself
    if session.keys is None:
        raise click.UsageError("no secret is named: use --secret-file or --dir")
    if participant is not None and role != "participant":
        raise click.UsageError(f"--id goes with the role participant, not {role}")
    if participant is not None:
        from protocol.ids import participant_id

        text = session.keys.participant_token(participant_id(participant))
    else:
        text = session.keys.token(role)  # type: ignore[arg-type] # click checks that it is a role
    if out is not None:
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise Failure(Exit.REFUSED, f"{out} is there already", "name a new file", code="exists") from None
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
    if session.as_json:
        print_json({"role": role, "file": str(out)} if out is not None else {"role": role, "token": text})
    else:
        say(text if out is None else out)
