"""A small real HTTP server in a thread that answers as a coordinator does, or misbehaves as it is told."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class Answer:
    """What is sent back. `raw` instead of JSON, `cut`: close the connection without any answer."""

    status: int = 200
    document: Any = None
    raw: bytes | None = None
    cut: bool = False
    dribble: threading.Event | None = None


@dataclass
class FakeApi:
    """Answers by (method, path); a list is used up one by one, its last answer stays."""

    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    address: str = ""

    def on(self, method: str, path: str, *answers: Any) -> None:
        """Set what a request gets; anything that is not an `Answer` is a document for a 200."""
        self.answers[method, path] = [one if isinstance(one, Answer) else Answer(document=one) for one in answers]

    def refuse(self, method: str, path: str, status: int, code: str, message: str, hint: str = "") -> None:
        """Set an error in the API's shape."""
        self.on(method, path, error(status, code, message, hint))

    def next(self, method: str, path: str) -> Answer:
        known = self.answers.get((method, path))
        if known is None:
            return error(404, "not-found", f"no {method} {path} here")
        return known.pop(0) if len(known) > 1 else known[0]


def error(status: int, code: str, message: str, hint: str = "") -> Answer:
    """An error in the API's shape."""
    return Answer(status=status, document={"error": {"code": code, "message": message, "hint": hint}})


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            api.asked.append(Asked(self.command, parts.path, query, body, dict(self.headers)))
            answer = api.next(self.command, parts.path)
            if answer.cut:
                self.close_connection = True
                return
            data = answer.raw if answer.raw is not None else json.dumps(answer.document).encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if answer.dribble is not None:
                self.wfile.write(data[:1])
                self.wfile.flush()
                answer.dribble.wait(30)
                return
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815 - names that http.server looks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


@contextmanager
def running_api() -> Iterator[FakeApi]:
    """A server on a free port of loopback."""
    api = FakeApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    api.address = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Cli = Callable[..., "Ended"]


@dataclass
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.out)
