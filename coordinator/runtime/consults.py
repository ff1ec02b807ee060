"""What operators ask of participants: effects, questions, the turns of an agent; and their word on a step or a question.

::

    GET  /v1/effects?in_doubt=1&agent=KIND/NAME&before=CURSOR&limit=N
    POST /v1/effects/{token}/settle       {"result": JSON} | {"did_not_happen": true} | {"take_recorded": true}
    GET  /v1/questions?agent=KIND/NAME&before=CURSOR&limit=N
    POST /v1/questions/{token}/answer     {"answer": JSON}
    GET  /v1/agents
    GET  /v1/agents/{kind}/{name}/history?before=N&limit=N

The leader has the connections; another coordinator passes the request on, once. All participants are asked at once, each has a
time limit, and whoever gave no answer is named in ours (`unanswered`): an empty list of what is in doubt must not be one that
nobody was asked for. Neither machine nor ledger have any part in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from coordinator.ledger.records import LOST
from coordinator.runtime.answers import ApiError, json_answer, query_flag, query_number, read_large_object
from coordinator.runtime.asks import NotAsked, Unanswered
from protocol.consulting import (
    DID_NOT_HAPPEN,
    HAPPENED,
    TAKE_RECORDED,
    UNDER_WAY,
    AnswerQuestion,
    ListEffects,
    ListQuestions,
    Page,
    ReadHistory,
    SettleEffect,
    cursor_of,
    merged,
)
from protocol.errors import IllegalName
from protocol.ids import agent_id
from protocol.limits import CONSULT_BYTES_MAX, CONSULT_ROWS_MAX, EFFECT_RESULT_BYTES_MAX, PARTICIPANTS_MAX
from protocol.messages import Consult, Consulted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from coordinator.ledger import ParticipantRecord
    from coordinator.runtime.api import Api
    from coordinator.runtime.service import Service
    from protocol.consulting import ConsultRequest

ANSWER_SECONDS_MAX: Final = 10.0
"""From a participant: it gives up by itself before."""
PASSED_ON_SECONDS_MAX: Final = 2 * ANSWER_SECONDS_MAX + 2
"""A word on a step is two rounds: who knows it, and its being said."""
WORD_BYTES_MAX: Final = 2 * EFFECT_RESULT_BYTES_MAX + 4096
"""A result or answer as JSON takes more bytes than as msgpack."""
WAITING_MAX: Final = 256
"""Participants that are being asked, over all requests: each may answer with `CONSULT_BYTES_MAX`."""
PER_SECOND: Final = 50
"""Of one participant, sustained: its answers share the control connection with heartbeats and reports, which is closed where too
much comes."""
BURST: Final = 100
CLUSTER_MAX: Final = 1_000
"""Participants that one request asks; a larger cluster's are asked agent by agent."""
_AT_ONCE: Final = 32
"""Participants that one request asks at the same time."""

_STATUS_OF: Final = {
    "bad-value": 400,
    "no-effect": 404,
    "no-question": 404,
    "no-agent": 404,
    "too-large": 413,
    "limit": 429,
    "ledger-unreachable": 503,
    "ledger-failed": 503,
}
_HINT_OF: Final = {
    "under-way": "wait for its end",
    "not-parked": "`cleancut effects list --in-doubt` says what waits",
    "not-settled": "wait for its end",
    "settled-before": "`cleancut effects list` shows what it came to",
    "no-turn-log": "`cleancut epoch state EPOCH AGENT` shows the agent at a cut",
    "no-effects": "give the participant a folder for local files (local=...), or effects=redis://...",
    "ledger-unreachable": "its effect ledger does not answer; a word on a step may be said again",
    "bad-value": "",
}


class Asked(NamedTuple):
    """What became of asking one participant."""

    participant: str
    document: dict[str, Any] | None
    why: str
    """Why there is no document."""


class Consults:
    """The handlers."""

    def __init__(self, service: Service, api: Api) -> None:
        self._service = service
        self._api = api
        self._waiting = 0
        self._allowances: dict[int, tuple[float, float]] = {}
        """Session -> how many more now, and when that was computed."""

    # --- looking ------------------------------------------------------------------------------------------------------

    async def effects(self, request: web.Request) -> web.Response:
        """Steps of the effect ledgers, newest first."""
        agent, before, limit = _page_wanted(request)
        if not self._service.leads:
            return await self._passed_on(request)
        in_doubt = query_flag(request, "in_doubt")
        asked, silent = await self._ask_all(
            ListEffects(in_doubt=in_doubt, agent=agent, before=before, limit=limit), agent
        )
        page = merged(_pages(asked, "effects"), limit)
        rows = [self._decided(row) for row in page.rows]
        if in_doubt:
            rows = [row for row in rows if row.get("standing") in {"in-doubt", "diverged"}]
        return json_answer(_listing("effects", Page(rows, page.more), page.rows, asked, silent))

    async def questions(self, request: web.Request) -> web.Response:
        """Questions that nobody has answered, newest first."""
        agent, before, limit = _page_wanted(request)
        if not self._service.leads:
            return await self._passed_on(request)
        asked, silent = await self._ask_all(ListQuestions(agent=agent, before=before, limit=limit), agent)
        page = merged(_pages(asked, "questions"), limit)
        return json_answer(_listing("questions", page, page.rows, asked, silent))

    async def agents(self, request: web.Request) -> web.Response:
        """All agents, who hosts them, and which of them wait for a decision."""
        if (answer := await self._api.of_leader(request)) is not None:
            return answer
        await self._api.fresh(request)
        service = self._service
        board = service.driver.hub.waiting if service.leads else None
        rows = []
        for record in service.ledger.participants():
            if not (record.live or record.state == LOST):
                continue
            waits = {} if board is None else {each.agent: each for each in board.of(record.session).agents}
            for agent in record.agents:
                turn = waits.get(agent)
                rows.append({
                    "agent": agent,
                    "participant": record.id,
                    "participant_state": record.state,
                    "state_version": record.agent_versions.get(agent.partition("/")[0]),
                    "waiting": None if turn is None else {"step": turn.step, "token": turn.token, "cause": turn.cause},
                })  # fmt: skip
        rows.sort(key=lambda row: (row["agent"], row["participant"]))
        return json_answer({"agents": rows})

    async def history(self, request: web.Request) -> web.Response:
        """Turns of one agent, out of its participant's log."""
        agent = _agent(request.match_info["agent"])
        limit = max(1, query_number(request, "limit", 50, CONSULT_ROWS_MAX))
        before = query_number(request, "before", 0, 1 << 62)
        if not self._service.leads:
            return await self._passed_on(request)
        record = self._host_of(agent)
        answer = await self._ask(record, ReadHistory(agent=agent, before=before, limit=limit))
        return json_answer(_demand(record, answer))

    # --- deciding -----------------------------------------------------------------------------------------------------

    async def settle(self, request: web.Request) -> web.Response:
        """An operator says what became of a step."""
        token = _token(request)
        body = await read_large_object(
            request, {"result": object, "did_not_happen": bool, "take_recorded": bool}, WORD_BYTES_MAX
        )
        ways = [name for name in body if name == "result" or body[name] is True]
        if len(ways) != 1:
            raise ApiError(
                400, "bad-value", "say one thing: result, did_not_happen or take_recorded", "a result may be null"
            )
        if not self._service.leads:
            return await self._passed_on(request, body)
        how = {"result": HAPPENED, "did_not_happen": DID_NOT_HAPPEN, "take_recorded": TAKE_RECORDED}[ways[0]]
        record, row = await self._who_knows(ListEffects(token=token, limit=1), "effects", token)
        if row.get("standing") == UNDER_WAY:
            raise ApiError(409, "under-way", f"step {token} is being done at {record.id}", _HINT_OF["under-way"])
        result = json.dumps(body.get("result")).encode()
        answer = await self._ask(record, SettleEffect(token=token, how=how, result=result))
        return json_answer(_demand(record, answer))

    async def answer(self, request: web.Request) -> web.Response:
        """Somebody's answer to a question."""
        token = _token(request)
        body = await read_large_object(request, {"answer": object}, WORD_BYTES_MAX)
        if "answer" not in body:
            raise ApiError(400, "bad-value", "answer is needed", "it may be null")
        if not self._service.leads:
            return await self._passed_on(request, body)
        record, _ = await self._who_knows(ListQuestions(token=token, limit=1), "questions", token)
        answer = await self._ask(record, AnswerQuestion(token=token, answer=json.dumps(body["answer"]).encode()))
        return json_answer(_demand(record, answer))

    # --- asking participants ------------------------------------------------------------------------------------------

    async def _passed_on(self, request: web.Request, body: dict[str, Any] | None = None) -> web.Response:
        return await self._service.forward.pass_on(request, body=body, seconds_max=PASSED_ON_SECONDS_MAX)

    def _decided(self, row: dict[str, Any]) -> dict[str, Any]:
        """A claim that only its claimer could tell more of is in doubt where that one is gone."""
        if row.get("standing") != "claimed":
            return row
        claimer = row.get("claimed_by")
        gone = all(record.id != claimer or not record.live for record in self._service.ledger.participants())
        return {**row, "standing": "in-doubt"} if gone else row

    def _concerned(self, agent: str) -> tuple[list[ParticipantRecord], list[Asked]]:
        """Whom to ask; and who cannot be asked, with the reason."""
        ledger = self._service.ledger
        live = [record for record in ledger.participants() if record.live]
        gone = [
            Asked(record.id, None, f"it is lost: {record.cause}" if record.cause else "it is lost")
            for record in ledger.participants()
            # One whose agents others have taken over is not missed.
            if record.state == LOST and (agent in record.agents if agent else record.agents)
        ]
        if len(live) > CLUSTER_MAX and agent:
            # An effect ledger may be another host's: but asking all of them would take too long.
            live = [record for record in live if agent in record.agents]
        if len(live) > CLUSTER_MAX:
            raise ApiError(400, "too-many", f"{len(live)} participants are not asked at once", "name an agent")
        return live, gone

    async def _ask_all(self, what: ConsultRequest, agent: str = "") -> tuple[list[Asked], list[Asked]]:
        """Who answered, and who did not."""
        live, silent = self._concerned(agent)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(record: ParticipantRecord) -> Asked:
            async with gate:
                return await self._try(record, what)

        answers = await asyncio.gather(*map(one, live))
        return [each for each in answers if each.document is not None], [
            *silent,
            *(each for each in answers if each.document is None),
        ]

    async def _who_knows(self, what: ConsultRequest, rows: str, token: str) -> tuple[ParticipantRecord, dict[str, Any]]:
        """The participant that a word on a step or question is for, and what it knows of it.

        Raises:
            ApiError: Nobody knows it, or perhaps somebody who did not answer.
        """
        asked, silent = await self._ask_all(what)
        found = [(each, row) for each in asked for row in _rows(each, rows) if row.get("token") == token]
        if not found:
            word = "effect" if rows == "effects" else "question"
            if silent:
                named = "; ".join(f"{each.participant}: {each.why}" for each in silent[:5])
                raise ApiError(
                    503,
                    "not-found-yet",
                    f"nobody who answered knows {word} {token}, and not all did: {named}",
                    "try again when they are back",
                    headers={"Retry-After": "1"},
                )
            raise ApiError(404, f"no-{word}", f"there is no {word} {token}", f"`cleancut {word}s list`")

        def fitness(each: tuple[Asked, dict[str, Any]]) -> tuple[bool, bool, bool]:
            row = each[1]
            return (
                row.get("standing") == UNDER_WAY,
                bool(row.get("waits")),
                row.get("claimed_by") == each[0].participant,
            )

        best, row = max(found, key=fitness)
        record = next(
            (one for one in self._service.ledger.participants() if one.live and one.id == best.participant), None
        )
        if record is None:
            raise ApiError(503, "not-connected", f"{best.participant} has just gone", headers={"Retry-After": "1"})
        return record, row

    def _host_of(self, agent: str) -> ParticipantRecord:
        ledger = self._service.ledger
        known = [record for record in ledger.participants() if agent in record.agents]
        live = next((record for record in known if record.live), None)
        if live is not None:
            return live
        lost = next((record for record in known if record.state == LOST), None)
        if lost is not None:
            raise ApiError(
                503,
                "not-connected",
                f"{agent} was at {lost.id}, which is lost" + (f": {lost.cause}" if lost.cause else ""),
                "on its machine: `cleancut agent history AGENT --local DIR`",
            )
        raise ApiError(404, "no-agent", f"no participant hosts {agent}", "`cleancut agent list` says who is here")

    async def _try(self, record: ParticipantRecord, what: ConsultRequest) -> Asked:
        try:
            answer = await self._ask(record, what)
        except ApiError as error:
            return Asked(record.id, None, error.message)
        if answer.code:
            return Asked(record.id, None, answer.sentence or answer.code)
        return Asked(record.id, _document(answer), "it answered something else")

    async def _ask(self, record: ParticipantRecord, what: ConsultRequest) -> Consulted:
        """Ask one participant.

        Raises:
            ApiError: It could not be asked, or gave no answer; named.
        """
        if self._waiting >= WAITING_MAX:
            raise ApiError(
                429, "overloaded", "too many participants are being asked", "try again", headers={"Retry-After": "1"}
            )
        if not self._may_ask(record.session):
            message = f"{record.id} is asked more than {PER_SECOND} times a second"
            raise ApiError(429, "overloaded", message, "try again", headers={"Retry-After": "1"})
        hub = self._service.driver.hub
        self._waiting += 1
        try:
            answer = await hub.asks.ask(
                hub,
                record.session,
                lambda number: Consult(session=record.session, request=number, what=what),
                ANSWER_SECONDS_MAX,
            )
        except NotAsked as error:
            message = f"{record.id} has no connection at the moment, or is of an older build"
            raise ApiError(error.status, error.code, message, error.hint, headers=error.headers) from None
        except Unanswered as error:
            hint = "whether it was done is not known; the same may be said again"
            raise ApiError(error.status, error.code, f"{record.id}: {error.message}", hint) from None
        finally:
            self._waiting -= 1
        if not isinstance(answer, Consulted) or len(answer.body) > CONSULT_BYTES_MAX:
            raise ApiError(502, "odd-answer", f"{record.id} answered something else")
        return answer

    def _may_ask(self, session: int) -> bool:
        now = time.monotonic()
        allowance, last = self._allowances.pop(session, (float(BURST), now))
        allowance = min(BURST, allowance + (now - last) * PER_SECOND)
        self._allowances[session] = (max(0.0, allowance - 1), now)
        if len(self._allowances) > PARTICIPANTS_MAX:
            del self._allowances[next(iter(self._allowances))]  # asked the longest ago
        return allowance >= 1


def _demand(record: ParticipantRecord, answer: Consulted) -> dict[str, Any]:
    """The document of an answer; a refusal is an error with the participant's code and sentence."""
    if answer.code:
        raise ApiError(
            _STATUS_OF.get(answer.code, 409), answer.code, answer.sentence or answer.code, _HINT_OF.get(answer.code, "")
        )
    document = _document(answer)
    if document is None:
        raise ApiError(502, "odd-answer", f"{record.id} answered something that is not a document")
    return document


def _document(answer: Consulted) -> dict[str, Any] | None:
    try:
        document = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _rows(asked: Asked, name: str) -> list[dict[str, Any]]:
    rows = None if asked.document is None else asked.document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _pages(asked: Sequence[Asked], name: str) -> list[Page]:
    pages = []
    for each in asked:
        rows = [{"host": each.participant, **row} for row in _rows(each, name)]
        pages.append(Page(rows, more=bool(rows) and each.document is not None and each.document.get("more") is True))
    return pages


def _listing(
    name: str, page: Page, walked: Sequence[dict[str, Any]], asked: Sequence[Asked], silent: Sequence[Asked]
) -> dict[str, Any]:
    return {
        name: page.rows,
        "more": page.more,
        "before": walked[-1]["cursor"] if page.more and walked else None,
        "asked": sorted([each.participant for each in (*asked, *silent)]),
        "unanswered": [{"participant": each.participant, "why": each.why} for each in silent],
    }


def _page_wanted(request: web.Request) -> tuple[str, str, int]:
    agent = request.query.get("agent", "")
    before = request.query.get("before", "")
    if before and cursor_of(before) is None:
        raise ApiError(400, "bad-value", f"before is no cursor: {before[:80]!a}", "take it from the answer before")
    return (
        _agent(agent) if agent else "",
        before,
        max(1, query_number(request, "limit", 100, CONSULT_ROWS_MAX)),
    )


def _agent(text: str) -> str:
    try:
        return agent_id(text)
    except IllegalName as error:
        raise ApiError(400, "bad-agent", str(error)) from None


def _token(request: web.Request) -> str:
    token = request.match_info["token"]
    if not (token.isascii() and token.isalnum() and 1 <= len(token) <= 64):
        raise ApiError(400, "bad-value", f"{token[:80]!a} is no token", "`cleancut effects list` shows them")
    return token


def add_consult_routes(app: web.Application, service: Service, api: Api) -> None:
    """Effects, questions and agents."""
    consults = Consults(service, api)
    service.driver.hub.waiting.tell = lambda kind, details: service.events.record(
        kind, time.time_ns() // 1_000_000, **details
    )
    app.router.add_get("/v1/effects", consults.effects)
    app.router.add_post("/v1/effects/{token}/settle", consults.settle)
    app.router.add_get("/v1/questions", consults.questions)
    app.router.add_post("/v1/questions/{token}/answer", consults.answer)
    app.router.add_get("/v1/agents", consults.agents)
    app.router.add_get("/v1/agents/{agent:.+}/history", consults.history)
