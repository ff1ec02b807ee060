"""`RaftGroup`: one coordinator's replicated log, for the service's event loop.

Threads:
    The library, the state machine it drives and the connections live in a thread of their own with a loop of their own,
    so that a service that stalls still sends heartbeats. The service sees it through this class only, from its own loop.

    ``apply``, ``snapshot`` and ``restore`` are called **in the Raft thread**. ``on_applied``, ``on_restored``,
    ``on_leadership`` callbacks and the results of `submit` and `barrier` arrive **in the service's loop**, in exactly the
    order in which they happened. So the service reads state in one of two ways:

    * it keeps a second state machine of its own that it feeds from ``on_applied`` and ``on_restored`` (the same
      commands in the same order give the same state), and reads that freely; when `submit` or `barrier` returns, that
      one is already as far;
    * or it asks `read` to call a function in the Raft thread between two commands.

Durability:
    After each tick the journal is synced, then messages leave, then results and callbacks are delivered: nothing that a
    crash could undo is ever told to anybody.

Failure:
    An exception in a tick, a journal that cannot be written or a state machine that cannot restore ends the group:
    ticking stops, connections close, everything submitted becomes `Unreachable`, and ``on_fatal`` is called in the
    service's loop. The process must exit then; the files are right, a restart goes on from them.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from coordinator.runtime.raft import pinned
from coordinator.runtime.raft.commands import check_text
from coordinator.runtime.raft.files import RealFiles
from coordinator.runtime.raft.pinned import FAIL_REASON
from coordinator.runtime.raft.replica import BARRIER, Replica
from coordinator.runtime.raft.transport import TlsTransport
from protocol.errors import ConfigError, Refused, SnapshotError, StoreError, Unreachable
from protocol.ids import CoordinatorId
from protocol.limits import RAFT_SUBMITTED_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.runtime.raft.config import RaftConfig

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

IDLE_TICK_SECONDS: Final = 0.01
"""Between two ticks when nothing happens: elections and heartbeats are this exact."""
HOUSEKEEPING_SECONDS: Final = 0.1
READY_TICK_AGE_SECONDS: Final = 1.0
"""A group whose last tick is older than this is not ready."""
STOP_SECONDS: Final = 10.0

_CERTAINLY_NOT_APPLIED: Final = {
    FAIL_REASON.QUEUE_FULL: ("queue-full", "too many commands wait already"),
    FAIL_REASON.MISSING_LEADER: ("no-leader", "no leader is known at the moment"),
    FAIL_REASON.DISCARDED: ("discarded", "another leader's command took its place in the log"),
    FAIL_REASON.NOT_LEADER: ("not-leader", "the leader changed before it took the command"),
    FAIL_REASON.REQUEST_DENIED: ("request-denied", "the leader does not take such commands"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What the service may know without asking; replaced as a whole after each tick."""

    leads: bool = False
    leader: CoordinatorId | None = None
    term: int = 0
    ready: bool = False
    ticked_at: float = 0.0


class RaftGroup:
    """See the module.

    Args:
        config: Checked settings.
        apply: One ledger command -> result. Deterministic; all or nothing. Raft thread.
        snapshot: The state as text. Raft thread.
        restore: Replace the state by a snapshot's. Raft thread.
        on_applied: (command, result), every command in order, replayed ones after a start included. Service's loop.
        on_restored: (snapshot's text): the state jumped; comes before any `on_applied` after it. Service's loop.
        on_fatal: The group has ended and the process must exit. Service's loop.
    """

    def __init__(
        self,
        config: RaftConfig,
        apply: Callable[[str], str],
        snapshot: Callable[[], str],
        restore: Callable[[str], None],
        on_applied: Callable[[str, str], None],
        *,
        on_restored: Callable[[str], None] | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.config = config
        self._apply = apply
        self._snapshot = snapshot
        self._restore = restore
        self._on_applied = on_applied
        self._on_restored = on_restored
        self._on_fatal = on_fatal
        self._on_leadership: list[Callable[[bool, int], None]] = []
        self._service_loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._core: _Core | None = None
        self._view = _View()
        self._numbers = itertools.count(1)
        self._submitted: dict[int, asyncio.Future[tuple[str | None, int]]] = {}
        self._changed = asyncio.Event()
        self.fatal: BaseException | None = None
        """Why the group ended by itself; None while it runs."""

    # Start and end.

    async def start(self) -> None:
        """Open and verify the folder, bind, and take part. Call from the service's loop.

        Raises:
            ConfigError: Port in use, certificates, folder in use by another process.
            CorruptJournal, CorruptSnapshot, StoreError: The folder must not be started from; the text says what to do.
        """
        assert self._thread is None, "a group is started once"
        self._service_loop = asyncio.get_running_loop()
        started: asyncio.Future[_Core] = self._service_loop.create_future()
        self._thread = threading.Thread(
            target=self._run_thread, args=(started,), name=f"raft-{self.config.id}", daemon=True
        )
        self._thread.start()
        self._core = await started

    async def stop(self) -> None:
        """Leave: what was submitted and not answered becomes `Unreachable`. Idempotent."""
        core, thread = self._core, self._thread
        if core is not None and thread is not None and thread.is_alive():
            core.call(core.stop)
            await asyncio.to_thread(thread.join, STOP_SECONDS)
            if thread.is_alive():
                raise SnapshotError(f"the Raft thread did not end within {STOP_SECONDS} s")
        self._core = None
        self._fail_submitted()

    # Commands and reads.

    async def submit(self, command: str, timeout: float = 5.0) -> str:
        """Have a command applied on all coordinators; any of them may be asked, followers pass it on.

        Args:
            command: ASCII text of at most `COMMAND_BYTES_MAX` bytes that carries an id: it is never applied twice by
                this group, but a caller that retries after `Unreachable` submits it again.
            timeout: Seconds.

        Returns:
            What this coordinator's `apply` returned; its state includes the command.

        Raises:
            Refused: Certainly not applied, now or later. ``code``: queue-full, no-leader, discarded, not-leader,
                request-denied, stopped.
            Unreachable: It may have been, or still be, applied. Retry with the same id.
            LimitExceeded, ValueError: Never a command.
        """
        check_text(command)
        return await self._propose(command, timeout)

    async def barrier(self, timeout: float = 5.0) -> None:
        """Return once this coordinator's state holds everything that was committed when `barrier` was called.

        A linearizable read is a barrier, then a read. A leader that is cut off cannot pass one.

        Raises:
            Refused, Unreachable: No such point was reached; do not answer from the state.
        """
        await self._propose(BARRIER, timeout)

    async def read(self, function: Callable[[], _Result]) -> _Result:
        """Call a short function in the Raft thread between two commands, and return what it returns.

        Raises:
            Refused: The group is stopped. Whatever `function` raises.
        """
        core = self._running_core()
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

        def call() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - handed to the caller
                core.deliver(partial(_set_exception, future, error))
            else:
                core.deliver(partial(_set_result, future, result))
            core.tick_soon()

        core.call(call)
        return await future

    def compact(self) -> None:
        """Write a snapshot and trim the journal soon, whatever the limits say."""
        core = self._running_core()
        core.call(core.compact)

    # What is known without waiting.

    @property
    def is_leader(self) -> bool:
        """Whether this coordinator leads, as far as it can know, and its state holds all that was committed before.

        There may be a newer leader for at most `leader_fallback`: act through `submit`, which only the real one passes.
        """
        view = self._view
        fresh = time.monotonic() - view.ticked_at < self.config.timing.leader_fallback
        return view.leads and fresh and self._core is not None and self.fatal is None

    @property
    def leader(self) -> CoordinatorId | None:
        """The last known leader."""
        return self._view.leader

    @property
    def term(self) -> int:
        """The current Raft term."""
        return self._view.term

    @property
    def is_ready(self) -> bool:
        """Whether the state has caught up since the start and the thread ticks."""
        view = self._view
        fresh = time.monotonic() - view.ticked_at < READY_TICK_AGE_SECONDS
        return self.fatal is None and self._core is not None and view.ready and fresh

    @property
    def address(self) -> str | None:
        """Where this coordinator listens for the others; None in a group of one."""
        return None if self._core is None else self._core.transport.address

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        """Have `callback` called with (leads now, term) at each change. Register before `start`."""
        self._on_leadership.append(callback)

    async def wait_leader(self, timeout: float = 10.0) -> CoordinatorId:
        """Wait until some leader is known.

        Raises:
            Unreachable: None within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while (leader := self._view.leader) is None:
                    self._running_core()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unreachable(f"no leader within {timeout} s") from None
        return leader

    def status(self) -> dict[str, Any]:
        """Numbers for people and metrics; safe to call at any time."""
        core = self._core
        status: dict[str, Any] = {
            "id": self.config.id,
            "leader": self.leader,
            "is_leader": self.is_leader,
            "term": self.term,
            "ready": self.is_ready,
            "tick_age_ms": round((time.monotonic() - self._view.ticked_at) * 1000),
            "submitted": len(self._submitted),
            "fatal": None if self.fatal is None else str(self.fatal),
        }
        if core is not None:
            status |= core.status()
        return status

    # In the service's loop.

    def _running_core(self) -> _Core:
        if self._core is None or self.fatal is not None:
            raise Refused("stopped", "this coordinator's Raft is not running")
        return self._core

    async def _propose(self, command: str, timeout: float) -> str:
        core = self._running_core()
        if len(self._submitted) >= RAFT_SUBMITTED_MAX:
            raise Refused("queue-full", "too many commands wait already")
        number = next(self._numbers)
        future: asyncio.Future[tuple[str | None, int]] = asyncio.get_running_loop().create_future()
        self._submitted[number] = future
        core.call(partial(core.propose, number, command))
        try:
            async with asyncio.timeout(timeout):
                result, reason = await future
        except TimeoutError:
            raise Unreachable(f"no outcome within {timeout} s; the command may be applied later") from None
        finally:
            self._submitted.pop(number, None)
        if reason == FAIL_REASON.SUCCESS:
            assert result is not None, "apply returns text"
            return result
        if reason in _CERTAINLY_NOT_APPLIED:
            raise Refused(*_CERTAINLY_NOT_APPLIED[reason])
        raise Unreachable("the leader changed; the command may have been applied")

    def _answered(self, number: int, result: str | None, reason: int) -> None:
        future = self._submitted.get(number)
        if future is not None and not future.done():
            future.set_result((result, reason))

    def _fail_submitted(self) -> None:
        for number in list(self._submitted):
            self._answered(number, None, FAIL_REASON.UNKNOWN_OUTCOME)
        self._changed.set()

    def _leadership_changed(self, leads: bool, term: int) -> None:  # noqa: FBT001 - the callbacks' own signature
        for callback in self._on_leadership:
            callback(leads, term)

    def _ended(self, error: BaseException) -> None:
        self.fatal = error
        self._fail_submitted()
        if self._on_fatal is not None:
            self._on_fatal(error)

    # Between the threads.

    def _run_thread(self, started: asyncio.Future[_Core]) -> None:
        assert self._service_loop is not None, "start sets it"
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._run(loop, started))
        finally:
            loop.close()

    async def _run(self, loop: asyncio.AbstractEventLoop, started: asyncio.Future[_Core]) -> None:
        core = _Core(self, loop)
        try:
            core.open()
        except BaseException as error:  # noqa: BLE001 - handed to `start`
            await core.close()
            self._post([partial(_set_exception, started, error)])
            return
        self._post([partial(_set_result, started, core)])
        await core.run()

    def _post(self, deliveries: list[Callable[[], None]]) -> None:
        """Have these called in the service's loop, in order."""
        assert self._service_loop is not None, "start sets it"
        try:
            self._service_loop.call_soon_threadsafe(_call_all, deliveries)
        except RuntimeError:
            logger.debug("the service's loop is closed; nobody is left to tell")


class _Core:
    """Everything that lives in the Raft thread."""

    def __init__(self, group: RaftGroup, loop: asyncio.AbstractEventLoop) -> None:
        self._group = group
        self._config = group.config
        self._loop = loop
        self._deliveries: list[Callable[[], None]] = []
        self._proposed: dict[int, None] = {}
        self._tick_scheduled = False
        self._idle: asyncio.TimerHandle | None = None
        self._housekept_at = 0.0
        self._ended = loop.create_future()
        self._lock: int | None = None
        self._led = self._raw_leads = False
        self._told_term = 0
        self._replica: Replica | None = None
        self.transport = TlsTransport(self._config, loop, traffic=self.tick_soon, failed=self.fail)

    def open(self) -> None:
        """Folder, journal, snapshot, socket; in an order that leaves nothing behind when one fails."""
        folder = self._config.folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = _lock(folder)
        except OSError as error:
            raise ConfigError("data_dir", f"{folder} cannot be used: {error.strerror}") from error
        self.transport.bind()
        self._replica = Replica(
            coordinator=self._config.id,
            members=self._config.members,
            cluster=str(self._config.cluster),
            files=RealFiles(folder),
            transport=self.transport,
            timing=self._config.timing,
            apply=self._group._apply,  # noqa: SLF001 - the two halves of one thing
            snapshot=self._group._snapshot,  # noqa: SLF001
            restore=self._restore,
            applied=self._applied,
            now=time.monotonic,
            compact_entries=self._config.compact_entries,
            compact_seconds=self._config.compact_seconds,
            where=str(folder),
            rejoin=self._config.rejoin,
        )
        self.transport.start(self._replica)
        self._tick()

    async def run(self) -> None:
        """Until `stop` or a failure."""
        try:
            await self._ended
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of everything."""
        self.transport.destroy()
        await self.transport.wait_closed()
        if self._idle is not None:
            self._idle.cancel()
        if self._replica is not None:
            self._replica._doDestroy()  # noqa: SLF001 - the library's own end
            pinned.close_notifier(self._replica)
            self._replica = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Called from the service's thread.

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` in this thread soon."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise Refused("stopped", "this coordinator's Raft is not running") from None

    # In this thread.

    def stop(self) -> None:
        """End in order."""
        if not self._ended.done():
            self._ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End because the state may be torn: no tick, no sync, no word to anybody after this."""
        if self._ended.done():
            return
        # A failed disk is the operator's to mend: a sentence. Anything else is ours: where it happened.
        trace = None if isinstance(error, StoreError) else error
        logger.critical("coordinator %s: Raft ends: %s", self._config.id, error, exc_info=trace)
        self._ended.set_result(None)
        self._deliveries.clear()
        self.transport.destroy()
        self._group._post([partial(self._group._ended, error)])  # noqa: SLF001

    def deliver(self, function: Callable[[], None]) -> None:
        """Have `function` called in the service's loop, after the next sync."""
        self._deliveries.append(function)

    def compact(self) -> None:
        """Snapshot at the next tick."""
        if self._replica is not None:
            self._replica.forceLogCompaction()
            self.tick_soon()

    def propose(self, number: int, command: str) -> None:
        """Give a command to the library."""
        if self._replica is None or self._ended.done():
            self._group._post([partial(self._group._answered, number, None, FAIL_REASON.MISSING_LEADER)])  # noqa: SLF001
            return
        self._proposed[number] = None
        self._replica.apply(command, callback=partial(self._answered, number))
        self.tick_soon()

    def tick_soon(self) -> None:
        """Tick in this round of the loop, once however often this is called."""
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._tick_scheduled = False
        if self._idle is not None:
            self._idle.cancel()
        if self._ended.done() or self._replica is None:
            return
        try:
            self._replica.doTick(0.0)
            self._replica.store.check()
            synced = self.transport.flush()
            self._publish(self._replica)
            now = self._loop.time()
            if now - self._housekept_at > HOUSEKEEPING_SECONDS:
                self._housekept_at = now
                self._housekeep(self._replica)
        except Exception as error:  # noqa: BLE001 - the driver's edge: the library's state may be torn
            self.fail(error)
            return
        if self._deliveries:
            deliveries, self._deliveries = self._deliveries, []
            self._group._post(deliveries)  # noqa: SLF001
        if synced and not self._config.peers:
            self.tick_soon()  # Nobody's acknowledgement will wake a group of one, and the entry is durable now.
        self._idle = self._loop.call_later(IDLE_TICK_SECONDS, self._tick)

    def _publish(self, replica: Replica) -> None:
        raw_leads = bool(replica._isLeader())  # noqa: SLF001 - the library's own name for it
        leads = replica.leads
        leader = replica._getLeader()  # noqa: SLF001 - the library's own name for it
        term = int(replica.raftCurrentTerm)
        old = self._group._view  # noqa: SLF001
        self._group._view = _View(  # noqa: SLF001
            leads=leads,
            leader=None if leader is None else CoordinatorId(leader.id),
            term=term,
            ready=bool(replica.isReady()),
            ticked_at=time.monotonic(),
        )
        new = self._group._view  # noqa: SLF001
        if self._raw_leads and not raw_leads:
            # Whoever leads next decides about these; the library would leave the callers waiting.
            for number in list(self._proposed):
                self._answered(number, None, FAIL_REASON.LEADER_CHANGED)
        self._raw_leads = raw_leads
        if leads != self._led or (leads and term != self._told_term):
            if leads and self._led:
                self.deliver(partial(self._group._leadership_changed, False, self._told_term))  # noqa: FBT003, SLF001
            self._led, self._told_term = leads, term
            self.deliver(partial(self._group._leadership_changed, leads, term))  # noqa: SLF001
        if (old.leader, old.ready) != (new.leader, new.ready):
            self.deliver(self._group._changed.set)  # noqa: SLF001

    def _housekeep(self, replica: Replica) -> None:
        self.transport.check()
        pinned.forget_callbacks(replica)

    def status(self) -> dict[str, Any]:
        """Numbers for `RaftGroup.status`; reads plain integers only, so any thread may call it."""
        replica = self._replica
        if replica is None:
            return {}
        matched = pinned.match_index_of(replica)
        return {
            "applied": int(replica.raftLastApplied),
            "commit": int(replica.raftCommitIndex),
            "log_entries": len(replica.journal),
            "journal_bytes": replica.journal.size,
            "journal_syncs": replica.journal.synced_count,
            "rejoining": replica.journal.rejoining,
            "snapshot_at": replica.store.last_index,
            "peers": {
                peer: {
                    "connected": self.transport.connected(peer),
                    "acknowledged": int(matched.get(pinned.Member(peer), 0)) if self._raw_leads else None,
                }
                for peer in sorted(self._config.peers)
            },
            "guards": dict(replica.guards.counts),
            "refused_connections": dict(self.transport.refused),
        }

    def _applied(self, command: str, result: str) -> None:
        self.deliver(partial(self._group._on_applied, command, result))  # noqa: SLF001

    def _restore(self, state: str) -> None:
        self._group._restore(state)  # noqa: SLF001
        if self._group._on_restored is not None:  # noqa: SLF001
            self.deliver(partial(self._group._on_restored, state))  # noqa: SLF001

    def _answered(self, number: int, result: str | None, reason: int) -> None:
        if number in self._proposed:
            del self._proposed[number]
            self.deliver(partial(self._group._answered, number, result, reason))  # noqa: SLF001


def _lock(folder: Any) -> int:  # noqa: ANN401 - a Path; imported for types only
    """Take the folder for this process; the lock goes with the process, however it ends."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
        os.close(handle)
        raise ConfigError("data_dir", f"{folder} is in use by process {owner or '?'}") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        try:
            function()
        except Exception:
            # One subscriber's bug must not keep the others' results from them.
            logger.exception("a callback of the service raised")


def _set_result(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
