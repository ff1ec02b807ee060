"""I1, I2 and the recorded local states: what an epoch holds is what was there, list by list and bit for bit.

For each channel p->q of the manifest: sent = the messages that p's turns had sent when p recorded; received = those handed
to q's mailboxes when q recorded. received <= sent (I2), and the stored channel state is exactly the messages between (I1).
Agents' fields, mailboxes and unrouted messages are compared with what they were at the same moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.manifest import Manifest
    from protocol.messages import Envelope
    from protocol.reading import EpochReader
    from simulations.ghost import GhostCut, GhostLog
    from simulations.state_forms import StateForms

_encode = msgspec.msgpack.encode


def cuts_of(ghost: GhostLog, manifest: Manifest) -> dict[str, GhostCut]:
    """Participant -> its cut of the manifest's epoch, as the ghost saw it.

    Raises:
        Violation: A member named there never recorded.
    """
    found: dict[str, GhostCut] = {}
    for member in manifest.members:
        cut = ghost.cuts.get((member.session, manifest.epoch))
        if cut is None:
            raise Violation(
                "I7",
                f"epoch {manifest.epoch} names session {member.session} of {member.participant}, which never recorded",
            )
        found[member.participant] = cut
    return found


def check_channel_states(ghost: GhostLog, reader: EpochReader, forms: StateForms) -> int:
    """Judge one manifest.

    Returns:
        Messages in flight.

    Raises:
        Violation: I1, I2, or a local state that is not the one of the cut (I26).
    """
    manifest = reader.manifest
    epoch = manifest.epoch
    cuts = cuts_of(ghost, manifest)
    sessions = {member.participant: member.session for member in manifest.members}
    in_flight = 0
    for channel in manifest.channels:
        stream = ghost.stream(
            channel.source,
            sessions[channel.source],
            channel.target,
            sessions[channel.target],
            manifest.incarnation,
        )
        sent = cuts[channel.source].sent.get(stream, 0)
        received = cuts[channel.target].received.get(stream, 0)
        if received > sent:
            raise Violation("I2", f"epoch {epoch}, {stream}: {received} received and {sent} sent at the cut")
        expected = stream.sent[received:sent]
        recorded = _bytes(reader.channel(channel.source, channel.target))
        if recorded != expected:
            raise Violation(
                "I1",
                f"epoch {epoch}, {stream}: {len(recorded)} messages recorded, {len(expected)} in flight "
                f"(sent {sent}, received {received}); first difference at {_first_difference(recorded, expected)}",
            )
        in_flight += len(recorded)
    for participant, cut in cuts.items():
        unrouted = _bytes(reader.unrouted(participant))
        if unrouted != cut.unrouted:
            raise Violation(
                "I1", f"epoch {epoch}, {participant}: {len(unrouted)} unrouted, {len(cut.unrouted)} at the cut"
            )
        for agent, expected_state in cut.states.items():
            state = reader.state(agent)
            if expected_state and forms.stored(state.fields) != expected_state:
                raise Violation(
                    "I26",
                    f"epoch {epoch}, {agent}: {state.fields} stored, {msgspec.msgpack.decode(expected_state)} at the cut",
                )
            if _bytes(reader.mailbox(agent)) != cut.mailboxes[agent]:
                raise Violation("I26", f"epoch {epoch}, {agent}: the stored mailbox is not the one of the cut")
            if len(reader.timers(agent)) != cut.timers[agent]:
                raise Violation("I26", f"epoch {epoch}, {agent}: the stored timers are not those of the cut")
    return in_flight


def _bytes(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [_encode(envelope) for envelope in envelopes]


def _first_difference(one: list[bytes], other: list[bytes]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))
