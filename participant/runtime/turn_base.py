"""From where a participant's log of turns is replayed: one small file beside it, replaced as a whole.

The log holds what turns did; this says to what. Three kinds: agents that began (`fresh`), a restore order that was carried out
(`order`), the participant's own part of a committed epoch (`snapshot`). Whoever has the file and the log behind its `position`
has the participant, with no word of anybody else's but the store's.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from participant.logs.segment import CorruptLog
from protocol.messages import Restore

if TYPE_CHECKING:
    from participant.runtime.log_files import LocalFolder

BASE_NAME: Final = "turns.json"


class TurnBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the log's records from `position` + 1 on apply to."""

    cluster: str
    participant: str
    incarnation: int
    session: int
    """The last that wrote the log."""
    line: int
    """Of that session (`protocol.streams`)."""
    position: int
    at: int
    """Wall clock, nanoseconds, at which the agents were so."""
    agents: tuple[str, ...]
    fresh: int = 0
    """With neither order nor snapshot: what the agents' first messages are named after."""
    fresh_of: dict[str, int] = {}
    """Agents of which that is another number."""
    was: dict[str, str] = {}
    """With neither order nor snapshot: agents that had another name when they began for the first time -> that one."""
    order: Restore | None = None
    input_from: int = 0
    """Of the input log: what is up to here had entered, or was of an earlier membership, when the agents began or came back."""
    epoch: int = 0
    snapshot: str = ""
    """Digest of this participant's local snapshot of `epoch`; "": none was committed in this incarnation."""
    lines: dict[str, int] = {}
    """Peer -> its line at that position."""
    ledgers: tuple[str, ...] = ()
    """Effect ledgers that were at hand since (`participant.effects.reach`), the one that the local snapshot names excepted: more than
    one if it was lost and the log was not."""


_decode = msgspec.json.Decoder(TurnBase).decode


def read_base(folder: LocalFolder) -> TurnBase | None:
    """The base, None if there is none. Blocks.

    Raises:
        CorruptLog: It is none.
        StoreError: The system's error.
    """
    data = folder.get(BASE_NAME)
    if data is None:
        return None
    path = str(folder.path / BASE_NAME)
    text, _, check = data.rpartition(b"\n")
    try:
        if hashlib.sha256(text).hexdigest().encode() != check:
            raise CorruptLog(path, 0, "its checksum is another one")
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptLog(path, 0, str(error)) from None


def write_base(folder: LocalFolder, base: TurnBase) -> None:
    """Put it in place of the one that is there, durably. Blocks.

    Raises:
        StoreError: The system's error.
    """
    text = msgspec.json.encode(base)
    folder.replace(BASE_NAME, text + b"\n" + hashlib.sha256(text).hexdigest().encode())
