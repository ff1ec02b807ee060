"""Planted bugs of placement, names and losses; see `simulations.mutants`. They are looked for in worlds with `Options.elsewhere`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.mutants import Patcher


def two_hosts(patcher: Patcher) -> None:
    """An agent that goes to another host stays where it was, too."""
    from coordinator.ledger.rollbacks import RollbackRules

    def make(carry_out: Any) -> Any:  # noqa: ANN401 - the patched method
        def generous(self: Any, renames: Any) -> None:  # noqa: ANN401 - as the method
            before = {name: record.agents for name, record in self.state.participants.items()}
            carry_out(self, renames)
            for name, agents in before.items():
                record = self.state.participants[name]
                record.agents = tuple(sorted({*record.agents, *agents}))

        return generous

    patcher.method(RollbackRules, "_carry_out_adoptions", make)


def left_on_the_way(patcher: Patcher) -> None:
    """What was in flight to an agent that comes from another host is not delivered."""
    from participant.runtime.loader import Loader

    def make(load: Any) -> Any:  # noqa: ANN401 - the patched method
        def forgetful(self: Any, host: Any, source: str, snapshot: Any, saved: Any, sources: Any, order: Any) -> None:  # noqa: ANN401 - as the method
            if source != self._participant:
                sources = sources._replace(flying={})
            load(self, host, source, snapshot, saved, sources, order)

        return forgetful

    patcher.method(Loader, "_load_one", make)


def names_on_the_way(patcher: Patcher) -> None:
    """What was in flight keeps the names of the epoch."""
    import participant.runtime.loader as loader

    patcher.method(loader, "renamed_delivery", lambda _: lambda delivery, _renames: delivery)


def names_of_one_rollback(patcher: Patcher) -> None:
    """Only the names of the newest rollback count, whatever epoch the next one goes to."""
    from coordinator.ledger.rollbacks import RollbackRules

    def make(_names_since: Any) -> Any:  # noqa: ANN401 - the patched method
        def narrow(self: Any, epoch: int, agents: Any) -> dict[str, str]:  # noqa: ANN401 - as the method
            del epoch
            record = self.rollback
            return {} if record is None else {old: new for old, new in record.renames if old in agents}

        return narrow

    patcher.method(RollbackRules, "names_since", make)


def map_unchecked(patcher: Patcher) -> None:
    """A map is carried out whatever it says."""
    import coordinator.recovery as recovery

    patcher.method(recovery, "rename_problem", lambda _: lambda *_args: "")


def given_is_lost(patcher: Patcher) -> None:
    """A host that comes back has not what it had been given; who had given it away may not have it either."""
    from coordinator.ledger import Ledger

    patcher.method(Ledger, "_has_again", lambda _: lambda _self, _known, _command: ())


def given_up_unasked(patcher: Patcher) -> None:
    """An operator who asks for a restore gives up whatever nobody takes."""
    from coordinator.recovery import RecoveryKeeper

    def make(requested: Any) -> Any:  # noqa: ANN401 - the patched method
        return lambda self, event: requested(self, replace(event, allow_unclaimed=True))

    patcher.method(RecoveryKeeper, "requested", make)


def begun_as_before(patcher: Patcher) -> None:
    """An agent that was given up begins anew as the one that it was."""
    from coordinator.ledger.rollbacks import RollbackRules

    patcher.method(RollbackRules, "_note_over", lambda _: lambda _self, _command: None)


def behind_its_sender(patcher: Patcher) -> None:
    """What waits for an agent goes on from the heir of who held it, wherever its sender is."""
    import participant.runtime.loader as loader

    patcher.method(loader, "goes_on_here", lambda _: lambda held, _me, _senders, *, heir: list(held) if heir else [])


def policy_ignored(patcher: Patcher) -> None:
    """Nothing is patched: the simulated coordinator's policy goes further back by itself, although the operator refused that."""
    del patcher


def input_of_two_hosts(patcher: Patcher) -> None:
    """Input that an agent has had by another way is delivered again."""
    from participant.inputs import HadInputs

    def make(add: Any) -> Any:  # noqa: ANN401 - the patched method
        def credulous(self: Any, message: Any) -> bool:  # noqa: ANN401 - as the method
            add(self, message)
            return True

        return credulous

    patcher.method(HadInputs, "add", make)


def input_had_forgotten(patcher: Patcher) -> None:
    """Which input its agents have had is no part of a cut."""
    from participant.inputs import HadInputs

    patcher.method(HadInputs, "blocks", lambda _: lambda _self: ())


def input_stays_away(patcher: Patcher) -> None:
    """Who comes back after others took its agents does not replay what it had acknowledged."""
    from participant.inputs import InputIndex

    patcher.method(InputIndex, "position_since", lambda _: lambda _self, _ancestry, end: end)


def renamed_anew(patcher: Patcher) -> None:
    """An agent that begins again does its work under the name that it has by now."""
    from protocol.ancestry import Ancestry

    patcher.method(Ancestry, "first_name", lambda _: lambda _self, agent: agent)


def input_misnamed(patcher: Patcher) -> None:
    """Input that comes again goes to whoever has its agent's name by now."""
    from protocol.ancestry import Ancestry

    patcher.method(Ancestry, "called", lambda _: lambda _self, agent, _incarnation: agent)
