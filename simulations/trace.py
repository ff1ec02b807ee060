"""What happened, as a rolling digest over all of it, the last events in words, and the whole in a file if wanted.

Columns of a trace line: virtual time in ms, who, what, details.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

LAST_EVENTS: Final = 50
_BLOCK: Final = 512
_encode: Final = msgspec.msgpack.encode


class Trace:
    """Notes of one run. A note is cheap: it is put into words only when somebody reads it."""

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file
        self._digested = 0
        """Notes that the hasher has seen."""
        self._before: list[tuple[int, str, str, Any]] = []
        """The last ones of these."""
        self._hasher = blake2b(digest_size=16)
        self._waiting: list[tuple[int, str, str, bytes]] = []
        self._details: list[Any] = []
        """Of the notes that wait."""

    @property
    def count(self) -> int:
        """Notes so far."""
        return self._digested + len(self._waiting)

    def note(self, now: int, who: str, what: str, detail: Any = "", mark: bytes = b"") -> None:  # noqa: ANN401 - anything with a repr
        """Take down one event.

        Args:
            now: Instant.
            who: Component.
            what: Kind of event.
            detail: For people; must not change afterwards.
            mark: Bytes that tell this event from others of its kind; part of the digest, as are the other three.
        """
        waiting = self._waiting
        waiting.append((now, who, what, mark))
        self._details.append(detail)
        if len(waiting) >= _BLOCK:
            self._flush()
        if self.file is not None:
            self.file.write(_line(now, who, what, detail) + "\n")

    def digest(self) -> str:
        """Over all events so far."""
        self._flush()
        return self._hasher.hexdigest()

    def last(self) -> Iterable[str]:
        """The last events, oldest first."""
        return [_line(*note) for note in [*self._before, *self._newest()][-LAST_EVENTS:]]

    def _newest(self) -> list[tuple[int, str, str, Any]]:
        notes = zip(self._waiting[-LAST_EVENTS:], self._details[-LAST_EVENTS:], strict=True)
        return [(now, who, what, detail) for (now, who, what, _), detail in notes]

    def _flush(self) -> None:
        """Digest in blocks, as one msgpack array each: one by one costs as much as all the rest of a note."""
        self._hasher.update(_encode(self._waiting))
        self._digested += len(self._waiting)
        self._before = [*self._before, *self._newest()][-LAST_EVENTS:]
        self._waiting.clear()
        self._details.clear()


def _line(now: int, who: str, what: str, detail: Any) -> str:  # noqa: ANN401 - anything with a repr
    text = detail if isinstance(detail, str) else repr(detail)
    if len(text) > 300:
        text = text[:297] + "..."
    return f"{now / 1e6:12.3f} {who:<10} {what:<22} {text}"
