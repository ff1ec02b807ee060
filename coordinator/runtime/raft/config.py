"""Settings of one coordinator's Raft: who is in the group, where its files are, its clocks.

Importing this module must stay cheap: no pysyncobj, no ssl.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import ConfigError
from protocol.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from protocol.ids import ClusterName, CoordinatorId


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTiming:
    """Clocks of elections and connections, in seconds (pysyncobj's unit).

    Every coordinator of a group should run the same; mixed presets are safe and only slow elections down.
    """

    heartbeat: float = 0.05
    """The leader sends at least this often."""
    election_min: float = 0.3
    """A follower that hears nothing this long (plus a random part) stands for election. Above three heartbeats."""
    election_max: float = 0.7
    """The random part ends here. A wide range makes split votes rare; median failover is about 1 s."""
    leader_fallback: float = 0.6
    """A leader that hears no quorum this long stops leading: the bound of stale leadership after a cut."""
    connection: float = 1.0
    """A peer's connection that carries nothing this long is closed. At least `election_max`."""
    reconnect: float = 0.2
    """Wait between two attempts to connect."""
    handshake: float = 3.0
    """A connection that is not through TLS and its first frame by then is closed."""

    def __post_init__(self) -> None:
        if min(self.heartbeat, self.reconnect, self.handshake) <= 0:
            raise ConfigError("raft timing", "every duration must be above 0 s")
        if self.election_min <= 3 * self.heartbeat:
            raise ConfigError(
                "raft timing",
                f"election_min ({self.election_min} s) must be above 3 x heartbeat ({self.heartbeat} s), "
                "or a single late heartbeat deposes the leader",
            )
        if self.election_max <= self.election_min:
            raise ConfigError("raft timing", "election_max must be above election_min, or votes split for ever")
        if self.leader_fallback <= 3 * self.heartbeat:
            raise ConfigError("raft timing", "leader_fallback must be above 3 x heartbeat")
        if self.connection < self.election_max:
            raise ConfigError("raft timing", "connection must be at least election_max")


TIMINGS: Mapping[str, RaftTiming] = {
    "normal": RaftTiming(),
    "slow": RaftTiming(
        election_min=0.6, election_max=1.4, leader_fallback=1.2, connection=2.0, reconnect=0.3, handshake=6.0
    ),
}
"""The presets. ``slow`` is for machines that stall (shared test hosts, small virtual machines)."""


def timing_preset(name: str) -> RaftTiming:
    """The preset of that name.

    Raises:
        ConfigError: No such preset.
    """
    timing = TIMINGS.get(name)
    if timing is None:
        raise ConfigError("raft timing", f"{name!r} is not one of {', '.join(TIMINGS)}")
    return timing


def split_address(setting: str, address: str) -> tuple[str, int]:
    """``host:port`` as a pair; IPv6 hosts are written in brackets.

    Raises:
        ConfigError: Not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(setting, f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where this coordinator's side of the cluster's certificates lies (`coordinator.certificates` makes them)."""

    ca: Path
    """Certificate of the cluster's own authority; nobody else's certificate is accepted."""
    certificate: Path
    """This coordinator's certificate; its common name is the coordinator's id."""
    key: Path
    """The private key; must not be readable for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """One coordinator's part of the group."""

    id: CoordinatorId
    """This coordinator."""
    cluster: ClusterName
    """Written into journal and snapshot and said in each connection's first frame: folders and peers of another
    cluster are refused."""
    folder: Path
    """Journal, snapshot and lock live here; made if missing. Belongs to exactly one coordinator for ever."""
    peers: Mapping[CoordinatorId, str] = field(default_factory=dict)
    """The other coordinators' Raft addresses, ``host:port``. Empty: a group of one, which opens no port at all.
    The *ids* of a group are fixed when it is created; addresses may change at a restart."""
    listen: str = "127.0.0.1:0"
    """Address to bind, exactly; nothing is ever bound to all interfaces unless that is written here."""
    tls: TlsFiles | None = None
    """Required as soon as there are peers."""
    timing: RaftTiming = TIMINGS["normal"]
    rejoin: bool = False
    """Start with an empty folder in a group that has been running: the old folder is lost. Without it an empty folder
    means a new group. No effect on a folder that is not empty, so it may stay set."""
    compact_entries: int = 5000
    """The journal is compacted into a snapshot once it holds more entries than this."""
    compact_seconds: float = 300.0
    """... or this long after the last time, when anything was applied since."""

    def __post_init__(self) -> None:
        check_name("coordinator", self.id)
        check_name("cluster", self.cluster)
        split_address("raft", self.listen)
        for peer, address in self.peers.items():
            check_name("coordinator", peer)
            split_address(f"peers.{peer}", address)
        if self.id in self.peers:
            raise ConfigError("peers", f"{self.id} is this coordinator; peers are the others")
        if self.peers and self.tls is None:
            raise ConfigError(
                "tls",
                f"a group of {len(self.peers) + 1} coordinators needs certificates; make them with "
                "`cleancut keys init` and set tls.ca, tls.cert and tls.key",
            )
        if self.rejoin and not self.peers:
            raise ConfigError("rejoin", "a group of one has nobody to catch up with")
        if self.compact_entries < 2:
            raise ConfigError("compact_entries", "at least 2 entries must stay in the journal")
        if self.compact_seconds <= 0:
            raise ConfigError("compact_seconds", "must be above 0 s")

    @property
    def members(self) -> tuple[CoordinatorId, ...]:
        """All ids of the group, sorted."""
        return tuple(sorted({self.id, *self.peers}))
