"""Outside input on its way in: written to the participant's own disk, acknowledged, then given to the machine, in order.

::

    intake = Intake(folder, cluster=..., participant=..., enters=...)
    await intake.open()                             # reads the log
    ticket = intake.hold(epoch=6, position=9)       # in the step in which an incarnation is entered
    await intake.restore(life, ticket, newest_epoch=7)      # what came after the cut enters again
    await intake.add(target, type, version, body, token=...)

The log is a `DurableLog`, with its group commit, its torn tail and its fence: a process that was declared dead acknowledges
nothing any more once its successor has taken the folder over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from participant.context import encode_envelope, too_long
from participant.host import decode_envelope
from participant.inputs import (
    MARKS_KEPT,
    MARKS_KEPT_TIGHT,
    OUTSIDE,
    InputIndex,
    InputRecord,
    InputsMissing,
    JoinRecord,
    Known,
    MarkRecord,
    TokensRecord,
    check_same,
    check_token,
    decode_records,
    encode_record,
    input_digest,
    inputs_of,
    position_message_id,
    token_hash,
    token_message_id,
)
from participant.logs.recovery import LogIdentity, LogMap
from participant.runtime.durable_log import DurableLog
from participant.runtime.group_commit import GroupCommit
from protocol.errors import (
    ConfigError,
    LimitExceeded,
    Overloaded,
    RecoveryError,
    Refused,
    UnknownAgent,
    Unsavable,
    WireError,
)
from protocol.failpoints import fp
from protocol.limits import INPUT_LOG_BYTES_MAX, KIB, LOG_SEGMENT_BYTES, MESSAGE_BYTES_MAX, MIB
from protocol.messages import Envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from participant.machine_events import Delivery
    from participant.runtime.log_files import Life, LocalFolder
    from protocol.ancestry import Ancestry
    from protocol.errors import FencedError, SnapshotError, StoreError
    from protocol.ids import AgentId, MessageId

log = logging.getLogger("cleancut.participant.inputs")

LOG_NAME: Final = "input"
WAITING_BYTES_MAX: Final = 16 * MIB
"""Inputs that wait for the disk."""
SEGMENTS: Final = 16
"""Into which the log is cut at least, since it is deleted in whole ones."""
SEGMENT_BYTES_MIN: Final = 64 * KIB
REPLAYED_AT_ONCE: Final = 256
"""Inputs that enter again before others are served in between."""


class Taken(NamedTuple):
    """What became of an input."""

    id: MessageId
    """Of the message that it made."""
    position: int
    """In the input log; 0: it is not in one."""
    duplicate: bool
    """Its token had come before: nothing was done again."""


class Intake:
    """See the module.

    Args:
        folder: The participant's own; taken over by `restore`.
        cluster: Its name.
        participant: Its id.
        enters: Takes a message into the machine, and the incarnation in which it was taken, 0: it is not known; called on the loop,
            while `position` is the message's own.
        had: What an input asked for whose message an agent here has had, wherever it was taken (`HadInputs.digest`).
        failed: Called once when nothing can be written any more.
        bytes_max: Bound of the log.
        allow_lost: Let a restore go on where input is gone that it should bring back.
    """

    def __init__(
        self,
        folder: LocalFolder,
        *,
        cluster: str,
        participant: str,
        enters: Callable[[Delivery, int], None],
        had: Callable[[MessageId], bytes | None],
        failed: Callable[[StoreError | FencedError], None],
        bytes_max: int = INPUT_LOG_BYTES_MAX,
        allow_lost: bool = False,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._participant = participant
        self._identity = LogIdentity("inputs", cluster, participant)
        self._files = folder.files(LOG_NAME)
        self._failed = failed
        self._bytes_max = bytes_max
        self._new_log()
        self._begun = False
        """This process has been the log's writer."""
        self._enters = enters
        self._had = had
        self._allow_lost = allow_lost
        self._waiting: deque[tuple[int, InputRecord, Delivery]] = deque()
        """In the log, maybe not durable, and not given to the machine."""
        self._waiting_bytes = 0
        self._held = True
        """Nothing enters: it is not known yet what comes before."""
        self._entering = False
        """Between `hold` and the end of what follows it."""
        self._writable = asyncio.Event()
        """The log is ours, in this incarnation: records can be written."""
        self._open = asyncio.Event()
        """And new input is taken: all that came before has entered."""
        self._ticket = 0
        self.position = 0
        """Of the newest input that the machine has."""
        self._goes_on = False
        """A log of turns was replayed: the membership is noted already, unless the life that began it died before it could."""
        self._membership_from = 0
        """Position behind which its input entered."""
        self._cuts: dict[int, int] = {}
        self._truncated_at = 0
        """Newest segment when deleting was last tried."""
        self._truncating: asyncio.Task[None] | None = None
        self._closed = False
        self._counts = dict.fromkeys(("taken", "duplicates", "replayed", "refused"), 0)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything in the log is still to enter."""
        return not self._closed and (self._entering or (not self._held and bool(self._waiting)))

    async def open(self) -> None:
        """Read the log.

        Raises:
            CorruptLog: It is damaged in a place where a crash leaves nothing.
            StoreError: Somebody else's, or the system's error.
        """
        await asyncio.to_thread(self._recover)

    async def taken_over(self) -> None:
        """The folder has become ours: what its former owner has written since `open` counts.

        Whoever looks after the process may have started it while the one before was still at work, and acknowledged input.

        Raises:
            CorruptLog: As `open`.
            StoreError: As `open`.
        """
        if not self._begun and not self._closed:
            self._new_log()
            await asyncio.to_thread(self._recover)

    def _new_log(self) -> None:
        segment_bytes = max(SEGMENT_BYTES_MIN, min(LOG_SEGMENT_BYTES, self._bytes_max // SEGMENTS))
        self._log = DurableLog(self._files, self._identity, owner=self._folder, segment_bytes=segment_bytes)
        self._group = GroupCommit(self._log, on_durable=self._durable, on_failure=self._failed)
        self._index = InputIndex()

    def _recover(self) -> None:
        first = LogMap(self._files.names(), self._files.read_head, self._identity, self._files.where).first
        for batch in self._log.recover(after=first - 1):
            for number, record in enumerate(decode_records(bytes(batch.body), self._files.where), batch.first):
                self._index.apply(number, record)

    def pause(self) -> None:
        """Let nothing enter until `restore`: the agents halt, what enters now would be of neither incarnation."""
        self._held = True
        self._entering = False
        self._writable.clear()
        self._open.clear()
        self._ticket += 1

    def hold(
        self,
        *,
        epoch: int | None,
        position: int | None = None,
        began: int | None = None,
        ancestry: Ancestry | None = None,
    ) -> int:
        """Let nothing enter until `restore`; from this moment on, a cut has the position that follows from these.

        To be called in the very step in which the machine enters the incarnation: a cut may come right behind it.

        Args:
            epoch: That everybody went back to, 0: the very beginning; None: nobody did, this is a new member.
            position: What this participant's local snapshot of that epoch says; None: it was no member of it.
            began: Of a life that goes on from a log of turns: where its membership began, in case an earlier life died before it had
                noted that here.
            ancestry: Of the incarnation; None: not known.

        Returns:
            A ticket for `restore`; older ones are void.
        """
        self.pause()
        self._cuts.clear()
        self.position = self._begins_at(epoch, ancestry) if position is None else position
        self._goes_on = began is not None
        self._membership_from = self.position if began is None else began
        self._entering = True
        return self._ticket

    def _begins_at(self, epoch: int | None, ancestry: Ancestry | None) -> int:
        """Position behind which input enters, for a participant that no epoch tells."""
        end = self._log.next - 1
        since = end if ancestry is None else self._index.position_since(ancestry, end)
        # What an older build has noted tells a rollback's epoch only.
        return since if epoch is None else min(since, self._index.position_at(epoch, end))

    async def check(self, *, epoch: int, position: int | None, ancestry: Ancestry | None) -> None:
        """Before a restore is accepted: whether everything is there that is to enter again.

        Raises:
            InputsMissing: Some of it is gone, and that is not allowed.
        """
        if position is None:
            position = self._begins_at(epoch, ancestry)
        first = await asyncio.to_thread(self._first)
        if first > position + 1 and not self._allow_lost:
            raise InputsMissing(self._files.where, wanted=position + 1, first=first)

    async def missing(self, epoch: int) -> str:
        """Before anybody orders a restore: what of the input behind an epoch is gone, in words; "" as far as is known nothing."""
        position, first = self._index.position_of(epoch), await asyncio.to_thread(self._first)
        if position is None or first <= position + 1:
            return ""
        rest = (
            "it would be lost"
            if self._allow_lost
            else "this participant will refuse to go back there (allow_lost_input)"
        )
        return f"some of the input that was acknowledged behind epoch {epoch} is not in the log any more: {rest}"

    async def restore(self, life: Life, ticket: int, *, newest_epoch: int = 0) -> int:
        """Take input from now on, with agents that begin, or came back from an epoch: what came behind its position enters again.

        A member with fresh agents has acknowledged nothing that counts, unless all others went back while it was away.

        Where inputs are not in the log any more (`check` tells before), their tokens are forgotten.

        Args:
            life: Of this participant, in the new incarnation.
            ticket: Of `hold`.
            newest_epoch: Highest epoch ever started.

        Returns:
            How many entered again.

        Raises:
            RecoveryError: The ticket is void.
            FencedError: A later life of this participant has the folder.
            StoreError: The disk does not work.
        """
        try:
            return await self._restore(life, ticket, newest_epoch)
        finally:
            self._entered(ticket)

    def _entered(self, ticket: int) -> None:
        if ticket == self._ticket:
            self._entering = False

    async def _restore(self, life: Life, ticket: int, newest_epoch: int) -> int:
        await self._begin(life, ticket)
        position = self.position
        first = await asyncio.to_thread(self._first)
        self._demand(ticket)
        if position >= self._log.next:
            # The disk was lost, or is an older copy: its numbers must not be given out again.
            log.warning(
                "%s: the log ends at %d and the epoch holds inputs up to %d: what was acknowledged after it is lost",
                self._files.where, self._log.next - 1, position,
            )  # fmt: skip
            carried = self._index.carried(self._log.next)
            self._log.start_anew([encode_record(carried)], first=position + 1)
            self._group.start()
            await self._group.wait_durable(position + 1)
            self._demand(ticket)
        elif first > position + 1:
            log.warning("%s", InputsMissing(self._files.where, wanted=position + 1, first=first))
            self._index.forget(position + 1, first)
            self.position = first - 1
        if not (self._goes_on and self._index.joined_from(self._membership_from, life.incarnation)):
            # Where a rollback undoes this incarnation and goes to an epoch without us, our input begins here.
            record = JoinRecord(newest_epoch, self._membership_from, life.incarnation)
            number = self._group.append(encode_record(record))
            self._index.apply(number, record)
            await self._group.wait_durable(number)
            self._demand(ticket)
        self._writable.set()
        count = await self._replay(ticket)
        self._let_go(ticket)
        return count

    async def _begin(self, life: Life, ticket: int) -> None:
        """Wait for the disk, and write as this life from now on."""
        self._demand(ticket)
        if self._truncating is not None:
            await asyncio.wait({self._truncating})
        await self._group.wait_idle()
        if self._log.failure is not None:
            raise self._log.failure
        self._demand(ticket)
        await asyncio.to_thread(self._folder.take_over, life)
        self._demand(ticket)
        self._log.begin(life)
        self._begun = True
        # What was written and has not entered comes with the replay.
        self._waiting.clear()
        self._waiting_bytes = 0

    def _demand(self, ticket: int) -> None:
        if self._ticket != ticket or self._closed:
            raise RecoveryError(f"{self._participant}: another incarnation has begun meanwhile")

    def _first(self) -> int:
        return LogMap(self._files.names(), self._files.read_head, self._identity, self._files.where).first

    async def _replay(self, ticket: int) -> int:
        position, end = self.position, self._log.next - 1
        if position >= end:
            return 0
        # Read through a log of its own, in steps: all of them at once may be as much as the log.
        batches = DurableLog(self._files, self._identity).recover(after=position, only_read=True)
        count = 0
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            self._demand(ticket)
            records = decode_records(bytes(batch.body), self._files.where)
            for number, record in inputs_of(batch.first, records):
                if position < number <= end:
                    self._enter(number, record, (decode_envelope(record.envelope), record.envelope))
                    count += 1
                    if count % REPLAYED_AT_ONCE == 0:
                        await asyncio.sleep(0)
                        self._demand(ticket)
        self._demand(ticket)
        self._counts["replayed"] += count
        return count

    def _let_go(self, ticket: int) -> None:
        self._demand(ticket)
        self._held = False
        self._open.set()
        self._durable(self._log.durable)

    def stop(self) -> None:
        """No more is taken, and nothing enters: the participant ends."""
        self._closed = True
        self._held = True
        self._writable.set()
        self._open.set()

    async def close(self) -> None:
        """Let what is being written end; no more is taken."""
        self.stop()
        if self._truncating is not None:
            await asyncio.wait({self._truncating})
        await self._group.close()

    # --- input --------------------------------------------------------------------------------------------------------

    async def add(self, target: AgentId, type_name: str, version: int, body: bytes, *, token: str = "") -> Taken:
        """Take an input; it is durable on return, and has entered.

        Args:
            target: An agent anywhere in the cluster.
            type_name: Registered name of the message's type.
            version: Registered version.
            body: Encoded message.
            token: The client's; "": none.

        Raises:
            Refused: ``token-conflict``: the token came before with something else; ``ended``: closed meanwhile.
            Overloaded: The log is full, or the disk does not keep up.
            LimitExceeded: The message or the token is too long.
            StoreError: It cannot be written; the participant ends.
        """
        hashed = token_hash(self._cluster, check_token(token)) if token else b""
        digest = input_digest(target, type_name, version, body)
        identity = token_message_id(hashed) if hashed else None
        await self._open.wait()
        if self._closed:
            raise Refused("ended", f"{self._participant} has ended")
        if identity is not None:
            known = self._index.look_up(hashed, digest) or self._known_here(identity, digest)
            if known is not None:
                await self._group.wait_durable(known.position)
                self._counts["duplicates"] += 1
                return Taken(identity, known.position, duplicate=True)
        number = self._log.next
        identity = identity or position_message_id(self._cluster, self._participant, number)
        envelope = Envelope(identity, OUTSIDE, target, type_name, version, body)
        data = encode_envelope(envelope)
        if len(data) > MESSAGE_BYTES_MAX:
            raise too_long(type_name, len(data))
        self._check_room(len(data))
        record = InputRecord(hashed, digest, data)
        appended = self._group.append(encode_record(record))
        assert appended == number, "nothing runs in between"
        self._index.apply(number, record)
        self._waiting.append((number, record, (envelope, data)))
        self._waiting_bytes += len(data)
        await self._group.wait_durable(number)
        self._counts["taken"] += 1
        return Taken(identity, number, duplicate=False)

    def _known_here(self, identity: MessageId, digest: bytes) -> Known | None:
        had = self._had(identity)
        if had is None:
            return None
        check_same(had, digest)
        return Known(digest, 0)

    def _check_room(self, size: int) -> None:
        used = self._log.size + self._waiting_bytes
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            self._counts["refused"] += 1
            raise Overloaded(f"{self._waiting_bytes} bytes of input wait for the disk of {self._participant}")
        if used + size > self._bytes_max:
            self._counts["refused"] += 1
            self._truncate(full=True)
            raise Overloaded(
                f"the input log of {self._participant} holds {used} bytes that no committed epoch has; the limit is "
                f"{self._bytes_max}: see why no epoch commits"
            )

    def _durable(self, number: int) -> None:
        """Everything up to here is on the disk: it may enter."""
        if self._held:
            return
        fp("input.durable")
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            position, record, delivery = waiting.popleft()
            self._waiting_bytes -= len(delivery[1])
            self._enter(position, record, delivery)

    def _enter(self, position: int, record: InputRecord, delivery: Delivery) -> None:
        self.position = position
        self._enters(delivery, self._index.taken_in(position))

    # --- epochs -------------------------------------------------------------------------------------------------------

    def cut(self, epoch: int) -> int:
        """The local state of this epoch is being frozen; returns the position that its snapshot holds."""
        self._cuts[epoch] = self.position
        return self.position

    async def noted(self, epoch: int) -> None:
        """Until the log says up to where an epoch holds it; before the participant's part is reported.

        Who is a member when everybody goes back hears from the epoch where it was cut. Who is away, because it has no agents or others
        have taken them, comes back later, and the epoch may be gone by then.

        Raises:
            RecoveryError: The epoch is over.
            StoreError: It cannot be written.
            FencedError: A later life of this participant has the folder.
        """
        await self._writable.wait()
        position = self._cuts.get(epoch)
        if position is None or self._closed:
            raise RecoveryError(f"epoch {epoch} is over")
        record = TokensRecord((), (epoch, position))
        number = self._group.append(encode_record(record))
        self._index.apply(number, record)
        await self._group.wait_durable(number)

    def dropped(self, epoch: int) -> None:
        """The epoch ended otherwise."""
        self._cuts.pop(epoch, None)

    def keeps(self, savepoints: Iterable[int]) -> None:
        """These epochs are savepoints, and no others: what comes behind them is kept, while there is room for it."""
        self._index.keep(savepoints)

    def committed(self, epoch: int) -> None:
        """The epoch is committed: what it holds need not be replayed any more, once there is no room."""
        position = self._cuts.pop(epoch, None)
        if position is None or self._log.failure is not None or not self._open.is_set() or self._closed:
            return
        record = MarkRecord(epoch, position)
        self._index.apply(self._group.append(encode_record(record)), record)
        if self._log.newest_ordinal > self._truncated_at or self._log.size > self._bytes_max // 2:
            self._truncate()

    def _truncate(self, *, full: bool = False) -> None:
        if self._truncating is None and not self._closed:
            work = self._delete(full=full)
            self._truncating = asyncio.get_running_loop().create_task(work, name="delete old input")
            self._truncating.add_done_callback(self._truncated)

    async def _delete(self, *, full: bool) -> None:
        self._truncated_at = self._log.newest_ordinal
        tight = self._log.size > self._bytes_max // 2
        keep = 1 if full else MARKS_KEPT_TIGHT if tight else MARKS_KEPT
        first = await asyncio.to_thread(self._first)
        # New input is never refused for the sake of an old savepoint.
        before = self._index.deletable(keep=keep, first=None if full or tight else first)
        if before <= first:
            return
        if before > self._index.deletable(keep=keep, first=first):
            log.warning("%s: little room is left: what came behind savepoints is not kept any more", self._files.where)
        # First what the deleted records told of tokens, then they.
        carried = self._index.carried(before)
        if carried.tokens:
            await self._group.write(encode_record(carried))
        await self._group.truncate(before)

    def _truncated(self, task: asyncio.Task[None]) -> None:
        self._truncating = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s: old input is not deleted: %s", self._files.where, error)

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        return {
            **{f"inputs_{name}": value for name, value in self._counts.items()},
            "inputs_log_bytes": self._log.size,
            "inputs_tokens": self._index.tokens,
            "inputs_syncs": self._log.syncs,
        }


def refusal_code(error: SnapshotError) -> str:
    """The word by which the coordinators' API tells why an input was not taken; "": it may have been."""
    match error:
        case Overloaded():
            return "overloaded"
        case LimitExceeded():
            return "too-large"
        case Refused():
            return error.code
        case WireError() | Unsavable() | ConfigError():
            return "bad-message"
        case UnknownAgent():
            return "no-agent"
        case _:
            return ""
