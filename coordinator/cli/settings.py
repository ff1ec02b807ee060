"""Where the cluster is and what may be shown to it: options, environment, a demo's folder, in that order.

A flag beats the environment, and within each, ``--coordinators`` beats ``--dir``. Every command that looks at a cluster
takes the same options (`looks_at_cluster`); they may also stand before the command (``cleancut --dir D status``).
"""

from __future__ import annotations

import functools
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import click

from protocol.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from coordinator.cli.client import Client, Place
    from protocol.keys import ClusterKeys
    from protocol.ports import ObjectStore

P = ParamSpec("P")
R = TypeVar("R")

PLACE_DEFAULT: Final = "127.0.0.1:7400"
TIMEOUT_DEFAULT: Final = 10.0
DESCRIPTION_NAME: Final = "cleancut.json"
"""In a demo's folder, and in what ``cleancut keys init`` makes: {cluster, coordinators, secret_file, store}."""
TOKEN_BYTES_MAX: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What the user said, flags only; None: not said."""

    coordinators: str | None = None
    folder: Path | None = None
    secret_file: Path | None = None
    token_file: Path | None = None
    ca: Path | None = None
    timeout: float | None = None
    as_json: bool = False

    def under(self, other: Given) -> Given:
        """These, with gaps filled from the flags that stood before the command."""
        return Given(
            coordinators=self.coordinators or other.coordinators,
            folder=self.folder or other.folder,
            secret_file=self.secret_file or other.secret_file,
            token_file=self.token_file or other.token_file,
            ca=self.ca or other.ca,
            timeout=self.timeout if self.timeout is not None else other.timeout,
            as_json=self.as_json or other.as_json,
        )


@dataclass(kw_only=True)
class Session:
    """Everything that a command needs to reach the cluster or its store; nothing is read before it is asked for."""

    given: Given
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def as_json(self) -> bool:
        """One JSON document instead of words and tables."""
        return self.given.as_json

    @property
    def timeout(self) -> float:
        """Seconds that one call may take."""
        return TIMEOUT_DEFAULT if self.given.timeout is None else self.given.timeout

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """The folder's ``cleancut.json``, empty where no folder was named. Paths in it are made absolute."""
        if self.given.folder is not None:
            return read_description("--dir", self.given.folder)
        named = self.env.get("CLEANCUT_DIR")
        return read_description("CLEANCUT_DIR", Path(named)) if named else {}

    @functools.cached_property
    def places(self) -> tuple[Place, ...]:
        """The coordinators, in the order in which they are asked."""
        if self.given.coordinators:
            return parse_places("--coordinators", self.given.coordinators)
        if self.given.folder is None and self.env.get("CLEANCUT_COORDINATORS"):
            return parse_places("CLEANCUT_COORDINATORS", self.env["CLEANCUT_COORDINATORS"])
        listed = self.description.get("coordinators")
        if listed is None:
            return parse_places("default", PLACE_DEFAULT)
        return parse_places(f"{DESCRIPTION_NAME}: coordinators", ",".join(listed))

    @functools.cached_property
    def client(self) -> Client:
        """Asks the coordinators."""
        from coordinator.cli.client import Client

        return Client(self.places, self._token, timeout=self.timeout, tls=lambda: self._tls)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext | None:
        from protocol.keys import trust

        if self.given.ca is not None:
            return trust("--ca", self.given.ca)
        if self.given.folder is None and self.env.get("CLEANCUT_CA"):
            return trust("CLEANCUT_CA", self.env["CLEANCUT_CA"])
        named = self.description.get("ca")
        return None if named is None else trust(f"{DESCRIPTION_NAME}: ca", named)

    @functools.cached_property
    def secret_file(self) -> Path | None:
        """Where the cluster's secret is, if anybody said."""
        if self.given.secret_file is not None:
            return self.given.secret_file
        if self.given.folder is None and self.env.get("CLEANCUT_SECRET_FILE"):
            return Path(self.env["CLEANCUT_SECRET_FILE"])
        named = self.description.get("secret_file")
        return None if named is None else Path(named)

    @functools.cached_property
    def keys(self) -> ClusterKeys | None:
        """Keys from the secret; None without one."""
        if self.secret_file is None:
            return None
        from protocol.keys import ClusterKeys, read_secret

        return ClusterKeys.from_secret(read_secret(self.secret_file))

    def keys_of_store(self, store: str | None) -> ClusterKeys | None:
        """Keys to check what a store holds; None where the secret at hand is not said to be that store's.

        A folder that the environment happens to name has the secret of *its* store: used on another one, every signature
        there would look forged.
        """
        said = self.given.secret_file or self.given.folder or self.env.get("CLEANCUT_SECRET_FILE")
        if store is None or said or Path(str(self.description.get("store"))).resolve() == Path(store).resolve():
            return self.keys
        return None

    @functools.cached_property
    def _token_from_file(self) -> str | None:
        named = self.given.token_file
        if named is None and self.given.secret_file is None and self.given.folder is None:
            named = Path(self.env["CLEANCUT_TOKEN_FILE"]) if self.env.get("CLEANCUT_TOKEN_FILE") else None
        return None if named is None else read_token(named)

    def _token(self, writes: bool) -> str | None:  # noqa: FBT001 - the one thing that the client knows of a request
        if self._token_from_file is not None:
            return self._token_from_file
        if self.keys is None:
            return None
        # No more right than the request needs: a reading command cannot write by mistake.
        return self.keys.token("operator" if writes else "viewer")

    def open_store(self, store: str | None, cluster: str | None) -> ObjectStore:
        """The store, for commands that work without any coordinator.

        Args:
            store: Folder or URL; None: the folder's description, else the environment.
            cluster: Its name; None: the description, the environment, else the only one in the folder.

        Raises:
            ConfigError: No store was named, or no cluster, or it is not there.
        """
        from protocol import storage
        from protocol.ids import cluster_name

        where = store or self.description.get("store") or self.env.get("CLEANCUT_STORE")
        if not where:
            raise ConfigError("--store", "no store is named: give its folder or URL, or a demo's folder with --dir")
        name = cluster or (None if store else self.description.get("cluster")) or self.env.get("CLEANCUT_CLUSTER")
        return storage.open_store(where, cluster_name(name or only_cluster(where)), writable=False)


def only_cluster(store: str) -> str:
    """The name of the one cluster in a store folder.

    Raises:
        ConfigError: None or several are there, or the store is not a folder.
    """
    folder = Path(store.removeprefix("file://").removeprefix("file:"))
    if not folder.is_dir():
        raise ConfigError("--store", f"{store!a} is not a folder")
    found = sorted(each.parent.name for each in folder.glob("*/format.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError("--store", f"{store!a} holds no cluster")
    raise ConfigError("--cluster", f"{store!a} holds several clusters, name one: {', '.join(found[:20])}")


def read_description(setting: str, folder: Path) -> dict[str, Any]:
    """The description in a folder.

    Args:
        setting: What named the folder, for the error.
        folder: Where it is.

    Raises:
        ConfigError: Not there, or not what it must be.
    """
    path = folder / DESCRIPTION_NAME
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            setting, f"{str(path)!a} cannot be read: {error.strerror}; name the folder of a demo or of `keys init`"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(setting, f"{str(path)!a} is not JSON") from None
    if not isinstance(document, dict):
        raise ConfigError(setting, f"{str(path)!a} is not a JSON object")
    places = document.get("coordinators")
    if places is not None and not (isinstance(places, list) and places and all(isinstance(p, str) for p in places)):
        raise ConfigError(setting, f"{str(path)!a}: coordinators must be a list of host:port")
    for name in ("cluster", "secret_file", "store", "ca"):
        value = document.get(name)
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(setting, f"{str(path)!a}: {name} must be a text")
    for name in ("secret_file", "ca"):
        if document.get(name):
            document[name] = str(folder / document[name])
    if document.get("store") and ":" not in document["store"]:
        document["store"] = str(folder / document["store"])
    return document


def parse_places(setting: str, text: str) -> tuple[Place, ...]:
    """``host:port,https://host:port,...`` as places.

    Raises:
        ConfigError: One of them is none.
    """
    from coordinator.cli.client import Place

    places = []
    for part in text.split(","):
        rest = part.strip().rstrip("/")
        tls = rest.startswith("https://")
        rest = rest.removeprefix("https://").removeprefix("http://")
        host, _, port = rest.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if bracketed else host
        plain = bare.isascii() and bare.isprintable() and not set(bare) & set(" /@?#[]\\")
        if not (bare and plain and (bracketed or ":" not in bare)) or not (
            port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535
        ):
            raise ConfigError(setting, f"{part[:200]!a} is not host:port")
        place = Place(host=bare, port=int(port), tls=tls)
        if place not in places:
            places.append(place)
    return tuple(places)


def read_token(path: Path) -> str:
    """A bearer token from its file.

    Raises:
        ConfigError: Cannot be read, open to others, or not a token. Never shows its content.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise ConfigError("--token", f"{str(path)!a} can be read by others; run: chmod 600 {path}")
            text = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError("--token", f"{str(path)!a} cannot be read: {error.strerror}") from None
    token = text.strip()
    if not token or len(text) > TOKEN_BYTES_MAX or not all(0x21 <= byte <= 0x7E for byte in token):
        raise ConfigError("--token", f"{str(path)!a} does not hold a token")
    return token.decode("ascii")


def cluster_options(function: Callable[P, R]) -> Callable[P, R]:
    """The options themselves, for a function that takes them by name."""
    decorators = (
        click.option(
            "--coordinators",
            metavar="HOST:PORT,...",
            help=f"Coordinators' API addresses [CLEANCUT_COORDINATORS; {PLACE_DEFAULT}].",
        ),
        click.option(
            "--dir",
            "folder",
            type=click.Path(path_type=Path),
            help="Folder of a running demo, or of `keys init` [CLEANCUT_DIR].",
        ),
        click.option(
            "--secret-file",
            type=click.Path(path_type=Path),
            help="The cluster's secret; the token derives from it [CLEANCUT_SECRET_FILE].",
        ),
        click.option(
            "--token",
            "--token-file",
            "token_file",
            type=click.Path(path_type=Path),
            help="File that holds a bearer token [CLEANCUT_TOKEN_FILE].",
        ),
        click.option(
            "--ca",
            type=click.Path(path_type=Path),
            help="Authority that https:// coordinators' certificates are checked against [CLEANCUT_CA].",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True, max=86_400),
            help=f"Seconds to wait for an answer [{TIMEOUT_DEFAULT:.0f}].",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def looks_at_cluster(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options above; it gets a `Session` as its first argument."""

    @cluster_options
    @click.pass_context
    @functools.wraps(function)
    def with_session(
        context: click.Context,
        /,
        *args: Any,  # noqa: ANN401 - whatever options the command declares
        coordinators: str | None,
        folder: Path | None,
        secret_file: Path | None,
        token_file: Path | None,
        ca: Path | None,
        timeout: float | None,
        as_json: bool,
        **kwargs: Any,  # noqa: ANN401
    ) -> R:
        given = Given(
            coordinators=coordinators,
            folder=folder,
            secret_file=secret_file,
            token_file=token_file,
            ca=ca,
            timeout=timeout,
            as_json=as_json,
        )
        before = context.find_object(Given)
        return function(Session(given=given if before is None else given.under(before)), *args, **kwargs)

    return with_session
