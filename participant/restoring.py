"""What a participant takes over from an epoch, and what it tells its agents about it. Pure.

Each agent comes from the local snapshot of whoever hosted it at the cut: state, mailbox, timers, held outputs, and, behind
its mailbox, the messages that were in flight to it, channel by channel, each in its order. They lie in the mailbox before
anything newer can arrive, so they come first on their channel wherever sender and receiver are now.

What a local snapshot holds for nobody's mailbox (messages to agents that its host did not have) goes on from where its sender is
now, so that it stays ahead of whatever the sender sends next. Where the sender is not known there, it goes on from one heir: the
participant of the same name, or else the host of its first agent, or else the first member. Everybody computes the same.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from blake3 import blake3

from participant.context import encode_envelope
from protocol.contents import decode_channel, decode_envelope
from protocol.documents import canonical_json
from protocol.ids import MESSAGE_ID_BYTES, AgentId
from protocol.items import KIND_MESSAGE, item_kind, message_payload
from protocol.messages import Envelope
from protocol.renames import renamed_envelope, renamed_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from participant.machine_events import Delivery
    from protocol.manifest import AgentSnapshot, IncomingCut, Manifest
    from protocol.messages import Member

RESTORED_TYPE = "cleancut.restored"
"""Registered name of the message that has `Agent.on_restored` called."""


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent that came back is told; what is in doubt, it finds by `Context.in_doubt`."""

    epoch: int
    """That its state is of."""
    incarnation: int
    """That begins."""
    host: str
    """Participant that hosted it at the cut."""
    running: bool = False
    """A turn was running at the cut: its message is the next one, and it begins again from its start."""
    waiting: int = 0
    """Messages in the mailbox at the cut, the running turn's included."""
    in_flight: int = 0
    """Messages that were on their way to it; they come after those."""
    timers: int = 0
    """Timers that run on."""
    overdue: int = 0
    """Timers that were due meanwhile: their messages come at once, behind the others."""
    session: int = 0
    """With durability ``turn``, this participant alone went on from its log, with this session, and nothing was undone: turns of
    the log are in the agent's state. 0: everybody went back to the epoch."""
    was: str = ""
    """Its name in the epoch, where that was another one."""


class Numbers(NamedTuple):
    """What first messages of agents that begin are named after (`protocol.messages.Member.fresh`)."""

    rest: int = 0
    own: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(cls, member: Member | None) -> Numbers:
        """Those of a member's agents."""
        return cls() if member is None else cls(member.fresh, dict(member.fresh_of))

    def number(self, agent: str) -> int:
        """One agent's."""
        return self.own.get(agent, self.rest)


class Plan(NamedTuple):
    """Which local snapshots one participant reads, and what for."""

    agents: dict[str, tuple[str, ...]]
    """Participant of the epoch -> its agents that are placed here, both sorted."""
    fresh: tuple[str, ...]
    """Agents placed here that the epoch does not hold."""
    inherits: tuple[str, ...]
    """Participants of the epoch whose other messages go on from here."""

    def sources(self) -> tuple[str, ...]:
        """Whose local snapshots are read, sorted."""
        return tuple(sorted({*self.agents, *self.inherits}))


def plan(
    me: str, members: Iterable[Member], manifest: Manifest | None, renames: Mapping[str, str] = MappingProxyType({})
) -> Plan:
    """What a participant takes over.

    Args:
        me: Its id.
        members: Of the incarnation that begins, with the agents placed on each.
        manifest: Of the epoch; None for the start.
        renames: Name in the epoch -> name from now on. The plan has the epoch's.
    """
    placed: dict[str, str] = {}
    names: list[str] = []
    mine: tuple[str, ...] = ()
    for member in members:
        names.append(member.id)
        placed.update(dict.fromkeys(member.agents, member.id))
        if member.id == me:
            mine = member.agents
    if manifest is None:
        return Plan({}, tuple(sorted(mine)), ())
    agents: dict[str, tuple[str, ...]] = {}
    inherits = []
    held: set[str] = set()
    for old in manifest.members:
        held.update(renames.get(agent, agent) for agent in old.agents)
        here = tuple(agent for agent in sorted(old.agents) if placed.get(renames.get(agent, agent)) == me)
        if here:
            agents[old.participant] = here
        if heir_of(old.participant, renamed_ids(old.agents, renames), names, placed) == me:
            inherits.append(old.participant)
    return Plan(agents, tuple(agent for agent in sorted(mine) if agent not in held), tuple(inherits))


def heir_of(participant: str, agents: Iterable[str], members: Iterable[str], placed: Mapping[str, str]) -> str:
    """Who goes on with what a participant of the epoch held for others."""
    names = sorted(members)
    if participant in names:
        return participant
    return next((placed[agent] for agent in agents if agent in placed), names[0])


def goes_on_here(held: Iterable[Delivery], me: str, senders: Mapping[str, str], *, heir: bool) -> list[Delivery]:
    """Which of the messages that a participant of the epoch held for agents that nobody hosted go on from here.

    Args:
        held: In order.
        me: This participant.
        senders: That participant's agents, by their names in the epoch -> where they are now; "": nowhere.
        heir: Whether what belongs to nobody else goes on from here.
    """
    found = []
    for delivery in held:
        host = senders.get(delivery[0].source, "")
        if host == me or (heir and not host):
            found.append(delivery)
    return found


def in_flight(
    channel: IncomingCut, data: bytes, name: str, *, here: frozenset[str], theirs: frozenset[str]
) -> tuple[list[Delivery], list[Delivery]]:
    """The messages of one recorded channel: to agents placed here, and to agents that its receiver did not host.

    Args:
        channel: Its row in the receiver's local snapshot.
        data: The recorded items.
        name: Of the channel, for errors.
        here: Agents of the receiver that are placed here.
        theirs: All agents of the receiver.

    Raises:
        ObjectCorrupt: Not what it must be.
    """
    mine: list[Delivery] = []
    others: list[Delivery] = []
    for item in decode_channel(data, channel.items, name):
        if item_kind(item) != KIND_MESSAGE:
            continue  # markers of epochs that overlapped
        payload = bytes(message_payload(item))
        envelope = decode_envelope(payload, name)
        if envelope.target in here:
            mine.append((envelope, payload))
        elif envelope.target not in theirs:
            others.append((envelope, payload))
    return mine, others


def renamed_delivery(delivery: Delivery, renames: Mapping[str, str]) -> Delivery:
    """A message of the epoch with the names of from now on; the very same where it names none of them."""
    envelope = renamed_envelope(delivery[0], renames)
    return delivery if envelope is delivery[0] else (envelope, encode_envelope(envelope))


def renamed_bytes(data: bytes, renames: Mapping[str, str], name: str) -> bytes:
    """The same for an encoded message."""
    return renamed_delivery((decode_envelope(data, name), data), renames)[1] if renames else data


def restored_message(agent: AgentId, cluster: str, what: Restoration) -> Delivery:
    """The message that has `on_restored` called, as the first turn."""
    text = f"{RESTORED_TYPE}\0{cluster}\0{agent}\0{what.incarnation}"
    if what.session:
        text += f"\0{what.session}"
    identity = blake3(text.encode()).digest(length=MESSAGE_ID_BYTES)
    envelope = Envelope(identity, agent, agent, RESTORED_TYPE, 1, msgspec.msgpack.encode(what))
    return envelope, encode_envelope(envelope)


class StateHash:
    """Over what was taken, agent by agent in sorted order: the same for the same epoch and placement (I26)."""

    def __init__(self) -> None:
        self._hasher = blake3(b"cleancut restored state\0")

    def agent(self, snapshot: AgentSnapshot, flying: Iterable[Delivery]) -> None:
        """An agent came back, with these messages behind its mailbox."""
        self._hasher.update(canonical_json(msgspec.to_builtins(snapshot)))
        for _, data in flying:
            self._hasher.update(data)

    def fresh(self, agent: str) -> None:
        """An agent begins."""
        self._hasher.update(f"fresh {agent}\0".encode())

    def digest(self) -> str:
        """As a digest is written."""
        return f"b3:{self._hasher.hexdigest()}"
