"""An effect ledger as a participant asks it: for as long as it takes, as who the participant is at the moment."""

from __future__ import annotations

import asyncio
import logging
import secrets
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from participant.effects.entries import Entry, Kind
from participant.failure import Backoff
from protocol.errors import ConfigError, FencedError, Refused, SnapshotError, StoreError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from participant.context import Context
    from participant.effects.backend import EffectBackend
    from participant.runtime.clock import Clock
    from protocol.outputs import FencingToken

log = logging.getLogger("cleancut.participant.steps")

T = TypeVar("T")

_ASK_AGAIN: Final = Backoff(first=0.05, factor=2.0, maximum=2.0)
_CLAIM_ID_BYTES: Final = 8


class LedgerSink(Protocol):
    """Where the ledger's end is told; called on the loop, must not block."""

    def effects_failed(self, error: SnapshotError) -> None:
        """The effect ledger is broken for good, is set up wrongly, or belongs to somebody else: this participant must end."""
        ...


class LedgerClient:
    """One participant's way to its effect ledger.

    Args:
        backend: Where it is.
        fence: Who this participant is at the moment.
        clock: For waits.
        sink: Told when the ledger is of no use any more.
    """

    def __init__(
        self, backend: EffectBackend, *, fence: Callable[[], FencingToken], clock: Clock, sink: LedgerSink
    ) -> None:
        self.backend = backend
        self.fence = fence
        self.retries = 0
        self.closed = False
        """Nobody wants to know of failures any more."""
        self._clock = clock
        self._sink = sink
        self._opened: FencingToken | None = None
        self._opening = asyncio.Lock()

    async def ask(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have the ledger answer, however long it takes.

        Raises:
            StoreError: It is broken for good, and the participant ends.
            ConfigError: It is set up wrongly, and the participant ends.
            FencedError: This process is a zombie, and ends.
            Refused: The participant is not a member of the cluster yet.
        """
        attempt = 0
        while True:
            try:
                await self._ready()
                return await operation()
            except Unreachable as error:
                attempt += 1
                self.retries += 1
                if attempt == 1:
                    log.warning("the effect ledger does not answer; asking again: %s", error)
                await self.sleep(_ASK_AGAIN.wait_ns(min(attempt, 20)))
            except (StoreError, ConfigError, FencedError) as error:
                if not self.closed:
                    self._sink.effects_failed(error)
                raise

    async def _ready(self) -> None:
        """Have the ledger know who we are now: others are refused from then on."""
        while self._opened != self.fence():
            async with self._opening:
                await self._open(self.fence())

    async def _open(self, fence: FencingToken) -> None:
        if self._opened == fence:
            return
        if not fence.session:
            raise Refused(
                "no-member", f"{fence.participant} is no member of the cluster yet: wait_member() comes first"
            )
        try:
            await self.backend.open(fence)
        except FencedError:
            if self.fence() == fence:
                raise
            # Overtaken by nobody but this very process, which has entered a later incarnation meanwhile.
        else:
            self._opened = fence

    def now(self) -> int:
        """By the participant's clock."""
        return self._clock.now()

    async def sleep(self, ns: int) -> None:
        """By the participant's clock."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.now() + ns, lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            timer.cancel()

    def new_entry(
        self,
        agent: str,
        context: Context,
        kind: Kind,
        name: str,
        ordinal: int,
        token: str,
        intent: bytes,
        shown: str,
    ) -> Entry:
        """A claim of now."""
        fence = self.fence()
        return Entry(
            token=token,
            kind=kind,
            agent=agent,
            message_id=context.message_id,
            name=name,
            ordinal=ordinal,
            intent=intent,
            shown=shown,
            payload=b"",
            participant=fence.participant,
            incarnation=fence.incarnation,
            session=fence.session,
            claim_id=secrets.token_bytes(_CLAIM_ID_BYTES),
            claimed_at=time_ns(),
        )
