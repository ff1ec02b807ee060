"""Outputs: what agents emit to the world outside, its identity, and the fence that keeps zombies from it.

Theory of operation:
    * An output's *id* is its position in the program: id of the message that the turn handles, agent, ordinal of the emit.
      Work that is done again after a rollback emits at the same positions, so under the same ids, whatever it emits.
    * A sink sees a *token*: the id, scoped by cluster and sink. It keeps the token together with the output in one step,
      and drops what comes again.
    * Every write names who writes: participant, incarnation, session. A sink keeps the highest of them that it has seen or
      was told of, and refuses what is older (RELIABILITY.md T13). The resource compares, not the client.

Sources: DESIGN.md section 6; RELIABILITY.md I22, I23, I30, T13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from blake3 import blake3

from protocol.errors import FencedError
from protocol.ids import MESSAGE_ID_BYTES, AgentId

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOMAIN: Final = b"\0output"
"""Outputs and messages of one turn are counted apart, and never share an id."""
TOKEN_BYTES: Final = 16


class Output(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One emitted output as it lies in a local snapshot and in an outbox. Append-only: old readers skip the rest."""

    id: bytes
    """Position: `output_id`."""
    agent: AgentId
    """Who emitted it."""
    sink: str
    """Name of the sink."""
    payload: bytes
    """msgpack of plain data."""
    after: int = 0
    """Newest epoch whose cut the emitting participant had taken by then: the output is no part of it. 0: none."""


def output_id(parent: bytes, agent: bytes, ordinal: int) -> bytes:
    """The id of a turn's n-th output.

    Args:
        parent: Id of the message that the turn handles.
        agent: Id of the emitting agent, UTF-8.
        ordinal: From 0, counted over the outputs of the turn.
    """
    return blake3(parent + agent + ordinal.to_bytes(4, "big") + _DOMAIN).digest(length=MESSAGE_ID_BYTES)


def output_token(cluster: str, sink: str, identity: bytes) -> str:
    """What a sink knows an output by: 32 hex digits, the same whenever the output is made again.

    Args:
        cluster: The cluster's name: a fork of it has other tokens.
        sink: The sink's name.
        identity: The output's id.
    """
    return blake3(f"cleancut output\0{cluster}\0{sink}\0".encode() + identity).hexdigest(length=TOKEN_BYTES)


class OlderIncarnation(FencedError):
    """A newer incarnation has begun. Whoever is told so may be a zombie, or about to be brought into it by a restore order."""


class FencingToken(NamedTuple):
    """Who writes: sent along with every write to the outside."""

    participant: str
    incarnation: int
    session: int

    def header(self) -> str:
        """As one text, for protocols that carry texts: ``incarnation/session/participant``."""
        return f"{self.incarnation}/{self.session}/{self.participant}"

    @classmethod
    def from_header(cls, text: str) -> FencingToken:
        """The reverse of `header`.

        Raises:
            ValueError: Not one.
        """
        incarnation, session, participant = text.split("/", 2)
        return cls(participant, int(incarnation), int(session))


def check_fence(writer: FencingToken, *, incarnation: int, session: int, where: str) -> None:
    """Refuse a writer that something newer has replaced.

    Args:
        writer: Who writes.
        incarnation: Highest one that the resource knows of.
        session: Highest one of this participant that the resource knows of.
        where: Name of the resource, for the error.

    Raises:
        OlderIncarnation: A newer incarnation has begun.
        FencedError: A newer session of the same participant has.
    """
    if writer.incarnation < incarnation:
        raise OlderIncarnation(
            f"{where} refuses {writer.participant}: it writes for incarnation {writer.incarnation}, and {incarnation} has begun"
        )
    if writer.session < session:
        raise FencedError(
            f"{where} refuses {writer.participant}: it writes for session {writer.session}, and {session} has begun"
        )


class FenceState:
    """What a resource remembers of writers, for resources that keep it in memory.

    A durable one keeps the same two things: one incarnation, and a session per participant.
    """

    __slots__ = ("incarnation", "sessions")

    def __init__(self) -> None:
        self.incarnation = 0
        self.sessions: dict[str, int] = {}

    def admit(self, writer: FencingToken, where: str) -> None:
        """Check a writer, and remember it as the newest.

        Raises:
            FencedError: It is older than what was seen.
        """
        check_fence(writer, incarnation=self.incarnation, session=self.sessions.get(writer.participant, 0), where=where)
        self.incarnation = writer.incarnation
        self.sessions[writer.participant] = writer.session

    def raise_fence(self, incarnation: int) -> None:
        """Nothing older than this is admitted from now on."""
        self.incarnation = max(self.incarnation, incarnation)


def rename_output(output: Output, renames: Mapping[str, str]) -> Output:
    """The output of an agent that has another id now; its own id, and so its token, stays."""
    renamed = renames.get(output.agent)
    return output if renamed is None else msgspec.structs.replace(output, agent=AgentId(renamed))
