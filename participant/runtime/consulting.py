"""What operators ask of this participant over the coordinators: effects, questions, turns; and their word on one of them.

Every answer is of bounded size and comes in bounded time. A word on a step or question that came before is not an error where
it says the same, and changes nothing where it says something else: the first one counts.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from participant.effects.entries import Kind, State
from participant.effects.shown import cursor, shown_effect, shown_question, standing
from participant.runtime import local_reading
from participant.runtime.effect_desk import Happened, TakeRecorded, settle
from participant.schema import hook_in
from participant.steps import DidNotHappen, encode_given
from protocol.consulting import (
    CLAIMED,
    DID_NOT_HAPPEN,
    DIVERGED,
    HAPPENED,
    IN_DOUBT,
    TAKE_RECORDED,
    AnswerQuestion,
    ListEffects,
    ListQuestions,
    ReadHistory,
    SettleEffect,
    cursor_of,
    page_of,
)
from protocol.errors import FencedError, LimitExceeded, Refused, SnapshotError, StoreError, Unsavable
from protocol.limits import CONSULT_BYTES_MAX
from protocol.messages import Consulted, WaitingAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from participant.effects.entries import Entry
    from participant.failure import Parked
    from participant.host import AgentHost
    from participant.runtime.clock import Clock
    from participant.runtime.effect_desk import Settlement
    from participant.runtime.steps import StepRunner
    from participant.schema import Schema
    from protocol.consulting import ConsultRequest
    from protocol.ids import AgentId
    from protocol.messages import Consult

ANSWER_SECONDS_MAX: Final = 8.0
"""For an effect ledger that does not answer, or a slow disk: less than the coordinators wait."""


class ConsultDesk:
    """Answers for one participant.

    Args:
        hosts: Of the agents here; changes with them.
        steps: The effect ledger, if there is one.
        participant: Id of this one.
        folder: Its own for local files; None: it has none.
        resume: Has an agent's parked turn begin again.
        clock: For what is left of a question's time.
    """

    def __init__(
        self,
        hosts: Iterable[AgentHost],
        steps: StepRunner | None,
        *,
        participant: str,
        folder: Path | None,
        resume: Callable[[AgentId], None],
        clock: Clock,
    ) -> None:
        self._hosts = hosts
        self._steps = steps
        self._participant = participant
        self._folder = folder
        self._resume = resume
        self._clock = clock
        self._reading = asyncio.Lock()
        """Logs are read one at a time: each reading may take the memory of a segment."""

    def waiting(self, most: int) -> tuple[tuple[WaitingAgent, ...], int, int]:
        """Agents that wait for a decision, the first ones; how many there are; and how many questions are open."""
        parked = [host.parked for host in self._hosts if host.parked is not None]
        listed = tuple(
            WaitingAgent(agent=turn.agent, step=turn.step, token=turn.token, cause=turn.cause) for turn in parked[:most]
        )
        return listed, len(parked), sum(len(host.questions) for host in self._hosts)

    async def answer(self, asked: Consult) -> Consulted:
        """The answer to be sent; never raises but for the participant's own end."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                document = await self._answer(asked.what)
        except TimeoutError:
            return self._refusal(asked, "ledger-unreachable", f"{self._participant} could not do it in time")
        except Unsavable as error:
            return self._refusal(asked, "bad-value", str(error))
        except Refused as error:
            return self._refusal(asked, error.code, str(error))
        except LimitExceeded as error:
            return self._refusal(asked, "limit", str(error))
        except (StoreError, FencedError) as error:
            return self._refusal(asked, "ledger-failed", str(error))
        except SnapshotError as error:
            return self._refusal(asked, "refused", str(error))
        body = json.dumps(document, separators=(",", ":")).encode()
        if len(body) > CONSULT_BYTES_MAX:
            return self._refusal(
                asked, "too-large", f"the answer has {len(body)} bytes; at most {CONSULT_BYTES_MAX} are sent"
            )
        return Consulted(session=asked.session, request=asked.request, body=body)

    def _refusal(self, asked: Consult, code: str, sentence: str) -> Consulted:
        return Consulted(session=asked.session, request=asked.request, code=code, sentence=sentence[:2_000])

    async def _answer(self, what: ConsultRequest) -> dict[str, Any]:
        match what:
            case ListEffects():
                return await self._effects(what)
            case SettleEffect():
                return await self._settle(what)
            case ListQuestions():
                return await self._questions(what)
            case AnswerQuestion():
                return await self._take_answer(what)
            case ReadHistory():
                return await self._history(what)
            case _:
                assert_never(what)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _effects(self, what: ListEffects) -> dict[str, Any]:
        steps = self._steps
        if steps is None:
            return {"effects": [], "more": False}
        parked = self._parked()
        states = (State.CLAIMED,) if what.in_doubt else tuple(State)
        if what.token:
            entries, others = await self._one(steps, what.token), []
        else:
            # A step that has diverged has its end, and a question that reads otherwise now waits for a decision as a step does.
            others = [entry for token in parked for entry in await self._one(steps, token)]
            others = [entry for entry in others if entry.kind is not Kind.STEP or entry.state not in states]
            others.sort(key=cursor, reverse=True)
            entries = await steps.entries(states)
        before = cursor_of(what.before)

        def rows() -> Iterator[dict[str, Any]]:
            # The ledger gives them in order, oldest first: a page of a million is made of its last few.
            for entry in heapq.merge(reversed(entries), others, key=cursor, reverse=True):
                if what.agent and entry.agent != what.agent:
                    continue
                if entry.kind is not Kind.STEP and not what.token and entry.token not in parked:
                    continue
                stands = standing(entry, self._participant, steps.running, parked)
                if what.in_doubt and stands not in {IN_DOUBT, DIVERGED, CLAIMED}:
                    continue
                if before is None or cursor(entry) < before:
                    yield shown_effect(entry, stands, parked.get(entry.token))

        page = page_of(rows(), what.limit)
        return {"effects": page.rows, "more": page.more}

    async def _questions(self, what: ListQuestions) -> dict[str, Any]:
        steps = self._steps
        if steps is None:
            return {"questions": [], "more": False}
        asked = {token: question for host in self._hosts for token, question in host.questions.items()}
        if what.token:
            entries = [entry for entry in await self._one(steps, what.token) if entry.kind is Kind.QUESTION]
        else:
            entries = [
                entry
                for entry in await steps.entries((State.CLAIMED,))
                # One whose turn has ended some other way is nobody's question any more.
                if entry.kind is Kind.QUESTION and (entry.closed_after < 0 or entry.token in asked)
            ]
        before = cursor_of(what.before)
        entries = [
            entry
            for entry in entries
            if (not what.agent or entry.agent == what.agent) and (before is None or cursor(entry) < before)
        ]
        entries.sort(key=cursor, reverse=True)
        now = self._clock.now()

        def row(entry: Entry) -> dict[str, Any]:
            question = asked.get(entry.token)
            deadline = None if question is None else question.deadline
            left = None if deadline is None else max(0, deadline - now) / 1e9
            return shown_question(entry, waits=question is not None, expires_in=left)

        page = page_of(map(row, entries), what.limit)
        return {"questions": page.rows, "more": page.more}

    async def _history(self, what: ReadHistory) -> dict[str, Any]:
        folder = self._folder
        if folder is None or not await asyncio.to_thread(local_reading.has_turn_log, folder):
            raise Refused(
                "no-turn-log", f"{self._participant} keeps no log of turns: they are logged with durability turn"
            )
        async with self._reading:
            page = await asyncio.to_thread(
                local_reading.history_page, folder, what.agent, before=what.before, limit=what.limit
            )
        return {"agent": what.agent, "participant": self._participant, "turns": page.rows, "more": page.more}

    async def _one(self, steps: StepRunner, token: str) -> list[Entry]:
        entry = await steps.entry(token)
        return [] if entry is None else [entry]

    def _parked(self) -> dict[str, Parked]:
        return {host.parked.token: host.parked for host in self._hosts if host.parked is not None}

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def _settle(self, what: SettleEffect) -> dict[str, Any]:
        steps = self._ledger()
        token = what.token
        parked = self._parked().get(token)
        result = None if parked is None else parked.result
        settlement: Settlement
        if what.how == HAPPENED:
            settlement = Happened(_value(result, what.result, "result"))
        elif what.how == DID_NOT_HAPPEN:
            settlement = DidNotHappen()
        elif what.how == TAKE_RECORDED:
            settlement = TakeRecorded()
        else:
            raise Refused("bad-value", f"{what.how[:60]!a} is no way to settle a step")
        before = await steps.entry(token)
        if before is None:
            raise Refused("no-effect", f"{self._participant} knows no effect {token[:64]!a}")
        entry = await settle(steps, tuple(self._hosts), token, settlement)
        if parked is not None and (what.how == TAKE_RECORDED or parked.cause == "in-doubt"):
            # Also where the word comes too late: what it waits for has been decided.
            for host in tuple(self._hosts):
                if host.parked is parked:
                    self._resume(host.id)
        # Always: it may have ended while we looked.
        _check_same(entry, settlement, result)
        return {
            "participant": self._participant,
            "duplicate": what.how != TAKE_RECORDED and before.state is not State.CLAIMED,
            "effect": shown_effect(entry, standing(entry, self._participant, steps.running, self._parked())),
        }

    async def _take_answer(self, what: AnswerQuestion) -> dict[str, Any]:
        steps = self._ledger()
        token = what.token
        question = next((host.questions[token] for host in self._hosts if token in host.questions), None)
        schema = None if question is None else question.answer
        value = _value(schema, what.answer, "answer")
        before = await steps.answer(token, value)
        if before is not None:
            if before.state is State.EXPIRED:
                raise Refused("expired", f"question {token} has expired; its turn went on without an answer")
            if before.result != encode_given(schema, value, "answer"):
                raise Refused("answered-before", f"question {token} was answered before: that answer counts")
        entry = await steps.entry(token)
        assert entry is not None, "it was there just now"
        return {
            "participant": self._participant,
            "duplicate": before is not None,
            "question": shown_question(entry, waits=False, expires_in=None),
        }

    def _ledger(self) -> StepRunner:
        if self._steps is None:
            raise Refused("no-effects", f"{self._participant} has no effect ledger: give it local=... or effects=...")
        return self._steps


def _check_same(entry: Entry, settlement: Settlement, result: Schema | None) -> None:
    """Raise unless what was said now is what counts anyway."""
    match settlement:
        case Happened(result=value):
            if entry.state is State.DONE and entry.result == encode_given(result, value, "result"):
                return
        case DidNotHappen():
            if entry.state is State.RELEASED:
                return
        case TakeRecorded():
            return
        case _:
            assert_never(settlement)
    how = "an operator settled it" if entry.settled else "it has ended by itself"
    raise Refused("settled-before", f"step {entry.token} is {entry.state.value} already: {how}, and that counts")


def _value(schema: Schema | None, text: bytes, what: str) -> object:
    """A value that came as JSON: plain data that has the wanted form, or what the wanted type makes of it.

    Raises:
        Unsavable: It is not what is wanted.
    """
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Unsavable("", what, "text", f"it is not JSON: {error}") from None
    try:
        encode_given(schema, plain, what)
    except Unsavable:
        if schema is None:
            raise
        # Bytes as base64, times, what pydantic makes of something: JSON has no words of its own for them.
        try:
            value: object = msgspec.json.decode(text, type=schema.declared, dec_hook=hook_in)
        except Exception:  # noqa: BLE001 - a class's own __post_init__ or validation may raise anything
            value = None
        if value is None:
            raise
        return value
    return plain
