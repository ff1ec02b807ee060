"""The cut, and the check that it is consistent (promise P1), from what the participants reported.

For a channel with ``sent`` items before the sender's cut and ``received`` before the receiver's, the cut is consistent when
``received <= sent``, and complete when exactly the items ``received + 1 .. sent`` are recorded, in order, bit for bit. The
check goes channel by channel by numbers, and by the running digest of both ends, because sums are no proof: a message that
is lost and one that is counted twice can cancel out.

Kinds of violation; of several on one channel, the first of this order is named first:

=================  =================================================================================================
incomplete         a participant did not report, or a channel was never closed
foreign            a report of another cluster, epoch, incarnation, session or topology; a channel that is not there
orphan             received > sent: a receive in the cut without its send
orphan-in-channel  a recorded item with number > sent: sent after the sender's cut
counted-twice      a recorded item with number <= received: it is in the receiver's state already
duplicate          an item recorded twice
lost               an item of received + 1 .. sent that is not recorded
order              the right items in a wrong order
digest             the right numbers of other bytes
=================  =================================================================================================

Sources: Chandy & Lamport 1985, section 2; RELIABILITY.md I1, I2, I7.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from protocol.ids import ChannelId, ParticipantId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from protocol.manifest import IncomingCut, LocalSnapshot, OutgoingCut
    from protocol.messages import Member
    from protocol.topology import Topology

Kind: TypeAlias = Literal[
    "incomplete",
    "foreign",
    "orphan",
    "orphan-in-channel",
    "counted-twice",
    "duplicate",
    "lost",
    "order",
    "digest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What is wrong with a cut, first of all; `str()` of it is a sentence for people."""

    kind: Kind
    channel: ChannelId | None = None
    """None where a whole participant is wrong, or facts were checked without a name."""
    participant: ParticipantId | None = None
    """Whose report is wrong or missing; None where two reports do not fit each other."""
    sent: int | None = None
    received: int | None = None
    number: int | None = None
    """The first item that is wrong, where it is known."""
    detail: str = ""

    def __str__(self) -> str:
        """Kind, place, counts, and the detail."""
        place = str(self.channel) if self.channel is not None else f"participant {self.participant}"
        if self.channel is None and self.participant is None:
            place = "a channel"
        facts = [
            f"{name} {value}"
            for name, value in (("sent", self.sent), ("received", self.received), ("item", self.number))
            if value is not None
        ]
        counts = f" ({', '.join(facts)})" if facts else ""
        return f"{self.kind} at {place}{counts}: {self.detail}"


def check_recorded(
    numbers: Sequence[int] | None,
    received: int | None,
    sent: int | None,
    *,
    channel: ChannelId | None = None,
) -> tuple[Violation, ...]:
    """Check one channel by plain facts.

    Args:
        numbers: Sequence numbers of the recorded items, as recorded; None: the channel was never closed.
        received: Items received before the receiver's cut; None: not reported.
        sent: Items sent before the sender's cut; None: not reported.
        channel: To be named in the violations.

    Returns:
        All that is wrong, at most one violation of a kind; empty for a consistent channel.
    """

    def violation(kind: Kind, number: int | None, detail: str) -> Violation:
        return Violation(kind=kind, channel=channel, sent=sent, received=received, number=number, detail=detail)

    if sent is None or received is None or numbers is None:
        missing = (
            "its sender's count" if sent is None else "its receiver's count" if received is None else "its closing"
        )
        return (violation("incomplete", None, f"{missing} was not reported"),)
    found: list[Violation] = []
    if received > sent:
        found.append(violation("orphan", sent + 1, "received before the cut, sent after it"))
    after = [number for number in numbers if number > sent]
    if after:
        found.append(violation("orphan-in-channel", after[0], "recorded as in flight, sent after the cut"))
    before = [number for number in numbers if number <= received]
    if before:
        found.append(violation("counted-twice", before[0], "recorded as in flight, though received before the cut"))
    firsts = list(dict.fromkeys(numbers))
    if len(firsts) < len(numbers):
        counts = Counter(numbers)
        found.append(violation("duplicate", next(n for n in firsts if counts[n] > 1), "recorded twice"))
    lost = received + 1
    for number in sorted(firsts):
        lost += number == lost
    if lost <= sent:
        found.append(violation("lost", lost, "sent before the cut, neither received nor recorded"))
    swapped = next((right for left, right in pairwise(firsts) if right < left), None)
    if swapped is not None:
        found.append(violation("order", swapped, "recorded after a later item"))
    return tuple(found)


def check_channel(channel: ChannelId, outgoing: OutgoingCut | None, incoming: IncomingCut | None) -> Violation | None:
    """Check one channel by what its two ends reported.

    Args:
        channel: Whose ends these are.
        outgoing: From the source's report; None: it says nothing of this channel.
        incoming: From the target's report; None: the channel was never closed.

    Returns:
        The first violation, or None. The numbers prove that nothing is missing or surplus; the digests, that what the
        receiver had and recorded are the bytes that the sender put, in its order.
    """
    if outgoing is not None and incoming is not None and _fits(outgoing, incoming):
        return None
    sent = None if outgoing is None else outgoing.sent
    received = None if incoming is None else incoming.received

    def violation(kind: Kind, number: int | None, detail: str) -> Violation:
        return Violation(kind=kind, channel=channel, sent=sent, received=received, number=number, detail=detail)

    if outgoing is None or incoming is None or sent is None or received is None:
        missing = f"{channel.source} says nothing of it" if outgoing is None else f"{channel.target} never closed it"
        return violation("incomplete", None, missing)
    closed_at, items = incoming.closed_at, incoming.items
    if min(sent, received, closed_at, items, incoming.messages) < 0 or incoming.messages > items:
        return violation("incomplete", None, "the counts that were reported cannot be counts")
    if received > sent:
        return violation("orphan", sent + 1, "received before the cut, sent after it")
    if closed_at > sent:
        return violation("orphan-in-channel", sent + 1, f"recorded through item {closed_at}, sent after the cut")
    if received > closed_at:
        return violation(
            "counted-twice",
            closed_at + 1,
            f"received before the cut, after item {closed_at}, the last before the marker",
        )
    if items > closed_at - received:
        return violation("duplicate", None, f"{items} items recorded where {closed_at - received} were in flight")
    if closed_at < sent:
        return violation("lost", closed_at + 1, f"recorded through item {closed_at} only")
    if items < closed_at - received:
        return violation("lost", None, f"{items} items recorded where {closed_at - received} were in flight")
    assert incoming.digest != outgoing.digest, "all that _fits asks for has been asked"
    return violation("digest", None, "what was received and recorded are not the bytes that were sent")


def _fits(outgoing: OutgoingCut, incoming: IncomingCut) -> bool:
    """The two ends agree in all facts: the answer for nearly every channel, and a full mesh has a million."""
    received, closed_at, items = incoming.received, incoming.closed_at, incoming.items
    return (
        0 <= received <= closed_at == outgoing.sent
        and items == closed_at - received
        and 0 <= incoming.messages <= items
        and incoming.digest == outgoing.digest
    )


def check_cut(topology: Topology, snapshots: Mapping[ParticipantId, LocalSnapshot]) -> Violation | None:
    """Check a whole cut: P1 for every channel of the topology, and that the reports are exactly the members'.

    Args:
        topology: The members and channels that the ledger froze when the epoch started.
        snapshots: Report of each participant, by the id under which it came.

    Returns:
        The first violation, or None for a consistent, complete cut. The order is fixed: members by id, then strangers,
        then channels by source and target; so each replica names the same one, whatever order the reports came in.
    """
    return next(violations(topology, snapshots), None)


def violations(topology: Topology, snapshots: Mapping[ParticipantId, LocalSnapshot]) -> Iterator[Violation]:
    """All violations of a cut, in the order of `check_cut`; at most one for each participant and each channel."""
    members = topology.participants()
    ends = {participant: _Ends(snapshots[participant]) for participant in members if participant in snapshots}
    reference = next((snapshots[participant] for participant in members if participant in snapshots), None)
    for participant in members:
        snapshot = snapshots.get(participant)
        if snapshot is None or reference is None:
            yield Violation(kind="incomplete", participant=participant, detail="no report")
            continue
        foreign = _foreign(topology, participant, snapshot, reference) or _foreign_channel(
            topology, participant, snapshot, ends[participant]
        )
        if foreign is not None:
            yield foreign
    for participant in sorted(set(snapshots).difference(members)):
        yield Violation(kind="foreign", participant=participant, detail="not a member of the epoch")

    nothing: dict[str, OutgoingCut] = {}
    for source in members:
        outgoing = ends[source].outgoing if source in ends else nothing
        for target in topology.targets_of(source):
            sent = outgoing.get(target)
            received = ends[target].incoming.get(source) if target in ends else None
            if sent is None or received is None or not _fits(sent, received):
                found = check_channel(ChannelId(source, target), sent, received)
                assert found is not None, "what does not fit has a name"
                yield found


_SAME: Final = ("cluster", "epoch", "incarnation")
"""What all reports of one epoch have in common."""


def _foreign(
    topology: Topology, participant: ParticipantId, snapshot: LocalSnapshot, reference: LocalSnapshot
) -> Violation | None:
    """Why a member's report does not belong to this cut, or None."""

    def violation(detail: str) -> Violation:
        return Violation(kind="foreign", participant=participant, detail=detail)

    member: Member | None = topology.member(participant)
    assert member is not None
    if snapshot.participant != participant:
        return violation(f"the report is of participant {snapshot.participant!a}")
    if snapshot.session != member.session:
        return violation(f"the report is of session {snapshot.session}, the epoch's is {member.session}")
    if snapshot.topology != topology.version:
        return violation(f"the report is of topology {snapshot.topology}, the epoch's is {topology.version}")
    for name in _SAME:
        mine, others = getattr(snapshot, name), getattr(reference, name)
        if mine != others:
            return violation(f"the report is of {name} {mine!a}, that of {reference.participant} of {others!a}")
    return None


def _foreign_channel(
    topology: Topology, participant: ParticipantId, snapshot: LocalSnapshot, ends: _Ends
) -> Violation | None:
    """The first channel in a member's report that the topology does not have, or that is reported twice."""
    outgoing, incoming = ends.outgoing.keys(), ends.incoming.keys()
    if (
        len(outgoing) == len(snapshot.outgoing)
        and len(incoming) == len(snapshot.incoming)
        and outgoing <= set(topology.targets_of(participant))
        and incoming <= set(topology.sources_of(participant))
    ):
        return None
    channels = [ChannelId(participant, ParticipantId(end.target)) for end in snapshot.outgoing]
    channels += [ChannelId(ParticipantId(end.source), participant) for end in snapshot.incoming]
    surplus = next((channel for channel in channels if not topology.has_channel(channel)), None)
    detail = "the topology has no such channel"
    if surplus is None:
        surplus = next(channel for channel, times in Counter(channels).items() if times > 1)
        detail = "the channel is reported twice"
    return Violation(kind="foreign", participant=participant, channel=surplus, detail=detail)


class _Ends:
    """A report's channels by the participant at their other end."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self, snapshot: LocalSnapshot) -> None:
        self.outgoing: dict[str, OutgoingCut] = {end.target: end for end in snapshot.outgoing}
        self.incoming: dict[str, IncomingCut] = {end.source: end for end in snapshot.incoming}
