"""What the parts of the leader's machine share: ledger, proposals, attendance, and the effects of the step that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.attendance import Attendance
from coordinator.events import Answer, CloseConnection, Send
from coordinator.proposals import Proposals

if TYPE_CHECKING:
    from coordinator.events import Effect
    from coordinator.ledger import Command, Ledger
    from coordinator.proposals import Slot
    from protocol.messages import ToParticipant


class Desk:
    """Shared by `Leader`, `Registry` and `EpochKeeper` of one coordinator."""

    def __init__(self, ledger: Ledger, *, client: str, lease_ns: int) -> None:
        self.ledger = ledger
        """For reading only."""
        self.proposals = Proposals(client)
        self.attendance = Attendance(lease_ns)
        self.term = 0
        """Of this leader; 0 while it does not lead."""
        self.out: list[Effect] = []

    def take_effects(self) -> tuple[Effect, ...]:
        """The effects of the step."""
        effects = tuple(self.out)
        self.out.clear()
        return effects

    def propose(self, slot: Slot, command: Command, *, request: str = "") -> None:
        """Send a command on its way; its slot must be free."""
        self.out.append(self.proposals.put(slot, command, request=request))

    def send(self, session: int, message: ToParticipant) -> None:
        """Send to a session, if it is connected: what it misses it is told when it comes back."""
        attendee = self.attendance.attendee(session)
        if attendee is not None and attendee.connection is not None:
            self.out.append(Send(connection=attendee.connection, message=message))

    def send_to(self, connection: int, message: ToParticipant) -> None:
        """Send on a connection that nobody registered on."""
        self.out.append(Send(connection=connection, message=message))

    def close(self, connection: int, reason: str) -> None:
        """End a connection."""
        self.out.append(CloseConnection(connection=connection, reason=reason))

    def answer(self, request: str, **result: Any) -> None:  # noqa: ANN401 - JSON values
        """Answer a request with a result."""
        self.out.append(Answer(request=request, result=result))

    def refuse(self, request: str, code: str, text: str) -> None:
        """Answer a request with a refusal."""
        self.answer(request, ok=False, code=code, sentence=text)
