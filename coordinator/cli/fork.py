"""``cleancut epoch fork``: an epoch as the beginning of another cluster. The original is only read.

Asks no coordinator, except for what a savepoint's name stands for.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import note, print_json, say, size
from coordinator.cli.savepoints import named, number_of
from coordinator.cli.settings import read_description
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.cli.settings import Session


class Place(NamedTuple):
    """Where a fork goes."""

    cluster: str
    store: str
    secret_file: Path


def fork(
    session: Session, number: int | str, place: Place, *, from_store: str | None, from_cluster: str | None
) -> None:
    """Make it, and say what to do next.

    Args:
        session: Names the original: its store, and its secret to check the signature.
        number: The epoch, ``latest``, or a savepoint's name.
        place: Of the fork.
        from_store: The original's store; None: as the session says.
        from_cluster: Its name in there; None: as the session says, or the only one.

    Raises:
        Failure: There is no such epoch.
        ConfigError: The place is taken, or is the original's own.
        StoreError: The epoch is damaged, or a store failed.
    """
    from coordinator.cli import offline
    from protocol.forks import make_fork
    from protocol.ids import cluster_name
    from protocol.keys import ClusterKeys, read_secret
    from protocol.storage import ensure_format, open_store

    name = cluster_name(place.cluster)
    source = session.open_store(from_store, from_cluster)
    whose = str(getattr(source, "cluster", ""))
    epoch = offline.present(source, number_of(session, number, cluster=whose) if named(number) else number)
    if whose == name:
        raise ConfigError("--cluster", f"{name} is the original's own name; a fork needs another one")
    source_keys = session.keys_of_store(from_store)
    if source_keys is None:
        note("signature not checked: no secret was given (--secret-file)")
    made_secret = _secret_of(place.secret_file, session.secret_file)
    keys = ClusterKeys.from_secret(read_secret(place.secret_file))
    if not place.store.startswith(("memory:", "file:")):
        Path(place.store).mkdir(mode=0o700, parents=True, exist_ok=True)
    target = open_store(place.store, name)
    ensure_format(target, name)
    report = make_fork(source, epoch, source_keys, target, name, keys, progress=_bar(session))
    document: dict[str, Any] = {
        "cluster": str(name),
        "epoch": epoch,
        "manifest": report.fork.manifest,
        "origin": {"cluster": report.fork.origin_cluster, "manifest": report.fork.origin_manifest},
        "dry_run": report.fork.dry_run,
        "store": place.store,
        "secret_file": str(place.secret_file),
        "secret_made": made_secret,
        "objects_copied": report.copied,
        "objects_present": report.present,
        "bytes_copied": report.bytes,
    }
    if session.as_json:
        print_json(document)
        return
    say(f"epoch {epoch} of {report.fork.origin_cluster} is now the beginning of cluster {name} in {place.store}")
    say(
        f"{report.copied} objects copied ({size(report.bytes)})"
        + (f", {report.present} were there already" if report.present else "")
    )
    say("dry-run: its participants do no effect and write to no sink; the original is untouched")
    note(f"the fork's secret is {place.secret_file}" + (" (new)" if made_secret else ""))
    note(
        f"check it: cleancut epoch verify {epoch} --store {place.store} --cluster {name} --secret-file {place.secret_file}"
    )
    note("then start its coordinators with this cluster, store and secret, and participants that host its agents")


def place_of(cluster: str | None, store: str | None, secret_file: Path | None, into: Path | None) -> Place:
    """Where the fork goes, by options or by the folder that `keys init` made for it.

    Raises:
        Failure: Something is missing.
        ConfigError: The folder holds no description.
    """
    said: dict[str, Any] = {} if into is None else read_description("--into", into)
    name, where = cluster or said.get("cluster"), store or said.get("store")
    if not name or not where:
        raise Failure(
            Exit.USAGE,
            "a fork needs a name and a store of its own",
            "give --cluster NEW --store STORE, or --into DIR with a folder of `cleancut keys init`",
        )
    secret = secret_file or said.get("secret_file")
    if secret is None:
        secret = Path(f"{name}.secret")
    return Place(str(name), str(where), Path(secret))


def _secret_of(path: Path, original: Path | None) -> bool:
    """See that the fork has a secret of its own; whether it was made now.

    Raises:
        ConfigError: It is the original's.
    """
    if original is not None and path.exists() and original.exists() and path.samefile(original):
        raise ConfigError("--fork-secret-file", f"{path} is the original's secret; a fork has one of its own")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(os.urandom(32).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def _bar(session: Session) -> Any:  # noqa: ANN401 - a callable
    """Progress on a terminal, none in a pipe."""
    if session.as_json or not sys.stderr.isatty():
        return lambda done, of: None

    def show(done: int, of: int) -> None:
        end = "\n" if done == of else ""
        sys.stderr.write(f"\rcopying: {done} of {of} objects{end}")
        sys.stderr.flush()

    return show
