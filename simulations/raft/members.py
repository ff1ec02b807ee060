"""One simulated coordinator, in two kinds: the library as it comes, and the library inside our shell.

Both run real pysyncobj code; only clock, network, disk and randomness are simulated. The state machine is a list of
numbers, so that losing, doubling and reordering show.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from coordinator.runtime.raft.config import RaftTiming
from coordinator.runtime.raft.messages import LENGTH, decode_message, encode_frame
from coordinator.runtime.raft.pinned import FAIL_REASON, Member, SyncObj, SyncObjConf, Transport, replicated
from coordinator.runtime.raft.replica import Replica
from protocol.ids import CoordinatorId

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulations.raft.disk import SimulatedFiles

Message: TypeAlias = dict[str, Any]
Post: TypeAlias = "Callable[[str, str, Any], None]"
"""(source, target, message) -> the network takes it."""

BATCH_BYTES = 300
"""Two or three entries in one append: the interleavings that break things need many appends, not large ones."""
TIMING = RaftTiming()


class SimulatedMember(Protocol):
    """What the world needs of a coordinator."""

    raft: Any
    acknowledged: list[int]

    @property
    def applied(self) -> list[int]:
        """The state machine: numbers in the order in which they were applied."""
        ...

    def tick(self) -> None:
        """One turn of the driver; messages leave at its end."""
        ...

    def receive(self, source: str, message: Any) -> None:  # noqa: ANN401 - each kind has its own form
        """One message from the network."""
        ...

    def submit(self, number: int) -> None:
        """Propose a command."""
        ...

    def connected(self, peer: str, *, rejoining: bool) -> None:
        """A connection is up, to a peer that says of itself whether it lost its folder."""
        ...

    def disconnected(self, peer: str) -> None:
        """A connection is gone."""
        ...

    def end(self) -> None:
        """The process is gone."""
        ...


class _Wire(Transport):  # type: ignore[misc] # the library is untyped
    """Hands the library's messages to a member."""

    def __init__(self, send: Callable[[str, Message], bool]) -> None:
        super().__init__(None, None, [])
        self._send = send

    def send(self, node: Member, message: Message) -> bool:
        return self._send(node.id, message)


class _StockMachine(SyncObj):  # type: ignore[misc] # the library is untyped
    """The library as it comes, with one replicated method."""

    def __init__(self, name: str, names: list[str], transport: Transport, journal: str | None) -> None:
        self.numbers: list[int] = []
        settings = {
            "autoTick": False,
            "appendEntriesUseBatch": False,
            "appendEntriesBatchSizeBytes": BATCH_BYTES,
            "logCompactionMinEntries": 10**9,
            "logCompactionMinTime": 10**9,
            "journalFile": journal,
        }
        others = [Member(other) for other in names if other != name]
        super().__init__(Member(name), others, SyncObjConf(**settings), transport=transport)

    @replicated  # type: ignore[untyped-decorator] # the library is untyped
    def put(self, number: int, _padding: str) -> None:
        """A command of about a hundred bytes."""
        self.numbers.append(number)


class StockMember:
    """The library as it comes: its own defaults of timing, its own `FileJournal` (memory if there is no folder)."""

    def __init__(self, name: str, names: list[str], post: Post, folder: Path | None) -> None:
        self.name = name
        self._post = post
        self._up: set[str] = set()
        self.acknowledged: list[int] = []
        self._wire = _Wire(self._send)
        self.raft = _StockMachine(name, names, self._wire, None if folder is None else str(folder / name))

    @property
    def applied(self) -> list[int]:
        """The state machine."""
        numbers: list[int] = self.raft.numbers
        return numbers

    def tick(self) -> None:
        """See `SimulatedMember`."""
        self.raft.doTick(0)

    def receive(self, source: str, message: Any) -> None:  # noqa: ANN401 - see the protocol
        """See `SimulatedMember`."""
        self._wire._onMessageReceived(Member(source), dict(message))  # noqa: SLF001 - as every transport does

    def submit(self, number: int) -> None:
        """See `SimulatedMember`."""

        def answered(_: object, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self.acknowledged.append(number)

        self.raft.put(number, "x" * 80, callback=answered)

    def connected(self, peer: str, *, rejoining: bool) -> None:
        """See `SimulatedMember`."""
        self._up.add(peer)
        self._wire._onNodeConnected(Member(peer))  # noqa: SLF001 - as every transport does

    def disconnected(self, peer: str) -> None:
        """See `SimulatedMember`."""
        self._up.discard(peer)
        self._wire._onNodeDisconnected(Member(peer))  # noqa: SLF001 - as every transport does

    def end(self) -> None:
        """See `SimulatedMember`."""
        self.raft._doDestroy()  # noqa: SLF001 - the library's own end
        _close_pipe(self.raft)

    def _send(self, target: str, message: Message) -> bool:
        if target not in self._up:
            return False
        self._post(self.name, target, dict(message))
        return True


class GuardedMember:
    """Our `Replica` on a simulated disk, driven as `group.py` drives it: tick, sync, then messages and results."""

    def __init__(
        self,
        name: str,
        names: list[str],
        post: Post,
        files: SimulatedFiles,
        now: Callable[[], float],
        compact_entries: int,
        *,
        rejoin: bool = False,
    ) -> None:
        self.name = name
        self._post = post
        self._up: set[str] = set()
        self._outgoing: list[tuple[str, bytes]] = []
        self._answers: list[int] = []
        self.acknowledged: list[int] = []
        self._numbers: list[int] = []
        self._wire = _Wire(self._send)
        self.raft = Replica(
            coordinator=CoordinatorId(name),
            members=tuple(CoordinatorId(each) for each in names),
            cluster="simulated",
            files=files,
            transport=self._wire,
            timing=TIMING,
            apply=self._apply,
            snapshot=lambda: json.dumps(self._numbers),
            restore=self._restore,
            applied=lambda _command, _result: None,
            now=now,
            compact_entries=compact_entries,
            compact_seconds=1e9,
            batch_bytes=BATCH_BYTES,
            rejoin=rejoin,
        )

    @property
    def applied(self) -> list[int]:
        """The state machine."""
        return self._numbers

    def tick(self) -> None:
        """See `SimulatedMember`."""
        self.raft.doTick(0)
        self.raft.store.check()
        self.raft.journal.sync()
        outgoing, self._outgoing = self._outgoing, []
        for target, frame in outgoing:
            if target in self._up:
                self._post(self.name, target, frame)
        self.acknowledged += self._answers
        self._answers.clear()

    def receive(self, source: str, message: Any) -> None:  # noqa: ANN401 - see the protocol
        """See `SimulatedMember`."""
        node = Member(source)
        plain = decode_message(message[LENGTH.size :])
        for answer in self.raft.guards.receive(node, plain, lambda mended: self._wire._onMessageReceived(node, mended)):  # noqa: SLF001
            self._outgoing.append((source, encode_frame(answer)))

    def submit(self, number: int) -> None:
        """See `SimulatedMember`."""

        def answered(_: object, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self._answers.append(number)

        self.raft.apply(f"{number:080}", callback=answered)

    def connected(self, peer: str, *, rejoining: bool) -> None:
        """See `SimulatedMember`."""
        self._up.add(peer)
        self.raft.guards.connected(Member(peer), rejoining=rejoining)
        self._wire._onNodeConnected(Member(peer))  # noqa: SLF001 - as every transport does

    def disconnected(self, peer: str) -> None:
        """See `SimulatedMember`."""
        self._up.discard(peer)
        self._outgoing = [(target, frame) for target, frame in self._outgoing if target != peer]
        self._wire._onNodeDisconnected(Member(peer))  # noqa: SLF001 - as every transport does

    def end(self) -> None:
        """See `SimulatedMember`."""
        _close_pipe(self.raft)

    def _send(self, target: str, message: Message) -> bool:
        if target not in self._up:
            return False
        self._outgoing.append((target, encode_frame(self.raft.guards.outgoing(message))))
        return True

    def _apply(self, command: str) -> str:
        self._numbers.append(int(command))
        return "done"

    def _restore(self, state: str) -> None:
        self._numbers = json.loads(state)


def _close_pipe(raft: Any) -> None:  # noqa: ANN401 - the library is untyped
    from coordinator.runtime.raft.pinned import close_notifier

    close_notifier(raft)
