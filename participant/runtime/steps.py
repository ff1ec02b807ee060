"""How a participant does steps and puts questions: the driver of `participant.steps` over an effect ledger.

A step's function runs in a task of its own. A turn that is cancelled or fails meanwhile leaves it alone: it goes on, its end is
recorded, and the turn that comes to this place again joins it or finds its result. Only the participant's end cancels it.

A ledger that does not answer is asked again, for as long as the turn lasts: the agent waits, others go on. A ledger that is
broken for good, or that says that this process is a zombie, ends the participant.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from participant.effects.entries import Kind, State, effect_token
from participant.effects.ledger import Claimed
from participant.host import WaitingQuestion
from participant.runtime.ledger_client import LedgerClient, LedgerSink
from participant.runtime.step_calls import StepCaller, name_of
from participant.steps import (
    PLAIN,
    AskCall,
    Calls,
    DoubtfulStep,
    Parking,
    ask_call,
    encode_given,
    finished_of,
    outcome_of,
)
from protocol.errors import ConfigError, FencedError, Refused, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Iterable, Sequence

    from participant.context import Context
    from participant.effects.backend import EffectBackend
    from participant.effects.entries import Entry
    from participant.effects.ledger import Known
    from participant.host import AgentHost
    from participant.runtime.clock import Clock
    from participant.schema import Schema
    from participant.steps import StepCall
    from protocol.journal import FinishedStep
    from protocol.outputs import FencingToken

log = logging.getLogger("cleancut.participant.steps")

_CLOSE_SECONDS: Final = 1.0
_LOOK_NS: Final = 2_000_000_000
"""How often a ledger that others use, too, is looked at for what turns here wait for."""


class StepsSink(LedgerSink, Protocol):
    """Where news goes; called on the loop, must not block."""

    def question_asked(self, agent: str, token: str, question: object, expires_in: float | None) -> None:
        """A turn waits for an answer."""
        ...

    def step_settled(self, token: str) -> None:
        """What a parked turn waits for has been decided, at another participant."""
        ...


class StepRunner:
    """All steps and questions of one participant; `participant.steps.Steps` of its hosts.

    Args:
        backend: The effect ledger.
        hosts: Looked at when questions are listed or answered: a list that changes with the agents that are here.
        cluster: Its name.
        fence: Who this participant is at the moment.
        epoch: The newest epoch that was ever started in the cluster, as far as is known here: only it and older ones can bring
            back what is done now.
        clock: For waits and expiry.
        sink: Takes the news.
    """

    def __init__(
        self,
        backend: EffectBackend,
        hosts: Iterable[AgentHost],
        *,
        cluster: str,
        fence: Callable[[], FencingToken],
        epoch: Callable[[], int],
        clock: Clock,
        sink: StepsSink,
    ) -> None:
        self.backend = backend
        self._hosts = hosts
        self._cluster = cluster
        self._fence = fence
        self._epoch = epoch
        self._clock = clock
        self._sink = sink
        self._ledger = LedgerClient(backend, fence=fence, clock=clock, sink=sink)
        self._caller = StepCaller(self._ledger, self._pause)
        self._running: dict[str, asyncio.Task[FinishedStep]] = {}
        """Steps by token."""
        self._doing: dict[str, str] = {}
        """Of each of them the agent."""
        self._looking: asyncio.Task[None] | None = None
        self._waiters: dict[str, list[tuple[Context, Calls]]] = {}
        """Turns that await a step, by its token."""
        self._pausing: set[str] = set()
        """Steps between two attempts."""
        self._others: set[asyncio.Task[None]] = set()
        self._answers: dict[str, asyncio.Future[FinishedStep]] = {}
        """Of questions that a turn waits for now."""
        self._waiting: dict[Context, None] = {}
        """Turns that do nothing but wait."""
        self._closed = False
        self._unheard: tuple[int, int] | None = None
        """Rollbacks that the ledger has not heard of yet: the oldest epoch that they went back to, the newest incarnation."""
        self._questions_asked = 0

    # --- from contexts ------------------------------------------------------------------------------------------------

    def step(self, context: Context, calls: Calls, call: StepCall) -> Awaitable[Any]:
        """See `Steps.step`."""
        return self._step(context, calls, call)

    def ask(self, context: Context, calls: Calls, call: AskCall) -> Awaitable[Any]:
        """See `Steps.ask`."""
        return self._ask(context, calls, call)

    def turn_over(self, context: Context, calls: Calls, *, done: bool) -> None:
        """See `Steps.turn_over`."""
        self._waiting.pop(context, None)
        for future in calls.futures:
            future.cancel()
        if done and calls.tokens and not self._closed:
            # Where the cut of the newest epoch is still to come here, the entry lives an epoch longer than it must.
            self._spawn(self._close_turn(tuple(calls.tokens), self._epoch(), self._fence().incarnation))

    # --- from the participant -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Have the effect ledger know its name. Blocks.

        Raises:
            StoreError: The disk does not work, or holds what it must not.
        """
        prepare = getattr(self.backend, "prepare", None)
        if prepare is not None:
            prepare()

    def came_late(self) -> None:
        """Earlier lives of this participant may have had another effect ledger. Blocks.

        Raises:
            StoreError: The disk does not work.
        """
        came_late = getattr(self.backend, "came_late", None)
        if came_late is not None:
            came_late()

    @property
    def ledger_name(self) -> str:
        """What local snapshots call the effect ledger; "": it has no name."""
        return getattr(self.backend, "ledger_name", "")

    def covers(self, ledger: str) -> bool:
        """Whether what may be in the effect ledger of this name is in this one; one that has no name is everybody's."""
        covers: Callable[[str], bool] | None = getattr(self.backend, "covers", None)
        return covers is None or covers(ledger)

    @property
    def turns_waiting(self) -> int:
        """Running turns that do nothing but wait, for an answer or for time to pass."""
        return len(self._waiting)

    def rolled_back(self, base: int) -> None:
        """The cluster begins again from this epoch, in the incarnation of now: what its later turns did may come again."""
        if self._unheard is not None:
            base = min(base, self._unheard[0])
        self._unheard = base, self._fence().incarnation
        self._spawn(self._reopen())

    def stay(self, agents: Container[str]) -> None:
        """Of the agents these stay here in the next incarnation, and others may go on elsewhere once this participant has its part.

        A call that is under way for one of the others comes to its end, as it cannot be taken back, and is recorded if nobody else
        has taken it over; no further one is made for it. Before a call there is nothing to lose: whoever hosts the agent finds out
        what became of its claim.
        """
        for token, agent in self._doing.items():
            if agent in agents:
                self._caller.elsewhere.discard(token)
            elif token in self._caller.calling:
                self._caller.elsewhere.add(token)
            else:
                self._running[token].cancel()

    async def prune(self, oldest: int) -> int:
        """No epoch older than this one is kept; returns how many entries went."""
        # What a rollback may bring back is not forgotten, however late the ledger hears of the rollback.
        await self._reopen()
        return await self._ledger.ask(lambda: self.backend.prune(oldest, self._ledger.fence()))

    def turn_parked(self) -> None:
        """A turn here waits for a decision, which may be made anywhere."""
        self._look()

    async def entries(self, states: Sequence[State] = (State.CLAIMED,)) -> list[Entry]:
        """What the ledger holds."""
        return await self._ledger.ask(lambda: self.backend.entries(states))

    async def in_doubt(self, agents: Collection[str]) -> tuple[DoubtfulStep, ...]:
        """See `Steps.in_doubt`."""
        return tuple(
            DoubtfulStep(step=entry.name, ordinal=entry.ordinal, token=entry.token, shown=entry.shown)
            for entry in await self.entries()
            if entry.kind is Kind.STEP and entry.agent in agents and entry.token not in self._running
        )

    async def entry(self, token: str) -> Entry | None:
        """What the ledger knows of a position."""
        return await self._ledger.ask(lambda: self.backend.entry(token))

    @property
    def running(self) -> Container[str]:
        """Tokens of steps that are being done here now."""
        return self._running.keys()

    async def answer(self, token: str, value: object) -> Entry | None:
        """Answer a question.

        Returns:
            None: the answer was taken. Else the entry with the end that it had before.

        Raises:
            Refused: There is no such question.
            Unsavable: The value is not what the question wants.
        """
        question = next((host.questions[token] for host in self._hosts if token in host.questions), None)
        data = encode_given(None if question is None else question.answer, value, "answer")
        known = await self._ledger.ask(lambda: self.backend.entry(token))
        if known is None or known.kind is not Kind.QUESTION:
            raise Refused("no-question", f"there is no question {token[:64]!a}")
        found = await self._ledger.ask(
            lambda: self.backend.end(token, self._ledger.fence(), b"", State.DONE, result=data)
        )
        self._answered(found.entry)
        return None if isinstance(found, Claimed) else found.entry

    async def settle(
        self, token: str, state: State, value: object = None, schema: Schema | None = None
    ) -> Claimed | Known:
        """An operator says what became of a step: `DONE` with its result, or `RELEASED`: it did not happen.

        Raises:
            Refused: There is no such step, or it is being done.
            Unsavable: The result is not what the step gives.
        """
        if token in self._running:
            raise Refused("under-way", f"step {token[:64]!a} is being done here; wait for its end")
        data = encode_given(schema, value, "result") if state is State.DONE else b""
        return await self._ledger.ask(lambda: self.backend.settle(token, self._ledger.fence(), state, result=data))

    async def accept(self, token: str, intent: bytes) -> Known:
        """An operator has the recorded result taken for what a step wants now.

        Raises:
            Refused: There is no such step, or it has no result.
        """
        return await self._ledger.ask(lambda: self.backend.accept(token, self._ledger.fence(), intent))

    @property
    def busy(self) -> bool:
        """Whether the ledger is told something that no turn waits for."""
        return bool(self._others)

    def stop(self) -> None:
        """Begin nothing any more, and cancel what runs: this process has no say any more."""
        self._closed = self._ledger.closed = True
        for task in self._running.values():
            task.cancel()
        if self._looking is not None:
            self._looking.cancel()

    async def close(self) -> None:
        """Cancel what runs, and let go of the ledger."""
        self.stop()
        tasks: list[asyncio.Task[Any]] = [*self._running.values()]
        if self._looking is not None:
            tasks.append(self._looking)
        if tasks:
            await asyncio.wait(tasks)
        if self._others:
            # What they say may be lost: entries are kept longer then.
            _, late = await asyncio.wait(set(self._others), timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
        await self.backend.aclose()

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what runs now."""
        return {
            **self._caller.counts,
            "steps_running": len(self._running),
            "questions_asked": self._questions_asked,
            "questions_open": len(self._answers),
            "ledger_retries": self._ledger.retries,
        }

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _step(self, context: Context, calls: Calls, call: StepCall) -> Any:  # noqa: ANN401 - the step's own type
        host, token = self._begin(context, calls, Kind.STEP, call.name, call.ordinal)
        try:
            finished = await self._finished(host, context, calls, call, token)
            if finished.intent != call.intent:
                await self._accept_divergence(context, calls, call, token, finished.shown)
            self._keep(host, context, finished)
            return outcome_of(finished, call.result, host.id)
        except Parking as error:
            calls.parking = calls.parking or error
            raise
        finally:
            self._leave(context, calls)

    async def _finished(
        self, host: AgentHost, context: Context, calls: Calls, call: StepCall, token: str
    ) -> FinishedStep:
        """The step's end: of an earlier time, or of now."""
        found = host.journals.get(context.message_id, {}).get((Kind.STEP.value, call.name, call.ordinal))
        if found is not None:
            self._caller.counts["steps_replayed"] += 1
            return found
        task = self._running.get(token)
        if task is None:
            task = self._running[token] = asyncio.get_running_loop().create_task(
                self._caller.perform(host.id, context, call, token, unheard=host.unheard),
                name=f"step {call.name}",
            )
            task.add_done_callback(lambda done: self._performed(token, done))
        # Whoever joins it has the agent, by whatever name.
        self._doing[token] = host.id
        self._caller.elsewhere.discard(token)
        waiter = (context, calls)
        waiters = self._waiters.setdefault(token, [])
        waiters.append(waiter)
        if token in self._pausing:
            calls.waiting += 1
            self._note(context, calls)
        try:
            # Whoever waits may be cancelled; what was begun goes on.
            return await asyncio.shield(task)
        finally:
            waiters.remove(waiter)
            if token in self._pausing:
                calls.waiting -= 1

    async def _pause(self, token: str, ns: int) -> None:
        """Between two attempts of a step: turns that await it do nothing but wait."""
        if ns <= 0:
            await asyncio.sleep(0)
            return
        self._pausing.add(token)
        for context, calls in self._waiters.get(token, ()):
            calls.waiting += 1
            self._note(context, calls)
        try:
            await self._ledger.sleep(ns)
        finally:
            self._pausing.discard(token)
            for context, calls in self._waiters.get(token, ()):
                calls.waiting -= 1
                self._note(context, calls)

    def _performed(self, token: str, task: asyncio.Task[FinishedStep]) -> None:
        self._running.pop(token, None)
        self._doing.pop(token, None)
        self._caller.elsewhere.discard(token)
        self._waiters.pop(token, None)
        if not task.cancelled():
            # Whoever awaited it knows; where its turn has ended, the ledger says that it is in doubt.
            task.exception()

    # --- what diverges ------------------------------------------------------------------------------------------------

    async def _accept_divergence(
        self, context: Context, calls: Calls, call: StepCall | AskCall, token: str, shown: str
    ) -> None:
        """Return if the recorded end is to be taken for another intent.

        Raises:
            StepDiverged: It is not.
        """
        agent = context.self_id
        if call.diverged == "replay":
            return
        known = await self._ledger.ask(lambda: self.backend.entry(token))
        if known is not None and known.accepted == call.intent:
            return
        if call.diverged == "ask" and await self._ask_divergence(context, calls, call, token, shown) == "replay":
            await self._ledger.ask(lambda: self.backend.accept(token, self._ledger.fence(), call.intent))
            return
        raise self._caller.diverged(agent, call, token, shown)

    async def _ask_divergence(
        self, context: Context, calls: Calls, call: StepCall | AskCall, token: str, shown: str
    ) -> object:
        """Somebody's word; ``replay`` has the recorded end taken."""
        step = name_of(call)
        question = ask_call(
            context.self_id,
            calls,
            {
                "question": f"step {step} was done, and now wants something else; answer replay to have the recorded end taken",
                "step": step,
                "token": token,
                "recorded": shown,
                "wanted": call.shown,
            },
            answer=Any,
            timeout=None,
            intent=(token, call.intent),
            diverged="replay",
            # A name of its own: the agent's own questions keep their places.
            name=f"diverged {token} {call.intent.hex()}",
        )
        calls.running -= 1
        try:
            return await self._ask(context, calls, question)
        finally:
            calls.running += 1

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _ask(self, context: Context, calls: Calls, call: AskCall) -> Any:  # noqa: ANN401 - the answer's own type
        host, token = self._begin(context, calls, Kind.QUESTION, call.name, call.ordinal)
        try:
            finished = host.journals.get(context.message_id, {}).get((Kind.QUESTION.value, call.name, call.ordinal))
            if finished is None:
                finished = await self._answer_of(host, context, calls, call, token)
            if finished.intent != call.intent:
                await self._accept_divergence(context, calls, call, token, finished.shown)
            self._keep(host, context, finished)
            host.questions.pop(token, None)
            return outcome_of(finished, call.answer, host.id)
        except Parking as error:
            calls.parking = calls.parking or error
            raise
        finally:
            self._leave(context, calls)

    async def _answer_of(
        self, host: AgentHost, context: Context, calls: Calls, call: AskCall, token: str
    ) -> FinishedStep:
        entry = self._ledger.new_entry(
            host.id, context, Kind.QUESTION, call.name, call.ordinal, token, call.intent, call.shown
        )
        entry.payload = call.question
        future: asyncio.Future[FinishedStep] = asyncio.get_running_loop().create_future()
        # Before the claim: the answer may come as soon as the question can be seen.
        self._answers[token] = future
        calls.futures.append(future)
        timer = None
        try:
            answer = await self._ledger.ask(lambda: self.backend.claim(entry, self._ledger.fence()))
            known = answer.entry
            if not isinstance(answer, Claimed) and not known.ended and known.payload != call.question:
                # Nobody has answered it, and it reads otherwise now: it is put anew, under its token.
                await self._ledger.ask(lambda: self.backend.end(token, self._ledger.fence(), b"", State.RELEASED))
                answer = await self._ledger.ask(lambda: self.backend.claim(entry, self._ledger.fence()))
                known = answer.entry
            if known.ended:
                self._caller.counts["steps_replayed"] += 1
                return finished_of(known)
            question = self._question(host, context, call, token)
            self._look()
            if question.deadline is not None:
                timer = self._clock.call_at(question.deadline, lambda: self._spawn(self._expire(token)))
            calls.waiting += 1
            self._note(context, calls)
            try:
                return await future
            finally:
                calls.waiting -= 1
                self._note(context, calls)
        finally:
            if self._answers.get(token) is future:
                del self._answers[token]
            if timer is not None:
                timer.cancel()

    def _question(self, host: AgentHost, context: Context, call: AskCall, token: str) -> WaitingQuestion:
        """The open question; one that was asked before goes on with its deadline."""
        now = self._clock.now()
        known = host.questions.get(token)
        if known is not None and known.question == call.question:
            known.answer = call.answer
            return known
        question = host.questions[token] = WaitingQuestion(
            token=token,
            message_id=context.message_id,
            ordinal=call.ordinal,
            question=call.question,
            deadline=None if call.timeout_ns is None else now + call.timeout_ns,
            answer=call.answer,
            at=now,
        )
        self._questions_asked += 1
        left = None if question.deadline is None else (question.deadline - now) / 1e9
        self._sink.question_asked(host.id, token, PLAIN.decode(call.question), left)
        return question

    async def _expire(self, token: str) -> None:
        found = await self._ledger.ask(lambda: self.backend.end(token, self._ledger.fence(), b"", State.EXPIRED))
        self._answered(found.entry)

    def _answered(self, entry: Entry) -> None:
        future = self._answers.get(entry.token)
        if future is not None and not future.done() and entry.ended:
            future.set_result(finished_of(entry))

    # --- what others decide -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Have a shared ledger looked at as long as something here waits for somebody's word."""
        if self.backend.shared and self._looking is None and not self._closed:
            self._looking = asyncio.get_running_loop().create_task(self._look_again(), context=contextvars.Context())

    async def _look_again(self) -> None:
        try:
            while True:
                await self._ledger.sleep(_LOOK_NS)
                parked = {host.parked.token: host.parked for host in self._hosts if host.parked is not None}
                if not parked and not self._answers:
                    break
                for token in (*self._answers, *parked):
                    entry = await self._ledger.ask(functools.partial(self.backend.entry, token))
                    if entry is None:
                        continue
                    self._answered(entry)
                    turn = parked.get(token)
                    if turn is not None and (
                        entry.accepted == turn.intent if turn.cause == "diverged" else entry.state is not State.CLAIMED
                    ):
                        self._sink.step_settled(token)
        except (StoreError, ConfigError, FencedError) as error:
            log.info("effect ledger: %s", error)  # the sink has been told
        finally:
            self._looking = None

    async def _reopen(self) -> None:
        unheard = self._unheard
        if unheard is None:
            return
        await self._ledger.ask(lambda: self.backend.reopen(unheard[0], self._ledger.fence()))
        if self._unheard == unheard:
            self._unheard = None

    async def _close_turn(self, tokens: tuple[str, ...], after: int, incarnation: int) -> None:
        """Unless the cluster has been rolled back while the ledger did not answer.

        The turn may be one of those that come again. Closed in the name of a later incarnation than its own, its entries would
        go with the old epochs, and it would do everything once more.
        """

        async def close() -> None:
            fence = self._ledger.fence()
            if fence.incarnation == incarnation:
                await self.backend.close_turn(tokens, after, fence)

        await self._ledger.ask(close)

    # --- turns --------------------------------------------------------------------------------------------------------

    def _begin(self, context: Context, calls: Calls, kind: Kind, name: str, ordinal: int) -> tuple[AgentHost, str]:
        context.check_open()
        host = cast("AgentHost", context.host)
        token = effect_token(self._cluster, host.lineage, context.message_id, kind, name, ordinal)
        calls.tokens[token] = None
        calls.running += 1
        self._note(context, calls)
        return host, token

    def _leave(self, context: Context, calls: Calls) -> None:
        calls.running -= 1
        self._note(context, calls)

    def _note(self, context: Context, calls: Calls) -> None:
        """Keep count of turns that only wait."""
        if calls.waiting and calls.waiting == calls.running and not context.closed:
            self._waiting[context] = None
        else:
            self._waiting.pop(context, None)

    def _keep(self, host: AgentHost, context: Context, finished: FinishedStep) -> None:
        """In the turn's journal: what a cut saves of it."""
        if not context.closed:
            host.journals.setdefault(context.message_id, {})[finished.kind, finished.name, finished.ordinal] = finished

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(self._guarded(coroutine), context=contextvars.Context())
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except (StoreError, ConfigError, FencedError, Refused) as error:
            # The sink has been told where it matters.
            log.info("effect ledger: %s", error)
