"""What every workload is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from protocol.messages import Envelope

if TYPE_CHECKING:
    from participant.agent import Agent
    from simulations.options import Options

_decode = msgspec.msgpack.Decoder(Envelope).decode


class Switch:
    """Whether agents still begin new work; shared by all of a run, not part of any state."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = True


class Workload(ABC):
    """Agents, and what is conserved among them."""

    messages: ClassVar[tuple[type, ...]] = ()
    """Every message type of it."""

    def __init__(self, options: Options, targets: dict[str, tuple[str, ...]]) -> None:
        self.options = options
        self.targets = targets
        self.switch = Switch()

    @abstractmethod
    def agents(self, participant: str) -> list[Agent]:
        """Fresh agents of one life."""

    @abstractmethod
    def share(self, participant: str) -> int:
        """What a fresh life adds to the total."""

    @abstractmethod
    def held(self, fields: dict[str, Any]) -> int:
        """What an agent's state holds of the total."""

    @abstractmethod
    def carried(self, envelope: Envelope) -> int:
        """What a message carries of the total."""

    def carried_bytes(self, data: bytes) -> int:
        """The same of an encoded envelope."""
        return self.carried(_decode(data))
