"""Drives the leader's machine: feeds it one event at a time and carries out what it orders.

Everything here runs on the service's loop. `feed` is synchronous: events that arise while one is being handled wait in a
queue, so the machine never sees an event inside another one, and its effects begin in the order in which it gave them.
Work that takes time (the log, the store) runs beside and comes back as an event.

An exception here, or in the machine, is a bug. It ends the process with a clear word: half a coordinator, which answers
but starts no epoch, is worse than none (another one takes over).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

from coordinator.assembler import assemble_from_store
from coordinator.events import (
    AbortRequested,
    Answer,
    AssembleCut,
    BecameLeader,
    CloseConnection,
    CommandAmbiguous,
    CommandApplied,
    CommandRefused,
    CutAssembled,
    CutRefused,
    Disconnected,
    EpochTriggered,
    EpochUnreadable,
    FenceFailed,
    FenceRaised,
    ForsakeManifest,
    LeaderKnown,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    ParticipantConnected,
    PinRequested,
    PolicyChanged,
    Probe,
    Probed,
    Propose,
    RaiseFence,
    ReadEpoch,
    RestoreRequested,
    Send,
    SetTimer,
    SnapshotsUnreadable,
    StoreManifest,
    TimerFired,
    UnpinRequested,
)
from coordinator.fences import read_epoch_from_store
from coordinator.ledger import encode_command
from coordinator.runtime.connections import CLOSE_ORDERED, ParticipantHub
from coordinator.runtime.probes import PROBES_MAX, probe
from protocol.digests import manifest_key
from protocol.errors import ConfigError, LimitExceeded, ObjectConflict, Refused, SnapshotError, Unreachable
from protocol.failpoints import fp, fp_store
from protocol.ids import Epoch, Instant
from protocol.limits import CONCURRENT_EPOCHS_MAX
from protocol.messages import Register
from protocol.storage.repair import put_manifest, take_manifest_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from coordinator.events import Effect, Event
    from coordinator.fences import Fence
    from coordinator.ledger import Command, CommandId, Result
    from coordinator.machine import Leader
    from coordinator.policy import PolicySettings
    from coordinator.runtime.probes import Found
    from coordinator.runtime.raft import RaftGroup
    from protocol.keys import ClusterKeys
    from protocol.messages import ToCoordinator
    from protocol.ports import ObjectStore

log = logging.getLogger("cleancut.driver")
T = TypeVar("T")

SUBMIT_SECONDS_MAX: Final = 5.0
"""One attempt to get a command into the log; what is unclear then is tried again by the machine, with the same id."""
BARRIER_SECONDS_MAX: Final = 5.0
STORE_SECONDS_MAX: Final = 60.0
"""One attempt at the store; a store that hangs longer counts as failed, and the machine decides what follows."""
STORE_THREADS: Final = 4
"""For the API's requests, whose number others decide."""
OWN_STORE_THREADS: Final = 2 * CONCURRENT_EPOCHS_MAX
"""For the machine's orders: an attempt that hangs keeps its thread, and must not keep the other epochs from theirs."""
EVENTS_IN_A_ROW_MAX: Final = 100_000
"""Events that one `feed` may bring forth: more is a loop."""
REQUEST_SECONDS_MAX: Final = 15.0
"""A request of the API, through the log and back."""
REQUESTS_MAX: Final = 256
"""Requests of the API that wait for the machine's answer."""


_BEFORE_PROPOSE: Final = {
    "start": "start.before_propose",
    "reports": "reports.before_propose",
    "seal": "seal.before_propose",
    "commit": "commit.before_propose",
    "abort": "abort.before_propose",
    "forsake": "forsake.before_propose",
    "rollback": "rollback.before_propose",
}
_APPLIED: Final = {
    "start": "start.applied",
    "reports": "reports.applied",
    "seal": "seal.applied",
    "commit": "commit.applied",
    "abort": "abort.applied",
    "forsake": "forsake.applied",
    "rollback": "rollback.applied",
    "restored": "restored.applied",
}
"""Failpoints around an entry of the log, by its command."""


class Clock:
    """Instants since this process's start, and the time of day."""

    def __init__(self) -> None:
        self._base = time.monotonic_ns()

    def now(self) -> Instant:
        """Monotonic, nanoseconds."""
        return Instant(time.monotonic_ns() - self._base)

    def wall(self) -> int:
        """Nanoseconds since 1970: for people, never for decisions."""
        return time.time_ns()


class Driver:
    """Runs one `Leader` machine.

    Args:
        leader: The machine.
        group: This coordinator's part of the replicated log.
        store: Object store of the cluster.
        keys: Sign manifests.
        clock: Instants.
        leader_url: Where the leader is, "" if unknown or if it is this coordinator.
        crashed: Called once, with the cause, when the process must end.
        fences: Stores and sinks by the names that the machine has for them.
        threads: Makes a pool of so many threads of a name, for blocking work on the store.
        probe: Whether anybody listens at an address.
    """

    def __init__(
        self,
        leader: Leader,
        group: RaftGroup,
        store: ObjectStore,
        keys: ClusterKeys,
        *,
        clock: Clock,
        leader_url: Callable[[], str],
        crashed: Callable[[BaseException], None],
        fences: Mapping[str, Fence],
        threads: Callable[[int, str], concurrent.futures.Executor] = concurrent.futures.ThreadPoolExecutor,
        probe: Callable[[str], Awaitable[Found]] = probe,
    ) -> None:
        self.leader = leader
        self.hub = ParticipantHub(self, clock=lambda: clock.now() / 1e9)
        self._group = group
        self._store = store
        self._keys = keys
        self._clock = clock
        self._leader_url = leader_url
        self._crashed = crashed
        self._fences = fences
        self._events: deque[Event] = deque()
        self._running = False
        self._dead = False
        self._leading_term: int | None = None
        """Of the leadership that the machine knows of."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._requests: dict[str, asyncio.Future[Result]] = {}
        self._request_number = 0
        self._threads = threads(STORE_THREADS, "store")
        self._own_threads = threads(OWN_STORE_THREADS, "store-own")
        self._probe_address = probe
        self._probes = asyncio.Semaphore(PROBES_MAX)
        self.store_threads_busy = 0
        self.counts: dict[str, int] = {"events": 0, "proposals": 0, "refused": 0, "ambiguous": 0, "store_failures": 0}

    # --- feeding ---

    def feed(self, event: Event) -> None:
        """Give the machine an event, now or right after the one that it is handling."""
        self._events.append(event)
        if self._running or self._dead:
            return
        self._running = True
        try:
            for _ in range(EVENTS_IN_A_ROW_MAX):
                if not self._events:
                    return
                self.counts["events"] += 1
                for effect in self.leader.step(self._events.popleft(), self._clock.now()):
                    self._carry_out(effect)
            self._crash(AssertionError("events bring forth events without end"))
        except Exception as error:  # noqa: BLE001 - a driver's edge: any bug here ends the process
            self._crash(error)
        finally:
            self._running = False

    def _crash(self, error: BaseException) -> None:
        if not self._dead:
            self._dead = True
            self._crashed(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash(error)

    # --- what happens outside ---

    def pass_applied(self, command_json: str) -> None:
        """Failpoints of a leader behind an entry; called only while points are armed."""
        if self.leader.leading:
            fp(_APPLIED.get(json.loads(command_json).get("kind"), ""))

    def command_applied(self, command: CommandId, result: Result) -> None:
        """This coordinator's ledger applied an entry."""
        self.feed(CommandApplied(id=command, result=result))

    def leadership_changed(self, leads: bool, term: int) -> None:  # noqa: FBT001 (the shape of the group's callback)
        """This coordinator leads from now on, caught up with all terms before; or it does not lead any more."""
        if self._leading_term is not None and (not leads or term != self._leading_term):
            log.info("leadership of term %d is over", self._leading_term)
            self._leading_term = None
            self.feed(LostLeadership(leader=self._leader_url()))
        if leads and self._leading_term is None:
            log.info("leads in term %d", term)
            self._leading_term = term
            self.feed(BecameLeader(term=term))
        elif not leads:
            self.leader_known()

    def leader_known(self) -> None:
        """Where the leader is may have changed."""
        if self._leading_term is None:
            self.feed(LeaderKnown(leader=self._leader_url()))

    def connection_opened(self, connection: int) -> None:
        """From the hub."""
        self.feed(ParticipantConnected(connection=connection))

    def message_arrived(self, connection: int, message: ToCoordinator) -> None:
        """From the hub."""
        if isinstance(message, Register):
            self.leader_known()  # A registration that comes to the wrong coordinator is told the newest address.
        self.feed(MessageArrived(connection=connection, message=message))

    def connection_lost(self, connection: int, reason: str) -> None:
        """From the hub."""
        self.feed(Disconnected(connection=connection, reason=reason))

    # --- effects ---

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Propose(command=command):
                self.counts["proposals"] += 1
                self._spawn(self._propose(command))
            case Send(connection=connection, message=message):
                self.hub.send(connection, message)
            case CloseConnection(connection=connection, reason=reason):
                self.hub.close(connection, CLOSE_ORDERED, reason)
            case Probe():
                self._spawn(self._probe(effect))
            case AssembleCut():
                self._spawn(self._assemble(effect))
            case StoreManifest():
                self._spawn(self._store_manifest(effect))
            case ForsakeManifest():
                self._spawn(self._forsake_manifest(effect))
            case RaiseFence():
                self._spawn(self._raise_fence(effect))
            case ReadEpoch():
                self._spawn(self._read_epoch(effect))
            case SetTimer(at=at):
                self._set_timer(at)
            case Answer(request=request, result=result):
                self._answer(request, result)
            case _:
                assert_never(effect)

    async def _propose(self, command: Command) -> None:
        fp(_BEFORE_PROPOSE.get(command.kind, ""))
        try:
            text = encode_command(command, at=self._clock.wall())
            await self._group.submit(text, timeout=SUBMIT_SECONDS_MAX)
        except (Refused, LimitExceeded) as error:
            self.counts["refused"] += 1
            self.feed(CommandRefused(id=command.id, reason=str(error)))
        except Unreachable as error:
            self.counts["ambiguous"] += 1
            self.feed(CommandAmbiguous(id=command.id, reason=str(error)))

    async def _probe(self, order: Probe) -> None:
        async with self._probes:
            found = await self._probe_address(order.address)
        self.feed(Probed(session=order.session, address=order.address, found=found))

    async def _assemble(self, order: AssembleCut) -> None:
        begun = self._clock.now()
        try:
            event = await self.in_thread(lambda: self._assemble_now(order), threads=self._own_threads)
        except TimeoutError:
            cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
            event = SnapshotsUnreadable(epoch=order.epoch, participant="", cause=cause)
        except Exception as error:
            # Whatever it is, it lies in what participants wrote: every leader would meet it again and end, one by one.
            log.exception("epoch %d: its objects cannot be checked", order.epoch)
            event = CutRefused(epoch=order.epoch, participant="", cause=f"the objects cannot be checked: {error!a}")
        if isinstance(event, CutAssembled):
            fp("cut.assembled")
            event = CutAssembled(
                epoch=event.epoch,
                previous=event.previous,
                manifest=event.manifest,
                digest=event.digest,
                took_ns=self._clock.now() - begun,
            )
        elif isinstance(event, SnapshotsUnreadable):
            self.counts["store_failures"] += 1
            log.warning("epoch %d: snapshots unreadable: %s", order.epoch, event.cause)
        else:
            log.warning("epoch %d: cut refused: %s", order.epoch, event.cause)
        self.feed(event)

    async def _store_manifest(self, order: StoreManifest) -> None:
        begun = self._clock.now()
        try:
            await self.in_thread(lambda: self._store_now(order), threads=self._own_threads)
        except ObjectConflict as error:
            self.counts["store_failures"] += 1
            log.warning("epoch %d: manifest refused: %s", order.epoch, error)
            self.feed(ManifestRefused(epoch=order.epoch, cause=str(error)))
            return
        except SnapshotError as error:
            cause = str(error)
        except TimeoutError:
            cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
        else:
            took = self._clock.now() - begun
            self.feed(ManifestStored(epoch=order.epoch, digest=order.digest, took_ns=took))
            return
        self.counts["store_failures"] += 1
        log.warning("epoch %d: manifest not stored: %s", order.epoch, cause)
        self.feed(ManifestFailed(epoch=order.epoch, cause=cause))

    async def _forsake_manifest(self, order: ForsakeManifest) -> None:
        begun = self._clock.now()
        try:
            taken = await self.in_thread(lambda: self._take_key_now(order), threads=self._own_threads)
        except SnapshotError as error:
            cause = str(error)
        except TimeoutError:
            cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
        else:
            if taken:
                log.warning("epoch %d: was sealed and gets no manifest any more: forsaken", order.epoch)
                self.feed(ManifestForsaken(epoch=order.epoch, digest=order.digest))
            else:
                took = self._clock.now() - begun
                self.feed(ManifestStored(epoch=order.epoch, digest=order.digest, took_ns=took))
            return
        self.counts["store_failures"] += 1
        log.warning("epoch %d: not forsaken: %s", order.epoch, cause)
        self.feed(ManifestFailed(epoch=order.epoch, cause=cause))

    async def _raise_fence(self, order: RaiseFence) -> None:
        fence = self._fences.get(order.fence)

        def raise_now() -> None:
            fp_store("fence.before_raise", order.fence)
            if fence is None:
                # Another leader, with other settings, began this incarnation.
                raise ConfigError(f"fences.{order.fence}", "is not in this coordinator's settings")
            fence.raise_to(order.incarnation, order.epoch)
            fp_store("fence.after_raise", order.fence)

        try:
            await self.in_thread(raise_now, threads=self._own_threads)
        except (SnapshotError, OSError) as error:
            cause = str(error)
        except TimeoutError:
            cause = f"no answer within {STORE_SECONDS_MAX:.0f} s"
        else:
            self.feed(FenceRaised(fence=order.fence, incarnation=order.incarnation))
            return
        self.counts["store_failures"] += 1
        log.warning("fence %s is not raised to incarnation %d: %s", order.fence, order.incarnation, cause)
        self.feed(FenceFailed(fence=order.fence, incarnation=order.incarnation, cause=cause))

    async def _read_epoch(self, order: ReadEpoch) -> None:
        try:
            event: Event = await self.in_thread(
                lambda: read_epoch_from_store(order.epoch, order.manifest, self._store), threads=self._own_threads
            )
        except TimeoutError:
            cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
            event = EpochUnreadable(epoch=order.epoch, final=False, cause=cause)
        if isinstance(event, EpochUnreadable):
            self.counts["store_failures"] += 1
            log.warning("epoch %d: manifest unreadable: %s", order.epoch, event.cause)
        self.feed(event)

    def _assemble_now(self, order: AssembleCut) -> CutAssembled | CutRefused | SnapshotsUnreadable:
        """In a thread."""
        fp("cut.before_assemble")
        return assemble_from_store(order.request, self._store, self._keys)

    def _store_now(self, order: StoreManifest) -> None:
        """In a thread."""
        key = manifest_key(Epoch(order.epoch))
        fp_store("manifest.before_put", key)
        put_manifest(self._store, key, order.manifest)
        fp_store("manifest.after_put", key)

    def _take_key_now(self, order: ForsakeManifest) -> bool:
        """In a thread. Whether it is taken."""
        key = manifest_key(Epoch(order.epoch))
        fp_store("tombstone.before_put", key)
        taken = take_manifest_key(
            self._store,
            order.epoch,
            cluster=order.request.cluster,
            sealed=order.digest,
            snapshots=dict(order.request.snapshots),
        )
        fp_store("tombstone.after_put", key)
        return taken

    async def in_thread(
        self,
        work: Callable[[], T],
        seconds: float | None = None,
        *,
        threads: concurrent.futures.Executor | None = None,
    ) -> T:
        """Blocking work on the store, on one of a few threads.

        Raises:
            TimeoutError: It takes longer than `seconds` (None: `STORE_SECONDS_MAX`). Its thread stays with it; what has
                no thread yet is dropped, or a store that hangs would gather work without end.
        """
        self.store_threads_busy += 1
        begun = (threads or self._threads).submit(work)
        future = asyncio.wrap_future(begun)
        future.add_done_callback(self._thread_free)
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX if seconds is None else seconds):
                return await asyncio.shield(future)
        finally:
            begun.cancel()  # Takes only what waits: work that runs goes on, work that is done stays done.

    def _thread_free(self, future: asyncio.Future[T]) -> None:
        self.store_threads_busy -= 1
        if not future.cancelled():
            future.exception()  # Whoever waited has it; a late one after a timeout has nobody.

    def _set_timer(self, at: Instant) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, at - self._clock.now()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.feed(TimerFired())

    # --- requests of the API ---

    async def ask(self, make: Callable[[str], Event], seconds: float) -> Result:
        """Feed a request and wait for its answer.

        Args:
            make: The event, given the request's id.
            seconds: After that long the answer is ``unknown-outcome``.
        """
        if len(self._requests) >= REQUESTS_MAX:
            return {"ok": False, "code": "busy", "sentence": f"{REQUESTS_MAX} requests wait already"}
        self._request_number += 1
        request = f"r{self._request_number}"
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._requests[request] = future
        self.feed(make(request))
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            sentence = f"no answer within {seconds:.0f} s; it may still happen"
            return {"ok": False, "code": "unknown-outcome", "sentence": sentence}
        finally:
            self._requests.pop(request, None)

    def _answer(self, request: str, result: Result) -> None:
        future = self._requests.get(request)
        if future is not None and not future.done():
            future.set_result(result)

    async def trigger_epoch(self, reason: str) -> Result:
        """Ask for an epoch; the result names its number."""
        return await self.ask(lambda request: EpochTriggered(request=request, reason=reason), REQUEST_SECONDS_MAX)

    async def abort_epoch(self, epoch: int, reason: str) -> Result:
        """End an epoch that is not sealed, or one that is and cannot be committed."""
        return await self.ask(
            lambda request: AbortRequested(request=request, epoch=epoch, reason=reason), REQUEST_SECONDS_MAX
        )

    async def restore(
        self,
        epoch: int | None,
        reason: str,
        moves: tuple[tuple[str, str], ...] = (),
        *,
        renames: tuple[tuple[str, str], ...] = (),
        allow_unclaimed: bool = False,
    ) -> Result:
        """Take the cluster back to an epoch; the result names the incarnation that began."""
        return await self.ask(
            lambda request: RestoreRequested(
                request=request,
                epoch=epoch,
                reason=reason,
                moves=moves,
                renames=renames,
                allow_unclaimed=allow_unclaimed,
            ),
            REQUEST_SECONDS_MAX,
        )

    async def pin_epoch(self, epoch: int, name: str) -> Result:
        """Name a committed epoch, so that it is kept."""
        return await self.ask(
            lambda request: PinRequested(request=request, epoch=epoch, name=name), REQUEST_SECONDS_MAX
        )

    async def unpin_epoch(self, name: str) -> Result:
        """Take a name back; the result says of which epoch."""
        return await self.ask(lambda request: UnpinRequested(request=request, name=name), REQUEST_SECONDS_MAX)

    async def change_policy(self, policy: PolicySettings) -> Result:
        """Another policy from now on."""
        return await self.ask(lambda request: PolicyChanged(request=request, policy=policy), REQUEST_SECONDS_MAX)

    async def close(self) -> None:
        """Take no more events and drop what runs. Threads that hang in the store are left behind."""
        self._dead = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future in self._requests.values():
            future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._own_threads.shutdown(wait=False, cancel_futures=True)
