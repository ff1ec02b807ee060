"""The background half of a cut: encode in slices, make durable, report.

`freeze` is called by the driver in the very step of the cut. From then on one task per epoch works through the slices of
`participant.capture`, yielding to the loop after each `CAPTURE_SLICE_NS`, while threads write the packs that are finished. The
report leaves when all channels are closed and everything that the local snapshot names, and then itself, is durable.

A store that fails is tried again with growing delays for a part of the epoch's time; then the epoch fails with errno and
path, and nothing of it is kept here. The next one starts from nothing, and works when the store does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, cast

from participant.capture import Capturer
from participant.machine_events import LocalFailed, LocalPersisted, LocalProgressed
from participant.runtime.backoff import Backoff
from participant.runtime.threads import in_thread
from protocol.digests import digest, snapshot_key
from protocol.documents import local_snapshot_steps
from protocol.errors import ObjectConflict, SnapshotError, StoreError
from protocol.failpoints import fp, fp_store
from protocol.limits import CAPTURE_SLICE_NS, KIB, UPLOAD_RETRY_NS, UPLOADS_MAX
from protocol.storage.repair import put_content
from protocol.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from participant.capture import Frozen
    from participant.host import AgentHost
    from participant.machine_events import ChannelsRecorded, RecordedChannel, RecordLocal
    from participant.packing import Pack
    from participant.runtime.clock import Clock
    from participant.runtime.tasks import TaskSet
    from participant.state import CutClock
    from protocol.ids import ClusterName, Epoch, ParticipantId
    from protocol.ports import ObjectStore

log = logging.getLogger("cleancut.participant.capture")

_HASHED_AT_ONCE_BYTES: Final = 256 * KIB
_COUNTERS: Final = ("parts_begun", "parts_durable", "parts_dropped", "store_retries", "state_bytes", "new_bytes")


class UploaderSink(Protocol):
    """Where outcomes go; called on the loop, must not block."""

    def local_persisted(self, event: LocalPersisted) -> None:
        """A part is durable."""
        ...

    def local_failed(self, event: LocalFailed) -> None:
        """A part cannot be completed."""
        ...

    def local_progressed(self, event: LocalProgressed) -> None:
        """A phase is over."""
        ...


class _Part:
    """One epoch's way from the cut to the report."""

    __slots__ = ("began", "channels", "channels_closed", "frozen", "over", "record", "task", "timings", "uploads")

    def __init__(self, record: RecordLocal, frozen: Frozen, began: int) -> None:
        self.record = record
        self.frozen = frozen
        self.began = began
        self.channels: Sequence[RecordedChannel] = ()
        self.channels_closed = asyncio.Event()
        self.timings: dict[str, int] = {}
        self.uploads: list[asyncio.Task[None]] = []
        self.task: asyncio.Task[None] | None = None
        self.over = False


class Uploader:
    """All local parts of one participant."""

    def __init__(
        self,
        *,
        hosts: Sequence[AgentHost],
        cut_clock: CutClock,
        cluster: ClusterName,
        participant: ParticipantId,
        store: ObjectStore,
        clock: Clock,
        tasks: TaskSet,
        sink: UploaderSink,
        ledger: str = "",
    ) -> None:
        self._hosts = hosts
        self._ledger = ledger
        """The effect ledger at hand, as local snapshots name it."""
        self._cut_clock = cut_clock
        self._capturer = Capturer(cut_clock)
        self._cluster = cluster
        self._participant = participant
        self._store = store
        self._clock = clock
        self._stopwatch = clock.stopwatch
        self._tasks = tasks
        self._sink = sink
        self._parts: dict[Epoch, _Part] = {}
        self._encoding = asyncio.Lock()
        """Epochs are encoded one after the other, in the order of their cuts: the lock is fair."""
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._slice_ns_max = 0

    def freeze(self, record: RecordLocal, began: int, *, input_position: int = 0) -> None:
        """Take the cut, now; the rest follows in the background.

        Args:
            record: The machine's order.
            began: Instant at which carrying it out began.
            input_position: Newest entry of the input log that has been taken in.
        """
        frozen = self._capturer.freeze(
            record.epoch,
            self._hosts,
            unrouted=record.unrouted,
            now=began,
            input_position=input_position,
            input_tokens=record.inputs,
        )
        part = self._parts[record.epoch] = _Part(record, frozen, began)
        self._counts["parts_begun"] += 1
        part.task = self._tasks.spawn(self._complete(part), name=f"epoch {record.epoch}")
        part.timings["record"] = self._clock.now() - began
        fp("local.frozen")

    def channels_recorded(self, effect: ChannelsRecorded) -> None:
        """All markers are in."""
        part = self._parts.get(effect.epoch)
        if part is not None:
            part.channels = effect.channels
            part.timings["channels"] = self._clock.now() - part.began
            part.channels_closed.set()

    def drop(self, epoch: Epoch) -> None:
        """The epoch has ended without us; free what is held for it."""
        part = self._parts.pop(epoch, None)
        if part is not None:
            self._counts["parts_dropped"] += 1
            self._stop(part)
        self._capturer.dropped(epoch)

    def keep(self, epoch: Epoch) -> None:
        """The epoch is committed: what was written for it may be named again."""
        self._parts.pop(epoch, None)
        self._capturer.committed(epoch)

    def renew(self) -> None:
        """Agents were loaded from an epoch: nothing that was written before counts as known here."""
        for epoch in list(self._parts):
            self.drop(epoch)
        self._capturer = Capturer(self._cut_clock)

    def close(self) -> None:
        """Drop everything."""
        for epoch in list(self._parts):
            self.drop(epoch)

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is held now."""
        return {
            **{f"capture_{name}": value for name, value in self._counts.items()},
            "capture_parts_open": len(self._parts),
            "capture_slice_ns_max": self._slice_ns_max,
        }

    def _stop(self, part: _Part) -> None:
        part.over = True
        for upload in part.uploads:
            upload.cancel()
        if part.task is not None and part.task is not asyncio.current_task():
            part.task.cancel()

    async def _complete(self, part: _Part) -> None:
        epoch = part.record.epoch
        phase = "encode"
        try:
            await self._encode(part, part.frozen.slices())
            self._note(part, "encode")
            fp("local.encoded")
            self._sink.local_progressed(LocalProgressed(epoch=epoch, phase="encode"))
            await part.channels_closed.wait()
            await self._encode(part, part.frozen.channel_slices(part.channels))
            phase = "upload"
            event = await self._finish(part)
        except asyncio.CancelledError:
            self._stop(part)
            raise
        except SnapshotError as error:
            self._fail(part, "upload" if isinstance(error, StoreError) else phase, str(error))
        except Exception as error:  # an agent's own capture() may raise anything
            log.exception("epoch %d: the local part failed", epoch)
            self._fail(part, phase, f"{type(error).__name__}: {error}")
        else:
            part.over = True
            self._counts["parts_durable"] += 1
            self._sink.local_persisted(event)

    def _fail(self, part: _Part, phase: str, cause: str) -> None:
        if part.over:
            return
        self._stop(part)
        self._sink.local_failed(LocalFailed(epoch=part.record.epoch, phase=phase, cause=cause))

    def _note(self, part: _Part, phase: str) -> None:
        part.timings[phase] = self._clock.now() - part.began

    async def _encode(self, part: _Part, slices: Generator[Pack | None, None, None]) -> None:
        """Run slices, each for `CAPTURE_SLICE_NS` of the stopwatch; finished packs go to threads meanwhile."""
        async with self._encoding:
            began = self._stopwatch()
            for pack in slices:
                if pack is not None:
                    part.uploads.append(self._upload(part, pack.key, pack.data))
                    await self._bound_uploads(part)
                    began = self._stopwatch()
                    continue
                took = self._stopwatch() - began
                if took >= CAPTURE_SLICE_NS:
                    self._slice_ns_max = max(self._slice_ns_max, took)
                    await asyncio.sleep(0)
                    began = self._stopwatch()

    async def _encode_object(self, steps: Generator[None, None, bytes]) -> bytes:
        """Run small steps, each for `CAPTURE_SLICE_NS` of the stopwatch, to what they return."""
        began = self._stopwatch()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("bytes", end.value)
            took = self._stopwatch() - began
            if took >= CAPTURE_SLICE_NS:
                self._slice_ns_max = max(self._slice_ns_max, took)
                await asyncio.sleep(0)
                began = self._stopwatch()

    def _upload(self, part: _Part, key: str, data: bytes) -> asyncio.Task[None]:
        # Not one of the driver's tasks: that it fails is this epoch's matter, which awaits it.
        upload = asyncio.get_running_loop().create_task(self._put(part, key, data), name=f"upload {key}")
        upload.add_done_callback(_retrieve)
        return upload

    async def _bound_uploads(self, part: _Part) -> None:
        """Finished packs wait in memory: not many of them."""
        while len(part.uploads) > UPLOADS_MAX:
            await part.uploads.pop(0)

    async def _finish(self, part: _Part) -> LocalPersisted:
        """Write the local-snapshot object; return when it and all that it names are durable.

        It is written beside the last packs, not after them: nobody knows its name before the report, so in which order
        they reach the disk is nobody's matter, and the disk is waited for once.
        """
        record = part.record
        snapshot = part.frozen.local_snapshot(
            cluster=self._cluster,
            participant=self._participant,
            incarnation=record.incarnation,
            session=record.session,
            topology=record.topology,
            outgoing=record.outgoing,
            channels=part.channels,
            ledger=self._ledger,
            build=__version__,
        )
        data = await self._encode_object(local_snapshot_steps(snapshot))
        # A thread where it takes long: hashing holds no GIL.
        name = digest(data) if len(data) < _HASHED_AT_ONCE_BYTES else await in_thread(digest, data)
        part.uploads.append(self._upload(part, snapshot_key(name), data))
        for upload in part.uploads:
            await upload
        self._note(part, "upload")
        new_bytes = part.frozen.new_bytes + len(data)
        self._counts["state_bytes"] = snapshot.state_bytes
        self._counts["new_bytes"] += new_bytes
        return LocalPersisted(
            epoch=record.epoch,
            snapshot=name,
            state_bytes=snapshot.state_bytes,
            new_bytes=new_bytes,
            in_flight=sum(channel.messages for channel in snapshot.incoming),
            timings=part.timings,
        )

    def _put_once(self, key: str, data: bytes) -> None:
        """In a thread."""
        if key.startswith("packs/"):
            fp_store("pack.before_put", key)
            put_content(self._store, key, data)
            fp_store("pack.after_put", key)
        else:
            fp_store("snapshot.before_put", key)
            put_content(self._store, key, data)
            fp_store("snapshot.after_put", key)

    async def _put(self, part: _Part, key: str, data: bytes) -> None:
        """Make an object durable; tries again for a while.

        Raises:
            StoreError: It did not work, with errno where there is one.
        """
        backoff = Backoff(first=0.05, most=1.0)
        now = self._clock.now()
        give_up = now + min(UPLOAD_RETRY_NS, max(0, part.record.deadline - now) // 2)
        while True:
            try:
                await in_thread(self._put_once, key, data)
            except ObjectConflict:
                raise
            except StoreError as error:
                if self._clock.now() >= give_up:
                    raise
                self._counts["store_retries"] += 1
                log.info("epoch %d: %s; trying again", part.record.epoch, error)
                await asyncio.sleep(backoff.next())
            else:
                return


def _retrieve(upload: asyncio.Task[None]) -> None:
    """Whoever awaited it knows; where its epoch had ended before, nobody needs to."""
    if not upload.cancelled():
        upload.exception()
