"""One participant's way into an incarnation: what it was ordered, what is on its disk, what it answered. Pure.

The rules that the model proved (RELIABILITY.md, rules 1, 3 and 5):

* An incarnation is entered once. The highest one is on the participant's disk before it is entered, and an order for one
  that another life has entered is refused: a restarted process has no memory of what it did there.
* Each order is answered each time: the leader that asked first may be gone.
* An order of a newer incarnation takes the place of one that is being carried out; what the older one still brings is late.

Steps: `HaltAgents` (no turn runs, nothing of the old incarnation is left) → `PersistIncarnation` → `RestoreLocal` → `Restored`.
The order to begin is the topology of the incarnation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from participant.machine_events import RestoreLocal
from protocol.messages import Restored, RestoreFailed

if TYPE_CHECKING:
    from participant.machine_events import LocalNotRestored, LocalRestored
    from protocol.ids import Session
    from protocol.messages import Restore


class Entrance:
    """Rules of the module, for one life.

    Attributes:
        entered: Highest incarnation that any life of this participant has entered, as far as its disk tells.
        order: The newest that this life obeyed.
        answer: To it, once there is one.
    """

    __slots__ = ("answer", "entered", "order")

    def __init__(self, entered: int) -> None:
        self.entered = entered
        self.order: Restore | None = None
        self.answer: Restored | RestoreFailed | None = None

    @property
    def begins(self) -> bool:
        """The part is there: the order to begin may be obeyed. Also True for a life that joins without a restore."""
        return self.order is None or isinstance(self.answer, Restored)

    def repeated(self, incarnation: int) -> bool:
        """This life has obeyed an order for this incarnation."""
        return self.order is not None and self.order.incarnation == incarnation

    def obey(self, order: Restore) -> None:
        """This order, from now on."""
        self.order, self.answer = order, None

    def persisted(self, incarnation: int) -> RestoreLocal | None:
        """The incarnation is on the disk; what follows, if the order still stands."""
        self.entered = max(self.entered, incarnation)
        order = self.order
        if order is None or order.incarnation != incarnation or self.answer is not None:
            return None
        return RestoreLocal(order=order)

    def restored(self, event: LocalRestored, session: Session) -> Restored | None:
        """The part is there; the answer, unless it is late."""
        if not self.repeated(event.incarnation) or self.answer is not None:
            return None
        self.answer = Restored(session=session, incarnation=event.incarnation, state=event.state, took_ns=event.took_ns)
        return self.answer

    def not_restored(self, event: LocalNotRestored, session: Session) -> RestoreFailed | None:
        """The part cannot be taken; the answer, unless it is late."""
        if not self.repeated(event.incarnation) or self.answer is not None:
            return None
        self.answer = RestoreFailed(
            session=session, incarnation=event.incarnation, kind=event.kind, cause=event.cause[:4096]
        )
        return self.answer

    def refuse(self, order: Restore) -> RestoreFailed:
        """The answer to an order for an incarnation that another life has entered."""
        cause = (
            f"session {order.session} is to enter incarnation {order.incarnation}, and incarnation {self.entered} was entered "
            "by an earlier life of this participant"
        )
        return RestoreFailed(session=order.session, incarnation=order.incarnation, kind="entered", cause=cause)
