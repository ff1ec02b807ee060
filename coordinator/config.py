"""What one coordinator needs to know before it starts: one frozen class, and the three places it can come from.

Sources, the later one wins: the TOML file, ``CLEANCUT_*`` in the environment, flags. A key that nobody knows is an error
that names the file, the key and the nearest key that exists: a typo must not turn into a default. Paths in a file are
relative to the file. Secrets are never settings, only the names of the files that hold them, so this class can be
printed.
"""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.policy import PolicySettings
from protocol.errors import ConfigError
from protocol.ids import ClusterName, CoordinatorId, check_name
from protocol.limits import FENCES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STORE_FENCE: Final = "store"
"""Name of the fence that every cluster has: its object store."""
COORDINATORS_MAX: Final = 7
"""Members of one raft group: more only makes each commit slower."""
TIMINGS: Final = ("normal", "slow")
"""Presets of raft's timeouts: ``slow`` for loaded machines and long lines."""
ENV_PREFIX: Final = "CLEANCUT_"
_ENV_OF_OTHERS: Final = (
    "CLEANCUT_COORDINATORS", "CLEANCUT_TOKEN_FILE", "CLEANCUT_DIR", "CLEANCUT_CA", "CLEANCUT_FAILPOINTS", "CLEANCUT_ALLOW_FAILPOINTS",
)  # fmt: skip
"""Belong to the command line or to tests; neither ours nor a misspelling of ours."""


class Address(NamedTuple):
    """``host:port``; an IPv6 host stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


HTTP_DEFAULT: Final = Address("127.0.0.1", 7400)
RAFT_DEFAULT: Final = Address("127.0.0.1", 7500)
POLICY_DEFAULT: Final = PolicySettings()


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerConfig:
    """Where one coordinator of the group is reached, as the others write it."""

    raft: Address
    """Raft transport (mutual TLS)."""
    http: Address
    """API; followers pass writes on to it and point participants to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TlsConfig:
    """Files of this coordinator for raft's mutual TLS; written by ``cleancut keys init``."""

    ca: Path
    """Certificate of the cluster's own authority."""
    cert: Path
    """This coordinator's certificate; its common name is the coordinator's id."""
    key: Path
    """Its private key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpTlsConfig:
    """Files with which the API speaks HTTPS; all coordinators of a group do, or none."""

    cert: Path
    """Certificate for the hosts under which the API is addressed; with its chain, if it has one."""
    key: Path
    """Its private key."""
    ca: Path | None = None
    """What the other coordinators' certificates are checked against when a request is passed on; None: `tls.ca`, else
    what this machine trusts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorConfig:
    """Settings of one coordinator. Cross-field checks run here, so an instance is a working combination."""

    id: CoordinatorId
    """Name of this coordinator in the group."""
    cluster: ClusterName
    """Name of the cluster."""
    data_dir: Path
    """Folder of this coordinator alone: raft journal, snapshot, lock, identity."""
    store: str
    """Object store of the cluster: a folder, ``file:/path``; every coordinator and participant names the same one."""
    http: Address = HTTP_DEFAULT
    """Where the API listens. Loopback by default; port 0 takes a free one (a single coordinator only)."""
    raft: Address = RAFT_DEFAULT
    """Where raft listens. Unused by a single coordinator."""
    peers: Mapping[str, PeerConfig] = field(default_factory=dict)
    """All coordinators of the group. This one may be named too: then that is how the others reach it, and `http` and
    `raft` are what it binds."""
    secret_file: Path
    """File with the cluster's secret: tokens, frame keys and the manifests' signature derive from it."""
    tls: TlsConfig | None = None
    """Required when there is more than one coordinator."""
    http_tls: HttpTlsConfig | None = None
    """Set: the API speaks HTTPS. Required where `http` is not on loopback, unless `allow_plain_http`."""
    allow_plain_http: bool = False
    """Let the API speak plain HTTP beyond loopback: tokens and state cross the network in the clear. For private networks
    and behind a proxy that ends TLS."""
    policy: PolicySettings = POLICY_DEFAULT
    """What a new cluster begins with. Later changes (`PUT /v1/policy`) live in the ledger and win."""
    timing: str = "normal"
    """``normal`` or ``slow``: raft's timeouts."""
    rejoin: bool = False
    """The data folder of this coordinator was lost and the others still run: start empty, take everything from them, and
    vote only once that is done. Without it, an empty folder means a new group. No effect on a folder that holds anything,
    but not for the first start of a group: if all wait for the others, none ever leads."""
    lease_ms: int = 3_000
    """A participant that was silent this long is lost. Invariant: >= 1000, twice a heartbeat."""
    fences: Mapping[str, str] = field(default_factory=dict)
    """Sinks that refuse zombies: name -> place, as `coordinator.runtime.sink_fences` has them. Each acknowledges an incarnation
    before the first agent is restored for it. All coordinators have the same ones."""
    hosts: tuple[str, ...] = ()
    """Further host names under which the API may be addressed (checked against DNS rebinding)."""
    log_json: bool = False
    """One JSON document per log line instead of text."""

    def __post_init__(self) -> None:
        check_name("id", self.id)
        check_name("cluster", self.cluster)
        if not self.store:
            raise ConfigError("store", "is empty: name the folder that holds the epochs")
        if self.timing not in TIMINGS:
            raise ConfigError("timing", f"{self.timing!a} is not one of {', '.join(TIMINGS)}")
        _whole_number("lease_ms", self.lease_ms, 1_000)
        for name in ("log_json", "allow_plain_http", "rejoin"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "must be true or false")
        if self.http_tls is None and not self.allow_plain_http and not is_loopback(self.http.host):
            raise ConfigError(
                "http",
                f"{self.http} is not on loopback, and without TLS tokens would cross the network in the clear: set "
                "[http_tls] cert and key (`cleancut keys init` makes them), or allow_plain_http = true on a private network",
            )
        for name in self.peers:
            check_name("coordinator", name)
        for name in self.fences:
            if check_name("fence", name) == STORE_FENCE or len(self.fences) >= FENCES_MAX:
                raise ConfigError(f"fences.{name}", f"at most {FENCES_MAX - 1} fences, and none named {STORE_FENCE}")
        self._check_group()

    def _check_group(self) -> None:
        members = sorted({self.id, *self.peers})
        if len(members) > COORDINATORS_MAX:
            raise ConfigError("peers", f"{len(members)} coordinators; at most {COORDINATORS_MAX} form a group")
        if len(members) == 1:
            if self.rejoin:
                raise ConfigError("rejoin", "needs peers: a coordinator alone has nobody to take its data from")
            return
        if self.tls is None:
            raise ConfigError(
                "tls", "is required with more than one coordinator; `cleancut keys init` makes the certificates"
            )
        if self.http.port == 0 or self.raft.port == 0:
            raise ConfigError("http" if self.http.port == 0 else "raft", "port 0 needs a coordinator without peers")
        seen: dict[Address, str] = {}
        for name in members:
            peer = self.member(name)
            for what, address in (("raft", peer.raft), ("http", peer.http)):
                if address.port == 0:
                    raise ConfigError(f"peers.{name}.{what}", f"{address} has port 0; others must know the port")
                if address in seen:
                    raise ConfigError(f"peers.{name}.{what}", f"{address} is also {seen[address]}")
                seen[address] = f"{name}'s {what}"

    @property
    def members(self) -> tuple[CoordinatorId, ...]:
        """Ids of the whole group, this one included, sorted."""
        return tuple(CoordinatorId(name) for name in sorted({self.id, *self.peers}))

    def member(self, name: str) -> PeerConfig:
        """How `name` is reached by the others."""
        known = self.peers.get(name)
        if known is not None:
            return known
        if name != self.id:
            raise KeyError(name)
        return PeerConfig(raft=self.raft, http=self.http)


# --- reading --------------------------------------------------------------------------------------------------------

_SIMPLE: Final = (
    "id", "cluster", "data_dir", "store", "http", "raft", "secret_file", "timing", "lease_ms", "hosts", "log_json",
    "allow_plain_http", "rejoin",
)  # fmt: skip
_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "tls": tuple(each.name for each in fields(TlsConfig)),
    "http_tls": tuple(each.name for each in fields(HttpTlsConfig)),
    "policy": tuple(POLICY_DEFAULT.document()),
}
_PATHS: Final = ("data_dir", "secret_file")


def load_config(
    path: Path | str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> CoordinatorConfig:
    """Read file, environment and flags into one checked configuration.

    Args:
        path: TOML file; None: none.
        env: Environment; ``CLEANCUT_HTTP`` is `http`, ``CLEANCUT_TLS_CA`` is `tls.ca`, ``CLEANCUT_PEERS`` is
            ``c1=host:raftport:httpport,c2=...``, ``CLEANCUT_FENCES`` is ``name=place,name=place``.
        flags: Same keys as the file; dotted for tables (``policy.interval_ms``). None values are not set.

    Raises:
        ConfigError: With the place (file, variable, flag), the key and what would be right.
    """
    merged: dict[str, Any] = {}
    if path is not None:
        _merge(merged, _from_file(Path(path)))
    if env is not None:
        _merge(merged, _from_env(env))
    if flags is not None:
        _merge(merged, _from_flags(flags))
    try:
        return _build(merged)
    except ConfigError as error:
        if path is None:
            raise
        raise ConfigError(f"{path}: {error.setting}", error.problem) from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    _check_keys(document, (*_SIMPLE, *_TABLES, "peers", "fences"), str(path), "")
    for name, keys in _TABLES.items():
        if name in document:
            _check_keys(_table(document[name], str(path), name), keys, str(path), f"{name}.")
    for peer, entry in _table(document.get("peers", {}), str(path), "peers").items():
        _check_keys(_table(entry, str(path), f"peers.{peer}"), ("raft", "http"), str(path), f"peers.{peer}.")
    for name in _PATHS:
        if isinstance(document.get(name), str):
            document[name] = str(path.parent / document[name])
    for table in ("tls", "http_tls"):
        for name, value in document.get(table, {}).items():
            if isinstance(value, str):
                document[table][name] = str(path.parent / value)
    store = document.get("store")
    if isinstance(store, str) and store and ":" not in store:
        document["store"] = str(path.parent / store)
    return document


def _table(value: object, place: str, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: {name}", "must be a table")
    return value


def _check_keys(found: Iterable[str], known: tuple[str, ...], place: str, prefix: str) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"{place}: {prefix}{key}", f"no such setting{_nearest(key, known)}")


def _nearest(key: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!a}?" if near else f"; known are {', '.join(sorted(known))}"


def _env_names() -> dict[str, tuple[str, str]]:
    names = {f"{ENV_PREFIX}{key.upper()}": ("", key) for key in (*_SIMPLE, "peers", "fences")}
    for table, keys in _TABLES.items():
        names.update({f"{ENV_PREFIX}{table.upper()}_{key.upper()}": (table, key) for key in keys})
    return names


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    names = _env_names()
    found: dict[str, Any] = {}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in _ENV_OF_OTHERS:
            continue
        if variable not in names:
            # Others may use the prefix; only what looks like a misspelling of ours is an error.
            near = difflib.get_close_matches(variable, names, n=1, cutoff=0.88)
            if near:
                raise ConfigError(variable, f"no such variable; did you mean {near[0]}?")
            continue
        table, key = names[variable]
        (found.setdefault(table, {}) if table else found)[key] = env[variable]
    return found


def _from_flags(flags: Mapping[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag, value in flags.items():
        if value is None:
            continue
        table, dot, key = flag.partition(".")
        known = _TABLES.get(table, ()) if dot else (*_SIMPLE, *_TABLES, "peers", "fences")
        _check_keys([key if dot else flag], known, "flag", f"{table}." if dot else "")
        (found.setdefault(table, {}) if dot else found)[key if dot else flag] = value
    return found


def _merge(into: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            into[key] = {**into[key], **value}
        else:
            into[key] = value


def _build(merged: Mapping[str, Any]) -> CoordinatorConfig:
    for each in fields(CoordinatorConfig):
        if each.name not in merged and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(each.name, "is not set")
    given: dict[str, Any] = {}
    for key, value in merged.items():
        if key in {"http", "raft"}:
            given[key] = parse_address(key, value)
        elif key in _PATHS:
            given[key] = Path(_text(key, value))
        elif key == "peers":
            given[key] = _peers(key, value)
        elif key == "fences":
            given[key] = _fences(key, value)
        elif key == "tls":
            given[key] = _tls(key, value)
        elif key == "http_tls":
            given[key] = _http_tls(key, value)
        elif key == "policy":
            given[key] = PolicySettings.from_document(
                {each: _number_or_text(f"{key}.{each}", each, value[each]) for each in value}
            )
        elif key == "hosts":
            given[key] = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        elif key == "lease_ms":
            given[key] = _number_or_text(key, key, value)
        elif key in {"log_json", "allow_plain_http", "rejoin"}:
            given[key] = value if isinstance(value, bool) else _text(key, value).lower() in {"1", "true", "yes"}
        else:
            given[key] = _text(key, value)
    return CoordinatorConfig(**given)


def _text(name: str, value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str) or not value:
        raise ConfigError(name, f"must be a text, not {value!a}")
    return value


def _number_or_text(name: str, key: str, value: object) -> Any:  # noqa: ANN401 (checked at construction)
    if key in {"kind", "recovery", "fallback", "durability"} or not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise ConfigError(name, f"{value!a} is not a whole number") from None


def _whole_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(name, f"{value!a} is not a whole number")
    if value < least:
        raise ConfigError(name, f"{value} is under {least}")


def parse_address(name: str, value: object) -> Address:
    """``host:port`` as an `Address`.

    Raises:
        ConfigError: Not a host and a port from 0 to 65535.
    """
    if isinstance(value, Address):
        return value
    host, colon, port = _text(name, value).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(name, f"{value!a} is not host:port")
    return Address(host, int(port))


def _fences(name: str, value: object) -> dict[str, str]:
    """From a table, or ``name=place,name=place``."""
    if isinstance(value, str):
        pairs = [part.strip().partition("=") for part in value.split(",")]
        value = {fence: place for fence, _, place in pairs}
    if not isinstance(value, dict):
        raise ConfigError(name, "must be a table of sinks and their places")
    return {fence: _text(f"{name}.{fence}", value[fence]) for fence in sorted(value)}


def _peers(name: str, value: object) -> dict[str, PeerConfig]:
    if isinstance(value, str):
        peers = {}
        for part in value.split(","):
            peer, equals, rest = part.strip().partition("=")
            pieces = rest.rsplit(":", 2)
            if not equals or len(pieces) != 3:
                raise ConfigError(name, f"{part!a} is not id=host:raftport:httpport")
            host, raft, http = pieces
            peers[peer] = {"raft": f"{host}:{raft}", "http": f"{host}:{http}"}
        value = peers
    if not isinstance(value, dict):
        raise ConfigError(name, "must be a table of coordinators")
    built = {}
    for peer in sorted(value):
        entry = value[peer]
        if isinstance(entry, PeerConfig):
            built[peer] = entry
            continue
        for key in ("raft", "http"):
            if key not in entry:
                raise ConfigError(f"{name}.{peer}.{key}", "is not set")
        built[peer] = PeerConfig(
            raft=parse_address(f"{name}.{peer}.raft", entry["raft"]),
            http=parse_address(f"{name}.{peer}.http", entry["http"]),
        )
    return built


def _tls(name: str, value: object) -> TlsConfig:
    if isinstance(value, TlsConfig):
        return value
    if not isinstance(value, dict):
        raise ConfigError(name, "must be a table with ca, cert and key")
    for key in _TABLES["tls"]:
        if key not in value:
            raise ConfigError(f"{name}.{key}", "is not set")
    return TlsConfig(**{key: Path(_text(f"{name}.{key}", value[key])) for key in _TABLES["tls"]})


def _http_tls(name: str, value: object) -> HttpTlsConfig:
    if isinstance(value, HttpTlsConfig):
        return value
    if not isinstance(value, dict):
        raise ConfigError(name, "must be a table with cert, key and maybe ca")
    for key in ("cert", "key"):
        if key not in value:
            raise ConfigError(f"{name}.{key}", "is not set")
    return HttpTlsConfig(**{key: Path(_text(f"{name}.{key}", value[key])) for key in value})


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
