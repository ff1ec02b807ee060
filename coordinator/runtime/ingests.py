"""Outside input over the API: handed to whoever hosts the agent, over its control connection, and its answer handed back.

``POST /v1/agents/{kind}/{name}/messages`` with ``{"type": ..., "version": ..., "body": ..., "token": ...}``. The leader has the
connections; another coordinator passes the request on, once. The participant writes the input into its log and then answers,
so what is acknowledged here is durable there. A client that gets no answer sends the same again, with the same token.

Neither machine nor ledger have any part in it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from coordinator.runtime.answers import BODY_BYTES_MAX, BODY_SECONDS_MAX, ApiError, json_answer
from coordinator.runtime.asks import Unanswered
from coordinator.runtime.forward import was_passed_on
from protocol.errors import IllegalName
from protocol.ids import agent_id
from protocol.limits import MIB
from protocol.messages import Ingest, Ingested

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from coordinator.runtime.asks import Asks
    from coordinator.runtime.connections import ParticipantHub
    from coordinator.runtime.service import Service
    from protocol.ids import AgentId

ANSWER_SECONDS_MAX: Final = 15.0
"""From the hand-over to the participant's answer: its fsync, and a restore that may be going on."""
INPUT_BYTES_MAX: Final = MIB + 4096
"""The largest message, as JSON, and its names."""
LARGE_MAX: Final = 64
"""Inputs with large bodies that are read or handed over at the same time."""
WAITING_MAX: Final = 1_024
"""Inputs that wait for their participant's answer."""
WAITING_BYTES_MAX: Final = 32 * MIB
PER_SECOND: Final = 200
"""Of one participant, sustained: well below what a control connection carries, since heartbeats and reports share it."""
BURST: Final = 400

_STATUS_OF: Final = {
    "overloaded": 429,
    "token-conflict": 409,
    "bad-message": 400,
    "too-large": 413,
    "no-agent": 404,
}
_HINT_OF: Final = {
    "overloaded": "try again later, with the same token",
    "token-conflict": "use another token for another input",
    "no-input-log": "give its participant a folder for local files (local=...)",
}
_KEYS: Final[dict[str, type]] = {"type": str, "version": int, "token": str}


class Ingests:
    """Inputs on their way to participants, within bounds."""

    def __init__(self, asks: Asks, clock: Callable[[], float]) -> None:
        self._asks = asks
        self._clock = clock
        self._waiting = 0
        self._waiting_bytes = 0
        self._allowances: dict[int, tuple[float, float]] = {}
        """Session -> how many more now, and when that was computed."""
        self.counts: dict[str, int] = {"taken": 0, "refused": 0, "unanswered": 0}

    def session_lost(self, session: int) -> None:
        """Its connection is gone."""
        self._allowances.pop(session, None)

    async def hand_over(self, hub: ParticipantHub, session: int, make: Callable[[int], Ingest], size: int) -> Ingested:
        """Give an input to a session, and wait for its answer.

        Args:
            hub: Has the connections.
            session: Of the participant.
            make: The message, given the request's number.
            size: Of the input, bytes.

        Raises:
            ApiError: It could not be asked, or did not answer.
        """
        if self._waiting >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise self._overloaded("too many inputs wait for their participants")
        if not self._may_ask(session):
            raise self._overloaded(f"more than {PER_SECOND} inputs a second for one participant")
        self._waiting += 1
        self._waiting_bytes += size
        try:
            answer = await self._asks.ask(hub, session, make, ANSWER_SECONDS_MAX)
        except Unanswered:
            self.counts["unanswered"] += 1
            raise
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size
        if not isinstance(answer, Ingested):
            raise Unanswered("it answered something else")
        self.counts["refused" if answer.code else "taken"] += 1
        return answer

    def _may_ask(self, session: int) -> bool:
        now = self._clock()
        allowance, last = self._allowances.get(session, (float(BURST), now))
        allowance = min(BURST, allowance + (now - last) * PER_SECOND)
        self._allowances[session] = (max(0.0, allowance - 1), now)
        return allowance >= 1

    def _overloaded(self, message: str) -> ApiError:
        self.counts["refused"] += 1
        return ApiError(429, "overloaded", message, _HINT_OF["overloaded"], headers={"Retry-After": "1"})


class AgentMessages:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._large = 0
        """Bodies beyond what other requests may have that are being read or handed over."""

    async def post(self, request: web.Request) -> web.Response:
        """Take an input for an agent: 201, or 200 where its token had come before."""
        try:
            agent = agent_id(request.match_info["agent"])
        except IllegalName as error:
            raise ApiError(400, "bad-agent", str(error)) from None
        # Each of these may hold a megabyte; everything else is bounded by the size of other requests' bodies.
        large = (request.content_length or INPUT_BYTES_MAX) > BODY_BYTES_MAX
        if large and self._large >= LARGE_MAX:
            raise ApiError(429, "overloaded", f"{LARGE_MAX} large inputs are under way", headers={"Retry-After": "1"})
        self._large += large
        try:
            return await self._take(request, agent)
        finally:
            self._large -= large

    async def _take(self, request: web.Request, agent: AgentId) -> web.Response:
        document, size = await _read_input(request)
        service = self._service
        if not service.leads:
            return await service.forward.pass_on(request, body=document, seconds_max=ANSWER_SECONDS_MAX + 2)
        member = next((each for each in service.ledger.state.topology.members if agent in each.agents), None)
        if member is None:
            hint = "`cleancut participants` says who is here" if not was_passed_on(request) else ""
            raise ApiError(404, "no-agent", f"no participant hosts {agent}", hint)
        hub = service.driver.hub
        answer = await hub.ingests.hand_over(
            hub,
            member.session,
            lambda number: Ingest(
                session=member.session,
                request=number,
                agent=agent,
                name=document["type"],
                version=document.get("version", 0),
                body=json.dumps(document["body"]).encode(),
                token=document.get("token", ""),
            ),
            size,
        )
        if answer.code:
            status = _STATUS_OF.get(answer.code, 409)
            headers = {"Retry-After": "1"} if status == 429 else {}
            raise ApiError(status, answer.code, answer.sentence, _HINT_OF.get(answer.code, ""), headers=headers)
        return json_answer(
            {
                "agent": agent,
                "participant": member.id,
                "message": answer.message,
                "position": answer.position,
                "duplicate": answer.duplicate,
            },
            status=200 if answer.duplicate else 201,
        )


async def _read_input(request: web.Request) -> tuple[dict[str, Any], int]:
    """The body as a JSON object, and its size. Larger than other bodies may be: it holds a message."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for piece in request.content.iter_chunked(1 << 16):
                data += piece
                if len(data) > INPUT_BYTES_MAX:
                    raise ApiError(413, "too-large", f"an input has at most {INPUT_BYTES_MAX} bytes")
    except TimeoutError:
        raise ApiError(408, "too-slow", f"the body did not come within {BODY_SECONDS_MAX:.0f} s") from None
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad-json", f"the body is not JSON: {ascii(str(error))[1:-1][:120]}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "bad-json", "the body must be a JSON object")
    for key, value in document.items():
        if key == "body":
            continue
        if key not in _KEYS:
            raise ApiError(400, "unknown-key", f"no such key: {key[:60]!a}", "known are body, token, type, version")
        kind = _KEYS[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ApiError(400, "bad-value", f"{key} must be of type {kind.__name__}, not {type(value).__name__}")
    if not document.get("type") or "body" not in document:
        raise ApiError(400, "bad-value", "type and body are needed: the registered name of the message, and its fields")
    if not 0 <= document.get("version", 0) < 1 << 31:
        raise ApiError(400, "bad-value", "version must be a small whole number")
    return document, len(data)


def add_ingest_routes(app: web.Application, service: Service) -> None:
    """`POST /v1/agents/{kind}/{name}/messages`; the slash may be written ``%2F``."""
    app.router.add_post("/v1/agents/{agent:.+}/messages", AgentMessages(service).post)
