"""What a handler may do besides changing its state. All of it takes effect at turn commit, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

from protocol.errors import LocalProtocolError
from protocol.ids import MESSAGE_ID_BYTES, AgentId, MessageId, agent_id
from protocol.messages import Envelope

if TYPE_CHECKING:
    from participant.codec import MessageRegistry

NS_PER_SECOND: Final = 1_000_000_000
DELAY_SECONDS_MAX: Final = 100 * 366 * 24 * 3600
"""A century: the instant still fits into 64 bits."""
SENDS_MAX: Final = 100_000
"""Messages of one turn: a handler that sends in an endless loop ends with an error, not with the process."""
TARGETS_REMEMBERED_MAX: Final = 4_096

encode_envelope = msgspec.msgpack.Encoder().encode


def child_id(parent: bytes, agent: bytes, ordinal: int) -> MessageId:
    """The id of a turn's n-th message: lineage, so the same work done again gives the same ids.

    Args:
        parent: Id of the message that the turn handles.
        agent: Id of the sending agent, UTF-8.
        ordinal: From 0, counted over the sends and timers of the turn.
    """
    return MessageId(blake3(parent + agent + ordinal.to_bytes(4, "big")).digest(length=MESSAGE_ID_BYTES))


class Context:
    """One turn's context; of no use after it."""

    __slots__ = (
        "_agent_bytes",
        "_closed",
        "_ordinal",
        "_registry",
        "_targets",
        "attempt",
        "epoch_requests",
        "message_id",
        "self_id",
        "sends",
        "source",
        "timers",
    )

    def __init__(
        self,
        *,
        self_id: AgentId,
        agent_bytes: bytes,
        message_id: bytes,
        source: AgentId,
        attempt: int,
        registry: MessageRegistry,
        targets: dict[str, AgentId],
    ) -> None:
        self.self_id = self_id
        """This agent."""
        self.message_id = message_id
        """Id of the message being handled: the same whenever it is handled again."""
        self.source = source
        """The agent that sent it; ``outside/ingest`` for outside input."""
        self.attempt = attempt
        """From 1; above 1 when the handler raised before and the policy retries."""
        self.sends: list[tuple[Envelope, bytes]] = []
        """What leaves at turn commit, in order."""
        self.timers: list[tuple[int, Envelope, bytes]] = []
        """Delay in nanoseconds, and what then goes into this agent's own mailbox."""
        self.epoch_requests: list[str] = []
        self._registry = registry
        self._agent_bytes = agent_bytes
        self._targets = targets
        self._ordinal = 0
        self._closed = False

    def send(self, target: str, message: object) -> None:
        """Send a message to an agent anywhere in the cluster; it leaves at turn commit, in order per target.

        The message is encoded now: what happens to the object later has no effect.

        Args:
            target: ``kind/name``.
            message: Of a type that this participant knows.

        Raises:
            IllegalName: `target` is no agent id.
            Unsavable: A part of the message cannot be saved, or its type is not registered.
            LimitExceeded: Too long, or too many in one turn.
        """
        known = self._targets.get(target)
        if known is None:
            known = agent_id(target)
            if len(self._targets) >= TARGETS_REMEMBERED_MAX:
                self._targets.clear()
            self._targets[target] = known
        envelope = self._envelope(known, message)
        self.sends.append((envelope, encode_envelope(envelope)))

    def after(self, seconds: float, message: object) -> None:
        """Send a message to this agent itself, later.

        The timer is durable: it is part of each cut, with the time that is left.

        Args:
            seconds: From turn commit on; 0 or more.
            message: Of a type that this participant knows.

        Raises:
            ValueError: `seconds` is negative, not finite or beyond a century.
            Unsavable: As for `send`.
        """
        if not 0 <= seconds <= DELAY_SECONDS_MAX:
            raise ValueError(f"after({seconds!r}, ...): the delay must be 0 to {DELAY_SECONDS_MAX} seconds")
        envelope = self._envelope(self.self_id, message)
        self.timers.append((round(seconds * NS_PER_SECOND), envelope, encode_envelope(envelope)))

    def request_epoch(self, reason: str) -> None:
        """Ask the coordinators for an epoch once this turn has committed."""
        self._check_open()
        if len(self.epoch_requests) < 16:
            self.epoch_requests.append(str(reason)[:200])

    def close(self) -> None:
        """The turn is over."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise LocalProtocolError(
                f"agent {self.self_id}: the context was used after its turn; what a turn started must not outlive it"
            )

    def _envelope(self, target: AgentId, message: object) -> Envelope:
        if self._closed:
            self._check_open()
        name, version, body = self._registry.encode(message, self.self_id)
        ordinal = self._ordinal
        if ordinal >= SENDS_MAX:
            from protocol.errors import LimitExceeded

            raise LimitExceeded(f"agent {self.self_id}: more than {SENDS_MAX} messages in one turn")
        self._ordinal = ordinal + 1
        identity = child_id(self.message_id, self._agent_bytes, ordinal)
        return Envelope(identity, self.self_id, target, name, version, body)
