"""What enters the leader's machine and what it orders.

The driver (asyncio in production, the simulator, a test) feeds one event at a time into `Leader.step` and carries out
the effects from left to right. No effect waits for another.

What the driver owes the machine:

* every entry applied by this replica's ledger is a `CommandApplied`, own or not, before the next event;
* `CommandRefused` only if the attempt certainly did not get into the log; anything unclear is `CommandAmbiguous`. The
  machine proposes again with the same id, which the ledger applies once;
* `AssembleCut`, `StoreManifest`, `ForsakeManifest`, `RaiseFence`, `ReadEpoch` and `Probe` are each answered by exactly one of their events, also
  after a failure;
* one `TimerFired` at or after the newest `SetTimer`; earlier is harmless;
* a connection number is never used again; sending to a closed connection and closing it again do nothing.

Those of which one is made for every message or entry are not frozen: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.assembler import AssemblyRequest
    from coordinator.ledger import Command, CommandId, Result
    from coordinator.policy import PolicySettings
    from protocol.ids import Instant
    from protocol.messages import ToCoordinator, ToParticipant

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameLeader:
    """The group made this coordinator its leader, and its ledger has caught up with the terms before."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLeadership:
    """Another coordinator leads, or nobody does."""

    leader: str = ""
    """Where participants find the leader, ``http://host:port``; "" if not known."""


@dataclass(slots=True, kw_only=True)
class LeaderKnown:
    """Where participants find the leader; for a machine that does not lead."""

    leader: str


@dataclass(slots=True, kw_only=True)
class CommandApplied:
    """This replica's ledger applied an entry."""

    id: CommandId
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRefused:
    """A proposal certainly did not get into the log."""

    id: CommandId
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAmbiguous:
    """Whether a proposal got into the log is unknown."""

    id: CommandId
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class ParticipantConnected:
    """A control connection with a participant's token is open."""

    connection: int


@dataclass(slots=True, kw_only=True)
class MessageArrived:
    """A message on a control connection."""

    connection: int
    message: ToCoordinator


@dataclass(slots=True, kw_only=True)
class Disconnected:
    """A control connection is gone, whoever closed it."""

    connection: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What became of an attempt to connect to a participant's own address; answer to `Probe`."""

    session: int
    address: str
    found: Literal["listens", "refuses", ""]
    """Somebody listens there; the machine is there and says that nobody does; "" for everything else, above all no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAssembled:
    """The cut of an epoch passed the check; answer to `AssembleCut`."""

    epoch: int
    previous: str
    """As in the request."""
    manifest: bytes
    digest: str
    took_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRefused:
    """The cut breaks P1, or an object is not what it must be; answer to `AssembleCut`. Final."""

    epoch: int
    participant: str
    """Whose object shows it."""
    cause: str
    """Names the first violation: channel, counts, message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsUnreadable:
    """The store did not give an object; answer to `AssembleCut`. Another attempt may succeed."""

    epoch: int
    participant: str
    cause: str
    """With errno and key."""
    gone: bool = False
    """The store answers, and there is no such object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestStored:
    """These bytes are durable under the epoch's key; answer to `StoreManifest`, and to a `ForsakeManifest` that found them."""

    epoch: int
    digest: str
    took_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFailed:
    """The manifest could not be stored, or its key not be taken; answer to `StoreManifest` and `ForsakeManifest`."""

    epoch: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRefused:
    """Something else lies under the epoch's key, and it is whole; answer to `StoreManifest`. Another attempt is in vain."""

    epoch: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestForsaken:
    """The epoch's key is taken for good: no manifest of it will ever be there; answer to `ForsakeManifest`."""

    epoch: int
    digest: str
    """Of the manifest that was sealed."""


@dataclass(slots=True, kw_only=True)
class TimerFired:
    """The instant of the newest `SetTimer` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTriggered:
    """Somebody asks for an epoch; answered by `Answer`."""

    request: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequested:
    """An operator wants an epoch to end; answered by `Answer`."""

    request: str
    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """An operator wants another policy; answered by `Answer`."""

    request: str
    policy: PolicySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRaised:
    """This store or sink refuses everything older than the incarnation, durably; answer to `RaiseFence`."""

    fence: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceFailed:
    """It did not acknowledge; another attempt may succeed. Answer to `RaiseFence`."""

    fence: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """The manifest of a committed epoch is what the ledger says; answer to `ReadEpoch`."""

    epoch: int
    agents: Mapping[str, str]
    """Agent -> participant that had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUnreadable:
    """It could not be read; answer to `ReadEpoch`."""

    epoch: int
    final: bool
    """It is corrupt or gone: another attempt is in vain."""
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequested:
    """An operator wants the cluster back at an epoch; answered by `Answer`."""

    request: str
    epoch: int | None
    """None: the newest; 0: the start."""
    reason: str = ""
    moves: tuple[tuple[str, str], ...] = ()
    """(agent, participant): agents that change their host with it."""
    renames: tuple[tuple[str, str], ...] = ()
    """(agent of the epoch, its name from then on)."""
    allow_unclaimed: bool = False
    """Agents that nobody takes are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRequested:
    """An operator names an epoch, so that it is kept; answered by `Answer`."""

    request: str
    epoch: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinRequested:
    """An operator takes a name back; answered by `Answer`."""

    request: str
    name: str


Event: TypeAlias = (
    BecameLeader
    | LostLeadership
    | LeaderKnown
    | CommandApplied
    | CommandRefused
    | CommandAmbiguous
    | ParticipantConnected
    | MessageArrived
    | Disconnected
    | Probed
    | CutAssembled
    | CutRefused
    | SnapshotsUnreadable
    | ManifestStored
    | ManifestFailed
    | ManifestRefused
    | ManifestForsaken
    | TimerFired
    | EpochTriggered
    | AbortRequested
    | PolicyChanged
    | FenceRaised
    | FenceFailed
    | EpochRead
    | EpochUnreadable
    | RestoreRequested
    | PinRequested
    | UnpinRequested
)

# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Propose:
    """Put a command into the log: `encode_command(command, at=wall clock)`, then submit."""

    command: Command


@dataclass(slots=True, kw_only=True)
class Send:
    """Send a message; dropped if the connection is gone."""

    connection: int
    message: ToParticipant


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close after what was sent before is out."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Connect to the address under which a participant takes its peers' connections, say nothing, and hang up."""

    session: int
    """Of the participant."""
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleCut:
    """Read the objects that the request names and give them to `assemble`, away from the loop."""

    epoch: int
    request: AssemblyRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreManifest:
    """Create the manifest's object; the same bytes there already are a success."""

    epoch: int
    manifest: bytes
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForsakeManifest:
    """Take the key of a sealed epoch's manifest for good, unless the manifest lies there already."""

    epoch: int
    digest: str
    """Of the manifest that was sealed."""
    request: AssemblyRequest
    """What it was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFence:
    """Have a store or sink refuse everything older than this incarnation, durably. Idempotent."""

    fence: str
    incarnation: int
    epoch: int
    """That the incarnation begins from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpoch:
    """Read the manifest of a committed epoch and compare it with the digest."""

    epoch: int
    manifest: str


@dataclass(slots=True, kw_only=True)
class SetTimer:
    """Send `TimerFired` at this instant; replaces the timer before."""

    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to a request: a result as the ledger gives them.

    Codes beside the ledger's: ``not-placed`` (agents without a host), ``not-leader``, ``not-ready`` (sentence says who is waited for), ``too-soon`` (minimum
    pause), ``busy``, ``unknown-outcome`` (leadership was lost on the way: look before asking again).
    """

    request: str
    result: Result


Effect: TypeAlias = (
    Propose
    | Send
    | CloseConnection
    | Probe
    | AssembleCut
    | StoreManifest
    | ForsakeManifest
    | RaiseFence
    | ReadEpoch
    | SetTimer
    | Answer
)
