"""Turns that await: the product's pump, whose tasks run on the participant's own simulated event loop.

A turn that waits has not happened yet: a cut records the state before it, and its message as the next to handle. A crash
drops the loop, and with it the turn.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from participant.agent import handler_never_awaits
from participant.cells import KeyedState
from participant.failure import describe
from participant.runtime.pump import Pump
from participant.state import TURN_CONTEXT
from simulations.eventloop import SimulatedLoop
from simulations.hanging import Running
from simulations.prng import stream
from simulations.state_forms import StateForms
from simulations.turns import TurnClock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from contextvars import Context

    from participant.agent import Agent
    from participant.host import AgentHost, Turn
    from participant.runtime.pump import _Runner
    from participant.runtime.tasks import TaskSet
    from simulations.participant_node import ParticipantLife

_encode = msgspec.msgpack.encode


class LoopTasks:
    """In place of a driver's `TaskSet`: tasks of a simulated loop. One that fails ends the run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str, context: Context | None = None) -> asyncio.Task[Any]:
        """As `TaskSet.spawn`."""
        task = self._loop.create_task(work, name=name, context=context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._loop.fail(error)


class AwaitingPump(Pump):
    """All turns of one life, those that await included."""

    def __init__(self, life: ParticipantLife, forms: AwaitingForms) -> None:
        """Make the loop, too.

        Args:
            life: Whose turns.
            forms: Told of each turn that may be running when a cut comes.
        """
        seed = life.cluster.options.seed
        random = stream(seed, f"loop:{life.name}:{life.number}")
        self.loop = SimulatedLoop(life, random, step_ns=life.cluster.options.turn_ns)
        self._life = life
        self._forms = forms
        self._turns_context = contextvars.copy_context()
        """Turns leave theirs behind in the context in which they run: not in the world's."""
        self._awaiting: dict[AgentHost, Running] = {}
        """The newest turn of each agent that went on in a task; it may be over."""
        tasks = cast("TaskSet", LoopTasks(self.loop))
        super().__init__(life.hosts, clock=TurnClock(life), sink=life, tasks=tasks)

    def run(self) -> bool:
        """As `Pump.run`."""
        with self.loop.entered():
            more = self._turns_context.run(super().run)
        self.loop.check()
        return more

    @property
    def alive(self) -> bool:
        """Whether the life is not over."""
        return self._life.alive

    def running(self) -> list[Running]:
        """Turns that await at this moment; none of a life that is over."""
        if not self._life.alive:
            return []
        return [each for each in self._awaiting.values() if each.host.turn is each.turn]

    def timers_of(self, turn: Turn) -> list[asyncio.TimerHandle]:
        """What the turn's own code, its tasks included, has set and what has not rung."""
        return self.loop.timers_where(lambda context: context.get(TURN_CONTEXT) is turn.context)

    def has_any(self, timers: list[asyncio.TimerHandle]) -> bool:
        """Whether one of these has still not rung."""
        return any(self.loop.is_set(timer) for timer in timers)

    def task_of(self, running: Running) -> asyncio.Task[Any] | None:
        """The task in which a turn runs."""
        for task in self.loop.tasks():
            awaited: Any = task.get_coro()
            while awaited is not None and awaited is not running.coroutine:
                awaited = getattr(awaited, "cr_await", None)
            if awaited is not None:
                return task
        return None

    def close(self) -> None:
        """As `Pump.close`; the loop goes with a life that was killed."""
        super().close()
        if self._life.alive:
            self.loop.cancel_tasks()
        else:
            self.loop.drop()

    def unwind(self) -> None:
        """The run is over: nothing is left behind that the interpreter would complain about."""
        super().close()
        self.loop.close()

    def _turn(self, runner: _Runner, now: int) -> bool:
        host = runner.host
        envelope = host.mailbox[0][0]
        self._life.cluster.trace.note(now, self._life.name, "Turn", f"{host.id} {envelope.type}", envelope.id)
        if host.id in self._forms.holding:
            self._forms.before[host] = self._forms.of(host.agent)
        return super()._turn(runner, now)

    def _hand_over(self, runner: _Runner, turn: Turn, coroutine: Coroutine[Any, Any, None]) -> None:
        self._awaiting[runner.host] = Running(runner.host, turn, coroutine, self._life.now)
        super()._hand_over(runner, turn, coroutine)

    def _failed(self, runner: _Runner, turn: Turn, error: BaseException) -> None:
        self._life.note("TurnFailed", f"{runner.host.id} {turn.envelope.type}: {describe(error)}")
        super()._failed(runner, turn, error)


class AwaitingForms(StateForms):
    """States of any agents, also while a turn runs."""

    def __init__(self, agents: list[Agent]) -> None:
        """Look at the agents' handlers.

        Args:
            agents: All of the cluster, as examples.
        """
        self.holding = frozenset(agent.id for agent in agents if _may_hold(agent))
        """Agents that may be in a turn when a cut comes; asked, never iterated."""
        self.before: dict[AgentHost, bytes] = {}
        """State before the newest turn."""

    def at_cut(self, host: AgentHost) -> bytes:
        """See `StateForms`."""
        if host.turn is not None:
            return self.before.get(host, b"")
        return self.of(host.agent)

    def stored(self, fields: dict[str, Any]) -> bytes:
        """See `StateForms`."""
        return _encode(_canonical(fields))

    def of(self, agent: Agent) -> bytes:
        """The state of an agent between two turns; empty where only its own code could tell."""
        if agent.__cleancut_captures__ or agent.serializer != "msgpack":
            return b""
        found: dict[str, Any] = {}
        for name in sorted(agent.__cleancut_fields__):
            try:
                value = getattr(agent, name)
            except AttributeError:
                continue  # never set
            found[name] = dict(value.items()) if isinstance(value, KeyedState) else value
        try:
            return _encode(_canonical(msgspec.msgpack.decode(_encode(found))))
        except (TypeError, ValueError, msgspec.MsgspecError):
            return b""


def _may_hold(agent: Agent) -> bool:
    """Whether a turn of it may be running between two events."""
    handlers = [*agent.__cleancut_handlers__.values()]
    functions = [handler.function for handler in handlers if not handler.never_awaits]
    if not handler_never_awaits(type(agent).on_start):
        functions.append(type(agent).on_start)
    # A plain function may return an awaitable; which one does is not known before it has run.
    return bool(functions)


def _canonical(value: Any) -> Any:  # noqa: ANN401 - plain Python
    """Plain values without any order that a set, or a mapping, may have lost."""
    if isinstance(value, dict):
        return sorted(
            [
                _encode(
                    (
                        key if type(key) in _LEAVES else _canonical(key),
                        item if type(item) in _LEAVES else _canonical(item),
                    )
                )
                for key, item in value.items()
            ]
        )
    if isinstance(value, list | tuple | set | frozenset):
        return sorted([_encode(item if type(item) in _LEAVES else _canonical(item)) for item in value])
    return value


_LEAVES: Final = frozenset({int, str, bytes, bool, float, type(None)})
