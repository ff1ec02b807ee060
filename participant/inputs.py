"""Outside input: its records in the input log, its identity, and what is known of the tokens that came before. Pure.

Theory of operation:
    * An input is acknowledged when its record is durable in the log of the participant that took it. Its *position* is the
      record's number; inputs enter the cluster in the order of their positions.
    * A local snapshot holds the position of the newest input that had entered before the cut. After a rollback everything behind
      that position enters again, under the same message ids.
    * A client that does not know whether its input was taken sends it again with the same token. The token decides the
      message's id, so the work that it causes has the same positions too. The same token with another target or payload is an
      error (RELIABILITY.md T14).
    * What committed epochs hold is deleted from the log; the newest tokens of what goes are written down anew, so that a late
      second try is still known.
    * The same input may be in the logs of two participants: its agent went elsewhere, the client tried again there, and who took
      it first enters it again after the rollback. Whoever hosts the agent decides: it knows the inputs with tokens that its agents
      have had (`HadInputs`), by their messages' ids, which are of their tokens, and drops the later one. What it knows is part of
      the cut.

Sources: DESIGN.md sections 6 and 7; RELIABILITY.md I14, T14.
"""

from __future__ import annotations

import hmac
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3

from protocol.errors import LimitExceeded, ObjectCorrupt, RecoveryError, Refused
from protocol.ids import MESSAGE_ID_BYTES, AgentId, MessageId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.ancestry import Ancestry
    from protocol.messages import Envelope

OUTSIDE: Final = AgentId("outside/ingest")
"""Source of messages that come from outside the cluster."""
TOKEN_CHARS_MAX: Final = 256
TOKENS_KEPT: Final = 100_000
"""Tokens of inputs that have left the log: 4 MB when written down, some 20 MB in memory."""
JOINS_KEPT: Final = 256
CUTS_KEPT: Final = 1_024
MARKS_KEPT: Final = 64
"""Committed epochs whose input can be replayed, while there is room for it; savepoints come on top."""
MARKS_KEPT_TIGHT: Final = 3
"""The same when half of the room is taken: the newest epoch may turn out to be damaged, and the one before it, too."""
HASH_BYTES: Final = 16
NO_DIGEST: Final = bytes(HASH_BYTES)
"""In place of a digest that is not known."""
TOKENS_PER_BLOCK: Final = 512
TOKEN_BLOCKS_MAX: Final = 64
"""Blocks of tokens that an epoch holds: 32,768 tokens, a megabyte."""
CAME_OTHERWISE: Final = "this token came before with another target or message; use a new one"
_TOKEN_BIT: Final = 0x80
"""Of the first byte of an outside message's id: it came with a token."""

TokenPair: TypeAlias = tuple[bytes, bytes]
"""Id of an input's message (older builds: hash of its token), and digest of what it asked for."""


class InputRecord(msgspec.Struct, array_like=True, frozen=True, tag="in"):
    """One input."""

    token: bytes
    """Hash of the client's token; empty: it gave none."""
    digest: bytes
    """Of what was asked for: target, type, version, payload."""
    envelope: bytes


class MarkRecord(msgspec.Struct, array_like=True, frozen=True, tag="mark"):
    """An epoch is committed that holds every input up to this position."""

    epoch: int
    position: int


class JoinRecord(msgspec.Struct, array_like=True, frozen=True, tag="join"):
    """The participant became a member of an incarnation, anew or with it: what is in the log up to here entered before that."""

    epoch: int
    """Newest epoch that had been started by then."""
    position: int
    incarnation: int = 0
    """In which; 0: an older build wrote this, and did not say."""


class TokensRecord(msgspec.Struct, array_like=True, frozen=True, tag="tokens"):
    """Tokens of inputs that may not be in the log any more: hash, digest, position."""

    tokens: tuple[tuple[bytes, bytes, int], ...]
    cut: tuple[int, int] | None = None
    """In place of tokens: an epoch, which may never commit, and up to where it holds the input. Older builds read no token here, and
    know no other record that they could pass over."""


LogRecord: TypeAlias = InputRecord | MarkRecord | JoinRecord | TokensRecord

encode_record: Final = msgspec.msgpack.Encoder().encode
_records: Final = msgspec.msgpack.Decoder(list[LogRecord])


def decode_records(body: bytes, where: str) -> list[LogRecord]:
    """The records of one batch.

    Raises:
        ObjectCorrupt: Not what an input log holds; its checksums are right, so a later build wrote it.
    """
    try:
        return _records.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ObjectCorrupt("get", where, f"not an input log's records: {error}") from None


class InputsMissing(RecoveryError):
    """Inputs that were acknowledged after an epoch are not in the log any more.

    Attributes:
        first: Position of the first that is there.
        wanted: Position of the first that is needed.
    """

    def __init__(self, where: str, *, wanted: int, first: int) -> None:
        self.first = first
        self.wanted = wanted
        super().__init__(
            f"{where}: inputs from position {wanted} on are to be replayed, and the log begins at {first}: later epochs were "
            f"committed, and what they hold has been deleted. Go back to a newer epoch, or go on without these inputs"
        )


def check_token(token: str) -> str:
    """A client's token.

    Raises:
        LimitExceeded: Empty, too long, or with characters that are none.
    """
    if not token or len(token) > TOKEN_CHARS_MAX or not token.isprintable():
        raise LimitExceeded(f"a token is 1 to {TOKEN_CHARS_MAX} printable characters, not {token[:40]!a}")
    return token


def token_hash(cluster: str, token: str) -> bytes:
    """By which a token is remembered: scoped, so that it says nothing in another cluster."""
    return blake3(f"cleancut token\0{cluster}\0{token}".encode()).digest(length=HASH_BYTES)


def input_digest(target: str, type_name: str, version: int, body: bytes) -> bytes:
    """Of what an input asks for."""
    return blake3(f"{target}\0{type_name}\0{version}\0".encode() + body).digest(length=HASH_BYTES)


def token_message_id(hashed: bytes) -> MessageId:
    """Id of the message that an input with a token makes, wherever in the cluster it is taken, whatever its agent is called by then.

    Args:
        hashed: See `token_hash`.
    """
    return MessageId(bytes((hashed[0] | _TOKEN_BIT,)) + hashed[1:MESSAGE_ID_BYTES])


def position_message_id(cluster: str, participant: str, position: int) -> MessageId:
    """Id of the message that an input without a token makes: of its place in the log."""
    hasher = blake3(f"cleancut input position\0{cluster}\0{participant}\0{position}".encode())
    return _without_token(hasher.digest(length=MESSAGE_ID_BYTES))


def volatile_message_id(boot_id: str, number: int) -> MessageId:
    """Id of the message that an input makes that is in no log.

    Args:
        boot_id: Of the process, hexadecimal.
        number: Of the input, in that process.
    """
    return _without_token(bytes.fromhex(boot_id)[:8] + number.to_bytes(MESSAGE_ID_BYTES - 8, "big"))


def _without_token(identity: bytes) -> MessageId:
    return MessageId(bytes((identity[0] & ~_TOKEN_BIT,)) + identity[1:])


def came_with_token(source: str, message: bytes) -> bool:
    """Whether a message is outside input that may come a second time, by another way.

    Args:
        source: Who sent it.
        message: Its id.
    """
    return source == OUTSIDE and bool(message[0] & _TOKEN_BIT)


def message_digest(message: Envelope) -> bytes:
    """The same of the message that an input made."""
    return input_digest(message.target, message.type, message.version, message.body)


def check_same(known: bytes, digest: bytes) -> None:
    """Whether a token came with the same before.

    Raises:
        Refused: With something else (``token-conflict``).
    """
    if known != NO_DIGEST and not hmac.compare_digest(known, digest):
        raise Refused("token-conflict", CAME_OTHERWISE)


class Known(NamedTuple):
    """What is known of a token."""

    digest: bytes
    position: int


class InputIndex:
    """Tokens and marks of one input log, as its records say.

    Args:
        tokens_kept: Bound of the tokens that outlive their records.
    """

    def __init__(self, *, tokens_kept: int = TOKENS_KEPT) -> None:
        self._tokens: dict[bytes, Known] = {}
        """Oldest first."""
        self._tokens_kept = tokens_kept
        self._marks: list[MarkRecord] = []
        """Of the newest `MARKS_KEPT` epochs and of savepoints; all that the log holds, while it is not known which those are."""
        self._savepoints: frozenset[int] | None = None
        """Asked, never iterated."""
        self._joins: list[JoinRecord] = []
        self._begun: list[tuple[int, int]] = []
        """Numbers of the same, and their incarnations."""
        self._cuts: dict[int, int] = {}
        """Oldest first."""

    def apply(self, position: int, record: LogRecord) -> None:
        """Take in one record of the log, in order.

        Args:
            position: Its number.
            record: What it is.
        """
        match record:
            case InputRecord():
                if record.token:
                    self._tokens[record.token] = Known(record.digest, position)
            case MarkRecord():
                self._marks.append(record)
                self._forget_marks()
            case JoinRecord():
                self._joins.append(record)
                self._begun.append((position, record.incarnation))
                del self._joins[:-JOINS_KEPT], self._begun[:-JOINS_KEPT]
            case TokensRecord():
                for token, digest, known in record.tokens:
                    self._tokens.setdefault(token, Known(digest, known))
                if record.cut is not None:
                    epoch, at = record.cut
                    self._cuts[epoch] = at
                    if len(self._cuts) > CUTS_KEPT:
                        del self._cuts[next(iter(self._cuts))]

    def keep(self, savepoints: Iterable[int]) -> None:
        """These epochs are savepoints, and no others."""
        self._savepoints = frozenset(savepoints)
        self._forget_marks()

    def _forget_marks(self) -> None:
        savepoints = self._savepoints
        if savepoints is not None and len(self._marks) > MARKS_KEPT:
            old = [mark for mark in self._marks[:-MARKS_KEPT] if mark.epoch in savepoints]
            self._marks = [*old, *self._marks[-MARKS_KEPT:]]

    def look_up(self, token: bytes, digest: bytes) -> Known | None:
        """Whether an input with this token was taken before.

        Raises:
            Refused: It was, and asked for something else (``token-conflict``).
        """
        known = self._tokens.get(token)
        if known is not None:
            check_same(known.digest, digest)
        return known

    def forget(self, first: int, before: int) -> None:
        """Inputs at these positions are lost: a second try of theirs is a first one."""
        for token in [token for token, known in self._tokens.items() if first <= known.position < before]:
            del self._tokens[token]

    def position_at(self, epoch: int, end: int) -> int:
        """From where a restore replays that goes to an epoch of which this participant was no member.

        Args:
            epoch: That everybody goes back to; 0: the very beginning.
            end: Position of the newest record.

        Returns:
            Where the first membership after that epoch began; `end` if there was none, so that nothing is replayed.
        """
        return next((join.position for join in self._joins if join.epoch >= epoch), end)

    def position_since(self, ancestry: Ancestry, end: int) -> int:
        """From where a member with fresh agents replays: rollbacks may have undone its memberships while it was away.

        Args:
            ancestry: Of the incarnation that it is in now.
            end: Position of the newest record.

        Returns:
            Where the first membership began behind the newest one of which anything is left, or where the epoch was cut up to which
            that one is left; `end` if nothing was undone.
        """
        last = next((epoch for _, epoch in ancestry.through if epoch in self._cuts), None)
        for join in reversed(self._joins):
            if last is not None and join.epoch < last:
                break
            if not join.incarnation or not ancestry.undone(join.incarnation, join.epoch):
                return end
            end = join.position
        return end if last is None else self._cuts[last]

    def position_of(self, epoch: int) -> int | None:
        """Up to where a committed epoch holds the input; None: it is not known (any more)."""
        return next((mark.position for mark in self._marks if mark.epoch == epoch), None)

    def taken_in(self, position: int) -> int:
        """Incarnation in which an input was taken; 0: it is not known."""
        index = bisect_left(self._begun, (position,))
        return self._begun[index - 1][1] if index else 0

    def joined_from(self, position: int, incarnation: int) -> bool:
        """Whether a membership of an incarnation is noted that began at this position or later; older builds' are of any."""
        return any(join.position >= position and join.incarnation in (0, incarnation) for join in self._joins)

    def deletable(self, *, keep: int = MARKS_KEPT, first: int | None = None) -> int:
        """Every record below this number can go: the epochs that matter hold it.

        Args:
            keep: So many of the newest committed epochs matter; with fewer than these, nothing goes.
            first: Number of the oldest record that is there: savepoints behind which nothing is missing yet matter, too. None: none
                of them does.
        """
        if len(self._marks) < keep:
            return 0
        old = []
        if first is not None and self._savepoints is not None:
            savepoints = self._savepoints
            old = [each for each in self._marks[:-keep] if each.epoch in savepoints and each.position + 1 >= first]
        return min(mark.position for mark in (*old, *self._marks[-keep:])) + 1

    def carried(self, before: int) -> TokensRecord:
        """The tokens that are to be written down anew before records below `before` go; the newest of them.

        Older ones than that are forgotten.
        """
        old = [
            (token, known.digest, known.position) for token, known in self._tokens.items() if known.position < before
        ]
        for token, _, _ in old[: max(0, len(old) - self._tokens_kept)]:
            del self._tokens[token]
        return TokensRecord(tuple(old[-self._tokens_kept :]))

    def has(self, token: bytes) -> bool:
        """Whether a token is known."""
        return token in self._tokens

    @property
    def tokens(self) -> int:
        """How many are known."""
        return len(self._tokens)

    @property
    def newest_mark(self) -> MarkRecord | None:
        """Of the newest committed epoch."""
        return self._marks[-1] if self._marks else None


class HadInputs:
    """Inputs with tokens that the agents of a participant have had: the newest of them, within a bound.

    They are in blocks whose bytes do not change once they are full: an epoch writes the last one.

    Args:
        pairs: What epochs hold of them, oldest first.
    """

    def __init__(self, pairs: Iterable[TokenPair] = ()) -> None:
        self._digests: dict[bytes, bytes] = {}
        """By their messages' ids, oldest first."""
        self._full: list[bytes] = []
        self._last: list[TokenPair] = []
        for hashed, digest in list(pairs)[-TOKENS_PER_BLOCK * (TOKEN_BLOCKS_MAX + 1) :]:
            self._put(token_message_id(hashed), digest)

    def __len__(self) -> int:
        return len(self._digests)

    def digest(self, message: bytes) -> bytes | None:
        """Of what was asked for by an input that an agent here has had; `NO_DIGEST`: it is not known. None: none has had it.

        Args:
            message: Id of its message.
        """
        return self._digests.get(message)

    def add(self, message: Envelope) -> bool:
        """An agent here gets one.

        Returns:
            False: an agent here has had it.
        """
        if message.id in self._digests:
            return False
        self._put(message.id, message_digest(message))
        return True

    def _put(self, message: bytes, digest: bytes) -> None:
        if message in self._digests:
            return
        self._digests[message] = digest
        self._last.append((message, digest))
        if len(self._last) == TOKENS_PER_BLOCK:
            self._full.append(encode_record(self._last))
            self._last = []
            if len(self._full) > TOKEN_BLOCKS_MAX:
                del self._full[0]
                for old in list(islice(self._digests, TOKENS_PER_BLOCK)):
                    del self._digests[old]

    def blocks(self) -> tuple[bytes, ...]:
        """Each an encoded array of pairs."""
        return (*self._full, encode_record(self._last)) if self._last else tuple(self._full)


def inputs_of(first: int, records: Iterable[LogRecord]) -> list[tuple[int, InputRecord]]:
    """The inputs among records, with their positions.

    Args:
        first: Number of the first record.
        records: Of one batch.
    """
    return [(number, record) for number, record in enumerate(records, first) if isinstance(record, InputRecord)]
