"""From a cut to a local snapshot: freeze in a moment, encode in small slices, finish when the channels are closed.

How a driver uses it::

    frozen = capturer.freeze(epoch, hosts, unrouted=..., now=now)   # RecordLocal: synchronous, before anything else
    for pack in frozen.slices(): ...                               # None: a small step is done; a Pack: make it durable
    for pack in frozen.channel_slices(channels): ...               # ChannelsRecorded
    snapshot = frozen.local_snapshot(...)                          # all packs given out before are to be durable first
    capturer.committed(epoch) / capturer.dropped(epoch)

Rules:
    * `freeze` copies no state: it adds one to the cut clock and takes mailboxes and timers as tuples of what is immutable.
    * A slice that is resumed finds the values of the cut, whatever turns have run since (`participant.history`).
    * What the last *committed* epoch holds and what has not changed since is named again, not encoded. Epochs that
      ended otherwise leave nothing behind.
    * An agent's own `capture` that fails fails the epoch (`Unsavable`, with agent and path), not the agent.
    * Epochs may overlap: each encodes its own cut, in any order and interleaved.
"""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from participant.forms import container_header
from participant.packing import PRODUCTION, Chunk, ChunkWriter, EncodingLimits, Pack
from participant.schema import ENCODER
from participant.segments import SavedCell, encode_cell
from protocol.errors import LocalProtocolError
from protocol.items import message_count
from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef, IncomingCut, LocalSnapshot, OutgoingCut

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from participant.host import AgentHost
    from participant.machine_events import RecordedChannel
    from participant.state import CutClock
    from protocol.ids import Digest
    from protocol.journal import FinishedStep, OpenQuestion
    from protocol.outputs import Output

PARTS_PER_STEP: Final = 512
"""Messages of a mailbox, or timers, between two yields: some 0.3 ms."""
REFS_PER_STEP: Final = 1_024
SEGMENTS_PER_STEP: Final = 128
AGENTS_PER_STEP: Final = 16
"""Unchanged agents passed over between two yields."""


class FrozenAgent(NamedTuple):
    """What an agent has at the cut beside its state, which is behind the cut clock."""

    mailbox: tuple[tuple[Any, bytes], ...]
    timers: tuple[tuple[int, int, Any, bytes], ...]
    running: bool
    dead: bool
    outputs: tuple[Output, ...] = ()
    journal: tuple[FinishedStep, ...] = ()
    questions: tuple[OpenQuestion, ...] = ()


_IDLE: Final = FrozenAgent((), (), running=False, dead=False)


class _SavedAgent(NamedTuple):
    host: AgentHost
    """The very host: another one of the same id has a history of its own."""
    cells: dict[str, SavedCell]


class Capturer:
    """What one participant knows of its committed epochs.

    Args:
        clock: The participant's cuts, shared by all its hosts.
        limits: Sizes in which state is written.
    """

    def __init__(self, clock: CutClock, limits: EncodingLimits = PRODUCTION) -> None:
        self._clock = clock
        self.limits = limits
        self._saved: dict[str, _SavedAgent] = {}
        self._since = 0
        """The cut of the newest committed epoch, 0: none."""
        self._frozen: dict[int, Frozen] = {}
        self._tokens: dict[Digest, Chunk] = {}
        """Chunks of input tokens in the newest committed epoch."""

    def freeze(
        self,
        epoch: int,
        hosts: Iterable[AgentHost],
        *,
        unrouted: Sequence[bytes] = (),
        now: int,
        input_position: int = 0,
        input_tokens: Sequence[bytes] = (),
    ) -> Frozen:
        """Take the cut. Nothing may run between the marker rule's decision and this.

        Args:
            epoch: Of the start order or marker.
            hosts: All agents of the participant.
            unrouted: Encoded envelopes to agents that nobody hosts.
            now: Driver time, nanoseconds; timers are saved relative to it.
            input_position: Newest entry of the participant's input log that has been taken in.
            input_tokens: Input with tokens that its agents have had, in encoded blocks; those that did not change are the same bytes
                as in the epoch before.
        """
        if epoch in self._frozen:
            raise LocalProtocolError(f"epoch {epoch} was frozen before")
        generation = self._clock.cut()
        frozen = Frozen(self, epoch, generation, self._since, self._saved, list(hosts), tuple(unrouted), now)
        frozen.input_position = input_position
        frozen.input_tokens = input_tokens
        self._frozen[epoch] = frozen
        self._mark()
        return frozen

    def committed(self, epoch: int) -> None:
        """What was written for this epoch can be named again. Unknown epochs are fine."""
        frozen = self._frozen.pop(epoch, None)
        if frozen is None:
            return
        self._clock.close(frozen.generation)
        if frozen.finished and frozen.generation > self._since:
            self._saved = frozen.saved
            self._tokens = {chunk.digest: chunk for chunk in frozen.token_chunks}
            self._since = frozen.generation
        self._mark()

    def dropped(self, epoch: int) -> None:
        """The epoch ended otherwise; its packs are garbage. Unknown epochs are fine."""
        frozen = self._frozen.pop(epoch, None)
        if frozen is not None:
            frozen.dropped = True
            self._clock.close(frozen.generation)
            self._mark()

    def _mark(self) -> None:
        """Tell the clock which cuts are still asked about."""
        marks = {self._since}
        for frozen in self._frozen.values():
            marks.update((frozen.since, frozen.generation))
        self._clock.marks = tuple(sorted(marks))

    @property
    def open_epochs(self) -> tuple[int, ...]:
        """Frozen and neither committed nor dropped."""
        return tuple(self._frozen)

    def oldest_since(self) -> int:
        """The oldest cut that some open epoch compares with."""
        return min([self._since, *(frozen.since for frozen in self._frozen.values())])

    def oldest_is(self, generation: int) -> bool:
        """No older cut is being read."""
        return not self._clock.open or self._clock.open[0] >= generation


class Frozen:
    """One participant's part of one epoch, from the cut to the local snapshot."""

    def __init__(
        self,
        capturer: Capturer,
        epoch: int,
        generation: int,
        since: int,
        before: dict[str, _SavedAgent],
        hosts: list[AgentHost],
        unrouted: tuple[bytes, ...],
        now: int,
    ) -> None:
        self.epoch = epoch
        self.generation = generation
        """Number of the cut on the participant's clock."""
        self.since = since
        self.saved: dict[str, _SavedAgent] = {}
        self.encoded = False
        """The agents' part is done: no value of the cut is needed any more."""
        self.finished = False
        self.dropped = False
        self.state_bytes = 0
        """Uncompressed bytes of the agents' part, known after `channel_slices`."""
        self.new_bytes = 0
        """Bytes of the packs made for it."""
        self.input_position = 0
        """Of the participant's input log, at the cut."""
        self.input_tokens: Sequence[bytes] = ()
        self.token_chunks: tuple[Chunk, ...] = ()
        self._capturer = capturer
        self._before = before
        self._hosts = hosts
        self._busy = {
            host.id: FrozenAgent(
                tuple(host.mailbox),
                tuple(host.timers),
                host.turn is not None,
                host.dead,
                tuple(host.outputs.values()),
                *host.frozen_journal(now),
            )
            for host in hosts
            # A running turn's message is in the mailbox.
            if host.mailbox or host.timers or host.dead or host.outputs
        }
        self._snapshots: list[AgentSnapshot] = []
        self._unrouted = unrouted
        self._unrouted_chunks: tuple[Chunk, ...] = ()
        self._now = now
        self._writer = ChunkWriter(capturer.limits)
        self._mailboxes: dict[str, tuple[tuple[Chunk, ...], ...]] = {}
        """Mailbox, timers, outputs, finished steps, questions."""
        self._channels: dict[str, tuple[Chunk, ...]] = {}

    def slices(self) -> Generator[Pack | None, None, None]:
        """Encode the agents' part.

        Yields:
            None after each small step, and each finished pack.

        Raises:
            Unsavable: An agent's own `capture` cannot be saved: the epoch fails, with this as the cause.
        """
        for index, host in enumerate(self._hosts):
            if self.dropped:
                return
            changed = yield from self._agent(host)
            if changed or index % AGENTS_PER_STEP == AGENTS_PER_STEP - 1:
                yield None
        self._unrouted_chunks = yield from self._steps(_array(self._unrouted, self._writer, len(self._unrouted)))
        self.token_chunks = yield from self._steps(self._token_chunks())
        self.encoded = True
        self._capturer._clock.close(self.generation)  # noqa: SLF001 - one module, one machine
        yield from self._packs()

    def channel_slices(self, channels: Sequence[RecordedChannel]) -> Generator[Pack | None, None, None]:
        """Encode the recorded channel states, after `slices` is through; the last packs come out here.

        Args:
            channels: Each incoming channel with its recorded items.
        """
        assert self.encoded, "the agents' part comes first"
        for channel in channels:
            if channel.items:
                self._channels[channel.source] = yield from self._steps(_items(channel.items, self._writer))
        self._writer.finish_pack()
        yield from self._packs()
        self._writer.forget()
        for index, host in enumerate(sorted(self._hosts, key=lambda host: host.id)):
            self._snapshots.append((yield from self._steps(self._agent_snapshot(host))))
            if index % AGENTS_PER_STEP == AGENTS_PER_STEP - 1:
                yield None
        self.finished = True

    def local_snapshot(
        self,
        *,
        cluster: str,
        participant: str,
        incarnation: int,
        session: int,
        topology: int,
        outgoing: Sequence[OutgoingCut],
        channels: Sequence[RecordedChannel],
        ledger: str = "",
        build: str = "",
    ) -> LocalSnapshot:
        """The object that the report names, after `channel_slices` is through."""
        assert self.finished, "every chunk's pack must be known"
        incoming = tuple(
            IncomingCut(
                source=channel.source,
                received=channel.received,
                closed_at=channel.closed_at,
                digest=channel.digest,
                items=len(channel.items),
                messages=message_count(channel.items),
                chunks=tuple(chunk.ref() for chunk in self._channels.get(channel.source, ())),
                base=channel.base or msgspec.UNSET,
            )
            for channel in sorted(channels, key=lambda channel: channel.source)
        )
        unrouted = tuple(chunk.ref() for chunk in self._unrouted_chunks)
        return LocalSnapshot(
            cluster=cluster,
            participant=participant,
            incarnation=incarnation,
            session=session,
            epoch=self.epoch,
            topology=topology,
            agents=self.agent_snapshots(),
            unrouted=unrouted,
            unrouted_count=len(self._unrouted),
            outgoing=tuple(sorted(outgoing, key=lambda cut: cut.target)),
            incoming=incoming,
            state_bytes=self.state_bytes,
            input_position=self.input_position or msgspec.UNSET,
            input_tokens=tuple(chunk.ref() for chunk in self.token_chunks) or msgspec.UNSET,
            ledger=ledger or msgspec.UNSET,
            build=build,
        )

    def agent_snapshots(self) -> tuple[AgentSnapshot, ...]:
        """The agents' part, sorted by id; after `channel_slices` is through."""
        assert self.finished, "every chunk's pack must be known"
        return tuple(self._snapshots)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _agent(self, host: AgentHost) -> Generator[Pack | None, None, bool]:
        """Encode one agent; returns whether there was anything to do."""
        before = self._before.get(host.id)
        known = before.cells if before is not None and before.host is host else {}
        cells: dict[str, SavedCell] = {}
        oldest_since = self._capturer.oldest_since()
        worked = False
        for name, cell in host.state.cells.items():
            saved = known.get(name)
            cells[name] = now_saved = yield from self._steps(
                encode_cell(cell, self.generation, self.since, saved, self._writer)
            )
            if now_saved is not saved:
                worked = True
            if self._capturer.oldest_is(self.generation):
                cell.forget(oldest_since, self.generation)
        self.saved[host.id] = _SavedAgent(host, cells)
        agent = self._busy.get(host.id)
        if agent is not None:
            worked = True
            waiting = (data for _, data in agent.mailbox)
            mailbox = yield from self._steps(_array(waiting, self._writer, len(agent.mailbox)))
            timers = yield from self._steps(_array(self._timers(agent), self._writer, len(agent.timers)))
            held = map(ENCODER.encode, agent.outputs)
            outputs = yield from self._steps(_array(held, self._writer, len(agent.outputs)))
            steps = map(ENCODER.encode, agent.journal)
            journal = yield from self._steps(_array(steps, self._writer, len(agent.journal)))
            asked = map(ENCODER.encode, agent.questions)
            questions = yield from self._steps(_array(asked, self._writer, len(agent.questions)))
            self._mailboxes[host.id] = (mailbox, timers, outputs, journal, questions)
        return worked

    def _timers(self, agent: FrozenAgent) -> Iterator[bytes]:
        # Sorted as it is consumed: a hundred thousand timers sorted at once would hold the loop.
        heap = list(agent.timers)
        while heap:
            due, _, _, data = heappop(heap)
            yield b"\x92" + ENCODER.encode(max(0, due - self._now)) + data

    def _token_chunks(self) -> Generator[None, None, tuple[Chunk, ...]]:
        known = self._capturer._tokens  # noqa: SLF001 - one module, one machine
        chunks: list[Chunk] = []
        for block in self.input_tokens:
            chunks.append(self._writer.put(block, known))
            yield
        return tuple(chunks)

    def _steps(self, steps: Generator[None, None, Any]) -> Generator[Pack | None, None, Any]:
        """Run a generator of small steps to its end; packs come out in between."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            yield None
            if self._writer.ready:
                yield from self._packs()

    def _packs(self) -> Generator[Pack, None, None]:
        while self._writer.ready:
            pack = self._writer.ready.pop(0)
            self.new_bytes += len(pack.data)
            yield pack

    def _agent_snapshot(self, host: AgentHost) -> Generator[None, None, AgentSnapshot]:
        agent = self._busy.get(host.id, _IDLE)
        mailbox, timers, outputs, journal, questions = self._mailboxes.get(host.id, ((), (), (), (), ()))
        fields = []
        for name, saved in self.saved[host.id].cells.items():
            cell = host.state.cells[name]
            segments: Sequence[Sequence[Chunk]] = saved.segments
            if cell.shape != "keyed" and len(segments) > 1:
                segments = ([chunk for segment in segments for chunk in segment],)
            refs: list[tuple[ChunkRef, ...]] = []
            for segment in segments:
                refs.append((yield from self._many_refs(segment)))
                if len(refs) % SEGMENTS_PER_STEP == 0:
                    yield
            fields.append(
                FieldRef(
                    name=name,
                    shape=cell.shape,
                    serializer=cell.serializer,
                    segments=tuple(refs),
                    removed=self._refs(saved.removed),
                )
            )
        return AgentSnapshot(
            id=host.id,
            state_version=host.agent.state_version,
            fields=tuple(fields),
            mailbox=self._refs(mailbox),
            mailbox_count=len(agent.mailbox),
            running=agent.running,
            timers=self._refs(timers),
            timers_count=len(agent.timers),
            dead=agent.dead,
            outputs=self._refs(outputs),
            outputs_count=len(agent.outputs),
            journal=self._refs(journal),
            journal_count=len(agent.journal),
            questions=self._refs(questions),
            questions_count=len(agent.questions),
            was=host.lineage if host.lineage != host.id else "",
            # Between two restores, which drop all cuts, it does not change.
            ledgers=tuple(sorted(host.unheard)) if host.unheard else (),
        )

    def _many_refs(self, chunks: Sequence[Chunk]) -> Generator[None, None, tuple[ChunkRef, ...]]:
        if len(chunks) <= REFS_PER_STEP:
            return self._refs(chunks)
        refs: list[ChunkRef] = []
        for start in range(0, len(chunks), REFS_PER_STEP):
            refs += self._refs(chunks[start : start + REFS_PER_STEP])
            yield
        return tuple(refs)

    def _refs(self, chunks: Iterable[Chunk]) -> tuple[ChunkRef, ...]:
        refs = tuple(chunk.ref() for chunk in chunks)
        self.state_bytes += sum(ref.bytes for ref in refs)
        return refs


def _array(parts: Iterable[bytes], writer: ChunkWriter, count: int) -> Generator[None, None, tuple[Chunk, ...]]:
    """Chunks that joined are one msgpack array of encoded parts; none for no parts."""
    if not count:
        return ()
    return (yield from _joined_parts(container_header(count, is_map=False), parts, writer))


def _items(items: Iterable[bytes], writer: ChunkWriter) -> Generator[None, None, tuple[Chunk, ...]]:
    return (yield from _joined_parts(b"", items, writer))


def _joined_parts(
    header: bytes, parts: Iterable[bytes], writer: ChunkWriter
) -> Generator[None, None, tuple[Chunk, ...]]:
    chunks: list[Chunk] = []
    waiting = [header]
    size = len(header)
    piece_bytes = writer.limits.piece_bytes
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= piece_bytes:
            chunks.append(writer.put(b"".join(waiting), {}))
            waiting, size = [], 0
            yield
        elif len(waiting) % PARTS_PER_STEP == 0:
            yield
    if size:
        chunks.append(writer.put(b"".join(waiting), {}))
        yield
    return tuple(chunks)
