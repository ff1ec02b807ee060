"""What a sink is: a place outside of the cluster that takes each output once.

A sink of your own implements `Sink`. It must keep token and output in one step, or ask the other side to (an idempotency
key), and refuse writers that are older than what it has seen: that comparison is what keeps a process that was declared dead,
and is not, from writing (RELIABILITY.md T13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec
from blake3 import blake3

from protocol.errors import SnapshotError
from protocol.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from participant.outbox import Receipt
    from protocol.outputs import FencingToken

_decode: Final = msgspec.msgpack.Decoder().decode
PAYLOAD_DIGEST_BYTES: Final = 16


class SinkError(SnapshotError):
    """A sink did not take what it was given; it is tried again.

    Attributes:
        sink: Its name.
    """

    definite = False

    def __init__(self, sink: str, reason: str) -> None:
        self.sink = sink
        super().__init__(f"sink {sink}: {reason}")


class SinkOutput(NamedTuple):
    """One output as a sink sees it."""

    token: str
    """32 hex digits; the same whenever this output is made again."""
    agent: str
    """Who emitted it."""
    payload: bytes
    """msgpack of plain data."""
    after: int = 0
    """Newest epoch that it is no part of."""

    @property
    def value(self) -> Any:  # noqa: ANN401 - plain data
        """The payload as plain data."""
        return _decode(self.payload)

    @property
    def digest(self) -> bytes:
        """By which another payload under the same token is known."""
        return blake3(self.payload).digest(length=PAYLOAD_DIGEST_BYTES)


@runtime_checkable
class Sink(Protocol):
    """Takes outputs. Used from one event loop, by one call at a time, except `raise_fence`."""

    @property
    def name(self) -> str:
        """Unique in the cluster: a part of every token. Written down in epochs; must not change."""
        ...

    async def open(self, writer: FencingToken) -> None:
        """Get ready, and refuse writers older than this one from now on.

        Raises:
            FencedError: This writer is older itself.
            SinkError: It does not work now.
        """
        ...

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """Take a batch; durable on return.

        Returns:
            One receipt per output, in order.

        Raises:
            OlderIncarnation: A newer incarnation has begun; nothing was taken.
            FencedError: The writer is a zombie for another reason; nothing was taken.
            SinkError: It may or may not have been taken; the same batch comes again.
        """
        ...

    async def raise_fence(self, incarnation: int) -> None:
        """Refuse writers of an older incarnation from the moment on at which this returns. Idempotent; works unopened.

        Raises:
            SinkError: The fence may not stand.
        """
        ...

    async def close(self) -> None:
        """Let go of files and connections; safe to call twice."""
        ...


def sink_name(name: str) -> str:
    """A sink's name, checked. Raises `IllegalName`."""
    return check_name("sink", name)
