"""I25: what comes from a newer incarnation is kept, and is delivered as soon as its receiver is in it, once.

Its own account of frames that came early: of each stream the messages that had come without a gap, in the order in which
they came. When the receiver enters the incarnation, all of them have to be handed on in the same step; a sender that would
have to send them again hides a frame that was dropped. (That nothing is handed on twice is I6, judged for every delivery.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.items import KIND_MESSAGE, split_items
from protocol.wire import KIND_DATA
from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.wire import FrameHeader
    from simulations.participant_node import ParticipantLife

_FRAME_COSTS: Final = 1024
"""More than a kept frame costs beside its bytes: beyond the product's own bound nothing is demanded."""


class EarlyFrames:
    """Of one life."""

    __slots__ = ("_bytes", "_streams", "due")

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str, int], list[int]] = {}
        """(incarnation, source, its session) -> number of the item that comes next, messages so far."""
        self._bytes = 0
        self.due = False
        """An incarnation was entered in the step that runs: `check` is to be asked at its end."""

    def arrived(self, life: ParticipantLife, header: FrameHeader, body: bytes) -> None:
        """A genuine frame is about to be given to the machine."""
        machine, session = life.machine, life.ghost.session
        if header.kind != KIND_DATA or header.target_session != session or header.target != life.name or not session:
            return
        if machine.resumption is not None:
            return  # its streams go on where its log ends, and what comes early may come for the second time
        begun = machine.topology is not None
        if header.incarnation < machine.incarnation:
            life.cluster.probes.hit("frame.of_older_incarnation")
        if header.incarnation < machine.incarnation or (header.incarnation == machine.incarnation and begun):
            return
        self._bytes += len(body) + _FRAME_COSTS
        if self._bytes > life.cluster.options.parked_bytes:
            return
        known = self._streams.setdefault((header.incarnation, header.source, header.source_session), [1, 0])
        if header.first <= known[0] < header.first + header.count:
            items = split_items(bytes(body), header.count)[known[0] - header.first :]
            known[0] += len(items)
            known[1] += sum(1 for item in items if item[0] == KIND_MESSAGE)
        life.cluster.probes.hit("frame.parked")

    def enters(self) -> None:
        """The life is a member of an incarnation from the step on that is being carried out."""
        self.due = bool(self._streams)

    def check(self, life: ParticipantLife) -> None:
        """The step is over.

        Raises:
            Violation: I25.
        """
        if not self.due:
            return
        self.due = False
        incarnation = life.ghost.incarnation
        for key, (_, messages) in list(self._streams.items()):
            if key[0] > incarnation:
                continue
            del self._streams[key]
            stream = life.ghost.incoming.get(key[1])
            if key[0] < incarnation or stream is None or not _is_member(life, key[1], key[2]):
                continue
            if stream.delivered < messages:
                raise Violation(
                    "I25",
                    f"{stream}: {messages} messages had come early, {stream.delivered} are handed on at the start",
                )
            if messages:
                life.cluster.probes.hit("frame.unparked")
        self._bytes = sum(1 for _ in self._streams) and self._bytes


def _is_member(life: ParticipantLife, name: str, session: int) -> bool:
    """Another session of this participant may go on with its streams, from its log: it sends everything again."""
    topology = life.machine.topology
    return topology is not None and any(each.id == name and each.session == session for each in topology.members)
