"""The world outside of a cluster, as far as agents change it: a plain log of what tools did, that nothing rolls back.

An effect has a *position*: which work of the agent's it belongs to. Its parts are those of the product's own tokens (agent,
input message, ordinal) and the *origin*, the fresh start from which the agent's state descends: an agent that begins anew
after a crash does its first work again, and rightly so. Whoever restores agents tells the log by `Effects.descends`, and
positions are then the same ones across lives; what keeps such an agent from doing them again is the product's to show.

A tool is a service: the request leaves, is carried out some time later whatever has become of the caller, and the answer
comes back if there is still somebody to hear it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from simulations.prng import stream
from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.participant_node import ParticipantLife

_TOKEN_BYTES: Final = 16


class Position(NamedTuple):
    """Where in an agent's work an effect belongs."""

    origin: str
    """Boot id of the life in which the agent began with a fresh state."""
    agent: str
    message: bytes
    """Id of the message whose turn it is."""
    ordinal: int
    """From 0, within the turn."""

    @property
    def token(self) -> str:
        """The same for the same position."""
        text = f"{self.origin}\0{self.agent}\0{self.message.hex()}\0{self.ordinal}"
        return blake3(text.encode()).hexdigest(length=_TOKEN_BYTES)


class Effect(NamedTuple):
    """Something that was done."""

    position: Position
    argument: str
    result: int
    at: int
    """Virtual time, ns."""


class Effects:
    """All of it, in order."""

    def __init__(self) -> None:
        self.done: dict[Position, Effect] = {}
        self.by_agent: dict[tuple[str, str], list[Effect]] = {}
        """(origin, agent) -> effects."""
        self._origins: dict[str, str] = {}

    def origin(self, boot_id: str) -> str:
        """From which fresh start the agents of a life descend."""
        return self._origins.get(boot_id, boot_id)

    def descends(self, boot_id: str, origin: str) -> None:
        """The agents of this life were restored: their work goes on from that origin."""
        self._origins[boot_id] = origin

    def apply(self, position: Position, argument: str, at: int) -> int:
        """Do it.

        Returns:
            Its result.

        Raises:
            Violation: I29, it was done before.
        """
        before = self.done.get(position)
        if before is not None:
            raise Violation(
                "I29",
                f"{position.agent}, message {position.message.hex()}, tool call {position.ordinal}: done at "
                f"{before.at / 1e6:.3f} ms, and again at {at / 1e6:.3f} ms",
            )
        result = int.from_bytes(blake3(f"{position.token} {argument}".encode()).digest(length=6), "big")
        effect = self.done[position] = Effect(position, argument, result, at)
        self.by_agent.setdefault((position.origin, position.agent), []).append(effect)
        return result


class Tools:
    """What the agents of one life call."""

    def __init__(self, effects: Effects, life: ParticipantLife, *, there_ns: int) -> None:
        """Connect.

        Args:
            effects: The log.
            life: Whose agents.
            there_ns: Longest time of a request on its way, and of an answer.
        """
        self._effects = effects
        self._life = life
        self._there_ns = there_ns
        self._random = stream(life.cluster.options.seed, f"tools:{life.name}:{life.number}")

    async def call(self, agent: str, message: bytes, ordinal: int, argument: str) -> tuple[str, int]:
        """Have something done.

        Returns:
            Token and result.
        """
        life = self._life
        position = Position(self._effects.origin(life.boot_id), agent, message, ordinal)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        there = self._random.below(self._there_ns)
        life.world.at(life.now + there, self._random, self._arrived, position, argument, answer)
        return position.token, await answer

    def _arrived(self, position: Position, argument: str, answer: asyncio.Future[int]) -> None:
        life = self._life
        result = self._effects.apply(position, argument, life.world.now)
        life.cluster.trace.note(life.world.now, "tools", "Applied", position, position.message)
        if not life.alive:
            life.cluster.probes.hit("effect.caller_died")
        life.world.after(self._random.below(self._there_ns), self._random, life.enter, _answer, answer, result)


def _answer(answer: asyncio.Future[int], result: int) -> None:
    if not answer.done():
        answer.set_result(result)
