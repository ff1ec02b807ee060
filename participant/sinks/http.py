"""Outputs as requests to an HTTP service that knows idempotency keys.

Each output is one request with these headers::

    Idempotency-Key: <token>                              the service answers a repeated key without doing it again
    Cleancut-Fence: <incarnation>/<session>/<participant> the service refuses what is older than the newest it has seen

Answers:

======================================  =========================================================================
2xx                                     taken; with ``Idempotent-Replayed: true`` or 208: it was there already
412, or 409 with ``Cleancut-Fenced: 1`` we are fenced: nothing more is sent by this incarnation
422 with ``Cleancut-Diverged: 1``       the key is known with another payload; the first one stands
400, 413, 415, 422                      refused for good: the output is put aside
anything else, or none                  tried again, for ever: 401, 403 and 404 are mended by somebody
======================================  =========================================================================

A service that does not know these headers gets outputs at least once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from participant.outbox import DELIVERED, DUPLICATE, Outcome, Receipt
from participant.sinks.base import SinkError, sink_name
from protocol.errors import ConfigError, printable
from protocol.outputs import OlderIncarnation

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence

    from participant.sinks.base import SinkOutput
    from protocol.outputs import FencingToken

KEY_HEADER: Final = "Idempotency-Key"
FENCE_HEADER: Final = "Cleancut-Fence"
FENCED_HEADER: Final = "Cleancut-Fenced"
DIVERGED_HEADER: Final = "Cleancut-Diverged"
REPLAYED_HEADER: Final = "Idempotent-Replayed"
REQUEST_SECONDS: Final = 30.0
_REFUSED_FOR_GOOD: Final = frozenset({400, 413, 415, 422})
_SHOWN_BYTES: Final = 500
"""Of an answer's body, for the error."""


def json_body(output: SinkOutput) -> bytes:
    """The payload as JSON."""
    return msgspec.json.encode(output.value)


class HttpSink:
    """See the module.

    Args:
        name: As of every sink.
        url: Where outputs are sent.
        method: Of these requests.
        fence_url: Where ``{"incarnation": k}`` is put to raise the fence before anybody writes for it; None: the service
            learns of a new incarnation by its first output.
        headers: More headers, such as an authorization.
        encode: Output -> body; default: JSON.
        content_type: Of the body.
        tls: What an HTTPS service's certificate is checked with; None: what this machine trusts.
        seconds: For one request.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        method: str = "POST",
        fence_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        encode: Callable[[SinkOutput], bytes] = json_body,
        content_type: str = "application/json",
        tls: ssl.SSLContext | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        for address in (url, fence_url):
            if address is not None and not address.startswith(("http://", "https://")):
                raise ConfigError("url", f"{address!a} is not http:// or https://")
        self.name = sink_name(name)
        self._url = url
        self._method = method
        self._fence_url = fence_url
        self._headers = {"Content-Type": content_type, **(headers or {})}
        self._encode = encode
        self._tls = tls
        self._timeout = aiohttp.ClientTimeout(total=seconds)
        self._session: aiohttp.ClientSession | None = None

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`. Asks nothing: a service that is down holds up its own outputs, not the participant."""

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`. One request after the other, so that their order is kept."""
        return [await self._send(writer, output) for output in outputs]

    async def raise_fence(self, incarnation: int) -> None:
        """See `Sink`. Without `fence_url` there is nothing to raise."""
        if self._fence_url is None:
            return
        try:
            async with self._client().put(
                self._fence_url, json={"incarnation": incarnation}, headers=self._more_headers(), allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise SinkError(self.name, f"the fence was answered with {answer.status}: {await _text(answer)}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise SinkError(self.name, f"{self._fence_url}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """See `Sink`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, writer: FencingToken, output: SinkOutput) -> Receipt:
        try:
            body = self._encode(output)
        except Exception as error:  # noqa: BLE001 - the user's code
            return Receipt(Outcome.REFUSED, f"no body can be made of it: {type(error).__name__}: {error}")
        headers = {**self._headers, KEY_HEADER: output.token, FENCE_HEADER: writer.header()}
        try:
            async with self._client().request(
                self._method, self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return await self._receipt(answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise SinkError(self.name, f"{self._url}: {str(error) or type(error).__name__}") from error

    async def _receipt(self, answer: aiohttp.ClientResponse) -> Receipt:
        status = answer.status
        if 200 <= status < 300:
            replayed = status == 208 or answer.headers.get(REPLAYED_HEADER, "").lower() == "true"
            await answer.read()
            return DUPLICATE if replayed else DELIVERED
        text = await _text(answer)
        if status == 412 or (status == 409 and FENCED_HEADER in answer.headers):
            # It does not say by what. If it was a newer session, the coordinators say so, too.
            raise OlderIncarnation(f"sink {self.name} refuses this process: {text}")
        if status == 422 and DIVERGED_HEADER in answer.headers:
            return Receipt(Outcome.DIVERGED, text)
        if status in _REFUSED_FOR_GOOD:
            return Receipt(Outcome.REFUSED, f"{status}: {text}")
        raise SinkError(self.name, f"{self._url} answers {status}: {text}")

    def _more_headers(self) -> dict[str, str]:
        return {name: value for name, value in self._headers.items() if name.lower() != "content-type"}

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True),
                trust_env=False,
            )
        return self._session


async def _text(answer: aiohttp.ClientResponse) -> str:
    """The beginning of an answer's body, safe for logs."""
    data = await answer.content.read(_SHOWN_BYTES)
    return printable(data.decode("utf-8", "replace"))
