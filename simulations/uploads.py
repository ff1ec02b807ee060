"""The background half of a cut, under virtual time: encode in slices, make durable, report.

The order of `participant.runtime.uploader`: one epoch is encoded after the other; packs leave as they are finished; the
local-snapshot object is put when all channels are closed and all packs are durable; the report follows the object. Between
two slices turns run, so what a cut froze must hold against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from participant.capture import Capturer
from participant.machine_events import LocalFailed, LocalPersisted, LocalProgressed
from participant.packing import PACK_BYTES_MIN, EncodingLimits
from protocol.digests import digest, snapshot_key
from protocol.documents import encode_local_snapshot
from protocol.errors import ObjectConflict
from protocol.ids import ClusterName
from protocol.limits import UPLOAD_RETRY_NS
from simulations import mutants
from simulations.carrying import SLICE_NS
from simulations.world import MS

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from participant.capture import Frozen
    from participant.machine_events import ChannelsRecorded, RecordedChannel, RecordLocal
    from participant.packing import Pack
    from protocol.errors import StoreError
    from protocol.ids import Epoch
    from simulations.participant_node import ParticipantLife

_PAUSE_NS_MAX = 1000 * MS


class _Part:
    __slots__ = (
        "began",
        "channels",
        "closed",
        "encoded",
        "frozen",
        "over",
        "record",
        "slices",
        "snapshot_put",
        "timings",
        "uploading",
    )

    def __init__(self, record: RecordLocal, frozen: Frozen, began: int) -> None:
        self.record = record
        self.frozen = frozen
        self.began = began
        self.slices: Generator[Pack | None, None, None] = frozen.slices()
        self.channels: Sequence[RecordedChannel] = ()
        self.closed = False
        self.encoded = False
        """The agents' part is."""
        self.snapshot_put = False
        self.uploading = 0
        self.timings: dict[str, int] = {}
        self.over = False


class Uploads:
    """All local parts of one life."""

    def __init__(self, life: ParticipantLife) -> None:
        self._life = life
        options = life.cluster.options
        self._limits = EncodingLimits(
            segment_bytes=options.segment_bytes,
            piece_bytes=options.piece_bytes,
            pack_bytes=options.pack_bytes,
            pack_bytes_min=min(PACK_BYTES_MIN, options.pack_bytes),
        )
        self._capturer = Capturer(life.cut_clock, self._limits)
        self._parts: dict[Epoch, _Part] = {}
        self._queue: list[_Part] = []
        """Parts whose slices want to run; the first one does."""
        self._running = False

    def freeze(self, record: RecordLocal) -> None:
        """Take the cut, now."""
        life = self._life
        frozen = self._capturer.freeze(
            record.epoch, life.hosts, unrouted=record.unrouted, input_tokens=record.inputs, now=life.now
        )
        part = self._parts[record.epoch] = _Part(record, frozen, life.now)
        part.timings["record"] = 1
        life.point("local.frozen")
        self._enqueue(part)

    def channels_recorded(self, effect: ChannelsRecorded) -> None:
        """All markers are in."""
        part = self._parts.get(effect.epoch)
        if part is not None:
            part.channels = effect.channels
            part.closed = True
            part.timings["channels"] = self._life.now - part.began
            self._second_half(part)

    def drop(self, epoch: Epoch) -> None:
        """The epoch has ended without us."""
        part = self._parts.pop(epoch, None)
        if part is not None:
            part.over = True
        self._capturer.dropped(epoch)

    def keep(self, epoch: Epoch) -> None:
        """The epoch is committed."""
        self._parts.pop(epoch, None)
        self._capturer.committed(epoch)

    def renew(self) -> None:
        """Agents were loaded from an epoch: nothing that was written before counts as known here."""
        for epoch in list(self._parts):
            self.drop(epoch)
        self._capturer = Capturer(self._life.cut_clock, self._limits)

    # --- slices -------------------------------------------------------------------------------------------------------

    def _enqueue(self, part: _Part) -> None:
        self._queue.append(part)
        if not self._running:
            self._running = True
            self._life.later(SLICE_NS, self._slice)

    def _slice(self) -> None:
        """Some small steps of the first part in the queue, as often as there is one."""
        self._running = False
        if not self._queue:
            return
        part = self._queue[0]
        done = part.over
        for _ in range(0 if done else self._life.cluster.options.slice_steps):
            try:
                pack = next(part.slices)
            except StopIteration:
                done = True
                break
            if pack is not None:
                part.uploading += 1
                self._put(part, pack.key, pack.data, 0)
        if done:
            self._queue.pop(0)
            if not part.over:
                self._sliced(part)
        if self._queue and not self._running and self._life.alive:
            self._running = True
            self._life.later(SLICE_NS, self._slice)

    def _sliced(self, part: _Part) -> None:
        if part.encoded:
            part.snapshot_put = True
            self._finish_if_durable(part)
            return
        part.encoded = True
        part.timings["encode"] = self._life.now - part.began
        self._life.point("local.encoded")
        if self._life.alive:
            self._life.step(LocalProgressed(epoch=part.record.epoch, phase="encoded"))
            self._second_half(part)

    def _second_half(self, part: _Part) -> None:
        if part.encoded and part.closed and not part.over:
            part.slices = part.frozen.channel_slices(part.channels)
            self._enqueue(part)

    # --- objects ------------------------------------------------------------------------------------------------------

    def _put(self, part: _Part, key: str, data: bytes, attempt: int) -> None:
        life = self._life
        is_pack = key.startswith("packs/")
        life.point("pack.before_put" if is_pack else "snapshot.before_put")
        if life.alive:
            life.cluster.store.put(
                life.name, key, data, lambda error: life.enter(self._was_put, part, key, data, attempt, error)
            )

    def _was_put(self, part: _Part, key: str, data: bytes, attempt: int, error: StoreError | None) -> None:
        life = self._life
        if part.over:
            return
        if error is None:
            is_pack = key.startswith("packs/")
            life.point("pack.after_put" if is_pack else "snapshot.after_put")
            if not life.alive:
                return
            if is_pack:
                part.uploading -= 1
                self._finish_if_durable(part)
            else:
                self._persisted(part, digest(data))
            return
        patience = min(UPLOAD_RETRY_NS, (part.record.deadline - part.began) // 2)
        if isinstance(error, ObjectConflict) or life.now - part.began >= patience:
            part.over = True
            life.step(LocalFailed(epoch=part.record.epoch, phase="upload", cause=str(error)))
            return
        life.cluster.probes.hit("upload.retried")
        pause = min(50 * MS << min(attempt, 5), _PAUSE_NS_MAX)
        life.later(pause, self._put_again, part, key, data, attempt + 1)

    def _put_again(self, part: _Part, key: str, data: bytes, attempt: int) -> None:
        if not part.over:
            self._put(part, key, data, attempt)

    def _finish_if_durable(self, part: _Part) -> None:
        if not part.snapshot_put or (part.uploading and not mutants.on("snapshot-before-packs")):
            return
        if part.over or part.timings.get("upload"):
            return
        record = part.record
        snapshot = part.frozen.local_snapshot(
            cluster=ClusterName(self._life.cluster.name),
            participant=self._life.name,
            incarnation=record.incarnation,
            session=record.session,
            topology=record.topology,
            outgoing=record.outgoing,
            channels=part.channels,
        )
        data = encode_local_snapshot(snapshot)
        part.timings["upload"] = max(1, self._life.now - part.began)
        if mutants.on("report-before-durable"):
            self._persisted(part, digest(data))
        self._put(part, snapshot_key(digest(data)), data, 0)

    def _persisted(self, part: _Part, name: str) -> None:
        snapshot_messages = sum(len(channel.items) for channel in part.channels)
        self._life.step(
            LocalPersisted(
                epoch=part.record.epoch,
                snapshot=name,
                state_bytes=part.frozen.state_bytes,
                new_bytes=part.frozen.new_bytes,
                in_flight=snapshot_messages,
                timings=part.timings,
            )
        )
