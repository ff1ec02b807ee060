"""Settings of one participant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from protocol.errors import ConfigError
from protocol.ids import ClusterName, ParticipantId, cluster_name, participant_id
from protocol.limits import CONCURRENT_EPOCHS_MAX, IN_FLIGHT_BYTES_MAX, INPUT_LOG_BYTES_MAX, RECORDING_BYTES_MAX
from protocol.topology import check_targets

if TYPE_CHECKING:
    from participant.effects.backend import EffectBackend
    from protocol.ports import ObjectStore

TRANSPORTS = ("websocket", "memory", "mqtt://host:port", "mqtts://host:port")


def check_interpreter(*, assertions: bool = __debug__) -> None:
    """Refuse an interpreter in which the guards would not hold.

    Raises:
        ConfigError: ``python -O``.
    """
    if not assertions:
        raise ConfigError("python -O", "assertions are part of a participant's safety; start it without -O")


@dataclass(frozen=True, kw_only=True)
class ParticipantConfig:
    """What a participant is told; checked as a whole when it is made.

    Raises:
        ConfigError: Names the setting and what to do.
    """

    id: str
    """Stable over restarts; unique in the cluster."""
    cluster: str
    coordinators: tuple[str, ...] = ()
    """``host:port`` or ``https://host:port`` of each coordinator's API; one that answers is enough, it points to the leader."""
    transport: str = field(default="websocket", repr=False)
    """``websocket`` (peer to peer), ``mqtt[s]://[user:password@]host:port`` (through a broker), ``memory`` (one process).
    Not shown, since it may hold a password."""
    mqtt_ca_file: str | None = None
    """The authority that an ``mqtts://`` broker's certificate is checked against; None: what this machine trusts."""
    mqtt_cert_file: str | None = None
    """Certificate that an ``mqtts://`` broker is shown, where it asks for one; together with `mqtt_key_file`."""
    mqtt_key_file: str | None = None
    store: str | ObjectStore = ""
    """Where local snapshots go: ``file:/path``, ``/path``, ``memory:name``, or a store. All participants and coordinators
    share one."""
    local: str | None = None
    """Folder on this machine's own disk for what a participant remembers over restarts, outside input too; participants may
    share it. Without one, only sessions keep a participant's lives apart, and input is lost with the work that it caused."""
    durability: str = "epoch"
    """What a crash costs; the cluster's setting, the same for all. ``epoch``: everybody goes back to the newest epoch. ``turn``: this
    participant goes on from the log of its turns, which it needs a folder (`local`) for, and the others notice nothing."""
    effects: str | EffectBackend = field(default="", repr=False)
    """Where the effect ledger is, which steps and questions need: ``redis://[user:password@]host:port`` (``rediss://``) for
    agents that may have to leave a lost disk behind, or go to other participants; nothing: a log in `local`, if there is one. An
    agent that comes from elsewhere has then done what is not known here: its steps are resolved first, or in doubt. Not shown,
    since it may hold a password."""
    settled_ledgers: tuple[str, ...] = ()
    """Effect ledgers of lost disks and former hosts that nobody need ask for any more: somebody has seen to it that what was
    done there is known, or does not matter. By the names that steps in doubt say; without it, such an agent's steps are resolved or
    in doubt for good."""
    ca_file: str | None = None
    """The authority that coordinators' ``https://`` certificates are checked against (``tls/ca.pem`` of ``cleancut keys
    init``); None: what this machine trusts."""
    secret_file: str | None = None
    """The cluster's secret; all parts have the same."""
    secret: bytes | None = field(default=None, repr=False)
    """The secret itself, in place of a file."""
    listen: str = "127.0.0.1:0"
    """``host:port`` for the WebSocket transport; port 0 takes a free one."""
    advertise: str = ""
    """``host:port`` under which peers reach `listen`, where that differs."""
    targets: tuple[str, ...] | None = None
    """Participants that this one sends to; None: all others. A channel that is never used still costs a marker an epoch."""
    allow_cloudpickle: bool = False
    """Whether agents may keep state that only pickling can save."""
    max_concurrent_epochs: int = CONCURRENT_EPOCHS_MAX
    """Epochs that may be open here at once; the coordinators' policy has its own bound."""
    recording_bytes_max: int = RECORDING_BYTES_MAX
    """In-flight bytes that one epoch may record here; past it the epoch aborts."""
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    """Bytes in mailboxes and outgoing channels past which `ingest` refuses."""
    input_log_bytes_max: int = INPUT_LOG_BYTES_MAX
    """Bytes of outside input kept under `local` past which `ingest` refuses: what no committed epoch has yet, and older input
    for restores from older epochs, as far as there is room."""
    allow_lost_input: bool = False
    """Let a restore from an old epoch go on where acknowledged input after it is not kept any more. Without it such a restore is
    refused, and says what is missing."""

    def __post_init__(self) -> None:
        cluster_name(self.cluster)
        participant_id(self.id)
        check_targets(self.id, self.targets)
        for target in self.targets or ():
            participant_id(target)
        if self.transport not in {"websocket", "memory"} and not self.transport.startswith(("mqtt://", "mqtts://")):
            raise ConfigError("transport", f"{_without_password(self.transport)!a} is none of {', '.join(TRANSPORTS)}")
        for name in ("mqtt_ca_file", "mqtt_cert_file", "mqtt_key_file"):
            if getattr(self, name) is not None and not self.transport.startswith("mqtts://"):
                raise ConfigError(name, "is for a transport of mqtts://host:port only")
        if (self.mqtt_cert_file is None) != (self.mqtt_key_file is None):
            raise ConfigError("mqtt_cert_file", "give mqtt_cert_file and mqtt_key_file together")
        if self.secret is not None and self.secret_file is not None:
            raise ConfigError("secret", "give secret or secret_file, not both")
        if self.secret is None and self.secret_file is None:
            raise ConfigError("secret_file", "missing: the file with the cluster's secret")
        if not self.store:
            raise ConfigError("store", "missing: file:/path, the same for all parts of the cluster")
        if isinstance(self.effects, str) and self.effects and not self.effects.startswith(("redis://", "rediss://")):
            raise ConfigError("effects", f"{_without_password(self.effects)!a} is no redis://host:port")
        if not isinstance(self.settled_ledgers, tuple | list):
            raise ConfigError("settled_ledgers", f"{self.settled_ledgers!a} is no tuple of names")
        if self.durability not in ("epoch", "turn"):
            raise ConfigError("durability", f"{self.durability!a} is none of epoch, turn")
        if self.durability == "turn" and self.local is None:
            raise ConfigError(
                "local", "missing: durability 'turn' keeps the log of turns there, on this machine's own disk"
            )
        if not isinstance(self.allow_lost_input, bool):
            raise ConfigError("allow_lost_input", "must be True or False")
        for name in ("max_concurrent_epochs", "recording_bytes_max", "in_flight_bytes_max", "input_log_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"{getattr(self, name)} is not positive")

    @property
    def cluster_name(self) -> ClusterName:
        """`cluster`, checked."""
        return cluster_name(self.cluster)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that the transport binds, is reached under, or goes through; empty within one process."""
        if self.transport == "memory":
            return ()
        if self.transport == "websocket":
            return tuple(urlsplit(f"//{text}").hostname or "" for text in (self.listen, self.advertise) if text)
        return (urlsplit(self.transport).hostname or "",)

    @property
    def participant_id(self) -> ParticipantId:
        """`id`, checked."""
        return participant_id(self.id)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
