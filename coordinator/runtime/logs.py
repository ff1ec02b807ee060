"""Log lines of the service: one line each, on standard error, as text or as JSON.

Names, causes and reasons come from outside. A line never carries control characters, so that nobody writes to an
operator's terminal through it (RELIABILITY.md T17), and never a token: requests are not logged with their headers.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class LineFormatter(logging.Formatter):
    """Time, level, logger and sentence; a traceback becomes one line too.

    Args:
        as_json: JSON documents instead of text.
        coordinator: Id that each line carries.
    """

    def __init__(self, *, as_json: bool, coordinator: str) -> None:
        super().__init__()
        self._as_json = as_json
        self._coordinator = coordinator

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            document = {
                "at": at,
                "level": record.levelname.lower(),
                "coordinator": self._coordinator,
                "logger": record.name,
                "message": message,
            }
            return json.dumps({**document, "trace": trace} if trace else document)
        text = f"{at} {record.levelname.lower():7} {self._coordinator} {message}"
        if trace:
            text += " | " + trace.strip().replace("\n", " | ")
        return printable(text)


def printable(text: str) -> str:
    """`text` with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def set_up_logs(*, as_json: bool, coordinator: str, level: int = logging.INFO) -> None:
    """Send all logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(as_json=as_json, coordinator=coordinator))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("aiohttp.access").disabled = True
    logging.getLogger("asyncio").setLevel(logging.WARNING)
