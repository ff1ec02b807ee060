"""A coordinator in memory: starts epochs, collects reports, checks the cut, writes the manifest. For tests only.

It says and understands the same messages as the real ones and checks with the same `protocol.cut`; what it does not have is
a ledger: it forgets everything with its process, and nobody takes over from it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec

from protocol.ancestry import Ancestry, Named
from protocol.cut import check_cut
from protocol.digests import digest, manifest_key, snapshot_key
from protocol.documents import channel_table, decode_local_snapshot, packs_of, sign_manifest
from protocol.errors import InconsistentCut, LocalProtocolError, Refused, SnapshotError
from protocol.ids import ParticipantId, TopologyVersion
from protocol.limits import EPOCH_DEADLINE_NS, LEASE_NS, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.manifest import Manifest, ManifestMember
from protocol.messages import (
    AbortEpoch,
    EpochCommitted,
    EpochFailed,
    EpochProgress,
    EpochRequested,
    EpochSealed,
    Fenced,
    Heartbeat,
    Leave,
    Left,
    LocalReport,
    Member,
    Register,
    Registered,
    RegisterRefused,
    Restore,
    Restored,
    RestoreFailed,
    StartEpoch,
    StreamBroken,
    TopologyAccepted,
    TopologyChanged,
    decode_to_coordinator,
    decode_to_participant,
    encode_control,
)
from protocol.stays import Stays, elsewhere, note_stays
from protocol.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from participant.runtime.control import ControlSink
    from protocol.ids import ClusterName
    from protocol.keys import ClusterKeys
    from protocol.manifest import LocalSnapshot
    from protocol.messages import FromParticipant, ToCoordinator, ToParticipant
    from protocol.ports import ObjectStore
    from protocol.streams import StreamEnd


class Line(Protocol):
    """One participant's connection, as the conductor sees it."""

    def say(self, message: ToParticipant) -> None:
        """Send it; lost if the connection is."""
        ...


class _Seat:
    """One registered participant."""

    def __init__(self, register: Register, session: int, line: Line | None) -> None:
        self.register = register
        self.session = session
        self.line = line
        self.accepted = 0
        self.leaving = False
        self.agents = register.agents
        """Placed on it."""
        self.stream_line = 0
        self.streams: tuple[StreamEnd, ...] = ()
        """As in `Member`."""


class _Open:
    """One open epoch."""

    def __init__(self, topology: Topology, reason: str, outcome: asyncio.Future[Manifest]) -> None:
        self.topology = topology
        self.reason = reason
        self.outcome = outcome
        self.reports: dict[str, LocalReport] = {}


class _Rollback:
    """A rollback that runs."""

    def __init__(self, order: Restore, outcome: asyncio.Future[dict[str, str]]) -> None:
        self.order = order
        self.outcome = outcome
        self.restored: dict[str, str] = {}


class Conductor:
    """All participants, one topology, epochs one after another or overlapping.

    Attributes:
        manifests: Of committed epochs, by number.
        aborted: Reasons, by number.
        progress: All that participants said about phases, for tests.
        requested: Reasons for which agents asked for an epoch.
    """

    def __init__(
        self,
        *,
        cluster: ClusterName,
        store: ObjectStore,
        keys: ClusterKeys,
        deadline_ns: int = EPOCH_DEADLINE_NS,
        lease_ns: int = LEASE_NS,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._keys = keys
        self._deadline_ns = deadline_ns
        self._lease_ns = lease_ns
        self._seats: dict[str, _Seat] = {}
        self._sessions = 0
        self._epochs = 0
        self._open: dict[int, _Open] = {}
        self._stale = False
        self._lost: dict[str, _Seat] = {}
        """Until a rollback nothing else changes; or until all of them go on from their logs."""
        self._rollback: _Rollback | None = None
        self._previous = ""
        self._changed = asyncio.Event()
        self.term = 1
        self.incarnation = 1
        self._ancestries = {1: Ancestry(incarnation=1)}
        self._named: list[Named] = []
        self._stays: Stays = {}
        self._ever_lost: set[str] = set()
        self.topology = Topology(TopologyVersion(0), ())
        self.manifests: dict[int, Manifest] = {}
        self.aborted: dict[int, str] = {}
        self.reports: dict[int, dict[str, LocalReport]] = {}
        self.progress: deque[EpochProgress] = deque(maxlen=10_000)
        self.requested: list[str] = []
        self.broken: list[StreamBroken] = []

    # --- for tests ----------------------------------------------------------------------------------------------------

    async def wait_members(self, *names: str) -> None:
        """Until exactly these are members and all of them have accepted the topology."""
        await self._wait(lambda: set(self.topology.participants()) == set(names) and self._settled())

    async def wait_registered(self, *names: str) -> None:
        """Until exactly these have a session."""
        await self._wait(lambda: set(self._seats) == set(names))

    async def epoch(self, reason: str = "manual") -> int:
        """Take an epoch and wait until it has ended.

        Returns:
            Its number, committed.

        Raises:
            Refused: It was aborted; the sentence says why.
        """
        await self._wait(self._settled)
        number = self.start_epoch(reason)
        await self.wait_epoch(number)
        return number

    def start_epoch(self, reason: str = "manual") -> int:
        """Start an epoch in the current topology; at once, for tests that look at what happens in between."""
        if not self._settled() or not self.topology.members:
            raise LocalProtocolError("an epoch before every member has accepted the topology")
        self._epochs += 1
        number = self._epochs
        self._open[number] = _Open(self.topology, reason, asyncio.get_running_loop().create_future())
        for member in self.topology.members:
            self._say(
                member.id,
                StartEpoch(
                    term=self.term,
                    session=member.session,
                    incarnation=self.incarnation,
                    epoch=number,
                    topology=self.topology.version,
                    deadline_ns=self._deadline_ns,
                ),
            )
        return number

    async def wait_epoch(self, number: int) -> Manifest:
        """Until this epoch has ended.

        Raises:
            Refused: It was aborted.
        """
        if number in self._open:
            return await asyncio.shield(self._open[number].outcome)
        if number in self.manifests:
            return self.manifests[number]
        raise Refused("epoch-aborted", f"epoch {number} was aborted: {self.aborted.get(number, 'never started')}")

    def abort(self, number: int, reason: str) -> None:
        """End an epoch without a manifest."""
        state = self._open.pop(number, None)
        if state is None:
            return
        self.aborted[number] = reason
        for member in state.topology.members:
            self._say(
                member.id,
                AbortEpoch(
                    term=self.term, session=member.session, epoch=number, reason=reason, ended_through=self._mark()
                ),
            )
        state.outcome.set_exception(Refused("epoch-aborted", f"epoch {number} was aborted: {reason}"))
        # Read or not: nobody is obliged to wait for an epoch.
        state.outcome.exception()
        self._settle()

    def fence(self, participant: str, reason: str) -> None:
        """End a participant's session, as an expired lease does."""
        seat = self._seats.pop(participant)
        self._ever_lost.add(participant)
        if seat.line is not None:
            seat.line.say(Fenced(term=self.term, session=seat.session, reason=reason))
        for number in list(self._open):
            self.abort(number, f"{participant} was lost: {reason}")
        self._stale = True
        self._settle()

    def begin_rollback(
        self,
        epoch: int,
        *,
        placement: Mapping[str, tuple[str, ...]] | None = None,
        elapsed_ns: int = 0,
        renames: tuple[tuple[str, str], ...] = (),
    ) -> asyncio.Future[dict[str, str]]:
        """Take everybody who is registered back to an epoch, in the next incarnation.

        Args:
            epoch: Committed; 0: the start.
            placement: Participant -> its agents, where that is not what it registered.
            elapsed_ns: Since the epoch; timers that were due meanwhile are overdue.
            renames: (agent of the epoch, its name from now on); `placement` has the new names.

        Returns:
            Participant -> digest over what it took, once all run again. Fails with `Refused` if one cannot take its part.
        """
        for number in list(self._open):
            self.abort(number, "a rollback began")
        hosts = self._hosts()
        self.incarnation += 1
        self._lost, self._stale = {}, False
        for name, seat in self._seats.items():
            seat.accepted = 0
            seat.stream_line, seat.streams = 0, ()
            seat.agents = (placement or {}).get(name, seat.agents)
        self._make_topology()
        note_stays(self._stays, hosts, self._hosts(), renames, self.incarnation - 1)
        manifest = self.manifests.get(epoch)
        through: tuple[tuple[int, int], ...] = ()
        if manifest is not None:
            through = ((manifest.incarnation, epoch), *self._ancestries[manifest.incarnation].through)
        self._named.append(Named(self.incarnation, 0 if manifest is None else manifest.incarnation, renames))
        named = tuple(self._named) if any(each.renames for each in self._named) else ()
        self._ancestries[self.incarnation] = Ancestry(incarnation=self.incarnation, through=through, named=named)
        order = Restore(
            term=self.term,
            session=0,
            incarnation=self.incarnation,
            epoch=epoch,
            manifest="" if manifest is None else digest(sign_manifest(manifest, self._keys)),
            newest_epoch=self._epochs,
            elapsed_ns=elapsed_ns,
            version=self.topology.version,
            members=self.topology.members,
            renames=renames,
            ancestry=self._ancestries[self.incarnation],
        )
        outcome: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._rollback = _Rollback(order, outcome)
        for seat in list(self._seats.values()):
            self.order_restore(seat.register.participant)
        return outcome

    def _hosts(self) -> dict[str, str]:
        return {agent: member.id for member in self.topology.members for agent in member.agents}

    def order_restore(self, participant: str) -> None:
        """Say the order of the rollback that runs, perhaps again."""
        if self._rollback is not None:
            seat = self._seats[participant]
            order = self._rollback.order
            since = self.manifests[order.epoch].incarnation if order.epoch else 0
            away = elsewhere(self._stays, seat.agents, participant, since)
            returns = participant in self._ever_lost
            told = msgspec.structs.replace(order, session=seat.session, elsewhere=away, returns=returns)
            self._say(participant, told)

    def _restored(self, seat: _Seat, message: Restored | RestoreFailed) -> None:
        rollback = self._rollback
        if rollback is None or message.incarnation != self.incarnation:
            return
        name = seat.register.participant
        if isinstance(message, RestoreFailed):
            self._rollback = None
            rollback.outcome.set_exception(Refused(f"restore-{message.kind}", f"{name}: {message.cause}"))
            rollback.outcome.exception()
            return
        rollback.restored[name] = message.state
        if len(rollback.restored) == len(self.topology.members):
            self._rollback = None
            for each in list(self._seats.values()):
                self._send_topology(each)
            rollback.outcome.set_result(rollback.restored)

    def lose(self, participant: str) -> None:
        """A participant's process has died. The others keep their topology: a rollback comes next."""
        self._lost[participant] = self._seats.pop(participant)
        self._ever_lost.add(participant)
        for number in list(self._open):
            self.abort(number, f"{participant} was lost")

    @property
    def lost(self) -> tuple[str, ...]:
        """Whose sessions have ended, and nobody of theirs has gone on from a log; sorted."""
        return tuple(sorted(self._lost))

    # --- from participants --------------------------------------------------------------------------------------------

    def received(self, line: Line, message: ToCoordinator) -> None:
        """One message of one connection."""
        match message:
            case Register():
                self._register(line, message)
            case TopologyAccepted():
                seat = self._seat_of(message.session)
                if seat is not None:
                    seat.accepted = max(seat.accepted, message.version)
            case LocalReport():
                self._report(message)
            case EpochFailed():
                seat = self._seat_of(message.session)
                if seat is not None:
                    self.abort(message.epoch, f"{seat.register.participant}: {message.phase}: {message.cause}")
            case Leave():
                seat = self._seat_of(message.session)
                if seat is not None and not seat.leaving:
                    seat.leaving = True
                    self._stale = True
            case EpochProgress():
                self.progress.append(message)
            case EpochRequested():
                self.requested.append(message.reason)
            case Restored() | RestoreFailed():
                seat = self._seat_of(message.session)
                if seat is not None:
                    self._restored(seat, message)
            case StreamBroken():
                self.broken.append(message)
            case Heartbeat():
                pass
        self._settle()

    def disconnected(self, line: Line) -> None:
        """A connection is gone; the session is not."""
        for seat in self._seats.values():
            if seat.line is line:
                seat.line = None

    def _register(self, line: Line, message: Register) -> None:
        if message.cluster != self._cluster:
            line.say(RegisterRefused(code="wrong-cluster", sentence=f"this is cluster {self._cluster}"))
            return
        seat = self._seats.get(message.participant)
        if seat is not None and seat.register.boot_id != message.boot_id:
            line.say(
                RegisterRefused(code="id-taken", sentence=f"{message.participant} is registered by another process")
            )
            return
        if seat is None and message.session:
            line.say(RegisterRefused(code="fenced", sentence=f"session {message.session} has ended"))
            return
        if seat is None:
            self._sessions += 1
            seat = self._seats[message.participant] = _Seat(message, self._sessions, line)
            self._stale = True
            lost, resumes = self._lost.get(message.participant), message.resumes
            if (
                lost is not None
                and resumes is not None
                and (resumes.session, resumes.line) == (lost.session, lost.stream_line or lost.session)
                and resumes.incarnation == self.incarnation
                and {*(message.agents if resumes.agents is None else resumes.agents)} == {*lost.agents}
            ):
                seat.agents = lost.agents
                seat.stream_line, seat.streams = resumes.line, resumes.streams
                del self._lost[message.participant]
        seat.line = line
        line.say(
            Registered(
                term=self.term,
                session=seat.session,
                incarnation=self.incarnation,
                lease_ns=self._lease_ns,
                newest_epoch=self._epochs,
                aborted_through=self._mark(),
                durability=message.durability,
                line=seat.stream_line,
                ancestry=self._ancestries[self.incarnation],
            )
        )
        member = self.topology.member(ParticipantId(message.participant))
        if member is not None and member.session == seat.session and self._rollback is not None:
            self.order_restore(message.participant)
        elif member is not None and member.session == seat.session:
            self._send_topology(seat)
            for number, state in self._open.items():
                self._say(
                    message.participant,
                    StartEpoch(
                        term=self.term,
                        session=seat.session,
                        incarnation=self.incarnation,
                        epoch=number,
                        topology=state.topology.version,
                        deadline_ns=self._deadline_ns,
                    ),
                )

    def _report(self, message: LocalReport) -> None:
        seat = self._seat_of(message.session)
        state = self._open.get(message.epoch)
        if seat is None or state is None or message.incarnation != self.incarnation:
            return
        state.reports[seat.register.participant] = message
        if len(state.reports) == len(state.topology.members):
            try:
                manifest = self._assemble(message.epoch, state)
            except SnapshotError as error:
                self.abort(message.epoch, str(error))
            else:
                self._commit(message.epoch, state, manifest)

    def _assemble(self, number: int, state: _Open) -> Manifest:
        snapshots: dict[ParticipantId, LocalSnapshot] = {}
        for name in sorted(state.reports):
            key = snapshot_key(state.reports[name].snapshot)
            data = self._store.get(key, size_max=SNAPSHOT_OBJECT_BYTES_MAX)
            snapshot = decode_local_snapshot(data, expected=state.reports[name].snapshot, name=key)
            snapshots[ParticipantId(name)] = snapshot
        violation = check_cut(state.topology, snapshots)
        if violation is not None:
            raise InconsistentCut(str(violation))
        return Manifest(
            cluster=self._cluster,
            epoch=number,
            incarnation=self.incarnation,
            topology=state.topology.version,
            started_at=0,
            policy=state.reason,
            previous=self._previous,
            members=tuple(
                ManifestMember(
                    participant=name,
                    session=snapshot.session,
                    snapshot=state.reports[name].snapshot,
                    agents=tuple(agent.id for agent in snapshot.agents),
                )
                for name, snapshot in sorted(snapshots.items())
            ),
            channels=channel_table({str(name): snapshot for name, snapshot in snapshots.items()}),
            packs=packs_of(snapshots.values()),
            merkle_root="",
        )

    def _commit(self, number: int, state: _Open, manifest: Manifest) -> None:
        for member in state.topology.members:
            self._say(member.id, EpochSealed(term=self.term, session=member.session, epoch=number))
        data = sign_manifest(manifest, self._keys)
        self._store.put(manifest_key(number), data)
        del self._open[number]
        self._previous = digest(data)
        self.manifests[number] = manifest
        self.reports[number] = state.reports
        for member in state.topology.members:
            self._say(
                member.id,
                EpochCommitted(
                    term=self.term,
                    session=member.session,
                    epoch=number,
                    manifest=self._previous,
                    ended_through=self._mark(),
                ),
            )
        state.outcome.set_result(manifest)

    # --- topology -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Between epochs, joins and leaves take effect."""
        if self._stale and not self._open and self._rollback is None and not self._lost:
            self._stale = False
            for name, seat in list(self._seats.items()):
                if seat.leaving:
                    if seat.line is not None:
                        seat.line.say(Left(term=self.term, session=seat.session))
                    del self._seats[name]
            self._make_topology()
            for seat in list(self._seats.values()):
                self._send_topology(seat)
        self._changed.set()

    def _make_topology(self) -> None:
        members = tuple(
            Member(
                id=name,
                session=seat.session,
                address=seat.register.address,
                agents=seat.agents,
                targets=seat.register.targets,
                line=seat.stream_line,
                streams=seat.streams,
            )
            for name, seat in sorted(self._seats.items())
        )
        self.topology = Topology(TopologyVersion(self.topology.version + 1), members)

    def _send_topology(self, seat: _Seat) -> None:
        self._say(
            seat.register.participant,
            TopologyChanged(
                term=self.term,
                session=seat.session,
                incarnation=self.incarnation,
                version=self.topology.version,
                members=self.topology.members,
            ),
        )

    def _settled(self) -> bool:
        return not self._stale and all(seat.accepted == self.topology.version for seat in self._seats.values())

    def _mark(self) -> int:
        """Every epoch up to this number has ended."""
        return min(self._open, default=self._epochs + 1) - 1

    def _seat_of(self, session: int) -> _Seat | None:
        return next((seat for seat in self._seats.values() if seat.session == session), None)

    def _say(self, participant: str, message: ToParticipant) -> None:
        seat = self._seats.get(participant)
        if seat is not None and seat.line is not None:
            seat.line.say(message)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class LocalControl:
    """A participant's `Control` in the conductor's own process; messages still cross as bytes."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._sink: ControlSink | None = None
        self._connected = False

    async def start(self, sink: ControlSink) -> None:
        """Register in a coming turn of the loop."""
        self._sink = sink
        self.reconnect()

    def reconnect(self) -> None:
        """Come (back) with a registration."""
        if self._sink is not None:
            self._connected = True
            self._pass_on(self._sink.register_message())

    def disconnect(self) -> None:
        """Lose the connection; what is on its way is lost, too."""
        self._connected = False
        self._conductor.disconnected(self)
        if self._sink is not None:
            self._sink.control_disconnected("cut by the test")

    def send(self, message: FromParticipant) -> bool:
        """To the conductor."""
        if not self._connected:
            return False
        self._pass_on(message)
        return True

    def say(self, message: ToParticipant) -> None:
        """From the conductor."""
        asyncio.get_running_loop().call_soon(self._arrive, encode_control(message))

    async def close(self) -> None:
        """End."""
        self._connected = False
        self._sink = None
        self._conductor.disconnected(self)

    def _pass_on(self, message: FromParticipant) -> None:
        asyncio.get_running_loop().call_soon(self._received, encode_control(message))

    def _received(self, data: bytes) -> None:
        if self._connected:
            self._conductor.received(self, decode_to_coordinator(data))

    def _arrive(self, data: bytes) -> None:
        if self._sink is None or not self._connected:
            return
        message = decode_to_participant(data)
        if isinstance(message, RegisterRefused):
            self._sink.control_ended(Refused(message.code, message.sentence))
            return
        self._sink.control_received(message)
