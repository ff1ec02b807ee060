"""Planted bugs of rollbacks; see `simulations.mutants`. They are looked for in worlds that recover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from simulations.mutants import Patcher


def not_handed_over(patcher: Patcher) -> None:
    """What was in flight at the cut is not delivered."""
    from participant.host import AgentHost

    patcher.method(
        AgentHost,
        "come_back",
        lambda come_back: lambda self, cluster, what, _flying: come_back(self, cluster, what, ()),
    )


def handed_over_twice(patcher: Patcher) -> None:
    """What was in flight at the cut is delivered twice."""
    from participant.host import AgentHost

    def make(come_back: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, cluster, what, flying: come_back(self, cluster, what, [*flying, *flying])

    patcher.method(AgentHost, "come_back", make)


def timers_lost(patcher: Patcher) -> None:
    """Timers do not come back."""
    from participant.host import AgentHost

    def make(load: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, fields, **parts: load(self, fields, **{**parts, "timers": ()})

    patcher.method(AgentHost, "load", make)


def state_kept(patcher: Patcher) -> None:
    """An agent goes on with the state that it has."""
    from participant.cells import KeyedState, ObjectCell, PlainCell

    def make(load: Any) -> Any:  # noqa: ANN401 - the patched method
        del load

        def keep(self: Any, segments: Any, removed: Any, allowed: Any) -> None:  # noqa: ANN401 - as the method
            """Nothing is taken."""

        return keep

    for cell in (PlainCell, ObjectCell, KeyedState):
        patcher.method(cell, "load", make)


def not_acknowledged_again(patcher: Patcher) -> None:
    """A repeated restore order is not answered (the model's M_NOREACK)."""
    from participant.machine import ParticipantMachine

    def make(ordered: Any) -> Any:  # noqa: ANN401 - the patched method
        def silent(self: Any, message: Any, now: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            if not self._entrance.repeated(message.incarnation):
                ordered(self, message, now, out)

        return silent

    patcher.method(ParticipantMachine, "_restore_ordered", make)


def begun_early(patcher: Patcher) -> None:
    """The incarnation begins when the first members have their parts."""
    from coordinator.ledger.rollbacks import RollbackRules

    def make(restored: Any) -> Any:  # noqa: ANN401 - the patched method
        def early(self: Any, command: Any) -> Any:  # noqa: ANN401 - as the method
            result = restored(self, command)
            record = self.rollback
            if result["ok"] and record.state == "restoring":
                record.state = "done"
            return result

        return early

    patcher.method(RollbackRules, "_restored", make)


def not_fenced(patcher: Patcher) -> None:
    """Restore orders leave before the stores are fenced (the model's M_FENCELATE)."""
    from coordinator.recovery import RecoveryKeeper

    def make(begin: Any) -> Any:  # noqa: ANN401 - the patched method
        def hasty(self: Any, *arguments: Any) -> None:  # noqa: ANN401 - as the method
            begin(self, *arguments)
            self._fences = ()

        return hasty

    patcher.method(RecoveryKeeper, "begin", make)


def old_incarnation_taken(patcher: Patcher) -> None:
    """Frames of an older incarnation are taken (the model's M_NOFENCE)."""
    from participant.machine_channels import Channels

    def make(arrived: Any) -> Any:  # noqa: ANN401 - the patched method
        def lenient(self: Any, header: Any, body: Any, now: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            if header.incarnation < self.incarnation:
                header = msgspec.structs.replace(header, incarnation=self.incarnation)
            arrived(self, header, body, now, out)

        return lenient

    patcher.method(Channels, "_frame_arrived", make)


def sealed_passed_over(patcher: Patcher) -> None:
    """A rollback goes to the epoch before one that is sealed."""
    from coordinator.ledger.rollbacks import RollbackRules

    patcher.method(RollbackRules, "recovery_epoch", lambda _: property(lambda self: self.state.base))


def left_as_it_was(patcher: Patcher) -> None:
    """Recorded epochs and their channels outlive the incarnation."""
    from participant.machine import ParticipantMachine

    def make(enter: Any) -> Any:  # noqa: ANN401 - the patched method
        def careless(self: Any, incarnation: Any, newest_epoch: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            peers = dict(self._peers)
            topology = self.topology
            enter(self, incarnation, newest_epoch, out)
            if topology is not None:
                self._peers = peers

        return careless

    patcher.method(ParticipantMachine, "_enter", make)


def incarnation_in_memory(patcher: Patcher) -> None:
    """The incarnation that is entered is not on the disk (the fence is in memory only)."""
    from participant.machine import ParticipantMachine

    def make(persist: Any) -> Any:  # noqa: ANN401 - the patched method
        del persist

        def forgetful(self: Any, incarnation: int, now: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            self._incarnation_persisted(incarnation, now, out)

        return forgetful

    patcher.method(ParticipantMachine, "_persist", make)


def any_session(patcher: Patcher) -> None:
    """An order is obeyed whatever session it names (the model's M_NOBOOT: no session in orders)."""
    from participant.machine import ParticipantMachine
    from protocol.messages import Registered, RegisterRefused

    def make(arrived: Any) -> Any:  # noqa: ANN401 - the patched method
        def obedient(self: Any, message: Any, now: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            if not isinstance(message, Registered | RegisterRefused):
                message = msgspec.structs.replace(message, session=self.session)
            arrived(self, message, now, out)

        return obedient

    patcher.method(ParticipantMachine, "_control_arrived", make)


def newer_dropped(patcher: Patcher) -> None:
    """What comes from a newer incarnation is dropped (the model's M_DROPFUTURE)."""
    from participant.machine_channels import Channels

    def make(arrived: Any) -> Any:  # noqa: ANN401 - the patched method
        def deaf(self: Any, header: Any, body: Any, now: Any, out: Any) -> None:  # noqa: ANN401 - as the method
            if header.incarnation == self.incarnation and self.topology is not None:
                arrived(self, header, body, now, out)

        return deaf

    patcher.method(Channels, "_frame_arrived", make)


def restored_again(patcher: Patcher) -> None:
    """A repeated restore order is carried out again."""
    from participant.machine_restore import Entrance

    def make(repeated: Any) -> Any:  # noqa: ANN401 - the patched method
        def forgetful(self: Any, incarnation: int) -> bool:  # noqa: ANN401 - as the method
            if self.order is not None and self.order.incarnation == incarnation and self.answer is not None:
                self.entered = min(self.entered, incarnation - 1)
                return False
            return bool(repeated(self, incarnation))

        return forgetful

    patcher.method(Entrance, "repeated", make)


def timers_twice(patcher: Patcher) -> None:
    """Timers come back twice."""
    from participant.host import AgentHost

    def make(load: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, fields, **parts: load(
            self, fields, **{**parts, "timers": [each for each in parts["timers"] for _ in range(2)]}
        )

    patcher.method(AgentHost, "load", make)


def no_way_further_back(patcher: Patcher) -> None:
    """A rollback to an epoch that cannot be read is tried for ever."""
    from coordinator.recovery import RecoveryKeeper

    patcher.method(RecoveryKeeper, "_choose", lambda _: lambda self: self._ledger.recovery_epoch)
