"""What drivers provide: small `typing.Protocol`s that production, tests and simulation implement.

An object store holds immutable objects under keys; a key is a relative path of names, numbers and hex digits. All
methods block; asyncio drivers call them in a thread.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator


class PutResult(Enum):
    """Outcome of a create-only put. Both mean: these bytes are durable under this key now."""

    CREATED = "created"
    ALREADY_THERE = "already-there"


@runtime_checkable
class ObjectStore(Protocol):
    """Create-only objects, durable when `put` returns.

    `put` of a key that holds other bytes raises `ObjectConflict`; of the same bytes it is `ALREADY_THERE`. `get` of a
    missing key raises `ObjectMissing`. Everything else that goes wrong is a `StoreError` with errno where there is one;
    a failed put leaves nothing visible under the key unless the error says `definite=False`.
    """

    @property
    def url(self) -> str:
        """What a user would write to open this store."""
        ...

    def put(self, key: str, data: bytes) -> PutResult:
        """Create an object; durable, name included, on return."""
        ...

    def replace(self, key: str, data: bytes) -> None:
        """Write an object in the place of whatever is there, in one step: at no moment is there nothing. Durable on return.

        For repair only (`protocol.storage.repair`): nothing else ever changes an object.
        """
        ...

    def get(self, key: str, *, size_max: int) -> bytes:
        """The whole object; `ObjectCorrupt` if larger than `size_max`."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; `ObjectCorrupt` if the object is shorter."""
        ...

    def size(self, key: str) -> int:
        """Bytes of an object."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Keys that begin with `prefix`, sorted. For inspection and collection; never to find the newest epoch."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        ...


class FrameSink(Protocol):
    """Where a transport puts what arrived: called in the driver's loop, must not block."""

    def frame_received(self, frame: bytes) -> None:
        """One whole frame, unverified."""
        ...

    def peer_connected(self, peer: str) -> None:
        """Frames to this peer can leave now; the channel machine sends again what is not acknowledged."""
        ...

    def peer_disconnected(self, peer: str, reason: str) -> None:
        """Frames to this peer are lost from here on."""
        ...


class Transport(Protocol):
    """Carries opaque frames between participants. May lose, repeat and reorder; never invents."""

    @property
    def address(self) -> str:
        """Where peers reach this end; known after `start`."""
        ...

    async def start(self, sink: FrameSink) -> None:
        """Bind; raises `ConfigError` with the port when it is taken."""
        ...

    def set_peers(self, peers: dict[str, str]) -> None:
        """Participant id -> address: connect to new ones, drop those no longer named. Reconnects by itself."""
        ...

    def send(self, peer: str, frame: bytes) -> bool:
        """Hand over a frame without waiting; False when it was dropped (not connected, buffer full)."""
        ...

    async def close(self) -> None:
        """Flush what can be flushed within a second and end."""
        ...
