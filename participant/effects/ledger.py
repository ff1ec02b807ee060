"""The rules of the effect ledger: who may claim, who may end, what is found. Pure: every change is a record to be kept.

How a backend uses it::

    change, answer = ledger.claim(entry, fence)    # decided and applied in memory
    ... make `change` durable, if there is one; also whatever was appended before
    return answer                                  # only now

    ledger.apply(change)                           # on the way back, in order

Rules:
    * A new token is claimed. What is claimed already is *known*, with its entry: the caller decides what that means.
    * Only the holder of a claim, who knows its claim id, ends it; the first end counts, whoever comes later is told what it
      was. Questions are the exception: whoever has a valid fencing token may answer them.
    * A fencing token older than the newest one seen changes nothing: of an older incarnation, or an older session of its
      participant (RELIABILITY.md I22).
    * An entry lives until no kept epoch could bring its position back: its turn has committed after the cut of epoch n, and
      every kept epoch is newer than n. A rollback to epoch b makes entries with n >= b open again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

import msgspec

from participant.effects.entries import Entry, Kind, State
from protocol.errors import LimitExceeded, Refused
from protocol.limits import EFFECTS_MAX
from protocol.outputs import FenceState, FencingToken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WHERE = "the effect ledger"


# --- changes, as they lie in a log ------------------------------------------------------------------------------------


class Put(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """This is an entry: it was claimed, or a log begins anew with it."""

    entry: Entry


class Taken(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Another life goes on with a claim that has no end."""

    token: str
    participant: str
    incarnation: int
    session: int
    claim_id: bytes
    at: int


class Ended(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A claim's end."""

    token: str
    state: State
    result: bytes
    reason: str
    at: int
    settled: bool


class Accepted(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """An operator accepts another intent for a recorded result."""

    token: str
    intent: bytes


class Closed(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """The turn of these has committed, in this incarnation, when this was the newest epoch."""

    after: int
    tokens: tuple[str, ...]
    incarnation: int


class Reopened(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The cluster was rolled back to this epoch, and begins this incarnation."""

    base: int
    incarnation: int


class Pruned(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """No epoch older than this one is kept."""

    oldest: int


class Fenced(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The newest that was seen of somebody."""

    participant: str
    incarnation: int
    session: int


Change: TypeAlias = Put | Taken | Ended | Accepted | Closed | Reopened | Pruned | Fenced


# --- answers ----------------------------------------------------------------------------------------------------------


class Claimed(msgspec.Struct, frozen=True):
    """It is the caller's now: do it."""

    entry: Entry


class Known(msgspec.Struct, frozen=True):
    """Somebody has been here: with a result, or without one."""

    entry: Entry


class EffectLedger:
    """Entries by token, and the fence."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.fence = FenceState()

    # --- deciding -----------------------------------------------------------------------------------------------------

    def admit(self, fence: FencingToken) -> Fenced | None:
        """Check who writes, and remember it.

        Raises:
            FencedError: It is older than what was seen.
        """
        known = (self.fence.incarnation, self.fence.sessions.get(fence.participant, 0))
        self.fence.admit(fence, _WHERE)
        if known == (fence.incarnation, fence.session):
            return None
        return Fenced(fence.participant, fence.incarnation, fence.session)

    def claim(self, entry: Entry, fence: FencingToken) -> tuple[list[Change], Claimed | Known]:
        """Claim a position, or learn what is known of it.

        Raises:
            FencedError: The caller is older than what was seen.
            LimitExceeded: There are too many entries.
        """
        changes = self._admitted(fence)
        known = self.entries.get(entry.token)
        if known is None and len(self.entries) >= EFFECTS_MAX:
            raise LimitExceeded(
                f"{len(self.entries)} effects are kept; at most {EFFECTS_MAX}. They go with the epochs that could bring "
                "their positions back: keep fewer, or commit some"
            )
        if known is not None and known.state is not State.RELEASED:
            mine = known.state is State.CLAIMED and known.claim_id == entry.claim_id
            return changes, Claimed(known) if mine else Known(known)
        put = Put(entry)
        self.apply(put)
        return [*changes, put], Claimed(self.entries[entry.token])

    def take(
        self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes, at: int
    ) -> tuple[list[Change], Claimed | Known]:
        """Go on with a claim that has no end; its former holder can end it no more.

        Args:
            token: Which.
            fence: Who writes.
            claim_id: What the claim is held by from now on.
            before: What it was held by when the caller decided to take it: of two that want it, one gets it.
            at: Wall clock, nanoseconds.

        Raises:
            FencedError: The caller is older than what was seen.
            Refused: No such entry.
        """
        changes = self._admitted(fence)
        entry = self._entry(token)
        if entry.state is State.CLAIMED and entry.claim_id == claim_id:
            return changes, Claimed(entry)  # asked again: the answer was lost
        if entry.state is not State.CLAIMED or entry.claim_id != before:
            return changes, Known(entry)
        taken = Taken(token, fence.participant, fence.incarnation, fence.session, claim_id, at)
        self.apply(taken)
        return [*changes, taken], Claimed(self.entries[token])

    def end(
        self,
        token: str,
        fence: FencingToken,
        claim_id: bytes,
        state: State,
        *,
        result: bytes = b"",
        reason: str = "",
        at: int,
    ) -> tuple[list[Change], Claimed | Known]:
        """Give a claim its end.

        Args:
            token: Which.
            fence: Who writes.
            claim_id: What the claim was made with; not looked at for questions.
            state: Any but `CLAIMED`.
            result: Encoded.
            reason: Why it failed.
            at: Wall clock, nanoseconds.

        Returns:
            `Claimed` with the entry: this is its end. `Known`: it had one before, or is somebody else's now.

        Raises:
            FencedError: The caller is older than what was seen.
            Refused: No such entry.
        """
        assert state is not State.CLAIMED, "an end is something else"
        changes = self._admitted(fence)
        entry = self._entry(token)
        if entry.state is not State.CLAIMED or (entry.kind is Kind.STEP and entry.claim_id != claim_id):
            return changes, Known(entry)
        ended = Ended(token, state, result, reason, at, settled=False)
        self.apply(ended)
        return [*changes, ended], Claimed(self.entries[token])

    def settle(
        self, token: str, fence: FencingToken, state: State, *, result: bytes = b"", at: int
    ) -> tuple[list[Change], Claimed | Known]:
        """An operator says how a claim without end has ended: `DONE` with a result, or `RELEASED`: it did not happen.

        Raises:
            FencedError: The caller is older than what was seen.
            Refused: No such entry.
        """
        assert state in {State.DONE, State.RELEASED}, "an operator knows"
        changes = self._admitted(fence)
        entry = self._entry(token)
        if entry.state is not State.CLAIMED:
            return changes, Known(entry)
        ended = Ended(token, state, result, "", at, settled=True)
        self.apply(ended)
        return [*changes, ended], Claimed(self.entries[token])

    def accept(self, token: str, fence: FencingToken, intent: bytes) -> tuple[list[Change], Known]:
        """An operator accepts the recorded result for another intent.

        Raises:
            FencedError: The caller is older than what was seen.
            Refused: No such entry, or it has no result.
        """
        changes = self._admitted(fence)
        entry = self._entry(token)
        if not entry.ended:
            raise Refused("no-result", f"effect {token} has no result that could be taken")
        accepted = Accepted(token, intent)
        self.apply(accepted)
        return [*changes, accepted], Known(self.entries[token])

    def close(self, tokens: Iterable[str], after: int, fence: FencingToken) -> list[Change]:
        """The turn of these has committed, after the cut of epoch `after` and before any later one."""
        changes = self._admitted(fence)
        closed = Closed(after, tuple(tokens), fence.incarnation)
        self.apply(closed)
        return [*changes, closed]

    def reopen(self, base: int, fence: FencingToken) -> list[Change]:
        """The cluster was rolled back to this epoch; 0: to the start.

        What has been closed since, in the caller's incarnation, stays closed: participants say this one after the other.
        """
        changes = self._admitted(fence)
        reopened = Reopened(base, fence.incarnation)
        self.apply(reopened)
        return [*changes, reopened]

    def prune(self, oldest: int, fence: FencingToken) -> list[Change]:
        """No epoch older than this one is kept: forget what none could bring back."""
        changes = self._admitted(fence)
        pruned = Pruned(oldest)
        before = len(self.entries)
        self.apply(pruned)
        return changes if len(self.entries) == before else [*changes, pruned]

    # --- keeping ------------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Take a change over: one that was just decided, or read back."""
        match change:
            case Put(entry=entry):
                self.entries[entry.token] = entry
            case Taken(token=token):
                self._replace(
                    token,
                    participant=change.participant,
                    incarnation=change.incarnation,
                    session=change.session,
                    claim_id=change.claim_id,
                    claimed_at=change.at,
                )
            case Ended(token=token):
                self._replace(
                    token,
                    state=change.state,
                    result=change.result,
                    reason=change.reason,
                    ended_at=change.at,
                    settled=change.settled,
                )
            case Accepted(token=token, intent=intent):
                self._replace(token, accepted=intent)
            case Closed(after=after, tokens=tokens):
                for token in tokens:
                    if token in self.entries:
                        self._replace(token, closed_after=after, closed_in=change.incarnation)
            case Reopened(base=base):
                for entry in list(self.entries.values()):
                    if entry.closed_after >= base and entry.closed_in < change.incarnation:
                        self._replace(entry.token, closed_after=-1)
            case Pruned(oldest=oldest):
                gone = [entry.token for entry in self.entries.values() if 0 <= entry.closed_after < oldest]
                for token in gone:
                    del self.entries[token]
            case Fenced():
                self.fence.incarnation = max(self.fence.incarnation, change.incarnation)
                self.fence.sessions[change.participant] = max(
                    self.fence.sessions.get(change.participant, 0), change.session
                )
            case _:
                assert_never(change)

    def dump(self) -> Iterator[Change]:
        """Changes that make this ledger out of an empty one."""
        for participant in sorted(self.fence.sessions):
            yield Fenced(participant, self.fence.incarnation, self.fence.sessions[participant])
        for entry in self.entries.values():
            yield Put(entry)

    def _replace(self, token: str, **changes: object) -> None:
        # Not changed in place: whoever was given an entry has it as it was.
        self.entries[token] = msgspec.structs.replace(self.entries[token], **changes)

    def _admitted(self, fence: FencingToken) -> list[Change]:
        fenced = self.admit(fence)
        return [] if fenced is None else [fenced]

    def _entry(self, token: str) -> Entry:
        entry = self.entries.get(token)
        if entry is None:
            raise Refused("no-effect", f"there is no effect {token[:64]!a}")
        return entry


encode_change = msgspec.msgpack.Encoder().encode
decode_changes = msgspec.msgpack.Decoder(list[Change]).decode
"""A log's batch."""
