"""When a lost connection is tried again: soon at first, and seldom once it has been lost for long."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

import pytest

from participant.runtime import control
from participant.runtime.backoff import LONG_SECONDS, Backoff
from protocol.limits import LEASE_NS, RECONNECT_NS
from protocol.messages import RegisterRefused, encode_control

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def delays(backoff: Backoff, seconds: float) -> list[float]:
    found: list[float] = []
    while sum(found) < seconds:
        found.append(backoff.next())
    return found


def test_delays_double_up_to_their_bound_with_jitter_below() -> None:
    found = delays(Backoff(first=0.05, most=1.0, later=3.0), 20)
    for number, delay in enumerate(found):
        base = min(1.0, 0.05 * 2**number)
        assert base / 2 <= delay <= base
    assert len({round(delay, 6) for delay in found}) == len(found), "jitter"


def test_what_is_gone_for_long_is_tried_less_often() -> None:
    backoff = Backoff(first=0.05, most=1.0, later=3.0)
    assert max(delays(backoff, LONG_SECONDS)) <= 1.0
    backoff.next()
    backoff.next()
    found = delays(backoff, 60)
    assert min(found) >= 1.5
    assert max(found) <= 3.0


def test_after_a_success_the_first_retry_is_as_soon_as_ever() -> None:
    backoff = Backoff(first=0.05, most=1.0, later=3.0)
    delays(backoff, 2 * LONG_SECONDS)
    backoff.reset()
    assert backoff.next() <= 0.05
    assert max(delays(backoff, LONG_SECONDS - 1)) <= 1.0


def test_without_a_later_bound_the_first_one_stays() -> None:
    assert max(delays(Backoff(first=0.05, most=1.0), 3 * LONG_SECONDS)) <= 1.0


# --- the control connection -----------------------------------------------------------------------------------------------


class SkippingSelector(selectors.DefaultSelector):
    """Never waits; adds up how long it would have."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    """Time passes by as soon as everybody waits for it."""

    def __init__(self) -> None:
        self.selector = SkippingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return super().time() + self.selector.skipped


class Nobody:
    """The leader, as a follower without one names it; it closes behind that."""

    close_code = None

    async def send_bytes(self, data: bytes) -> None:
        pass

    async def receive(self) -> control.aiohttp.WSMessage:
        refusal = RegisterRefused(code="not-leader", sentence="there is no leader", leader="")
        return control.aiohttp.WSMessage(control.aiohttp.WSMsgType.BINARY, encode_control(refusal), None)

    async def close(self) -> None:
        pass


class Dialer:
    """Coordinators that are gone until `back`, and then have no leader yet."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.back = False

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass

    async def dial(self, url: str) -> control.ControlSocket:
        self.at.append(asyncio.get_running_loop().time())
        if not self.back:
            raise ConnectionRefusedError(f"Connect call failed {url}")
        return Nobody()


class Sink:
    def register_message(self) -> Any:
        return RegisterRefused(code="", sentence="anything that can be encoded", leader="")

    def heartbeat_message(self) -> None:
        return None

    def control_received(self, message: object) -> None:
        raise AssertionError(message)

    def control_disconnected(self, reason: str) -> None:
        raise AssertionError(reason)

    def control_ended(self, error: Exception) -> None:
        raise error


def in_skipped_time(play: Callable[[control.ControlClient, Dialer], Coroutine[Any, Any, None]]) -> Dialer:
    """Three coordinators; the client is started before, and closed behind."""

    async def whole() -> Dialer:
        dialer = Dialer()
        client = control.ControlClient(coordinators=["one:1", "two:2", "three:3"], token="token", dialer=dialer)
        await client.start(Sink())
        await play(client, dialer)
        await client.close()
        return dialer

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(whole())


def test_coordinators_that_are_gone_for_minutes_are_dialed_seldom_and_at_first_often() -> None:
    async def play(client: control.ControlClient, dialer: Dialer) -> None:
        await asyncio.sleep(300)

    at = in_skipped_time(play).at
    began = at[0]
    assert sum(moment < began + 1 for moment in at) >= 3 * 4
    assert sum(moment > began + 240 for moment in at) <= 3 * 41, "a round takes a second and a half at least"


def test_once_a_coordinator_answers_again_the_next_attempts_are_soon() -> None:
    async def play(client: control.ControlClient, dialer: Dialer) -> None:
        await asyncio.sleep(300)
        dialer.back = True
        before = len(dialer.at)
        while len(dialer.at) == before:  # noqa: ASYNC110 - skipped time
            await asyncio.sleep(0.001)
        assert dialer.at[before] - dialer.at[before - 1] <= control.LATER_SECONDS, "the longest wait of all"
        await asyncio.sleep(0.5)
        assert len(dialer.at) - before >= 3 * 3
        # A cluster that has no leader for long is not flooded either: answers alone are no success.
        await asyncio.sleep(300)
        last = [moment for moment in dialer.at if moment > dialer.at[-1] - 60]
        assert len(last) <= 3 * 41

    in_skipped_time(play)


def test_the_longest_wait_leaves_a_new_leaders_grace_for_one_coordinator_that_hangs() -> None:
    assert control.LATER_SECONDS + control.CONNECT_SECONDS < (LEASE_NS + RECONNECT_NS) / 1e9


@pytest.mark.parametrize(("first", "most", "later"), [(0, 1, None), (2, 1, None), (1, 2, 1.5)])
def test_a_backoff_grows(first: float, most: float, later: float | None) -> None:
    with pytest.raises(AssertionError):
        Backoff(first=first, most=most, later=later)
