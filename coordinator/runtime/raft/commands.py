"""What may stand in the log, and how it is read: without ever looking up a class.

The library pickles a call of the replicated method and unpickles it when it is applied, on every coordinator. Pickle
runs code; so the unpickler used here resolves no name at all, and each command is checked against the only two shapes
that this project writes *before* it may enter a log: a malicious or broken peer can neither run code nor place an entry
that makes everybody's apply raise (which would stop the whole group, and again after each restart).
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Final, NoReturn

from protocol.errors import LimitExceeded, MalformedFrame
from protocol.limits import COMMAND_BYTES_MAX

if TYPE_CHECKING:
    from typing import BinaryIO

REGULAR: Final = 0
NO_OP: Final = b"\x01"
"""A leader's first entry; also entry 1 of every log."""
_PICKLED_OVERHEAD_MAX: Final = 64
"""Bytes that pickle protocol 2 puts around ``(0, (text,))``."""


class _NoNames(pickle.Unpickler):
    """An unpickler for numbers, text, bytes, tuples, lists and dictionaries."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise MalformedFrame(f"a log entry names {module}.{name}: refused")

    def persistent_load(self, pid: object, /) -> NoReturn:
        raise MalformedFrame(f"a log entry refers to {ascii(pid)[:80]}: refused")


def restricted_load(file: BinaryIO) -> object:
    """Unpickle plain data from a file.

    Raises:
        MalformedFrame: Not a pickle, or one that names a class or function.
    """
    try:
        loaded: object = _NoNames(file).load()
    except MalformedFrame:
        raise
    except Exception as error:
        raise MalformedFrame(f"not a readable log entry: {type(error).__name__}") from error
    return loaded


def restricted_loads(data: bytes) -> object:
    """Unpickle plain data; see `restricted_load`."""
    return restricted_load(io.BytesIO(data))


def check_text(command: str) -> None:
    """Check what a caller wants to put into the log.

    Raises:
        LimitExceeded: Longer than `COMMAND_BYTES_MAX`.
        ValueError: Empty, or not ASCII: the library chunks and inflates other text.
    """
    if not command or not command.isascii():
        raise ValueError("a ledger command is non-empty ASCII text")
    if len(command) > COMMAND_BYTES_MAX:
        raise LimitExceeded(f"a ledger command of {len(command)} bytes; at most {COMMAND_BYTES_MAX} are allowed")


def check_entry(command: bytes) -> None:
    """Check a log entry that comes from a peer.

    Raises:
        MalformedFrame: Neither a no-op nor one call ``apply(text)`` within the limits. Membership and code version
            entries are refused too: a group's members are fixed, so nobody can add a phantom.
    """
    if command == NO_OP:
        return
    if len(command) > COMMAND_BYTES_MAX + _PICKLED_OVERHEAD_MAX:
        raise MalformedFrame(f"a log entry of {len(command)} bytes")
    if not command or command[0] != REGULAR:
        raise MalformedFrame(f"a log entry of kind {command[0] if command else 'nothing'}")
    match restricted_loads(command[1:]):
        case (0, (str() as text,)) if text.isascii() and len(text) <= COMMAND_BYTES_MAX:
            return
        case _:
            raise MalformedFrame("a log entry that is not a ledger command")
