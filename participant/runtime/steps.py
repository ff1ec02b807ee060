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
import secrets
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from participant.effects.entries import Entry, Kind, State, effect_token
from participant.effects.ledger import Claimed
from participant.failure import Backoff, describe
from participant.host import WaitingQuestion
from participant.steps import (
    IN_STEP,
    PLAIN,
    AskCall,
    Calls,
    DidNotHappen,
    InDoubt,
    NotDone,
    Parking,
    StepDiverged,
    StepFailed,
    StepUndecided,
    ask_call,
    encode_given,
    encode_result,
    finished_of,
    is_async,
    outcome_of,
)
from protocol.errors import FencedError, Refused, StoreError, Unreachable, Unsavable
from protocol.failpoints import fp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from participant.context import Context
    from participant.effects.backend import EffectBackend
    from participant.effects.ledger import Known
    from participant.host import AgentHost
    from participant.runtime.clock import Clock
    from participant.schema import Schema
    from participant.steps import StepCall
    from protocol.journal import FinishedStep
    from protocol.outputs import FencingToken

log = logging.getLogger("cleancut.participant.steps")

T = TypeVar("T")

_ASK_AGAIN: Final = Backoff(first=0.05, factor=2.0, maximum=2.0)
_CLAIM_ID_BYTES: Final = 8
_CLOSE_SECONDS: Final = 1.0
_LOOK_NS: Final = 2_000_000_000
"""How often a ledger that others use, too, is looked at for what turns here wait for."""


class StepsSink(Protocol):
    """Where news goes; called on the loop, must not block."""

    def question_asked(self, agent: str, token: str, question: object, expires_in: float | None) -> None:
        """A turn waits for an answer."""
        ...

    def step_settled(self, token: str) -> None:
        """What a parked turn waits for has been decided, at another participant."""
        ...

    def effects_failed(self, error: StoreError | FencedError) -> None:
        """The effect ledger is broken for good, or belongs to somebody else: this participant must end."""
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
        self._opened: FencingToken | None = None
        self._opening = asyncio.Lock()
        self._running: dict[str, asyncio.Task[FinishedStep]] = {}
        """Steps by token."""
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
        self._counts = dict.fromkeys(
            ("steps_done", "steps_replayed", "steps_in_doubt", "steps_diverged", "questions_asked", "ledger_retries"), 0
        )

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
            self._spawn(self._close_turn(tuple(calls.tokens), self._epoch()))

    # --- from the participant -----------------------------------------------------------------------------------------

    @property
    def turns_waiting(self) -> int:
        """Running turns that do nothing but wait, for an answer or for time to pass."""
        return len(self._waiting)

    def rolled_back(self, base: int) -> None:
        """The cluster begins again from this epoch, in the incarnation of now: what its later turns did may come again."""
        self._spawn(self._reopen(base))

    async def prune(self, oldest: int) -> int:
        """No epoch older than this one is kept; returns how many entries went."""
        return await self._asked(lambda: self.backend.prune(oldest, self._fence()))

    def turn_parked(self) -> None:
        """A turn here waits for a decision, which may be made anywhere."""
        self._look()

    async def entries(self, states: Sequence[State] = (State.CLAIMED,)) -> list[Entry]:
        """What the ledger holds."""
        return await self._asked(lambda: self.backend.entries(states))

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
        known = await self._asked(lambda: self.backend.entry(token))
        if known is None or known.kind is not Kind.QUESTION:
            raise Refused("no-question", f"there is no question {token[:64]!a}")
        found = await self._asked(lambda: self.backend.end(token, self._fence(), b"", State.DONE, result=data))
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
        return await self._asked(lambda: self.backend.settle(token, self._fence(), state, result=data))

    async def accept(self, token: str, intent: bytes) -> Known:
        """An operator has the recorded result taken for what a step wants now.

        Raises:
            Refused: There is no such step, or it has no result.
        """
        return await self._asked(lambda: self.backend.accept(token, self._fence(), intent))

    @property
    def busy(self) -> bool:
        """Whether the ledger is told something that no turn waits for."""
        return bool(self._others)

    def stop(self) -> None:
        """Begin nothing any more, and cancel what runs: this process has no say any more."""
        self._closed = True
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
        return {**self._counts, "steps_running": len(self._running), "questions_open": len(self._answers)}

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
            self._counts["steps_replayed"] += 1
            return found
        task = self._running.get(token)
        if task is None:
            task = self._running[token] = asyncio.get_running_loop().create_task(
                self._perform(host.id, context, call, token), name=f"step {call.name}"
            )
            task.add_done_callback(lambda done: self._performed(token, done))
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
            await self._sleep(ns)
        finally:
            self._pausing.discard(token)
            for context, calls in self._waiters.get(token, ()):
                calls.waiting -= 1
                self._note(context, calls)

    def _performed(self, token: str, task: asyncio.Task[FinishedStep]) -> None:
        self._running.pop(token, None)
        self._waiters.pop(token, None)
        if not task.cancelled():
            # Whoever awaited it knows; where its turn has ended, the ledger says that it is in doubt.
            task.exception()

    async def _perform(self, agent: str, context: Context, call: StepCall, token: str) -> FinishedStep:
        entry = self._entry(agent, context, Kind.STEP, call.name, call.ordinal, token, call.intent, call.shown)
        fp("effect.before_claim")
        answer = await self._asked(lambda: self.backend.claim(entry, self._fence()))
        fp("effect.claimed")
        claim_id = entry.claim_id
        if not isinstance(answer, Claimed):
            known = answer.entry
            if known.ended:
                self._counts["steps_replayed"] += 1
                return finished_of(known)
            resolvable = call.diverged == "replay" and call.resolve is not None and not call.idempotent
            if call.intent not in {known.intent, known.accepted} and not resolvable:
                # Whatever it was, it may have happened with other arguments: these are not to be tried.
                raise self._diverged(agent, call, token, known.shown)
            found = await self._reconcile(
                agent, context, call, token, known.claim_id, "was begun, and no end of it is known"
            )
            if not isinstance(found, bytes):
                return found
            claim_id = found
        return await self._attempts(agent, context, call, token, claim_id)

    async def _attempts(
        self, agent: str, context: Context, call: StepCall, token: str, claim_id: bytes
    ) -> FinishedStep:
        attempt = 1
        while True:
            doubtful = True
            try:
                value = await self._call(call.function, call.arguments, self._keywords(call, token), call.name)
                fp("effect.called")
            except StepFailed as error:
                return await self._end(token, claim_id, State.FAILED, reason=str(error))
            except NotDone as error:
                doubtful = False
                failure: Exception = error
            except Exception as error:  # noqa: BLE001 - the user's code, or what it calls
                failure = error
            else:
                return await self._record(agent, call, token, claim_id, value)
            if attempt >= call.retry.attempts:
                if not doubtful:
                    await self._end_anyhow(token, claim_id, State.RELEASED)
                raise failure
            log.info("agent %s: step %s failed, attempt %d: %s", agent, call.name, attempt, describe(failure))
            await self._pause(token, call.retry.backoff.wait_ns(attempt))
            attempt += 1
            if doubtful:
                found = await self._reconcile(agent, context, call, token, claim_id, f"raised {describe(failure)}")
                if not isinstance(found, bytes):
                    return found
                claim_id = found

    async def _record(self, agent: str, call: StepCall, token: str, claim_id: bytes, value: object) -> FinishedStep:
        try:
            data = encode_result(call.result, value, agent, call.name)
        except Unsavable as error:
            # It has happened: so this is its end, and it is never done again.
            return await self._end(token, claim_id, State.FAILED, reason=f"it was done, and {error}")
        self._counts["steps_done"] += 1
        return await self._end(token, claim_id, State.DONE, result=data)

    async def _reconcile(
        self, agent: str, context: Context, call: StepCall, token: str, before: bytes, what: str
    ) -> FinishedStep | bytes:
        """What a claim without end came to: its end; or the id of our claim, and the call is to be made.

        Raises:
            StepUndecided: Nobody can tell.
        """
        claim_id = secrets.token_bytes(_CLAIM_ID_BYTES)
        value: object = None
        resolved = False
        if not call.idempotent:
            value = await self._resolve(agent, call, token, what)
            resolved = not isinstance(value, DidNotHappen)
        taken = await self._asked(lambda: self.backend.take(token, self._fence(), claim_id, before=before))
        if not isinstance(taken, Claimed):
            if taken.entry.ended:
                return finished_of(taken.entry)
            if taken.entry.state is State.CLAIMED:
                raise self._undecided(agent, call, token, what, "somebody else goes on with it")
            # An operator said just now that it did not happen.
            entry = self._entry(agent, context, Kind.STEP, call.name, call.ordinal, token, call.intent, call.shown)
            again = await self._asked(lambda: self.backend.claim(entry, self._fence()))
            if not isinstance(again, Claimed):
                raise self._undecided(agent, call, token, what, "somebody else took it over")
            return entry.claim_id
        if resolved:
            return await self._record(agent, call, token, claim_id, value)
        return claim_id

    async def _resolve(self, agent: str, call: StepCall, token: str, what: str) -> object:
        if call.resolve is None:
            raise self._undecided(agent, call, token, what, "it has no resolve=... that could be asked")
        try:
            value = await self._call(call.resolve, (token,), {}, call.name)
        except Exception as error:
            raise self._undecided(agent, call, token, what, f"its resolver raised {describe(error)}") from error
        if isinstance(value, InDoubt) or value is InDoubt:
            reason = value.reason if isinstance(value, InDoubt) and value.reason else "its resolver cannot tell"
            raise self._undecided(agent, call, token, what, reason)
        return DidNotHappen() if value is DidNotHappen else value

    async def _call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], name: str
    ) -> Any:  # noqa: ANN401 - the user's own
        inside = IN_STEP.set(name)
        try:
            if is_async(function):
                return await function(*arguments, **keywords)
            found = await asyncio.to_thread(function, *arguments, **keywords)
            return await found if hasattr(found, "__await__") else found
        finally:
            IN_STEP.reset(inside)

    def _keywords(self, call: StepCall, token: str) -> dict[str, Any]:
        return {**call.keywords, "token": token} if call.wants_token else call.keywords

    async def _end(
        self, token: str, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> FinishedStep:
        fp("effect.before_record")
        found = await self._end_anyhow(token, claim_id, state, result=result, reason=reason)
        fp("effect.recorded")
        # Where somebody else gave it an end meanwhile (an operator, a successor), that one counts.
        return finished_of(found)

    async def _end_anyhow(
        self, token: str, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Entry:
        found = await self._asked(
            lambda: self.backend.end(token, self._fence(), claim_id, state, result=result, reason=reason)
        )
        if isinstance(found, Claimed) or found.entry.ended:
            return found.entry
        raise FencedError(
            f"step {found.entry.name} of {found.entry.agent} ended here, and session {found.entry.session} of "
            f"{found.entry.participant} has taken it over"
        )

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
        known = await self._asked(lambda: self.backend.entry(token))
        if known is not None and known.accepted == call.intent:
            return
        if call.diverged == "ask" and await self._ask_divergence(context, calls, call, token, shown) == "replay":
            await self._asked(lambda: self.backend.accept(token, self._fence(), call.intent))
            return
        raise self._diverged(agent, call, token, shown)

    async def _ask_divergence(
        self, context: Context, calls: Calls, call: StepCall | AskCall, token: str, shown: str
    ) -> object:
        """Somebody's word; ``replay`` has the recorded end taken."""
        step = _name(call)
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

    def _diverged(self, agent: str, call: StepCall | AskCall, token: str, recorded: str) -> StepDiverged:
        self._counts["steps_diverged"] += 1
        schema = call.answer if isinstance(call, AskCall) else call.result
        return StepDiverged(agent, _name(call), token, call.intent, schema, recorded=recorded, wanted=call.shown)

    def _undecided(self, agent: str, call: StepCall, token: str, what: str, why: str) -> StepUndecided:
        self._counts["steps_in_doubt"] += 1
        return StepUndecided(
            agent,
            call.name,
            token,
            call.intent,
            call.result,
            f"agent {agent}: step {call.name} {what}, and {why}. Find out whether it happened, and settle {token}",
        )

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
        entry = self._entry(host.id, context, Kind.QUESTION, call.name, call.ordinal, token, call.intent, call.shown)
        entry.payload = call.question
        future: asyncio.Future[FinishedStep] = asyncio.get_running_loop().create_future()
        # Before the claim: the answer may come as soon as the question can be seen.
        self._answers[token] = future
        calls.futures.append(future)
        timer = None
        try:
            answer = await self._asked(lambda: self.backend.claim(entry, self._fence()))
            known = answer.entry
            if not isinstance(answer, Claimed) and not known.ended and known.payload != call.question:
                # Nobody has answered it, and it reads otherwise now: it is put anew, under its token.
                await self._asked(lambda: self.backend.end(token, self._fence(), b"", State.RELEASED))
                answer = await self._asked(lambda: self.backend.claim(entry, self._fence()))
                known = answer.entry
            if known.ended:
                self._counts["steps_replayed"] += 1
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
        self._counts["questions_asked"] += 1
        left = None if question.deadline is None else (question.deadline - now) / 1e9
        self._sink.question_asked(host.id, token, PLAIN.decode(call.question), left)
        return question

    async def _expire(self, token: str) -> None:
        found = await self._asked(lambda: self.backend.end(token, self._fence(), b"", State.EXPIRED))
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
                await self._sleep(_LOOK_NS)
                parked = {host.parked.token: host.parked for host in self._hosts if host.parked is not None}
                if not parked and not self._answers:
                    break
                for token in (*self._answers, *parked):
                    entry = await self._asked(functools.partial(self.backend.entry, token))
                    if entry is None:
                        continue
                    self._answered(entry)
                    turn = parked.get(token)
                    if turn is not None and (
                        entry.accepted == turn.intent if turn.cause == "diverged" else entry.state is not State.CLAIMED
                    ):
                        self._sink.step_settled(token)
        except (StoreError, FencedError) as error:
            log.info("effect ledger: %s", error)  # the sink has been told
        finally:
            self._looking = None

    # --- the ledger ---------------------------------------------------------------------------------------------------

    async def _asked(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have the ledger answer, however long it takes.

        Raises:
            StoreError: It is broken for good, and the participant ends.
            FencedError: This process is a zombie, and ends.
        """
        attempt = 0
        while True:
            try:
                await self._ready()
                return await operation()
            except Unreachable as error:
                attempt += 1
                self._counts["ledger_retries"] += 1
                if attempt == 1:
                    log.warning("the effect ledger does not answer; asking again: %s", error)
                await self._sleep(_ASK_AGAIN.wait_ns(min(attempt, 20)))
            except (StoreError, FencedError) as error:
                if not self._closed:
                    self._sink.effects_failed(error)
                raise

    async def _ready(self) -> None:
        """Have the ledger know who we are now: others are refused from then on."""
        fence = self._fence()
        if self._opened == fence:
            return
        async with self._opening:
            if self._opened != fence:
                await self.backend.open(fence)
                self._opened = fence

    async def _reopen(self, base: int) -> None:
        await self._asked(lambda: self.backend.reopen(base, self._fence()))

    async def _close_turn(self, tokens: tuple[str, ...], after: int) -> None:
        await self._asked(lambda: self.backend.close_turn(tokens, after, self._fence()))

    def _entry(
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
        fence = self._fence()
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

    # --- turns --------------------------------------------------------------------------------------------------------

    def _begin(self, context: Context, calls: Calls, kind: Kind, name: str, ordinal: int) -> tuple[AgentHost, str]:
        context.check_open()
        host = cast("AgentHost", context.host)
        token = effect_token(self._cluster, host.id, context.message_id, kind, name, ordinal)
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

    async def _sleep(self, ns: int) -> None:
        """By the participant's clock."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(self._clock.now() + ns, lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            timer.cancel()

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
        except (StoreError, FencedError, Refused) as error:
            # The sink has been told where it matters.
            log.info("effect ledger: %s", error)


def _name(call: StepCall | AskCall) -> str:
    return "question" if isinstance(call, AskCall) else call.name
