"""Planted bugs, for judging the harness: switched on by a run's options, in tests only.

A mutant is a patch of the product's own code, put in place for one run, or a wrong step of the simulated driver that asks
for it by name (`on`). With most of them the cluster's own check of each cut (the assembler) is made blind, so that it is our
oracles that must see what is wrong, and not the product. Each must be caught within 2,000 seeds; ``cleancut simulate
mutants`` makes the table in the README.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import isfunction, signature
from typing import TYPE_CHECKING, Any, Final

import msgspec

from simulations import mutants_elsewhere as at_elsewhere
from simulations import mutants_outside as at_outside
from simulations import mutants_recovery as at_recovery
from simulations import mutants_store as at_store
from simulations import mutants_turns as at_turns
from simulations.runtimes import mutants as at_drivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_active = ""


def on(name: str) -> bool:
    """Whether this mutant is switched on."""
    return _active == name


class Patcher:
    """Replaces attributes, and puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def method(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:  # noqa: ANN401 - any class or module
        """Put `make(original)` in place of an attribute.

        Raises:
            TypeError: It does not take the calls of the original: it would be caught, and for nothing.
        """
        original = owner.__dict__[name]
        patched = make(original)
        _check_takes(original, patched, f"{owner.__name__}.{name}")
        self._before.append((owner, name, original))
        setattr(owner, name, patched)

    def undo(self) -> None:
        """As it was."""
        for owner, name, original in reversed(self._before):
            setattr(owner, name, original)
        self._before.clear()


def _check_takes(original: Any, patched: Any, what: str) -> None:  # noqa: ANN401 - whatever a class holds
    """Each way to call the original is one to call what stands in its place: with all that may be given, and without."""
    if not isfunction(original) or not isfunction(patched):
        return
    parameters = [
        each
        for each in signature(original).parameters.values()
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    for given in (parameters, [each for each in parameters if each.default is each.empty]):
        by_name = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
        try:
            signature(patched).bind(*(None for each in given if each.name not in by_name), **by_name)
        except TypeError as error:
            raise TypeError(f"{what} as planted does not take what it is given: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One planted bug."""

    what: str
    """In words."""
    patch: Callable[[Patcher], None]
    blind: bool = True
    """The assembler passes every cut."""
    recovery: bool = False
    """Of rollbacks: only worlds that recover have it."""
    elsewhere: bool = False
    """Of placement and names: only worlds in which agents go elsewhere have it."""
    runtimes: bool = False
    """Of the drivers: only the second mode has it."""
    turns: bool = False
    """Of logs of turns: only worlds that have them have it."""
    workload: str | None = None
    """Only this workload has it; None: whatever the seed draws."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """A mutant for the length of a run; "" for none.

    Raises:
        KeyError: There is no such mutant.
    """
    global _active  # noqa: PLW0603 - one run at a time in a process; reset below
    patcher = Patcher()
    try:
        if name:
            mutant = MUTANTS[name]
            if mutant.blind:
                _blind(patcher)
            mutant.patch(patcher)
        _active = name
        yield
    finally:
        _active = ""
        patcher.undo()


def _blind(patcher: Patcher) -> None:
    """The assembler, and the verification of channels, see nothing wrong."""
    import coordinator.assembler as assembler
    import protocol.cut as cut
    import protocol.verify as verify

    patcher.method(cut, "check_cut", lambda _: lambda *_args, **_more: None)
    patcher.method(verify, "violations", lambda _: lambda *_args, **_more: iter(()))
    patcher.method(assembler, "_foreign", lambda _: lambda *_args: None)


# --- channels ---------------------------------------------------------------------------------------------------------


def _late_marker(patcher: Patcher) -> None:
    from protocol.channel import SendingEnd
    from protocol.items import KIND_MARKER

    def make(put: Any) -> Any:  # noqa: ANN401 - the patched method
        held: dict[int, list[bytes]] = {}

        def late(self: SendingEnd, items: Any) -> None:  # noqa: ANN401 - as the method
            if len(items) == 1 and items[0][0] == KIND_MARKER and id(self) not in held:
                held[id(self)] = list(items)
                return
            put(self, items)
            if id(self) in held:
                put(self, held.pop(id(self)))

        return late

    patcher.method(SendingEnd, "put", make)


def _no_fifo(patcher: Patcher) -> None:
    from protocol.channel import ReceivingEnd

    def make(accept: Any) -> Any:  # noqa: ANN401 - the patched method
        def out_of_order(self: ReceivingEnd, first_seq: int, items: list[bytes]) -> Any:  # noqa: ANN401 - as the method
            if first_seq > self._accepted + 1:
                first_seq = self._accepted + 1
            return accept(self, first_seq, items)

        return out_of_order

    patcher.method(ReceivingEnd, "accept", make)


def _repeats(patcher: Patcher) -> None:
    from protocol.channel import ReceivingEnd

    def make(accept: Any) -> Any:  # noqa: ANN401 - the patched method
        def twice(self: ReceivingEnd, first_seq: int, items: list[bytes]) -> Any:  # noqa: ANN401 - as the method
            if first_seq <= self._accepted:
                first_seq = self._accepted + 1
            return accept(self, first_seq, items)

        return twice

    patcher.method(ReceivingEnd, "accept", make)


def _early_ack(patcher: Patcher) -> None:
    from protocol.channel import ReceivingEnd

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        def early(self: ReceivingEnd, through: int = 0) -> int:
            self.ack_due = False
            ahead = self._ahead
            return ahead[-1][0] + len(ahead[-1][1]) - 1 if ahead else self.received

        return early

    patcher.method(ReceivingEnd, "ack", make)


def _no_resend(patcher: Patcher) -> None:
    from protocol.channel import SendingEnd

    patcher.method(SendingEnd, "reconnected", lambda _: lambda self, now: None)
    patcher.method(SendingEnd, "timed_out", lambda _: lambda self, now: setattr(self, "_deadline", now + 10**9))


def _old_session(patcher: Patcher) -> None:
    from participant.machine import ParticipantMachine

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: Any, event: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            header = getattr(event, "header", None)
            peer = self._peers.get(header.source) if header is not None else None
            if header is not None and peer is not None and header.target_session == self.session:
                event = msgspec.structs.replace(
                    event, header=msgspec.structs.replace(header, source_session=peer.session)
                )
            return step(self, event, now)

        return lenient

    patcher.method(ParticipantMachine, "step", make)


# --- the snapshot machine ---------------------------------------------------------------------------------------------


def _early_report(patcher: Patcher) -> None:
    from protocol.snapshot import ChannelClosed, SnapshotMachine

    def make(close: Any) -> Any:  # noqa: ANN401 - the patched method
        def greedy(self: SnapshotMachine, part: Any, channel: Any, closed_at: int) -> Any:  # noqa: ANN401 - as the method
            early: list[Any] = []
            for other, recording in list(part.open.items()):
                if other != channel and recording.items:
                    del part.open[other]
                    self._forget(recording)
                    last = recording.next - 1
                    part.closed[other] = last
                    early.append(
                        ChannelClosed(
                            epoch=part.epoch,
                            channel=other,
                            received=last - len(recording.items),
                            closed_at=last,
                            items=tuple(recording.items),
                        )
                    )
            return [*early, *close(self, part, channel, closed_at)]

        return greedy

    patcher.method(SnapshotMachine, "_close", make)


def _stale_marker(patcher: Patcher) -> None:
    from protocol.snapshot import SnapshotMachine

    def make(received: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: SnapshotMachine, event: Any) -> Any:  # noqa: ANN401 - as the method
            if event.epoch not in self._parts and not self._is_new(event.epoch) and self._parts:
                event = msgspec.structs.replace(event, epoch=min(self._parts))
            return received(self, event)

        return lenient

    patcher.method(SnapshotMachine, "_marker_received", make)


def _newest_only(patcher: Patcher) -> None:
    from protocol.snapshot import SnapshotMachine

    def make(record: Any) -> Any:  # noqa: ANN401 - the patched method
        def narrow(self: SnapshotMachine, recordings: Any, first: int, items: Any) -> Any:  # noqa: ANN401 - as the method
            newest = max(recordings, key=lambda recording: recording.part.epoch)
            for recording in recordings:
                if recording is not newest and recording.items:
                    # It keeps its count right: what it misses is replaced by what it had.
                    recording.items.extend([recording.items[0]] * len(items))
                    recording.next = first + len(items)
            kept = [each for each in recordings if each is newest or not each.items]
            return record(self, kept, first, items)

        return narrow

    patcher.method(SnapshotMachine, "_record", make)


def _first_marker_recorded(patcher: Patcher) -> None:
    from protocol.snapshot import SnapshotMachine

    def make(items_received: Any) -> Any:  # noqa: ANN401 - the patched method
        def forgetful(self: SnapshotMachine, event: Any) -> Any:  # noqa: ANN401 - as the method
            if len(event.items) > 1:
                # The last message of every batch is recorded as the one before it.
                event = msgspec.structs.replace(event, items=[*event.items[:-1], event.items[-2]])
            return items_received(self, event)

        return forgetful

    patcher.method(SnapshotMachine, "_items_received", make)


# --- capture ----------------------------------------------------------------------------------------------------------


def _live_state(patcher: Patcher) -> None:
    from participant.history import Cell

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        from participant.history import RELEASED

        def note(self: Cell, key: object, old: object) -> None:
            if self.clock.generation:
                self.interval().setdefault(key, RELEASED)

        return note

    patcher.method(Cell, "note", make)


def _mailbox_forgotten(patcher: Patcher) -> None:
    from participant.capture import Capturer

    def make(freeze: Any) -> Any:  # noqa: ANN401 - the patched method
        def without(self: Capturer, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as the method
            frozen = freeze(self, *args, **more)
            busy = frozen._busy  # noqa: SLF001 - a planted bug goes where no interface leads
            for name, agent in list(busy.items()):
                busy[name] = agent._replace(mailbox=())
            return frozen

        return without

    patcher.method(Capturer, "freeze", make)


def _unrouted_forgotten(patcher: Patcher) -> None:
    from participant.capture import Capturer

    def make(freeze: Any) -> Any:  # noqa: ANN401 - the patched method
        def without(self: Capturer, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - as the method
            more["unrouted"] = ()
            return freeze(self, *args, **more)

        return without

    patcher.method(Capturer, "freeze", make)


def _channel_dropped(patcher: Patcher) -> None:
    from participant.capture import Frozen

    def make(slices: Any) -> Any:  # noqa: ANN401 - the patched method
        def fewer(self: Frozen, channels: Any) -> Any:  # noqa: ANN401 - as the method
            # Recorded, but never written.
            return slices(self, [msgspec.structs.replace(channel, items=()) for channel in channels])

        return fewer

    patcher.method(Frozen, "channel_slices", make)


def _in_driver(patcher: Patcher) -> None:
    """Nothing is patched: the simulated driver asks whether the mutant is on."""


# --- coordinators -----------------------------------------------------------------------------------------------------


def _any_report(patcher: Patcher) -> None:
    from coordinator.keeper import EpochKeeper

    def make(report: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: EpochKeeper, attendee: Any, message: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            import msgspec

            is_open = self._desk.ledger.open_epochs()
            if is_open and message.epoch < is_open[-1].epoch:
                message = msgspec.structs.replace(message, epoch=is_open[-1].epoch)
            return report(self, attendee, message, now)

        return lenient

    patcher.method(EpochKeeper, "report", make)


def _epoch_reused(patcher: Patcher) -> None:
    from coordinator.ledger import Ledger
    from coordinator.ledger.records import ABORTED

    def make(start: Any) -> Any:  # noqa: ANN401 - the patched method
        def again(self: Ledger, command: Any) -> Any:  # noqa: ANN401 - as the method
            last = self.state.epochs.get(self.state.epoch)
            if last is not None and last.state == ABORTED and not self._open:
                del self.state.epochs[self.state.epoch]
                self.state.epoch -= 1
            return start(self, command)

        return again

    patcher.method(Ledger, "_start", make)


def _manifest_before_seal(patcher: Patcher) -> None:
    from coordinator.events import StoreManifest
    from coordinator.keeper import EpochKeeper

    def make(assembled: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: EpochKeeper, event: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            assembled(self, event, now)
            self._desk.out.append(StoreManifest(epoch=event.epoch, manifest=event.manifest, digest=event.digest))

        return eager

    patcher.method(EpochKeeper, "assembled", make)


def _commit_before_manifest(patcher: Patcher) -> None:
    from coordinator.keeper import EpochKeeper

    def make(keep: Any) -> Any:  # noqa: ANN401 - the patched method
        def eager(self: EpochKeeper, record: Any, notes: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            keep(self, record, notes, now)
            if notes.storing and not notes.stored:
                notes.stored = True

        return eager

    patcher.method(EpochKeeper, "_keep_sealed", make)


def _told_at_seal(patcher: Patcher) -> None:
    from coordinator.keeper import EpochKeeper
    from protocol.messages import EpochCommitted

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        def early(self: EpochKeeper, session: int, number: int) -> None:
            record = self._desk.ledger.epoch(number)
            assert record is not None
            self._desk.send(
                session,
                EpochCommitted(term=self._desk.term, session=session, epoch=number, manifest=record.manifest),
            )

        return early

    patcher.method(EpochKeeper, "_tell_sealed", make)


def _sealed_aborted(patcher: Patcher) -> None:
    from coordinator.ledger import Ledger
    from coordinator.ledger.records import SEALED, STARTED

    def make(abort: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: Ledger, command: Any) -> Any:  # noqa: ANN401 - as the method
            record = self.state.epochs.get(command.epoch)
            if record is not None and record.state == SEALED:
                record.state = STARTED
            return abort(self, command)

        return lenient

    patcher.method(Ledger, "_abort", make)


def _any_term(patcher: Patcher) -> None:
    from coordinator.ledger import Ledger

    patcher.method(Ledger, "_fenced", lambda _: lambda self, command: None)


def _obeys_any_term(patcher: Patcher) -> None:
    from participant.machine import ParticipantMachine
    from protocol.ids import Term

    def make(step: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: Any, event: Any, now: Any) -> Any:  # noqa: ANN401 - as the method
            self.term = Term(0)
            return step(self, event, now)

        return lenient

    patcher.method(ParticipantMachine, "step", make)


def _join_open(patcher: Patcher) -> None:
    from coordinator.ledger import Ledger
    from coordinator.registry import Registry

    def make(change: Any, ledger_of: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: Any, argument: Any) -> Any:  # noqa: ANN401 - as the method
            inside = vars(ledger_of(self))
            still, inside["_open"] = inside["_open"], []
            try:
                return change(self, argument)
            finally:
                inside["_open"] = still

        return hasty

    patcher.method(Ledger, "_change_topology", lambda change: make(change, lambda ledger: ledger))
    patcher.method(Registry, "keep_topology", lambda keep: make(keep, lambda registry: registry._desk.ledger))  # noqa: SLF001 - as above


def _maker_matters(patcher: Patcher) -> None:
    import coordinator.keeper as keeper

    def make(request_for: Any) -> Any:  # noqa: ANN401 - the patched function
        def personal(state: Any, record: Any) -> Any:  # noqa: ANN401 - as the function
            request = request_for(state, record)
            return replace(request, policy=f"{request.policy} in term {state.term}")

        return personal

    patcher.method(keeper, "request_for", make)


def _no_retry(patcher: Patcher) -> None:
    from coordinator.proposals import Proposals

    patcher.method(Proposals, "attempt_failed", lambda _: lambda self, id_, now: None)


_ELSEWHERE: Final[dict[str, Any]] = {"blind": False, "recovery": True, "elsewhere": True}
_OUTSIDE: Final[dict[str, Any]] = {"blind": False, "recovery": True, "runtimes": True, "workload": "orders"}
_TURNS: Final[dict[str, Any]] = {"recovery": True, "runtimes": True, "turns": True}
"""What planted bugs of one kind have in common."""

MUTANTS: Final[dict[str, Mutant]] = {
    "late-marker": Mutant(what="a message overtakes the marker", patch=_late_marker),
    "late-marker-seen": Mutant(what="the same, and the assembler looks", patch=_late_marker, blind=False),
    "no-fifo": Mutant(what="a frame ahead of a gap is taken as the next", patch=_no_fifo),
    "repeats": Mutant(what="a frame that comes again is taken again", patch=_repeats),
    "early-ack": Mutant(what="acknowledged before it was handed on", patch=_early_ack),
    "no-resend": Mutant(what="what was lost does not leave again", patch=_no_resend),
    "old-session": Mutant(what="frames of a peer's older session are taken", patch=_old_session),
    "early-report": Mutant(what="reported before the last marker is in", patch=_early_report),
    "stale-marker": Mutant(what="the marker of an ended epoch counts for an open one", patch=_stale_marker),
    "newest-only": Mutant(what="of overlapping epochs only the newest records", patch=_newest_only),
    "wrong-message": Mutant(
        what="the last message of a batch is recorded as the one before", patch=_first_marker_recorded
    ),
    "live-state": Mutant(what="the epoch holds the state when it was encoded, not at the cut", patch=_live_state),
    "mailbox-forgotten": Mutant(what="mailboxes are not part of the cut", patch=_mailbox_forgotten),
    "unrouted-forgotten": Mutant(what="messages without a host are not part of the cut", patch=_unrouted_forgotten),
    "channel-dropped": Mutant(what="recorded channel states are not written", patch=_channel_dropped),
    "snapshot-before-packs": Mutant(what="reported while packs are not durable yet", patch=_in_driver),
    "no-file-sync": Mutant(
        what="a put is answered before its bytes are synced", patch=at_store.sync_of_files(lambda *_: None)
    ),
    "no-folder-sync": Mutant(what="a put is answered before its name is synced", patch=at_store.no_folder_sync),
    "sync-again": Mutant(
        what="an fsync that failed is tried again and believed", patch=at_store.sync_of_files(at_store.sync_twice)
    ),
    "folder-believed": Mutant(
        what="a folder's fsync is believed although an earlier one failed", patch=at_store.folder_believed
    ),
    "digest-unchecked": Mutant(
        what="an object is decoded although its digest is not that of its name", patch=at_store.digest_unchecked
    ),
    "chunk-unchecked": Mutant(what="a chunk is taken whatever its digest is", patch=at_store.chunk_unchecked),
    "packs-unread": Mutant(what="verification does not look into packs", patch=at_store.packs_unread),
    "listing-believed": Mutant(what="what a listing does not name is called lost", patch=at_store.listing_believed),
    "damage-stays": Mutant(what="a damaged object is in the way of the right one", patch=at_store.damage_stays),
    "mac-unchecked": Mutant(what="frames are taken whatever their MAC is", patch=at_store.mac_unchecked),
    "aborted-forgets": Mutant(
        what="what had changed before an aborted epoch counts as stored", patch=at_store.aborted_forgets
    ),
    "aborted-named": Mutant(what="chunks of an aborted epoch are named by the next", patch=at_store.aborted_named),
    "any-report": Mutant(what="a report of an older epoch counts for the open one", patch=_any_report),
    "epoch-reused": Mutant(what="an aborted epoch's number is used again", patch=_epoch_reused),
    "manifest-before-seal": Mutant(
        what="the manifest is written before the seal is in the log", patch=_manifest_before_seal
    ),
    "commit-before-manifest": Mutant(
        what="committed while the manifest is being written", patch=_commit_before_manifest
    ),
    "told-at-seal": Mutant(what="the commit is announced at the seal", patch=_told_at_seal),
    "sealed-aborted": Mutant(what="a sealed epoch can be aborted", patch=_sealed_aborted),
    "forsaken-unasked": Mutant(
        what="a sealed epoch is given up although its manifest can still come", patch=at_store.forsaken_unasked
    ),
    "sealed-for-ever": Mutant(
        what="a sealed epoch whose parts are gone is never given up", patch=at_store.sealed_for_ever
    ),
    "any-term": Mutant(what="the ledger takes commands of a deposed leader", patch=_any_term),
    "obeys-any-term": Mutant(what="participants obey a deposed leader", patch=_obeys_any_term),
    "join-open": Mutant(what="the topology changes while an epoch is open", patch=_join_open),
    "maker-matters": Mutant(what="a manifest's bytes depend on who leads", patch=_maker_matters),
    "no-retry": Mutant(what="a proposal that was lost is not made again", patch=_no_retry),
    "not-handed-over": Mutant(
        what="what was in flight does not come back", patch=at_recovery.not_handed_over, blind=False, recovery=True
    ),
    "handed-over-twice": Mutant(
        what="what was in flight comes back twice", patch=at_recovery.handed_over_twice, blind=False, recovery=True
    ),
    "timers-lost": Mutant(what="timers do not come back", patch=at_recovery.timers_lost, blind=False, recovery=True),
    "state-kept": Mutant(
        what="an agent keeps the state that it has", patch=at_recovery.state_kept, blind=False, recovery=True
    ),
    "not-acknowledged-again": Mutant(
        what="a repeated restore order is not answered",
        patch=at_recovery.not_acknowledged_again,
        blind=False,
        recovery=True,
    ),
    "begun-early": Mutant(
        what="an incarnation begins before all have their parts",
        patch=at_recovery.begun_early,
        blind=False,
        recovery=True,
    ),
    "not-fenced": Mutant(
        what="restore orders leave before the store is fenced", patch=at_recovery.not_fenced, blind=False, recovery=True
    ),
    "old-incarnation": Mutant(
        what="frames of an older incarnation are taken",
        patch=at_recovery.old_incarnation_taken,
        blind=False,
        recovery=True,
    ),
    "streams-kept": Mutant(
        what="channels go on where the older incarnation's ended",
        patch=at_recovery.left_as_it_was,
        blind=False,
        recovery=True,
    ),
    "back-to-the-base": Mutant(
        what="a rollback goes to where the incarnation began, not to its newest epoch",
        patch=at_recovery.sealed_passed_over,
        blind=False,
        recovery=True,
    ),
    "incarnation-in-memory": Mutant(
        what="the incarnation that is entered is not on the disk",
        patch=at_recovery.incarnation_in_memory,
        blind=False,
        recovery=True,
    ),
    "any-session": Mutant(
        what="orders are obeyed whatever session they name", patch=at_recovery.any_session, blind=False, recovery=True
    ),
    "newer-dropped": Mutant(
        what="what comes from a newer incarnation is dropped",
        patch=at_recovery.newer_dropped,
        blind=False,
        recovery=True,
    ),
    "restored-again": Mutant(
        what="a repeated restore order is carried out again",
        patch=at_recovery.restored_again,
        blind=False,
        recovery=True,
    ),
    "timers-twice": Mutant(what="timers come back twice", patch=at_recovery.timers_twice, blind=False, recovery=True),
    "no-way-further-back": Mutant(
        what="an epoch that cannot be restored is tried for ever",
        patch=at_recovery.no_way_further_back,
        blind=False,
        recovery=True,
    ),
    "input-of-two-hosts": Mutant(
        what="input that an agent has had by another way is delivered again",
        patch=at_elsewhere.input_of_two_hosts,
        **_OUTSIDE,
        elsewhere=True,
    ),
    "input-had-forgotten": Mutant(
        what="which input its agents have had is no part of a cut",
        patch=at_elsewhere.input_had_forgotten,
        **_OUTSIDE,
        elsewhere=True,
    ),
    "input-stays-away": Mutant(
        what="who comes back after others took its agents does not replay what it had acknowledged",
        patch=at_elsewhere.input_stays_away,
        **_OUTSIDE,
        elsewhere=True,
    ),
    "renamed-anew": Mutant(
        what="an agent that begins again does its work under the name that it has by now",
        patch=at_elsewhere.renamed_anew,
        **_OUTSIDE,
        elsewhere=True,
    ),
    "input-misnamed": Mutant(
        what="input that comes again goes to whoever has its agent's name by now",
        patch=at_elsewhere.input_misnamed,
        **_OUTSIDE,
        elsewhere=True,
    ),
    "two-hosts": Mutant(
        what="an agent that goes to another host stays where it was, too",
        patch=at_elsewhere.two_hosts,
        **_ELSEWHERE,
    ),
    "left-on-the-way": Mutant(
        what="what was in flight to an agent from another host is not delivered",
        patch=at_elsewhere.left_on_the_way,
        **_ELSEWHERE,
    ),
    "names-on-the-way": Mutant(
        what="what was in flight keeps the names of the epoch",
        patch=at_elsewhere.names_on_the_way,
        **_ELSEWHERE,
    ),
    "names-of-one-rollback": Mutant(
        what="only the names of the newest rollback count, wherever the next one goes",
        patch=at_elsewhere.names_of_one_rollback,
        **_ELSEWHERE,
    ),
    "map-unchecked": Mutant(
        what="a map of names is carried out whatever it says",
        patch=at_elsewhere.map_unchecked,
        **_ELSEWHERE,
    ),
    "given-is-lost": Mutant(
        what="a host that comes back has not what it had been given",
        patch=at_elsewhere.given_is_lost,
        **_ELSEWHERE,
    ),
    "given-up-unasked": Mutant(
        what="a restore gives up whatever nobody takes",
        patch=at_elsewhere.given_up_unasked,
        **_ELSEWHERE,
    ),
    "begun-as-before": Mutant(
        what="an agent that was given up begins anew as the one that it was",
        patch=at_elsewhere.begun_as_before,
        **_ELSEWHERE,
    ),
    "behind-its-sender": Mutant(
        what="what waits for an agent goes on from an heir, wherever its sender is",
        patch=at_elsewhere.behind_its_sender,
        **_ELSEWHERE,
    ),
    "policy-ignored": Mutant(
        what="a rollback goes further back although the policy refuses",
        patch=at_elsewhere.policy_ignored,
        **_ELSEWHERE,
    ),
    "owner-unchecked": Mutant(
        what="whoever writes a log does not look whether it is still the owner",
        patch=at_outside.owner_unchecked,
        **_OUTSIDE,
    ),
    "claim-after-call": Mutant(
        what="a step is claimed when it has been done",
        patch=at_outside.claim_after_call,
        **_OUTSIDE,
    ),
    "token-of-chance": Mutant(
        what="a step's token is another one each time",
        patch=at_outside.token_of_chance,
        **_OUTSIDE,
    ),
    "ledger-rolls-back": Mutant(
        what="the effect ledger goes back with the state",
        patch=at_outside.ledger_rolls_back,
        **_OUTSIDE,
    ),
    "log-without-sync": Mutant(
        what="a log's records are acknowledged without a sync",
        patch=at_outside.log_without_sync,
        **_OUTSIDE,
    ),
    "acknowledged-at-once": Mutant(
        what="a log's records are acknowledged before they are written",
        patch=at_outside.acknowledged_at_once,
        **_OUTSIDE,
    ),
    "released-at-emit": Mutant(
        what="an output leaves when its turn commits",
        patch=at_outside.released_at_emit,
        **_OUTSIDE,
    ),
    "released-by-the-newest": Mutant(
        what="a commit releases outputs of after its cut",
        patch=at_outside.released_by_the_newest,
        **_OUTSIDE,
    ),
    "outputs-forgotten": Mutant(
        what="outputs that an epoch holds do not come back",
        patch=at_outside.outputs_forgotten,
        **_OUTSIDE,
    ),
    "sinks-unfenced": Mutant(
        what="restore orders leave before the sinks are fenced",
        patch=at_outside.sinks_unfenced,
        **_OUTSIDE,
    ),
    "input-not-replayed": Mutant(
        what="acknowledged input does not come again after a rollback",
        patch=at_outside.input_not_replayed,
        **_OUTSIDE,
    ),
    "word-overrides": Mutant(
        what="an operator's word counts although the step has its end",
        patch=at_outside.word_overrides,
        **_OUTSIDE,
    ),
    "fork-charges": Mutant(
        what="a fork in dry-run claims its steps like anybody",
        patch=at_outside.fork_charges,
        **_OUTSIDE,
    ),
    "fork-delivers": Mutant(
        what="a fork in dry-run writes to the sinks that its program names",
        patch=at_outside.fork_delivers,
        **_OUTSIDE,
    ),
    "acknowledged-unlogged": Mutant(
        what="what is received is acknowledged before it is logged",
        patch=at_turns.acknowledged_unlogged,
        **_TURNS,
    ),
    "sent-unlogged": Mutant(
        what="what turns send leaves before they are logged",
        patch=at_turns.sent_unlogged,
        **_TURNS,
    ),
    "released-unlogged": Mutant(
        what="what turns put out leaves before they are logged",
        patch=at_turns.released_unlogged,
        **_TURNS,
        workload="orders",
    ),
    "reported-unlogged": Mutant(
        what="a part is reported before the log that it covers is durable",
        patch=at_turns.reported_unlogged,
        **_TURNS,
    ),
    "beginning-unlogged": Mutant(
        what="a log that is lost looks like one that has not begun",
        patch=at_turns.beginning_unlogged,
        **_TURNS,
    ),
    "holes-passed-over": Mutant(
        what="records behind a hole in a log are replayed",
        patch=at_turns.holes_passed_over,
        **_TURNS,
    ),
    "rebased-beside": Mutant(
        what="the ends of a resumed stream compute digests from different numbers",
        patch=at_turns.rebased_beside,
        blind=False,
        **_TURNS,
    ),
    "unknown-not-rebased": Mutant(
        what="a life whose log knows nothing of a peer computes digests from the beginning",
        patch=at_turns.unknown_not_rebased,
        blind=False,
        **_TURNS,
    ),
    "truncated-at-report": Mutant(
        what="a log is shortened at the report, not at the commit",
        patch=at_turns.truncated_at_report,
        **_TURNS,
    ),
    "believed-unsynced": Mutant(
        what="who recovers a log believes what is not synced",
        patch=at_turns.believed_unsynced,
        **_TURNS,
    ),
    "failed-sync-forgotten": Mutant(
        what="a log's failed sync is taken for one that worked",
        patch=at_turns.failed_sync_forgotten,
        **_TURNS,
    ),
    "not-claimed": Mutant(
        what="a log that was recovered is left open for a twin's records",
        patch=at_turns.not_claimed,
        **_TURNS,
    ),
    "twins-input-unread": Mutant(
        what="input that a twin took is not read",
        patch=at_turns.twins_input_unread,
        **_TURNS,
        workload="orders",
    ),
    "own-agents-only": Mutant(
        what="who has other agents than its program declares does not go on from its log",
        patch=at_turns.own_agents_only,
        **_TURNS,
        elsewhere=True,
    ),
    "hasty-rollback": Mutant(
        what="everybody goes back, and who is lost has its log",
        patch=at_turns.hasty_rollback,
        **_TURNS,
    ),
    "unheard-report": Mutant(
        what="the uploader reports before the store has answered", patch=at_drivers.unheard_report, runtimes=True
    ),
    "effects-reversed": Mutant(
        what="a participant carries out effects from right to left", patch=at_drivers.effects_reversed, runtimes=True
    ),
    "orders-reversed": Mutant(
        what="a coordinator carries out effects from right to left", patch=at_drivers.orders_reversed, runtimes=True
    ),
    "replaced-kept": Mutant(
        what="the hub keeps the older connection of a session", patch=at_drivers.replaced_kept, runtimes=True
    ),
    "store-awaited": Mutant(
        what="the leader waits for ever for a store that hangs", patch=at_drivers.store_awaited, runtimes=True
    ),
    "timer-kept": Mutant(
        what="the coordinator's timer is not set anew for an earlier instant",
        patch=at_drivers.timer_kept,
        runtimes=True,
    ),
    "timer-unheard": Mutant(
        what="a participant's timer rings, and its machine is not told", patch=at_drivers.timer_unheard, runtimes=True
    ),
    "failure-unheard": Mutant(
        what="an upload that failed counts as done", patch=at_drivers.failure_unheard, runtimes=True
    ),
    "lost-unsaid": Mutant(
        what="the hub does not tell of connections that are lost", patch=at_drivers.lost_unsaid, runtimes=True
    ),
}
"""By name, in the order of the README's table."""
