"""One step's way: claim, call, record; and what becomes of a claim that has no end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from participant.effects.entries import Kind, State
from participant.effects.ledger import Claimed
from participant.effects.reach import shown
from participant.failure import describe
from participant.steps import (
    IN_STEP,
    AskCall,
    DidNotHappen,
    InDoubt,
    NotDone,
    StepDiverged,
    StepFailed,
    StepUndecided,
    encode_result,
    finished_of,
    is_async,
)
from protocol.errors import FencedError, Unsavable
from protocol.failpoints import fp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from participant.context import Context
    from participant.effects.entries import Entry
    from participant.effects.ledger import Known
    from participant.runtime.ledger_client import LedgerClient
    from participant.steps import StepCall
    from protocol.journal import FinishedStep

log = logging.getLogger("cleancut.participant.steps")

_CLAIM_ID_BYTES: Final = 8
CLAIM_FRESH_NS: Final = 500_000_000
"""A claim that was asked for longer ago is confirmed before the call: this process may have been frozen since, and declared dead, and
its successor may be about to make the same call. Less than it takes to declare anybody dead."""
_LONG_AGO: Final = -(1 << 62)
_CONFIRMS_MAX: Final = 3
"""A ledger that is slower than that is asked no more than so often."""


class StepCaller:
    """Does steps.

    Args:
        ledger: Where they are claimed and recorded.
        pause: Waits between two attempts of the step with this token, so many nanoseconds.
    """

    def __init__(self, ledger: LedgerClient, pause: Callable[[str, int], Awaitable[None]]) -> None:
        self._ledger = ledger
        self._pause = pause
        self.counts = dict.fromkeys(("steps_done", "steps_replayed", "steps_in_doubt", "steps_diverged"), 0)
        self.calling: set[str] = set()
        """Steps whose call is under way."""
        self.elsewhere: set[str] = set()
        """Of them, those of agents that another participant hosts by now: no further call is made here."""

    async def perform(
        self, agent: str, context: Context, call: StepCall, token: str, *, unheard: Collection[str] = ()
    ) -> FinishedStep:
        """The step's end: of an earlier time, or of now.

        Args:
            agent: That makes it.
            context: Of its turn.
            call: The step.
            token: Of its place.
            unheard: Effect ledgers that may hold it, without this one's knowledge.

        Raises:
            Parking: Somebody outside has to decide.
            Exception: What the function raised last.
        """
        entry = self._ledger.new_entry(
            agent, context, Kind.STEP, call.name, call.ordinal, token, call.intent, call.shown
        )
        doubtful = bool(unheard) and not call.idempotent and await self._is_new(token)
        fp("effect.before_claim")
        asked_at = self._ledger.now()
        answer = await self._ledger.ask(lambda: self._ledger.backend.claim(entry, self._ledger.fence()))
        fp("effect.claimed")
        claim_id = entry.claim_id
        if not isinstance(answer, Claimed):
            known = answer.entry
            if known.ended:
                self.counts["steps_replayed"] += 1
                return finished_of(known)
            resolvable = call.diverged == "replay" and call.resolve is not None and not call.idempotent
            if call.intent not in {known.intent, known.accepted} and not resolvable:
                # Whatever it was, it may have happened with other arguments: these are not to be tried.
                raise self.diverged(agent, call, token, known.shown)
            found = await self._reconcile(
                agent, context, call, token, known.claim_id, "was begun, and no end of it is known"
            )
            if not isinstance(found, bytes):
                return found
            claim_id, asked_at = found, _LONG_AGO
        elif doubtful:
            what = f"may have been done before: its agent was at {shown(unheard)}"
            found = await self._reconcile(agent, context, call, token, claim_id, what)
            if not isinstance(found, bytes):
                return found
            claim_id, asked_at = found, _LONG_AGO
        return await self._attempts(agent, context, call, token, claim_id, asked_at)

    async def _is_new(self, token: str) -> bool:
        return await self._ledger.ask(lambda: self._ledger.backend.entry(token)) is None

    async def _attempts(
        self, agent: str, context: Context, call: StepCall, token: str, claim_id: bytes, asked_at: int
    ) -> FinishedStep:
        attempt = 1
        while True:
            if not call.idempotent:
                found = await self._confirm(agent, context, call, token, claim_id, asked_at)
                if not isinstance(found, bytes):
                    return found
                claim_id = found
            doubtful = True
            self.calling.add(token)
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
            finally:
                self.calling.discard(token)
            if attempt >= call.retry.attempts or token in self.elsewhere:
                if not doubtful:
                    await self._end_anyhow(token, claim_id, State.RELEASED)
                raise failure
            log.info("agent %s: step %s failed, attempt %d: %s", agent, call.name, attempt, describe(failure))
            await self._pause(token, call.retry.backoff.wait_ns(attempt))
            attempt, asked_at = attempt + 1, _LONG_AGO
            if doubtful:
                found = await self._reconcile(agent, context, call, token, claim_id, f"raised {describe(failure)}")
                if not isinstance(found, bytes):
                    return found
                claim_id = found

    async def _confirm(
        self, agent: str, context: Context, call: StepCall, token: str, claim_id: bytes, asked_at: int
    ) -> FinishedStep | bytes:
        """The id of our claim, which is ours still and this process nobody's former life; or the end that somebody else gave it.

        Raises:
            FencedError: What this process would do is somebody else's to do.
        """
        for _ in range(_CONFIRMS_MAX):
            now = self._ledger.now()
            if now - asked_at < CLAIM_FRESH_NS:
                break
            asked_at = now
            held = await self._ledger.ask(partial(self._hold, token, claim_id))
            if isinstance(held, Claimed):
                continue
            if held.entry.ended:
                return finished_of(held.entry)
            again = await self._claim_again(agent, context, call, token)
            if again is None:
                raise _taken_over(held.entry)
            claim_id = again
        return claim_id

    async def _hold(self, token: str, claim_id: bytes) -> Claimed | Known:
        return await self._ledger.backend.take(token, self._ledger.fence(), claim_id, before=claim_id)

    async def _claim_again(self, agent: str, context: Context, call: StepCall, token: str) -> bytes | None:
        """Claim what an operator has just said did not happen; None: it is somebody else's."""
        entry = self._ledger.new_entry(
            agent, context, Kind.STEP, call.name, call.ordinal, token, call.intent, call.shown
        )
        again = await self._ledger.ask(lambda: self._ledger.backend.claim(entry, self._ledger.fence()))
        return entry.claim_id if isinstance(again, Claimed) else None

    async def _record(self, agent: str, call: StepCall, token: str, claim_id: bytes, value: object) -> FinishedStep:
        try:
            data = encode_result(call.result, value, agent, call.name)
        except Unsavable as error:
            # It has happened: so this is its end, and it is never done again.
            return await self._end(token, claim_id, State.FAILED, reason=f"it was done, and {error}")
        self.counts["steps_done"] += 1
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
        taken = await self._ledger.ask(
            lambda: self._ledger.backend.take(token, self._ledger.fence(), claim_id, before=before)
        )
        if not isinstance(taken, Claimed):
            if taken.entry.ended:
                return finished_of(taken.entry)
            if taken.entry.state is State.CLAIMED:
                raise self._undecided(agent, call, token, what, "somebody else goes on with it")
            again = await self._claim_again(agent, context, call, token)
            if again is None:
                raise self._undecided(agent, call, token, what, "somebody else took it over")
            return again
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
        found = await self._ledger.ask(
            lambda: self._ledger.backend.end(token, self._ledger.fence(), claim_id, state, result=result, reason=reason)
        )
        if isinstance(found, Claimed) or found.entry.ended:
            return found.entry
        raise _taken_over(found.entry)

    def diverged(self, agent: str, call: StepCall | AskCall, token: str, recorded: str) -> StepDiverged:
        """The error of a place where something else was done."""
        self.counts["steps_diverged"] += 1
        schema = call.answer if isinstance(call, AskCall) else call.result
        return StepDiverged(agent, name_of(call), token, call.intent, schema, recorded=recorded, wanted=call.shown)

    def _undecided(self, agent: str, call: StepCall, token: str, what: str, why: str) -> StepUndecided:
        self.counts["steps_in_doubt"] += 1
        return StepUndecided(
            agent,
            call.name,
            token,
            call.intent,
            call.result,
            f"agent {agent}: step {call.name} {what}, and {why}. Find out whether it happened, and settle {token}",
        )


def _taken_over(entry: Entry) -> FencedError:
    return FencedError(
        f"step {entry.name} of {entry.agent} is under way here, and session {entry.session} of {entry.participant} has taken it over"
    )


def name_of(call: StepCall | AskCall) -> str:
    """A step's name, for people."""
    return "question" if isinstance(call, AskCall) else call.name
