"""Finds handlers that wait for ever, and says what for.

In a healed world every turn that is running has to end. One that does not, within a patience of virtual seconds, is a liveness
violation (L9): its agent takes no message any more, though every epoch commits. A turn that sleeps longer than that on
purpose is left alone: it has a timer, set by its own code, that was there when the patience began. One that asks again and
again has timers too, but always new ones.

What is shown is where the turn stands, frame by frame, down to what it awaits; and where that is a task, where the task stands.
"""

from __future__ import annotations

import asyncio
import linecache
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from simulations.violations import LivenessViolation
from simulations.world import SECOND, StepsExhausted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from participant.host import AgentHost, Turn
    from simulations.awaiting import AwaitingPump
    from simulations.cluster import SimulatedCluster

FRAMES_MAX: Final = 8
TASKS_MAX: Final = 4
_NAMED_MAX: Final = 4


@dataclass(slots=True)
class Running:
    """A turn that awaits."""

    host: AgentHost
    turn: Turn
    coroutine: Any
    began: int
    """Instant."""


def demand_turns_end(cluster: SimulatedCluster, pumps: Sequence[AwaitingPump], patience_ns: int) -> None:
    """L9: every turn that is running now ends, or is asleep until later.

    Args:
        cluster: Healed.
        pumps: Of all lives; dead ones are passed over.
        patience_ns: Virtual time that a turn may take from now on.

    Raises:
        LivenessViolation: One does not.
    """
    waiting = [(pump, running, pump.timers_of(running.turn)) for pump in pumps for running in pump.running()]
    if not waiting:
        return

    def still() -> list[tuple[AwaitingPump, Running, list[asyncio.TimerHandle]]]:
        return [entry for entry in waiting if entry[0].alive and entry[1].host.turn is entry[1].turn]

    def ended() -> bool:
        return not still()

    world = cluster.world
    try:
        if world.run(world.now + patience_ns, until=ended):
            return
        spent = f"{patience_ns / SECOND:.0f} s after the last fault"
    except StepsExhausted as error:
        spent = f"after {error}"
    stuck = [(pump, running) for pump, running, timers in still() if not pump.has_any(timers)]
    if not stuck:
        return
    lines = [describe(pump, running, world.now) for pump, running in stuck[:_NAMED_MAX]]
    if len(stuck) > _NAMED_MAX:
        lines.append(f"and {len(stuck) - _NAMED_MAX} more")
    raise LivenessViolation("L9", f"waiting for ever, {spent}: " + "; ".join(lines))


def describe(pump: AwaitingPump, running: Running, now: int) -> str:
    """Agent, handler, since when, and where it stands."""
    lines = [
        f"{running.host.id}: {_name_of(running)}, on a {running.turn.envelope.type} since {(now - running.began) / SECOND:.1f} s",
        *_stack(running.coroutine),
    ]
    future = _awaited_by(pump.task_of(running))
    for _ in range(TASKS_MAX):
        future = _first_open(future)
        if not isinstance(future, asyncio.Task):
            break
        lines += [f"which awaits the task {future.get_name()}", *_stack(future.get_coro())]
        future = _awaited_by(future)
    return "\n    ".join(lines)


def _name_of(running: Running) -> str:
    code = getattr(running.coroutine, "cr_code", None)
    return str(getattr(code, "co_qualname", "") or getattr(code, "co_name", "a handler"))


def _awaited_by(task: asyncio.Task[Any] | None) -> asyncio.Future[Any] | None:
    return getattr(task, "_fut_waiter", None)  # nothing public tells


def _first_open(future: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
    """Of a gather: the first of its parts that is not done."""
    for child in getattr(future, "_children", ()):
        if not child.done():
            return _first_open(child)
    return future


def _stack(coroutine: Any) -> Iterator[str]:  # noqa: ANN401 - whatever can be awaited
    """File, line and source of each frame, the outermost first."""
    yield from islice(_frames(coroutine), FRAMES_MAX)


def _frames(coroutine: Any) -> Iterator[str]:  # noqa: ANN401 - as above
    while coroutine is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                file, line = frame.f_code.co_filename, frame.f_lineno
                source = linecache.getline(file, line).strip()
                yield f"{file.rsplit('/', 1)[-1]}:{line} in {frame.f_code.co_name}: {source}"
                coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
                break
        else:
            return
