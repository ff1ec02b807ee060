"""The command's side of the HTTP API: asks each coordinator in turn until one answers.

``http.client`` and not aiohttp: the latter costs more CPU to import than most commands take.

What is asked again and what is not:
    * No connection, so certainly nothing happened: the next coordinator is asked.
    * An answer that says "not now" (502, 503, 504; an election, no quorum): the next one, and all of them again until
      the time is up. A request that may not be repeated only where the answer says that nothing was done.
    * Asked but no answer came: a request that may be repeated goes to the next; another one (starting an epoch) ends with
      the truth, that it is not known whether it happened.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from coordinator.cli.exits import Exit, Failure, from_http
from coordinator.cli.output import note, safe
from protocol.limits import MANIFEST_BYTES_MAX

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

CONNECT_SECONDS: Final = 3.0
"""A host that does not answer at all must not use up the time of the others."""
ROUND_PAUSE_SECONDS: Final = 0.2
"""Between two rounds over all coordinators while they hold an election."""
FRESH_SECONDS: Final = 3.0
"""An election takes less: a group that has no fresh answer by then has no quorum."""
SILENCE_SECONDS_MAX: Final = 30.0
"""A stream is kept alive every ten seconds; three times that, and its coordinator is gone."""
LINE_BYTES_MAX: Final = 1 << 20
ERROR_BYTES_MAX: Final = 64 << 10
_NOT_NOW: Final = frozenset({502, 503, 504})
_NOTHING_HAPPENED: Final = frozenset({"no-leader", "not-leader", "not-ready"})
"""Answers to a write after which it certainly was not done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one coordinator's API is."""

    host: str
    port: int
    tls: bool = False
    """``https``."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https://' if self.tls else ''}{host}:{self.port}"


class NoAnswer(Exception):
    """One coordinator did not answer.

    Attributes:
        place: Which.
        reason: Why, in a few words.
        asked: The request had left, so it may have been acted on.
    """

    def __init__(self, place: Place, reason: str, *, asked: bool) -> None:
        self.place = place
        self.reason = reason
        self.asked = asked
        super().__init__(f"{place}: {reason}")


class Client:
    """Asks a group of coordinators.

    Args:
        places: In the order in which they are asked; the one that answered last comes first from then on.
        token: Bearer token for a request, given whether it writes; None: send none.
        timeout: Seconds that a whole call may take, over all coordinators.
        tls: What HTTPS certificates are checked with; None: what this machine trusts.
    """

    def __init__(
        self,
        places: tuple[Place, ...],
        token: Callable[[bool], str | None],
        *,
        timeout: float,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        assert places
        self._tls = tls
        self._places = list(places)
        self._token = token
        self._timeout = timeout

    @property
    def places(self) -> tuple[Place, ...]:
        """All coordinators, the one that answered last first."""
        return tuple(self._places)

    def get(self, *segments: object, query: dict[str, object] | None = None) -> Any:  # noqa: ANN401 - JSON
        """A JSON document.

        Args:
            segments: Of the path after ``/v1``; each is quoted.
            query: Parameters; None values are left out.

        Raises:
            Failure: No coordinator answered, or the answer is an error.
        """
        return self.call("GET", *segments, query=query)

    def read(self, *segments: object, query: dict[str, object] | None = None, strict: bool = False) -> Any:  # noqa: ANN401 - JSON
        """A JSON document that holds what is true now, where the group has a quorum.

        Without one: what a coordinator saw last, and a line on standard error that says so.

        Args:
            segments: Of the path after ``/v1``.
            query: Parameters.
            strict: Fail where only an old answer is to be had.

        Raises:
            Failure: No coordinator answered, or the answer is an error.
        """
        seconds = self._timeout if strict else min(self._timeout, FRESH_SECONDS)
        try:
            return self.call("GET", *segments, query={**(query or {}), "fresh": 1}, timeout=seconds)
        except Failure as failure:
            if strict or failure.exit is not Exit.UNREACHABLE:
                raise
        document = self.call("GET", *segments, query=query)
        note(f"cleancut: no quorum of coordinators answers: this is what {self._places[0]} saw last, and may be old")
        return document

    def call(
        self,
        method: str,
        *segments: object,
        query: dict[str, object] | None = None,
        body: dict[str, Any] | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Ask, and take the answer as JSON.

        Args:
            method: HTTP method.
            segments: Of the path after ``/v1``.
            query: Parameters.
            body: JSON document to send.
            repeatable: Asking twice is the same as asking once.
            timeout: Seconds for the whole call instead of the client's.

        Raises:
            Failure: No coordinator answered, or the answer is an error.
        """
        path = _path(segments, query)
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers(method, data)
        begun = time.monotonic()
        end = begun + (self._timeout if timeout is None else timeout)
        # Work may take minutes; an election does not.
        patience = min(end, begun + self._timeout)
        while True:
            problems: list[NoAnswer] = []
            not_now: Failure | None = None
            places = tuple(self._places)
            for index, place in enumerate(places):
                # One that hangs must not use up the time of those behind it.
                now = time.monotonic()
                until = now + (end - now) / (len(places) - index) if repeatable else end
                try:
                    status, answer = self._ask(place, method, path, data, until, headers)
                except NoAnswer as error:
                    if error.asked and not repeatable:
                        raise _unknown_outcome(error) from None
                    problems.append(error)
                    self._places.remove(place)
                    self._places.append(place)
                    continue
                self._places.remove(place)
                self._places.insert(0, place)
                if status < 400:
                    return _parsed(place, answer)
                failure = _error_of(place, status, answer)
                if not _may_ask_again(status, failure, repeatable=repeatable):
                    raise failure
                not_now = failure
            if not_now is None:
                raise _nobody(problems)
            if time.monotonic() + ROUND_PAUSE_SECONDS >= patience:
                raise not_now
            # A pause and not a condition: the other side has no way to call us when its election is over.
            time.sleep(ROUND_PAUSE_SECONDS)

    @contextmanager
    def stream(
        self, *segments: object, query: dict[str, object] | None = None
    ) -> Iterator[tuple[Place, Iterator[bytes]]]:
        """Lines as they come, of the first coordinator that answers, until it ends them.

        Raises:
            Failure: No coordinator answered, or the answer is an error.
        """
        path = _path(segments, query)
        problems: list[NoAnswer] = []
        not_now: Failure | None = None
        for place in tuple(self._places):
            connection = self._connection(place, min(self._timeout, CONNECT_SECONDS))
            try:
                connection.connect()
                connection.sock.settimeout(SILENCE_SECONDS_MAX)
                connection.request("GET", path, headers=self._headers("GET", None))
                response = connection.getresponse()
            except (OSError, UnicodeError, http.client.HTTPException) as error:
                connection.close()
                problems.append(NoAnswer(place, _reason(error), asked=False))
                continue
            with closing(connection), response:
                if response.status >= 400:
                    failure = _error_of(place, response.status, response.read(ERROR_BYTES_MAX))
                    if response.status not in _NOT_NOW:
                        raise failure
                    not_now = failure
                    continue
                yield place, _lines(response)
            return
        raise not_now or _nobody(problems)

    def ask_one(self, place: Place, path: str) -> tuple[int, bytes]:
        """GET a path of one coordinator that needs no token, whatever it answers.

        Raises:
            NoAnswer: It did not.
        """
        return self._ask(place, "GET", path, None, time.monotonic() + self._timeout, {})

    def _ask(
        self, place: Place, method: str, path: str, data: bytes | None, end: float, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """One request to one coordinator, ended when its time is over however slowly the other side dribbles."""
        left = end - time.monotonic()
        if left <= 0:
            raise NoAnswer(place, "no time was left to ask it", asked=False)
        connection = self._connection(place, min(left, CONNECT_SECONDS))
        late = threading.Event()
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:
                raise NoAnswer(place, _reason(error), asked=False) from None
            sock = connection.sock
            sock.settimeout(left)

            def cut_off() -> None:
                late.set()
                try:
                    sock.shutdown(2)
                except OSError:
                    late.set()  # it is closed already, which is all that was wanted

            watchdog = threading.Timer(left, cut_off)
            watchdog.daemon = True
            watchdog.start()
            try:
                connection.request(method, path, body=data, headers=headers)
                with connection.getresponse() as response:
                    status = response.status
                    answer = response.read(MANIFEST_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                reason = (
                    "no whole answer in time" if late.is_set() or isinstance(error, TimeoutError) else _reason(error)
                )
                raise NoAnswer(place, reason, asked=True) from None
            finally:
                watchdog.cancel()
            if late.is_set():
                raise NoAnswer(place, "no whole answer in time", asked=True)
            if len(answer) > MANIFEST_BYTES_MAX:
                raise NoAnswer(place, "its answer is larger than any answer may be", asked=True)
            return status, answer
        finally:
            connection.close()

    def _connection(self, place: Place, timeout: float) -> http.client.HTTPConnection:
        if place.tls:
            # Imported only where HTTPS is spoken: start-up time.
            import ssl

            context = self._tls() or ssl.create_default_context()
            return http.client.HTTPSConnection(place.host, place.port, timeout=timeout, context=context)
        return http.client.HTTPConnection(place.host, place.port, timeout=timeout)

    def _headers(self, method: str, data: bytes | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        token = self._token(method not in {"GET", "HEAD"})
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers


def _path(segments: tuple[object, ...], query: dict[str, object] | None) -> str:
    path = "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)
    kept = {name: str(value) for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(kept)}" if kept else path


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Lines until the other side ends, falls silent or goes away; which of them it was makes no difference to a reader."""
    while True:
        try:
            line = response.readline(LINE_BYTES_MAX)
        except (OSError, http.client.HTTPException):
            return
        if not line:
            return
        yield line


def _may_ask_again(status: int, failure: Failure, *, repeatable: bool) -> bool:
    """Whether an error answer means "not now" and asking again can do no harm."""
    if status not in _NOT_NOW or failure.exit is not Exit.UNREACHABLE or failure.code == "still-open":
        return False
    return repeatable or failure.code in _NOTHING_HAPPENED


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without an answer; is it an https:// address?"
    if isinstance(error, http.client.HTTPException):
        return f"what answers there does not speak HTTP ({type(error).__name__})"
    if type(error).__name__ == "SSLCertVerificationError":
        return (
            f"its certificate is not trusted ({getattr(error, 'verify_message', error)}); name the cluster's with --ca"
        )
    if type(error).__name__.startswith("SSL"):
        return "it does not speak HTTPS; is it an http:// address?"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _parsed(place: Place, answer: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise Failure(
            Exit.FAILED, f"{place} answers, but not as a coordinator does", "is this address a coordinator's API?"
        ) from None


def _error_of(place: Place, status: int, answer: bytes) -> Failure:
    """The API's error, or, if something else answers there, what can be said of it."""
    try:
        error = json.loads(answer)["error"]
        code, message, hint = str(error["code"]), str(error["message"]), str(error.get("hint") or "")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return from_http(
            status,
            f"http-{status}",
            f"{place} answers with HTTP status {status}",
            "is this address a coordinator's API?",
        )
    if status == 401 and not hint:
        hint = "name the cluster's secret with --secret-file, a token with --token, or a demo's folder with --dir"
    return from_http(status, code, message, hint)


def _nobody(problems: list[NoAnswer]) -> Failure:
    tried = "; ".join(safe(problem) for problem in problems)
    return Failure(
        Exit.UNREACHABLE,
        f"no coordinator answers ({tried})",
        "name running coordinators with --coordinators host:port,... or a demo's folder with --dir",
    )


def _unknown_outcome(error: NoAnswer) -> Failure:
    return Failure(
        Exit.UNREACHABLE,
        f"{error.place} was asked but gave no answer ({error.reason}); whether it acted is not known",
        "look with `cleancut epoch list` before you ask again",
        code="unknown-outcome",
    )
