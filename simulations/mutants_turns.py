"""Planted bugs of logs of turns; looked for in worlds in which who crashes goes on from its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.mutants import Patcher


def acknowledged_unlogged(patcher: Patcher) -> None:
    """What was received is acknowledged before the log holds it: its sender forgets it."""
    from participant.peers import ALL, Peer

    def acknowledge(_: Any) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: Peer) -> int:
            assert self.receiving is not None
            return int(self.receiving.ack(ALL))

        return hasty

    patcher.method(Peer, "acknowledge", acknowledge)
    patcher.method(
        Peer,
        "acknowledgement_due",
        lambda _: property(lambda self: self.receiving is not None and self.receiving.ack_due),
    )


def sent_unlogged(patcher: Patcher) -> None:
    """What turns sent leaves before the log holds them."""
    from protocol.channel import SendingEnd

    patcher.method(SendingEnd, "frames", lambda frames: lambda self, now, through=0: frames(self, now))


def released_unlogged(patcher: Patcher) -> None:
    """What turns put out leaves before the log holds them."""
    from participant.runtime.turn_keeper import TurnKeeper

    def make(tick: Any) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: TurnKeeper, machine: Any, outlet: Any) -> None:  # noqa: ANN401 - as the method
            tick(self, machine, outlet)
            outlet.logged(outlet.newest)

        return hasty

    patcher.method(TurnKeeper, "tick", make)


def reported_unlogged(patcher: Patcher) -> None:
    """A part is reported, and its base written, before the log that it covers is durable."""
    from participant.runtime.turn_keeper import TurnKeeper

    def make(covered: Any) -> Any:  # noqa: ANN401 - the patched method
        del covered

        async def at_once(self: TurnKeeper) -> None:
            del self

        return at_once

    patcher.method(TurnKeeper, "covered", make)


def beginning_unlogged(patcher: Patcher) -> None:
    """The base names the record before the log's first: a log that is lost looks like one that has not begun."""
    from participant.runtime.turn_logger import TurnLogger

    patcher.method(TurnLogger, "start_over", lambda start: lambda self, *arguments: start(self, *arguments) - 1)


def holes_passed_over(patcher: Patcher) -> None:
    """A segment that cannot be read is passed over, and those behind it are replayed."""
    from participant.logs.recovery import LogMap
    from participant.logs.segment import CorruptLog, read_batches

    def make(batches: Any) -> Any:  # noqa: ANN401 - the patched method
        del batches

        def lenient(self: LogMap, read: Any, *, after: int = 0) -> Any:  # noqa: ANN401 - as the method
            for index, segment in enumerate(self.segments):
                following = self.segments[index + 1].header if index + 1 < len(self.segments) else None
                if following is not None and following.first <= after + 1:
                    continue
                size = None if following is None else following.size
                try:
                    found, self.end = read_batches(read(segment.name), segment.start, segment.name, size=size)
                except CorruptLog:
                    continue
                yield from (batch for batch in found if batch.first + batch.records_count > after + 1)

        return lenient

    patcher.method(LogMap, "batches", make)


def rebased_beside(patcher: Patcher) -> None:
    """Both ends of a resumed stream compute the digest from numbers of their own."""
    from participant.machine import ParticipantMachine

    def make(rebase: Any) -> Any:  # noqa: ANN401 - the patched method
        def beside(self: Any, peer: Any, me: Any, member: Any) -> None:  # noqa: ANN401 - as the method
            rebase(self, peer, me, member)
            if peer.receiving is not None and peer.receiving.base:
                peer.receiving.rebase(max(peer.receiving.received, peer.receiving.base - 1))

        return beside

    patcher.method(ParticipantMachine, "_rebase", make)


def unknown_not_rebased(patcher: Patcher) -> None:
    """A life whose log knows nothing of a peer computes the digest from the beginning, whatever the peer knows."""
    from participant.machine import ParticipantMachine

    def make(rebase: Any) -> Any:  # noqa: ANN401 - the patched method
        def knowing(self: Any, peer: Any, me: Any, member: Any) -> None:  # noqa: ANN401 - as the method
            if peer.id in self._peers or peer.id in self._resumed:
                rebase(self, peer, me, member)

        return knowing

    patcher.method(ParticipantMachine, "_rebase", make)


def truncated_at_report(patcher: Patcher) -> None:
    """The log is shortened when a part is stored, whatever becomes of the epoch."""
    from participant.runtime.turn_keeper import TurnKeeper

    def make(persisted: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: TurnKeeper, epoch: int, snapshot: str) -> None:
            persisted(self, epoch, snapshot)
            cut = self._cuts.get(epoch)
            if cut is not None:
                self._tasks.spawn(self._logger.keep(cut.position), name="shortened too early")

        return eager

    patcher.method(TurnKeeper, "persisted", make)


def believed_unsynced(patcher: Patcher) -> None:
    """Who recovers believes what is only in the page cache."""
    from participant.runtime.durable_log import DurableLog

    patcher.method(
        DurableLog,
        "recover",
        lambda recover: lambda self, *, after=0, only_read=False: recover(self, after=after, only_read=True),
    )


def failed_sync_forgotten(patcher: Patcher) -> None:
    """A write or sync that failed is taken for one that worked."""
    from participant.runtime.durable_log import DurableLog, LogPoisoned

    def make(write: Any) -> Any:  # noqa: ANN401 - the patched method
        def forgetful(self: DurableLog, job: Any) -> None:  # noqa: ANN401 - as the method
            try:
                write(self, job)
            except LogPoisoned:
                self._failure = None
                self.durable = job.last

        return forgetful

    patcher.method(DurableLog, "write", make)


def not_claimed(patcher: Patcher) -> None:
    """Who has recovered a log leaves it open for what a twin still writes."""
    from participant.runtime.turn_logger import TurnLogger

    patcher.method(TurnLogger, "claim", lambda _: lambda self, life, hosts: None)


def twins_input_unread(patcher: Patcher) -> None:
    """What a twin has taken from outside, before the folder was taken over, is not read."""
    from participant.runtime.restorer import Restorer

    def make(recover: Any) -> Any:  # noqa: ANN401 - the patched method
        async def deaf(self: Any) -> Any:  # noqa: ANN401 - as the method
            intake, self._intake = self._intake, None
            try:
                return await recover(self)
            finally:
                self._intake = intake

        return deaf

    patcher.method(Restorer, "recover", make)


def hasty_rollback(patcher: Patcher) -> None:
    """Everybody goes back although who is lost, and is in no epoch, may have its log."""
    from coordinator.recovery import RecoveryKeeper

    patcher.method(RecoveryKeeper, "_awaited", lambda _: lambda self, now: "")


def own_agents_only(patcher: Patcher) -> None:
    """Who has other agents than its program declares does not go on from its log."""
    from coordinator.ledger import Ledger

    def make(goes_on: Any) -> Any:  # noqa: ANN401 - the patched method
        def narrow(self: Any, known: Any, command: Any) -> Any:  # noqa: ANN401 - as the method
            return None if known is not None and known.agents != known.declared else goes_on(self, known, command)

        return narrow

    patcher.method(Ledger, "_goes_on", make)
