"""What the API answers: JSON documents, and errors with a code, a sentence and a hint.

Every error that leaves the API has the same shape, whoever raised it: ``{"error": {"code", "message", "hint"}}``. A code
is a short stable word that programs may test; the message is for people and names what is concerned; the hint says what
to do, or is empty.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from protocol.errors import (
    ConfigError,
    LimitExceeded,
    ObjectCorrupt,
    ObjectMissing,
    Refused,
    SnapshotError,
    StoreError,
    UnknownAgent,
    Unreachable,
    WireError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from logging import Logger

BODY_BYTES_MAX: Final = 64 << 10
"""Request bodies are a few settings; more is refused before it is read."""
BODY_SECONDS_MAX: Final = 10.0
"""A body that dribbles in is given up after this long."""

_HTTP_CODES: Final = {
    400: "bad-request",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
}


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status.
        code: Stable word for programs.
        message: Sentence for people.
        hint: What to do, or "".
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", *, headers: dict[str, str] | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = headers or {}
        super().__init__(f"{status} {code}: {message}")


def json_answer(document: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON document; never cached."""
    return web.Response(
        body=json.dumps(document, separators=(",", ":")).encode(),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def error_answer(error: ApiError) -> web.Response:
    """The one shape of all errors."""
    document = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    return json_answer(document, status=error.status, headers=error.headers)


def as_api_error(error: Exception) -> ApiError | None:
    """The API's view of an error that a handler let through; None: a bug of ours."""
    match error:
        case ApiError():
            return error
        case web.HTTPException():
            code = _HTTP_CODES.get(error.status, f"http-{error.status}")
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return ApiError(error.status, code, error.text or error.reason, headers=headers)
        case ObjectMissing():
            return ApiError(404, "object-missing", str(error), "`cleancut store check` lists what is missing")
        case ObjectCorrupt():
            return ApiError(422, "object-corrupt", str(error), "`cleancut epoch verify` says what else is damaged")
        case StoreError():
            return ApiError(503, "store-failed", str(error), "free space or mend access; nothing needs a restart")
        case Refused(code="no-leader" | "not-leader" | "queue-full" | "discarded" | "stopped"):
            return ApiError(503, error.code, str(error), "try again in a second", headers={"Retry-After": "1"})
        case Refused():
            return ApiError(409, error.code, str(error))
        case Unreachable():
            return ApiError(503, "no-quorum", str(error) or "no quorum of coordinators answered", "try again")
        case LimitExceeded():
            return ApiError(429, "limit", str(error))
        case ConfigError():
            return ApiError(400, "bad-value", str(error))
        case WireError():
            return ApiError(400, "malformed", str(error))
        case UnknownAgent():
            return ApiError(404, "no-agent", str(error))
        case TimeoutError():
            return ApiError(503, "store-slow", "the store did not answer in time", "try again")
        case SnapshotError():
            return ApiError(409, "refused", str(error))
        case _:
            return None


def errors_middleware(log: Logger) -> Any:  # noqa: ANN401 (aiohttp's middleware type is a private alias)
    """Turn whatever a handler raises into the one error shape; a bug is logged and answered without its text."""

    @web.middleware
    async def answer_errors(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                # No bug, and nobody reads the answer: strangers could fill the log with tracebacks otherwise.
                return error_answer(ApiError(503, "client-gone", "the client hung up"))
            known = as_api_error(error)
            if known is None:
                log.exception("request %s %s failed", request.method, request.rel_url.raw_path)
                known = ApiError(500, "internal", "the coordinator failed on this request", "its log has the cause")
            return error_answer(known)

    return answer_errors


async def read_body(request: web.Request) -> bytes:
    """The request's body, of at most `BODY_BYTES_MAX` (the application's limit).

    Raises:
        ApiError: It does not come in time.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, "too-slow", f"the body did not come within {BODY_SECONDS_MAX:.0f} s") from None


async def read_object(request: web.Request, known: dict[str, type]) -> dict[str, Any]:
    """The request's body as a JSON object with known keys.

    Args:
        request: Body of at most `BODY_BYTES_MAX`, maybe empty.
        known: Key -> type of its value. Every key may be missing.

    Raises:
        ApiError: Not JSON, not an object, an unknown key, a value of another type, too large, too slow.
    """
    body = await read_body(request)
    return _checked_object(body, known) if body else {}


async def read_large_object(request: web.Request, known: dict[str, type], bytes_max: int) -> dict[str, Any]:
    """The same for a body that may be larger than `BODY_BYTES_MAX`; an empty one is no object.

    Args:
        request: Its body has not been read.
        known: As in `read_object`.
        bytes_max: More is refused.

    Raises:
        ApiError: As in `read_object`.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for piece in request.content.iter_chunked(1 << 16):
                data += piece
                if len(data) > bytes_max:
                    raise ApiError(413, "too-large", f"a body has at most {bytes_max} bytes here")
    except TimeoutError:
        raise ApiError(408, "too-slow", f"the body did not come within {BODY_SECONDS_MAX:.0f} s") from None
    return _checked_object(bytes(data), known)


def _checked_object(body: bytes, known: dict[str, type]) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad-json", f"the body is not JSON: {ascii(str(error))[1:-1][:120]}") from None
    if not isinstance(document, dict):
        raise ApiError(400, "bad-json", "the body must be a JSON object")
    for key, value in document.items():
        if key not in known:
            raise ApiError(400, "unknown-key", f"no such key: {key[:60]!a}", f"known are {', '.join(sorted(known))}")
        kind = known[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ApiError(400, "bad-value", f"{key} must be of type {kind.__name__}, not {type(value).__name__}")
    return document


def query_number(request: web.Request, name: str, default: int, most: int) -> int:
    """A whole number from the query string, 0 to `most`."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ApiError(400, "bad-value", f"{name} must be a whole number, not {text[:40]!a}")
    return min(int(text), most)


def query_flag(request: web.Request, name: str) -> bool:
    """A flag from the query string: ``?fresh=1``."""
    return request.query.get(name, "0") not in {"", "0", "false", "no"}
