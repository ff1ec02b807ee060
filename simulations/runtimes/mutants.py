"""Planted bugs of the drivers: what only the second mode can see."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.mutants import Patcher


def unheard_report(patcher: Patcher) -> None:
    """The uploader does not wait for the store."""
    from participant.runtime.uploader import Uploader

    def make(upload: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: Uploader, part: Any, key: str, data: bytes) -> Any:  # noqa: ANN401 - as the method
            upload(self, part, key, data)
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        return eager

    patcher.method(Uploader, "_upload", make)


def effects_reversed(patcher: Patcher) -> None:
    """A participant carries out effects from right to left."""
    from participant.runtime.participant import Participant

    def make(carry_out: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, effects: carry_out(self, tuple(reversed(effects)))

    patcher.method(Participant, "_carry_out", make)


def orders_reversed(patcher: Patcher) -> None:
    """The coordinator's driver carries out effects from right to left."""
    from coordinator.machine import Leader

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, event, now: tuple(reversed(step(self, event, now)))

    patcher.method(Leader, "step", make)


def replaced_kept(patcher: Patcher) -> None:
    """The hub keeps the older connection of a session, though the machine orders it closed, too."""
    from coordinator.runtime.connections import CLOSE_ORDERED, CLOSE_REPLACED, Connection

    def make(close: Any) -> Any:  # noqa: ANN401 - the patched method
        def deaf(self: Connection, code: int, reason: str) -> None:
            if code not in {CLOSE_ORDERED, CLOSE_REPLACED}:
                close(self, code, reason)

        return deaf

    patcher.method(Connection, "close", make)


def store_awaited(patcher: Patcher) -> None:
    """The leader waits for ever for a store that hangs."""
    from coordinator.runtime.driver import Driver

    def make(in_thread: Any) -> Any:  # noqa: ANN401 - the patched method
        async def patient(self: Driver, work: Any, seconds: Any = None, *, threads: Any = None) -> Any:  # noqa: ANN401 - as the method
            return await in_thread(self, work, 1e6, threads=threads)

        return patient

    patcher.method(Driver, "in_thread", make)


def timer_kept(patcher: Patcher) -> None:
    """A timer that is set is not set anew for an earlier instant."""
    from coordinator.runtime.driver import Driver

    def make(set_timer: Any) -> Any:  # noqa: ANN401 - the patched method
        def lazy(self: Driver, at: Any) -> None:  # noqa: ANN401 - as the method
            if self._timer is None:
                set_timer(self, max(at, self._clock.now() + 30_000_000_000))

        return lazy

    patcher.method(Driver, "_set_timer", make)


def timer_unheard(patcher: Patcher) -> None:
    """A participant's timer rings, and its machine is not told."""
    from participant.runtime.participant import Participant

    patcher.method(Participant, "_timer_fired", lambda _: lambda self: setattr(self, "_timer", None))


def failure_unheard(patcher: Patcher) -> None:
    """An upload that failed counts as done."""
    from participant.runtime.uploader import Uploader
    from protocol.errors import StoreError

    def make(put: Any) -> Any:  # noqa: ANN401 - the patched method
        def content(self: Uploader, key: str, data: bytes) -> None:
            with suppress(StoreError):
                put(self, key, data)

        return content

    patcher.method(Uploader, "_put_once", make)


def lost_unsaid(patcher: Patcher) -> None:
    """The hub forgets to tell the machine of connections that were lost."""
    from coordinator.runtime.connections import ParticipantHub

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, connection: None

    patcher.method(ParticipantHub, "_forget", make)
