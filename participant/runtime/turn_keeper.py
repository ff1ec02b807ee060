"""`durability="turn"` of one participant: what is logged when, what waits for it, and the way back after a crash.

The machine holds frames and acknowledgements at its gates (`participant.peers`); here the log is fed, and says when they may
leave. The order of things in one turn of the loop: turns run; `tick` numbers what they sent, has the records of all of it
written as one batch, and tells the machine by which number they are covered; when that is durable, frames, acknowledgements and
outputs leave.

The way back (`recover`), before the participant registers: the folder is taken over, so that a frozen twin acknowledges nothing
any more; the agents are brought to the log's base (`participant.runtime.turn_base`); the log is replayed. Then the coordinators
are told where it ends, and the ledger decides whether the session goes on. If anything of it is damaged, the participant
registers without it, and everybody goes back to an epoch.

A part of an epoch is reported only when the log holds all that its cut holds, and all that was recorded on channels: a sender
forgets what an epoch has that was committed.
"""

from __future__ import annotations

import asyncio
import logging
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from participant.failure import Stopped
from participant.host import decode_envelope
from participant.logs.segment import CorruptLog
from participant.peers import ResumedStreams
from participant.runtime.log_files import Life
from participant.runtime.turn_base import BASE_NAME, TurnBase, read_base, write_base
from participant.runtime.turn_logger import LOG_NAME, TurnLogger
from protocol.errors import FencedError, ObjectCorrupt, ObjectMissing, RecoveryError, StoreError
from protocol.failpoints import fp
from protocol.ids import AgentId
from protocol.items import encode_message_item
from protocol.limits import LOG_SEGMENT_BYTES, MIB
from protocol.outputs import Output

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from participant.failure import DeadLettered
    from participant.host import AgentHost
    from participant.inputs import TokenPair
    from participant.machine import ParticipantMachine
    from participant.machine_events import Delivery, LogReceived, LogSent
    from participant.runtime.loader import Loaded, Loader
    from participant.runtime.log_files import LocalFolder
    from participant.runtime.outlet import Outlet
    from participant.runtime.tasks import TaskSet
    from participant.serializers import PickleAllowed
    from participant.turnlog.replay import Replayed
    from participant.turnlog.writer import Committed
    from protocol.errors import SnapshotError
    from protocol.ids import ParticipantId
    from protocol.messages import Restore

log = logging.getLogger("cleancut.participant.turns")

WANTS_EPOCH_BYTES: Final = 256 * MIB
"""A log longer than this asks for an epoch, which shortens it."""
SEGMENT_BYTES: Final = LOG_SEGMENT_BYTES
"""Of which whole ones are deleted."""


class Recovered(NamedTuple):
    """A log that was replayed."""

    base: TurnBase
    streams: dict[str, ResumedStreams]
    unrouted: tuple[Delivery, ...]
    turns: int
    input_position: int
    """Of the input log: all up to it has entered."""
    input_tokens: Sequence[TokenPair]
    """That the agents have had."""


class _Cut(NamedTuple):
    position: int
    at: int
    lines: dict[str, int]
    snapshot: str


class KeeperSink(Protocol):
    """Where outcomes go; called on the loop, must not block."""

    def turns_durable(self, number: int) -> None:
        """The log is durable up to this number."""
        ...

    def turns_failed(self, error: SnapshotError) -> None:
        """The log is poisoned, or somebody else's: the participant must end."""
        ...

    def epoch_wanted(self, reason: str) -> None:
        """The log is long."""
        ...


class TurnKeeper:
    """The log of turns of one participant, and its base."""

    def __init__(
        self,
        folder: LocalFolder,
        *,
        cluster: str,
        participant: str,
        sink: KeeperSink,
        tasks: TaskSet,
        ledger: str = "",
    ) -> None:
        self._ledgers = (ledger,) if ledger else ()
        """The effect ledger at hand, by its name."""
        self._wants_epoch_bytes = WANTS_EPOCH_BYTES
        self._folder = folder
        self._cluster = cluster
        self._participant = participant
        self._sink = sink
        self._tasks = tasks
        self._logger = self._open()
        self._base: TurnBase | None = None
        self._life: Life | None = None
        self._writing = asyncio.Lock()
        self.disturbed = False
        """Agents were loaded, and do not count."""
        self._beginning: asyncio.Task[None] | None = None
        """Puts down where the log begins; nothing else is written before."""
        self._active = False
        """Turns are logged; else what happens does not count."""
        self._lines: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._cuts: dict[int, _Cut] = {}
        self._outputs: list[tuple[int, int]] = []
        """Number of the log, newest output that it covers."""
        self._asked = -1
        """Position of the base behind which the log has asked for an epoch."""
        self._newest = 0
        """Output that was noted last."""

    def _open(self) -> TurnLogger:
        return TurnLogger(
            self._folder.files(LOG_NAME),
            cluster=self._cluster,
            participant=self._participant,
            owner=self._folder,
            on_durable=self._durable,
            on_failure=self._failed,
            segment_bytes=SEGMENT_BYTES,
        )

    # --- the way back -------------------------------------------------------------------------------------------------

    async def recover(
        self,
        host_of: Callable[[str], AgentHost],
        *,
        loader: Loader,
        load: Callable[[Restore], Awaitable[Loaded]],
        start_fresh: Callable[[AgentHost, int], None],
        covers: Callable[[str], bool] = lambda _: True,
        allowed: PickleAllowed | None,
        now: Callable[[], int],
    ) -> Recovered | None:
        """Bring the agents to where the log ends; None: there is none that is any good, and they may be anyhow.

        Which they are the log says: others were given to this participant, or taken from it.

        Raises:
            StoreError: Store or disk do not work, or it is another participant's.
            FencedError: A later life has the folder.
        """
        try:
            base = await asyncio.to_thread(read_base, self._folder)
            if base is None:
                await asyncio.to_thread(self._logger.read)
                return None
            self._check(base)
            hosts = {agent: host_of(agent) for agent in base.agents}
            life = await asyncio.to_thread(self._take_over, base)
            self.disturbed = True
            recovered = await self._replay(base, hosts, loader, load, start_fresh, allowed, now)
            for host in hosts.values():
                host.has_done(name for name in base.ledgers if not covers(name))
            # What others are told from here on is what was read: a twin that still writes must not add to it.
            await asyncio.to_thread(self._logger.claim, life, list(hosts.values()))
        except (CorruptLog, ObjectCorrupt, ObjectMissing, RecoveryError) as error:
            log.error(  # noqa: TRY400 - its sentence says it all
                "%s: everybody goes back to an epoch, since the log of turns is of no use: %s", self._participant, error
            )
            await asyncio.to_thread(self._put_aside)
            return None
        else:
            return recovered

    def _take_over(self, base: TurnBase) -> Life:
        """From here on no twin acknowledges anything: what it wrote is read, or does not count. Blocks."""
        # A later life may have died before it put its own base there: it has written nothing.
        life = Life(base.incarnation, base.session)
        life = max(life, self._folder.highest() or life)
        self._folder.take_over(life)
        return life

    def _check(self, base: TurnBase) -> None:
        if (base.cluster, base.participant) != (self._cluster, self._participant):
            raise RecoveryError(f"{self._folder.path} is of {base.participant} in cluster {base.cluster}")

    async def _replay(
        self,
        base: TurnBase,
        hosts: Mapping[str, AgentHost],
        loader: Loader,
        load: Callable[[Restore], Awaitable[Loaded]],
        start_fresh: Callable[[AgentHost, int], None],
        allowed: PickleAllowed | None,
        now: Callable[[], int],
    ) -> Recovered:
        elapsed_ns = max(0, time_ns() - base.at)
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        unrouted: Iterable[Delivery] = ()
        input_position, tokens = base.input_from, []
        if base.snapshot:
            own = await loader.load_own(base.snapshot, elapsed_ns=elapsed_ns)
            snapshot, unrouted, tokens = own.snapshot, own.unrouted, own.input_tokens
            sent = {channel.target: channel.sent for channel in snapshot.outgoing}
            received = {channel.source: channel.received for channel in snapshot.incoming}
            input_position = snapshot.input_position or 0
        elif base.order is not None:
            order = msgspec.structs.replace(base.order, elapsed_ns=base.order.elapsed_ns + elapsed_ns)
            loaded = await load(order)
            unrouted, tokens = loaded.unrouted, list(loaded.input_tokens)
        else:
            for host in hosts.values():
                host.descend(base.was.get(host.id, host.id))
                start_fresh(host, base.fresh_of.get(host.id, base.fresh))
        fp("turns.before_replay")
        replayed = await asyncio.to_thread(
            self._logger.recover,
            hosts,
            after=base.position,
            received=received,
            sent=sent,
            lines=base.lines,
            unrouted=[data for _, data in unrouted],
            allowed=allowed,
            now=now(),
        )
        for agent, (identity, sink, payload) in replayed.outputs:
            held = hosts[agent].outputs
            held[max(held, default=0) + 1] = Output(identity, AgentId(agent), sink, payload, base.epoch)
        self._base = base
        self._lines = dict(replayed.lines)
        log.info("%s: %d turns of the log applied, session %d", self._participant, replayed.turns, base.session)
        return Recovered(
            base=base,
            streams=_streams(replayed),
            unrouted=tuple((decode_envelope(data), data) for data in replayed.unrouted),
            turns=replayed.turns,
            input_position=max(input_position, replayed.input_position),
            input_tokens=[*tokens, *replayed.inputs],
        )

    def _put_aside(self) -> None:
        """A log that is of no use is kept for whoever wants to look at it. Blocks."""
        self._folder.set_aside(LOG_NAME, without=BASE_NAME)
        self._base = None
        self._lines = {}
        self._logger = self._open()

    @property
    def overtaken(self) -> bool:
        """Somebody else began a log here after this life had found none: a twin that was not dead, and may be now."""
        return self._base is None and self._folder.has(BASE_NAME)

    # --- beginnings ---------------------------------------------------------------------------------------------------

    def go_on(self, hosts: Iterable[AgentHost], *, incarnation: int, session: int) -> None:
        """As the next session of the line whose log was replayed."""
        assert self._base is not None, "replayed before"
        life = Life(incarnation, session)
        self._logger.hold()
        self._logger.begin(life, hosts)
        ledgers = tuple(dict.fromkeys((*self._base.ledgers, *self._ledgers)))
        self._begin(msgspec.structs.replace(self._base, session=session, ledgers=ledgers), life)

    def start_over(
        self,
        hosts: Iterable[AgentHost],
        *,
        incarnation: int,
        session: int,
        fresh: int = 0,
        fresh_of: Iterable[tuple[str, int]] = (),
        order: Restore | None = None,
    ) -> None:
        """With agents that begin, or come back from an epoch: what is in the log has not happened, or is over."""
        hosts = list(hosts)
        life = Life(incarnation, session)
        self._logger.hold()
        position = self._logger.start_over(life, hosts)
        # The base names the record with which the log begins: without that, the log is not the base's.
        self._lines = {}
        self._begin(
            TurnBase(
                cluster=self._cluster,
                participant=self._participant,
                incarnation=incarnation,
                session=session,
                line=session,
                position=position,
                at=time_ns(),
                agents=tuple(sorted(host.id for host in hosts)),
                fresh=fresh,
                fresh_of=dict(fresh_of),
                was={host.id: host.lineage for host in hosts if host.lineage != host.id},
                order=order,
                ledgers=self._ledgers,
            ),
            life,
        )

    def input_from(self, position: int) -> None:
        """Input behind this position of its log enters from here on; in the very step that began."""
        assert self._base is not None, "just decided on"
        self._base = msgspec.structs.replace(self._base, input_from=position)

    def _begin(self, base: TurnBase, life: Life) -> None:
        self._base = base
        self._life = life
        self._cuts.clear()
        self._outputs.clear()
        self._acknowledged.clear()
        self._active = True
        self._beginning = self._tasks.spawn(self._release(life), name="begin the log of turns")

    async def _release(self, life: Life) -> None:
        try:
            await asyncio.to_thread(self._folder.take_over, life)
            await self._logger.write_beginning()
            await self._write_base()
        except (StoreError, FencedError) as error:
            self._sink.turns_failed(error)
        else:
            if self._life == life:
                self._logger.release()

    def halt(self) -> None:
        """A rollback: what happens from here on, and was not written yet, does not count."""
        self._active = False
        self._cuts.clear()
        self._outputs.clear()

    async def wait_begun(self) -> None:
        """Until a life that has begun to log has put that down: as itself, while the folder is its own."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning})

    async def wait_idle(self) -> None:
        """Until nothing is being written."""
        await self.wait_begun()
        self._logger.release()
        await self._logger.wait_idle()

    # --- as things happen ---------------------------------------------------------------------------------------------

    def turns(self, turns: Sequence[Committed], machine: ParticipantMachine) -> None:
        """These committed, in this order; what they sent is about to be given to the machine."""
        at = time_ns()
        ways = machine.route(delivery for turn in turns for delivery in turn.result.sends)
        start = 0
        for envelope, attempt, result in turns:
            end = start + len(result.sends)
            self._logger.writer.turn(
                envelope,
                changes=list(result.changes),
                sends=ways[start:end],
                timers=result.timers,
                outputs=result.outputs,
                steps=result.steps,
                attempt=attempt,
                at=at,
            )
            start = end

    def ended(self, outcome: DeadLettered | Stopped) -> None:
        """A message was put aside, or an agent has stopped."""
        self._logger.writer.ended(
            outcome.message,
            stopped=isinstance(outcome, Stopped),
            reason=outcome.reason,
            attempts=outcome.attempts,
            at=time_ns(),
        )

    def received(self, effect: LogReceived) -> None:
        """Messages came over a channel."""
        received, source = self._logger.writer.received, effect.source
        for number, (envelope, data) in zip(effect.numbers, effect.deliveries, strict=True):
            received(source, number, envelope, data)

    def sent(self, effect: LogSent) -> None:
        """Something that no turn sent is on a channel."""
        if effect.message:
            self._logger.writer.passed_on(effect.message)
        self._logger.writer.sent(effect.target, effect.number, effect.item)

    def taken(self, position: int, data: bytes) -> None:
        """A message came from outside; position 0: it is in no log."""
        self._logger.writer.taken(position, data)

    def delivered(self, outputs: Sequence[bytes]) -> None:
        """Sinks have these for good; what is not written of it is delivered again, and known to the sink."""
        self._logger.writer.delivered(outputs)

    def streams(self, lines: Mapping[ParticipantId, int]) -> None:
        """Channels lead to these peers from here on."""
        for peer, line in sorted(lines.items()):
            if self._lines.get(peer) != line:
                self._lines[peer] = line
                self._acknowledged.pop(peer, None)
                self._logger.writer.stream(peer, line)
        # Who has left comes back as another line, if at all.
        self._lines = {peer: line for peer, line in self._lines.items() if peer in lines}

    def tick(self, machine: ParticipantMachine, outlet: Outlet) -> None:
        """A turn of the loop is over: have all of it written, and say what waits for that."""
        if not self._active:
            return
        writer = self._logger.writer
        for peer, received, acknowledged in machine.positions():
            writer.position(peer, received)
            # By itself it is not worth a write: what is acknowledged twice is dropped.
            if writer.waiting and self._acknowledged.get(peer, 0) < acknowledged:
                self._acknowledged[peer] = acknowledged
                writer.acknowledged(peer, acknowledged)
        number = self._flush()
        machine.logging(number)
        if self._newest < outlet.newest:
            self._newest = outlet.newest
            self._outputs.append((number, self._newest))
        base = self._base
        if base is not None and base.position != self._asked and self._logger.log.size > self._wants_epoch_bytes:
            self._asked = base.position
            self._sink.epoch_wanted(f"{self._participant}: the log of turns has {self._logger.log.size} bytes")
        if number <= self._logger.log.durable and (machine.gated or self._outputs):
            self._sink.turns_durable(number)

    def outputs_through(self, number: int) -> int:
        """Number of the newest output whose turn is durable, given that the log is up to this number; 0: none is new."""
        through = 0
        while self._outputs and self._outputs[0][0] <= number:
            through = self._outputs.pop(0)[1]
        return through

    def _flush(self) -> int:
        try:
            return self._logger.flush()
        except (StoreError, FencedError) as error:
            self._sink.turns_failed(error)
            return self._logger.position + 1

    def _durable(self, number: int) -> None:
        if self._active:
            self._sink.turns_durable(number)

    def _failed(self, error: StoreError | FencedError) -> None:
        self._sink.turns_failed(error)

    # --- epochs -------------------------------------------------------------------------------------------------------

    def cut(self, epoch: int) -> None:
        """The agents' state is being frozen: all that was logged so far is in it, and nothing of what follows."""
        if self._active:
            self._flush()
            self._cuts[epoch] = _Cut(self._logger.position, time_ns(), dict(self._lines), "")

    async def covered(self) -> None:
        """Until all that has happened so far is durable.

        Raises:
            StoreError: It never will be.
            FencedError: It never counts.
        """
        await self._logger.wait_durable(self._flush())

    def persisted(self, epoch: int, snapshot: str) -> None:
        """A part is in the store, under this digest."""
        cut = self._cuts.get(epoch)
        if cut is not None:
            self._cuts[epoch] = cut._replace(snapshot=snapshot)

    def dropped(self, epoch: int) -> None:
        """The epoch ended otherwise."""
        self._cuts.pop(epoch, None)

    def committed(self, epoch: int) -> None:
        """The epoch cannot be lost any more: the log is replayed from it, and what it covers is deleted."""
        cut = self._cuts.pop(epoch, None)
        base = self._base
        if cut is None or base is None or not self._active or not cut.snapshot or base.position > cut.position:
            return
        self._base = TurnBase(
            cluster=base.cluster,
            participant=base.participant,
            incarnation=base.incarnation,
            session=base.session,
            line=base.line,
            position=cut.position,
            at=cut.at,
            agents=base.agents,
            input_from=base.input_from,
            epoch=epoch,
            snapshot=cut.snapshot,
            lines=cut.lines,
        )
        self._tasks.spawn(self._keep(cut.position), name=f"log of turns behind epoch {epoch}")

    async def _keep(self, position: int) -> None:
        try:
            await self._write_base()
            fp("turns.base_written")
            await self._logger.keep(position)
        except StoreError as error:
            log.warning("%s: the log of turns is not shortened: %s", self._participant, error)
        except FencedError as error:
            self._sink.turns_failed(error)

    async def _write_base(self) -> None:
        async with self._writing:
            base = self._base
            assert base is not None, "a base was decided on"
            await asyncio.to_thread(self._folder.check)
            await asyncio.to_thread(write_base, self._folder, base)

    async def close(self) -> None:
        """Write what waits, and let go of the files."""
        self._active = False
        await self._logger.close()


def _streams(replayed: Replayed) -> dict[str, ResumedStreams]:
    found: dict[str, ResumedStreams] = {}
    for peer, line in sorted(replayed.lines.items()):
        sent = replayed.sent.get(peer, 0)
        items = []
        flying = replayed.unacknowledged.get(peer, [])
        for expected, (number, data, is_message) in enumerate(flying, sent - len(flying) + 1):
            if number != expected:
                raise RecoveryError(f"the log has item {number} to {peer} where {expected} was to come")
            items.append(encode_message_item(data) if is_message else data)
        found[peer] = ResumedStreams(line, sent, replayed.received.get(peer, 0), tuple(items))
    return found
