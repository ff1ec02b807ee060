"""How commands end: one meaning per exit code, and the one place that maps errors to codes.

A command ends well by returning, and badly by raising: `Failure` where it knows best what to say, else any error of
`protocol.errors`. Nothing else calls ``sys.exit``. What the user sees is a line that names the thing and a line that says
what to do.

Source: DESIGN.md section 9.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from coordinator.cli.output import safe
from protocol import errors


class Exit(IntEnum):
    """Exit codes of ``cleancut``; scripts may rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    INCONSISTENT = 4
    """Inconsistent or corrupt: the one that must wake somebody up."""
    UNREACHABLE = 5
    REFUSED = 6


class Failure(Exception):
    """A command's bad end, in words.

    Attributes:
        exit: Its code.
        code: Stable word for programs.
        message: Names the thing.
        hint: Says what to do; "" where there is nothing to say.
        shown: The answer has already been printed as the command's document, and says the same.
    """

    def __init__(self, exit_code: Exit, message: str, hint: str = "", *, code: str = "", shown: bool = False) -> None:
        self.exit = exit_code
        self.code = code or exit_code.name.lower().replace("_", "-")
        self.message = message
        self.hint = hint
        self.shown = shown
        super().__init__(message)

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints: the shape of the API's errors, and the exit code."""
        error = {"code": self.code, "message": self.message, "hint": self.hint, "exit": int(self.exit)}
        return {"error": error}


# The first that fits, so subclasses stand before their bases.
_BY_CLASS: tuple[tuple[type[errors.SnapshotError], Exit, str], ...] = (
    (errors.ConfigError, Exit.USAGE, "correct this setting and run the command again"),
    (errors.ObjectMissing, Exit.NOT_FOUND, "is this the right store and cluster?"),
    (errors.ObjectCorrupt, Exit.INCONSISTENT, "`cleancut epoch verify` says what else is damaged"),
    (errors.StoreError, Exit.FAILED, "check the path, its permissions and the free space"),
    (errors.ManifestConflict, Exit.INCONSISTENT, "two clusters write into one store: stop one of them"),
    (errors.InconsistentCut, Exit.INCONSISTENT, "do not restore from this epoch"),
    (errors.ForgedFrame, Exit.INCONSISTENT, "is the secret file the cluster's?"),
    (errors.UnsupportedVersion, Exit.FAILED, "use a build that knows this version"),
    (errors.WireError, Exit.INCONSISTENT, "the bytes are damaged or not Cleancut's"),
    (errors.UnknownAgent, Exit.NOT_FOUND, "`cleancut epoch state EPOCH` lists its agents"),
    (errors.Unreachable, Exit.UNREACHABLE, "name the coordinators with --coordinators, and see that they run"),
    (errors.Refused, Exit.REFUSED, ""),
    (errors.FencedError, Exit.REFUSED, ""),
    (errors.LimitExceeded, Exit.REFUSED, ""),
)


def as_failure(error: errors.SnapshotError | OSError) -> Failure:
    """Any error that a command let through, with its code and what to do."""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return Failure(Exit.FAILED, f"{place}{error.strerror or error}", "check the path and its permissions")
    for kind, exit_code, hint in _BY_CLASS:
        if isinstance(error, kind):
            return Failure(exit_code, str(error), hint, code=getattr(error, "code", ""))
    return Failure(Exit.FAILED, str(error))


def from_http(status: int, code: str, message: str, hint: str) -> Failure:
    """An error answer of the API.

    Args:
        status: HTTP status, 400 or more.
        code: The API's word.
        message: Its sentence; from the network.
        hint: What it says to do; from the network.
    """
    match status:
        case 400 | 413:
            exit_code = Exit.USAGE
        case 404:
            exit_code = Exit.NOT_FOUND
        case 401 | 403 | 409 | 429:
            exit_code = Exit.REFUSED
        case 422:
            exit_code = Exit.INCONSISTENT
        case 502 | 503 | 504:
            exit_code = Exit.UNREACHABLE
        case _:
            exit_code = Exit.FAILED
    # A store that fails answers 503 too, but is not a coordinator that cannot be reached.
    if code.startswith("store-"):
        exit_code = Exit.FAILED
    # What comes from the network stays on its line: it must not look like a line of ours.
    return Failure(exit_code, safe(message), safe(hint), code=safe(code))
