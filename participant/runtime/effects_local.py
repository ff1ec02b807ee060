"""The effect ledger in a log on the participant's own disk.

A change is decided and applied in memory at once, and answered when it, and all before it, is durable. So two that race for
one position are told the same, in the order in which they came.

What it cannot do: follow an agent to another host, or survive its disk. For that there is Redis. It says so (`covers`): what may
have been done elsewhere is found out by the step's resolver, or in doubt, and never done again in silence.

Its name lies beside its segments, made once, so that it is lost with them. It is there before anything is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from time import time_ns
from typing import TYPE_CHECKING, Final

import msgspec

from participant.effects.backend import by_time
from participant.effects.entries import State
from participant.effects.ledger import EffectLedger, decode_changes, encode_change
from participant.effects.reach import Reach
from participant.logs.recovery import LogIdentity
from participant.logs.segment import CorruptLog, ordinal_of
from participant.runtime.durable_log import DurableLog
from participant.runtime.group_commit import GroupCommit
from participant.runtime.log_files import Life, store_error
from protocol.errors import FencedError, StoreError
from protocol.limits import EFFECTS_LOG_REWRITE_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from participant.effects.entries import Entry
    from participant.effects.ledger import Change, Claimed, Known
    from participant.runtime.log_files import LocalFolder, LogFiles, Owner
    from protocol.outputs import FencingToken

LOG_NAME = "effects"
NAME_FILE: Final = "name.json"
LATE_FILE: Final = "late"
"""Says that the participant had other folders before."""
_NAME_BYTES: Final = 8


class _Named(msgspec.Struct, frozen=True):
    """The file beside the segments."""

    id: str
    """Hex digits."""
    adopted: bool
    """See `Reach.adopted`."""


_decode_named = msgspec.json.Decoder(_Named).decode


class LocalEffects:
    """`EffectBackend` on a `LocalFolder`.

    Args:
        folder: Of the participant.
        cluster: Its name.
        participant: Its id.
        rewrite_bytes_min: A smaller log is not rewritten.
    """

    shared = False

    def __init__(
        self,
        folder: LocalFolder,
        *,
        cluster: str,
        participant: str,
        rewrite_bytes_min: int = EFFECTS_LOG_REWRITE_BYTES_MIN,
    ) -> None:
        self._folder = folder
        self._identity = LogIdentity("effects", cluster, participant)
        self._rewrite_bytes_min = rewrite_bytes_min
        self._ledger = EffectLedger()
        self._group: GroupCommit | None = None
        self._life: Life | None = None
        self._opening = asyncio.Lock()
        self._participant = participant
        self._reach: Reach | None = None
        self._untouched = False
        """No life has had the folder before."""
        self._live_bytes = 0
        """What counted when the log was last read or rewritten."""

    async def open(self, fence: FencingToken) -> None:
        """See `EffectBackend.open`: takes the folder over, then reads the log."""
        life = Life(fence.incarnation, fence.session)
        async with self._opening:
            if self._life == life:
                return
            group = self._group
            if group is not None and await asyncio.to_thread(self._still_ours):
                # This process goes on as another life: what it knows is what the log holds.
                await asyncio.to_thread(self._folder.take_over, life)
                await group.wait_idle()
                group.log.begin(life)
            else:
                if group is not None:
                    self._group = None
                    await group.close()
                await asyncio.to_thread(self._folder.take_over, life)
                files = await asyncio.to_thread(self._folder.files, LOG_NAME)
                self._ledger, log = await asyncio.to_thread(_recovered, files, self._identity, self._folder)
                log.begin(life)
                self._live_bytes = sum(len(encode_change(change)) for change in self._ledger.dump())
                self._group = GroupCommit(log)
            self._life = life
            fenced = self._ledger.admit(fence)
        if fenced is not None:
            await self._keep([fenced])

    def prepare(self) -> None:
        """Learn which ledger this is, or name it. Blocks.

        Raises:
            CorruptLog: Its name cannot be read.
            StoreError: The system's error.
        """
        self._untouched = self._folder.highest() is None
        files = self._folder.files(LOG_NAME)
        try:
            names = files.names()
            if NAME_FILE not in names:
                adopted = not self._untouched or any(ordinal_of(name) is not None for name in names)
                named = _Named(secrets.token_hex(_NAME_BYTES), adopted)
                # Else a twin was first, and it is the same ledger.
                with contextlib.suppress(FileExistsError):
                    files.create(NAME_FILE, msgspec.json.encode(named))
            found = _decode_named(files.read(NAME_FILE))
        except OSError as error:
            raise store_error("open", files.where, error) from error
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"{files.where}/{NAME_FILE}", 0, f"not what it must be: {error}") from None
        name = f"{self._participant}/{found.id}"
        self._reach = Reach(name, self._participant, adopted=found.adopted, late=LATE_FILE in names)

    def came_late(self) -> None:
        """Earlier lives of this participant may have run, and not with this folder if nobody has had it yet. Blocks.

        Raises:
            StoreError: The system's error.
        """
        reach = self._reach
        if reach is None or reach.late or not self._untouched:
            return
        files = self._folder.files(LOG_NAME)
        try:
            with contextlib.suppress(FileExistsError):
                files.create(LATE_FILE, b"")
        except OSError as error:
            raise store_error("put", files.where, error) from error
        self._reach = reach._replace(late=True)

    @property
    def ledger_name(self) -> str:
        """Its name, once it is prepared."""
        return "" if self._reach is None else self._reach.name

    def covers(self, ledger: str) -> bool:
        """See `Reach.covers`."""
        return self._reach is None or self._reach.covers(ledger)

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`."""
        changes, answer = self._ledger.claim(entry, fence)
        await self._keep(changes)
        return answer

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`."""
        changes, answer = self._ledger.take(token, fence, claim_id, before=before, at=time_ns())
        await self._keep(changes)
        if not changes:
            # Nothing is written, which would have looked: whoever confirms its claim is to hear of a successor.
            await asyncio.to_thread(self._folder.check)
        return answer

    async def end(
        self, token: str, fence: FencingToken, claim_id: bytes, state: State, *, result: bytes = b"", reason: str = ""
    ) -> Claimed | Known:
        """See `EffectBackend.end`."""
        changes, answer = self._ledger.end(token, fence, claim_id, state, result=result, reason=reason, at=time_ns())
        await self._keep(changes)
        return answer

    async def settle(self, token: str, fence: FencingToken, state: State, *, result: bytes = b"") -> Claimed | Known:
        """See `EffectBackend.settle`."""
        changes, answer = self._ledger.settle(token, fence, state, result=result, at=time_ns())
        await self._keep(changes)
        return answer

    async def accept(self, token: str, fence: FencingToken, intent: bytes) -> Known:
        """See `EffectBackend.accept`."""
        changes, answer = self._ledger.accept(token, fence, intent)
        await self._keep(changes)
        return answer

    async def entry(self, token: str) -> Entry | None:
        """See `EffectBackend.entry`."""
        found = self._ledger.entries.get(token)
        await self._keep(())
        return found

    async def entries(self, states: Collection[State] = (State.CLAIMED,)) -> list[Entry]:
        """See `EffectBackend.entries`."""
        found = by_time(self._ledger.entries.values(), states)
        await self._keep(())
        return found

    async def close_turn(self, tokens: Iterable[str], after: int, fence: FencingToken) -> None:
        """See `EffectBackend.close_turn`: written with the next batch, waited for by nobody."""
        self._append(self._ledger.close(tokens, after, fence))

    async def reopen(self, base: int, fence: FencingToken) -> None:
        """See `EffectBackend.reopen`."""
        await self._keep(self._ledger.reopen(base, fence))

    async def prune(self, oldest: int, fence: FencingToken) -> int:
        """See `EffectBackend.prune`; the log is rewritten when most of it does not count any more."""
        before = len(self._ledger.entries)
        await self._keep(self._ledger.prune(oldest, fence))
        await self._rewrite_if_worth()
        return before - len(self._ledger.entries)

    async def aclose(self) -> None:
        """See `EffectBackend.aclose`."""
        async with self._opening:
            group, self._group, self._life = self._group, None, None
            if group is not None:
                await group.close()

    def statistics(self) -> dict[str, int]:
        """Counts since the log was opened."""
        log = None if self._group is None else self._group.log
        return {
            "effects": len(self._ledger.entries),
            "effect_log_syncs": 0 if log is None else log.syncs,
            "effect_log_bytes": 0 if log is None else log.bytes_written,
        }

    def _still_ours(self) -> bool:
        try:
            self._folder.check()
        except FencedError:
            return False
        return True

    def _open_group(self) -> GroupCommit:
        if self._group is None:
            raise StoreError("put", str(self._folder.path / LOG_NAME), "the effect ledger is not open")
        return self._group

    def _append(self, changes: Sequence[Change]) -> int:
        group = self._open_group()
        for change in changes:
            group.append(encode_change(change))
        return group.log.next - 1

    async def _keep(self, changes: Sequence[Change]) -> None:
        """Make these durable, and whatever somebody else was told to wait for before."""
        group = self._open_group()
        number = self._append(changes)
        await group.wait_durable(number)

    async def _rewrite_if_worth(self) -> None:
        group = self._open_group()
        log = group.log
        if log.size < max(self._rewrite_bytes_min, 4 * self._live_bytes) or log.waiting:
            return
        records = [encode_change(change) for change in self._ledger.dump()]
        number = log.start_anew(records)
        await group.wait_durable(number)
        self._live_bytes = sum(map(len, records))
        await group.truncate(0)


def _recovered(files: LogFiles, identity: LogIdentity, owner: Owner) -> tuple[EffectLedger, DurableLog]:
    """In a thread."""
    log = DurableLog(files, identity, owner=owner)
    ledger = EffectLedger()
    for batch in log.recover():
        try:
            for change in decode_changes(batch.body):
                ledger.apply(change)
        except (ValueError, KeyError) as error:
            # Checksums fit: a later build wrote it, or we have a bug. Either way nothing may be guessed.
            raise CorruptLog(files.where, 0, f"records from {batch.first} on are none of ours: {error!r}") from None
    return ledger, log
