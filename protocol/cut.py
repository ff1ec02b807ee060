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
    if incoming.digest != outgoing.digest:
        return violation("digest", None, "what was received and recorded are not the bytes that were sent")
    return None


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
    reference: LocalSnapshot | None = None
    for participant in members:
        snapshot = snapshots.get(participant)
        if snapshot is None:
            yield Violation(kind="incomplete", participant=participant, detail="no report")
            continue
        reference = reference or snapshot
        foreign = _foreign(topology, participant, snapshot, reference)
        if foreign is not None:
            yield foreign
    for participant in sorted(set(snapshots).difference(members)):
        yield Violation(kind="foreign", participant=participant, detail="not a member of the epoch")

    ends = {participant: _Ends(snapshots[participant]) for participant in members if participant in snapshots}
    for channel in topology.channels():
        source, target = ends.get(channel.source), ends.get(channel.target)
        found = check_channel(
            channel,
            None if source is None else source.outgoing.get(channel.target),
            None if target is None else target.incoming.get(channel.source),
        )
        if found is not None:
            yield found


_SAME: Final = ("cluster", "epoch", "incarnation")
"""What all reports of one epoch have in common."""


def _foreign(
    topology: Topology, participant: ParticipantId, snapshot: LocalSnapshot, reference: LocalSnapshot
) -> Violation | None:
    """Why a member's report does not belong to this cut, or None."""

    def violation(detail: str, channel: ChannelId | None = None) -> Violation:
        return Violation(kind="foreign", participant=participant, channel=channel, detail=detail)

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
    channels = [ChannelId(participant, ParticipantId(end.target)) for end in snapshot.outgoing]
    channels += [ChannelId(ParticipantId(end.source), participant) for end in snapshot.incoming]
    seen: set[ChannelId] = set()
    for channel in channels:
        if not topology.has_channel(channel):
            return violation("the topology has no such channel", channel)
        if channel in seen:
            return violation("the channel is reported twice", channel)
        seen.add(channel)
    return None


class _Ends:
    """A report's channels by the participant at their other end."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self, snapshot: LocalSnapshot) -> None:
        self.outgoing: dict[str, OutgoingCut] = {end.target: end for end in snapshot.outgoing}
        self.incoming: dict[str, IncomingCut] = {end.source: end for end in snapshot.incoming}
