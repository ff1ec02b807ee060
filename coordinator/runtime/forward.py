"""Passing writes on to the leader: one hop, never two.

Any coordinator may be asked for anything. One that does not lead sends a write on to the leader as it came, and hands
the answer back as it comes. The header `FORWARDED` marks a request that was passed on: whoever gets one and does not
lead answers 503 instead of passing it on again, so that two coordinators with old news never play ball with a request.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import web

from coordinator.runtime.answers import ApiError, read_body

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

FORWARDED: Final = "Cleancut-Forwarded-By"
LEADER: Final = "Cleancut-Leader"
"""On every answer: 1 if the coordinator that answered leads, else 0."""
CONNECT_SECONDS_MAX: Final = 2.0
ANSWER_BYTES_MAX: Final = 64 << 20
"""An answer that is handed on; the largest is a verification of thousands of objects."""
_KEPT_HEADERS: Final = ("Content-Type", "Allow", "Retry-After")


class LeaderClient:
    """Passes requests on.

    Args:
        me: Id of this coordinator.
        leader_url: ``http://host:port`` of the leader as far as known; None: nobody known, or it is us.
        seconds_max: For the whole exchange.
        tls: What an HTTPS leader's certificate is checked with; None: what this machine trusts.
    """

    def __init__(
        self,
        me: str,
        leader_url: Callable[[], str | None],
        *,
        seconds_max: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._me = me
        self._leader_url = leader_url
        self._seconds_max = seconds_max
        self._session: aiohttp.ClientSession | None = None
        self.forwarded = 0
        """Requests passed on since the start."""

    async def pass_on(
        self, request: web.Request, body: dict[str, Any] | None = None, *, seconds_max: float | None = None
    ) -> web.Response:
        """Send the request to the leader and answer what it answers.

        Args:
            request: As it came.
            body: What to send in place of its own body.
            seconds_max: For this exchange, where it must not take as long as others.

        Raises:
            ApiError: No leader known, passed on already, or the leader does not answer (503 with code
                ``leader-unreachable``: it may have acted).
        """
        url = self._leader_url()
        if was_passed_on(request) or url is None:
            raise no_leader()
        data = await read_body(request) if body is None else json.dumps(body).encode()
        headers = {"Authorization": request.headers.get("Authorization", ""), FORWARDED: self._me}
        if "Content-Type" in request.headers:
            headers["Content-Type"] = request.headers["Content-Type"]
        self.forwarded += 1
        seconds = self._seconds_max if seconds_max is None else seconds_max
        try:
            async with self._client().request(
                request.method,
                f"{url}{request.rel_url.raw_path_qs}",
                data=data,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds, connect=min(seconds, CONNECT_SECONDS_MAX)),
            ) as response:
                answer = await response.content.read(ANSWER_BYTES_MAX + 1)
                while len(answer) <= ANSWER_BYTES_MAX and not response.content.at_eof():
                    answer += await response.content.read(ANSWER_BYTES_MAX + 1 - len(answer))
                if len(answer) > ANSWER_BYTES_MAX:
                    raise ApiError(502, "too-large", "the leader's answer is too large to hand on")
                kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
                return web.Response(
                    body=answer, status=response.status, headers={"Cache-Control": "no-store", LEADER: "0", **kept}
                )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ApiError(
                503,
                "leader-unreachable",
                f"the leader at {url} did not answer: {str(error) or type(error).__name__}",
                "look at the status before you try again: it may have acted",
                headers={"Retry-After": "1"},
            ) from None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=64, ssl=self._tls if self._tls is not None else True),
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """End all exchanges."""
        if self._session is not None:
            await self._session.close()


def was_passed_on(request: web.Request) -> bool:
    """Another coordinator sent this request on: it must not be sent on once more."""
    return request.headers.get(FORWARDED) is not None


def no_leader() -> ApiError:
    """The answer while nobody leads."""
    return ApiError(
        503, "no-leader", "no coordinator leads at the moment", "try again in a second", headers={"Retry-After": "1"}
    )
