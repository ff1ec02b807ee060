"""The effect ledger in a log on the participant's own disk.

A change is decided and applied in memory at once, and answered when it, and all before it, is durable. So two that race for
one position are told the same, in the order in which they came.

What it cannot do: follow an agent to another host, or survive its disk. For that there is Redis. It says so (`knows`): what may
have been done elsewhere is found out by the step's resolver, or in doubt, and never done again in silence.
"""

from __future__ import annotations

import asyncio
from time import time_ns
from typing import TYPE_CHECKING

from participant.effects.backend import by_time
from participant.effects.entries import State
from participant.effects.ledger import EffectLedger, decode_changes, encode_change
from participant.logs.recovery import LogIdentity
from participant.logs.segment import CorruptLog
from participant.runtime.durable_log import DurableLog
from participant.runtime.group_commit import GroupCommit
from participant.runtime.log_files import Life
from protocol.errors import FencedError, StoreError
from protocol.limits import EFFECTS_LOG_REWRITE_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from participant.effects.entries import Entry
    from participant.effects.ledger import Change, Claimed, Known
    from participant.runtime.log_files import LocalFolder, LogFiles, Owner
    from protocol.outputs import FencingToken

LOG_NAME = "effects"


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
        self._began_in = 0
        """Session that found no ledger here and began one; 0: there was one."""
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
                if not self._ledger.fence.sessions:
                    self._began_in = fence.session
                log.begin(life)
                self._live_bytes = sum(len(encode_change(change)) for change in self._ledger.dump())
                self._group = GroupCommit(log)
            self._life = life
            fenced = self._ledger.admit(fence)
        if fenced is not None:
            await self._keep([fenced])

    def knows(self, participant: str, session: int) -> bool:
        """Whether what that participant's agents have done since a cut in that session is in this ledger."""
        return participant == self._participant and self._began_in <= session

    async def claim(self, entry: Entry, fence: FencingToken) -> Claimed | Known:
        """See `EffectBackend.claim`."""
        changes, answer = self._ledger.claim(entry, fence)
        await self._keep(changes)
        return answer

    async def take(self, token: str, fence: FencingToken, claim_id: bytes, *, before: bytes) -> Claimed | Known:
        """See `EffectBackend.take`."""
        changes, answer = self._ledger.take(token, fence, claim_id, before=before, at=time_ns())
        await self._keep(changes)
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
