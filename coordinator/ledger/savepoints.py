"""The ledger's rules of savepoints: epochs that have a name and are kept.

* A name stands for one epoch until it is taken back; an epoch may have several names. Only a committed epoch gets one.
* The epoch's record stays in the ledger, however long the history behind it grows: what has a name can be gone back to.
* Names are the cluster's, not an incarnation's: a rollback changes none of them, and those of epochs that it gave up stand, too.
* A fork begins without names: the original's epochs are not its own, all but one.

The same command again is an outcome, not an error: an answer may be lost on its way.

Source: DESIGN.md section 2 (savepoint).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.ledger.records import COMMITTED, SavepointRecord
from coordinator.ledger.rollbacks import no, yes
from protocol.limits import SAVEPOINTS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.ledger.commands import PinCommand, UnpinCommand
    from coordinator.ledger.records import LedgerState
    from coordinator.ledger.rollbacks import Result


class SavepointRules:
    """Rules of the module; `coordinator.ledger.Ledger` is the only subclass."""

    state: LedgerState
    _names: Mapping[int, tuple[str, ...]]

    # --- what the ledger provides -------------------------------------------------------------------------------------

    def _no_epoch(self, number: int) -> Result:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    # --- reading ------------------------------------------------------------------------------------------------------

    def savepoint(self, name: str) -> SavepointRecord | None:
        """What a name stands for; None: nothing has it."""
        return self.state.savepoints.get(name)

    def names_of(self, epoch: int) -> tuple[str, ...]:
        """The names of an epoch, sorted. Whoever removes old epochs leaves those that have any."""
        return self._names.get(epoch, ())

    def kept_epochs(self) -> tuple[int, ...]:
        """Epochs that have a name, sorted."""
        return tuple(sorted(self._names))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _derive_names(self) -> None:
        """Build what is not part of the dump."""
        names: dict[int, tuple[str, ...]] = {}
        for name, record in sorted(self.state.savepoints.items()):
            names[record.epoch] = (*names.get(record.epoch, ()), name)
        self._names = names

    # --- commands -----------------------------------------------------------------------------------------------------

    def _pin(self, command: PinCommand) -> Result:
        state, name = self.state, command.name
        known = state.savepoints.get(name)
        if known is not None:
            if known.epoch != command.epoch:
                return no("name-taken", f"savepoint {name} is epoch {known.epoch}", epoch=known.epoch)
            return yes(outcome="already", epoch=known.epoch, name=name)
        record = state.epochs.get(command.epoch)
        if record is None:
            return self._no_epoch(command.epoch)
        if record.state != COMMITTED:
            return no("not-committed", f"epoch {record.epoch} is {record.state}: only a committed one gets a name")
        if len(state.savepoints) >= SAVEPOINTS_MAX:
            return no("full", f"there are {len(state.savepoints)} savepoints; at most {SAVEPOINTS_MAX} are kept")
        state.savepoints[name] = SavepointRecord(epoch=record.epoch, pinned_at=command.at)
        self._derive_names()
        return yes(outcome="pinned", epoch=record.epoch, name=name)

    def _unpin(self, command: UnpinCommand) -> Result:
        known = self.state.savepoints.pop(command.name, None)
        if known is None:
            return no("unknown", f"there is no savepoint {command.name}")
        self._derive_names()
        self._forget()
        return yes(epoch=known.epoch, name=command.name)
