"""I4: the recorded state is reachable from the state at the start, and reaches the state at the end.

The theorem of 1985 as a program: sort what really happened so that every event before its participant's cut stands before
every event behind one, keeping the order within each group. If the cut is consistent this is a legal history: each receive
takes the head of its channel; after the first group the channels hold exactly what was recorded and the states are the
recorded ones; the second group is legal, too.

A start is the beginning of the incarnation: fresh agents, or what the epoch that it began from gave them.

A state is what a participant holds of the workload's total, its mailboxes and unrouted messages included: sending takes away
what a message carries, receiving adds it. Lives that are not members have no cut: all they did was before it.

Source: Chandy & Lamport 1985, theorem of section 3.4 and its proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.ghost import GhostLife, Stream


def check_reachable(cluster: SimulatedCluster, reader: EpochReader) -> None:
    """Judge one manifest.

    Raises:
        Violation: I4.
    """
    manifest, workload = reader.manifest, cluster.workload
    epoch = manifest.epoch
    of_session = {
        each.session: cluster.ghost.turns.line(each.session, manifest.incarnation) for each in manifest.members
    }
    members = {of_session[member.session]: member.participant for member in manifest.members}
    sent: dict[Stream, int] = {}
    taken: dict[Stream, int] = {}
    lives = cluster.ghost.lives
    held = {of_session[member.session]: beginning(cluster, lives[member.session]) for member in manifest.members}
    cut: set[int] = set()
    later: list[tuple[str, Stream, int, int]] = []
    for kind, line, stream, first, count in cluster.ghost.history:
        if kind == "cut":
            if first == epoch:
                cut.add(line)
            continue
        assert stream is not None, "a message without a stream"
        if stream.incarnation != manifest.incarnation:
            continue  # what an older one did was given up, but for what its epoch gave to this one's beginning
        if line in cut:
            later.append((kind, stream, first, count))
            continue
        _apply(epoch, kind, stream, first, count, sent, taken, "before the cut")
        if line in held:
            amount = sum(map(workload.carried_bytes, stream.sent[first : first + count]))
            held[line] += amount if kind == "recv" else -amount
    _compare(cluster, reader, members, held, sent, taken)
    for kind, stream, first, count in later:
        _apply(epoch, kind, stream, first, count, sent, taken, "behind the cut")


def beginning(cluster: SimulatedCluster, life: GhostLife) -> int:
    """What a life's agents held when its incarnation began."""
    return cluster.workload.share(life.name) if life.opening is None else life.opening


def _apply(
    epoch: int,
    kind: str,
    stream: Stream,
    first: int,
    count: int,
    sent: dict[Stream, int],
    taken: dict[Stream, int],
    where: str,
) -> None:
    if kind == "send":
        sent[stream] = sent.get(stream, 0) + count
        return
    if taken.get(stream, 0) != first or first + count > sent.get(stream, 0):
        raise Violation(
            "I4",
            f"epoch {epoch}, {stream}: message {first} is received {where}, {sent.get(stream, 0)} are sent and "
            f"{taken.get(stream, 0)} taken there",
        )
    taken[stream] = first + count


def _compare(
    cluster: SimulatedCluster,
    reader: EpochReader,
    members: dict[int, str],
    held: dict[int, int],
    sent: dict[Stream, int],
    taken: dict[Stream, int],
) -> None:
    manifest, workload = reader.manifest, cluster.workload
    lines = {participant: line for line, participant in members.items()}
    for channel in manifest.channels:
        stream = cluster.ghost.stream(
            channel.source,
            lines[channel.source],
            channel.target,
            lines[channel.target],
            manifest.incarnation,
        )
        between = stream.sent[taken.get(stream, 0) : sent.get(stream, 0)]
        recorded = reader.channel(channel.source, channel.target)
        if len(between) != len(recorded) or sum(map(workload.carried_bytes, between)) != sum(
            map(workload.carried, recorded)
        ):
            raise Violation(
                "I4",
                f"epoch {manifest.epoch}, {stream}: {len(recorded)} recorded, {len(between)} in the sorted history",
            )
    for member in manifest.members:
        found = sum(map(workload.carried, reader.unrouted(member.participant)))
        for agent in member.agents:
            found += workload.held(reader.state(agent).fields)
            found += sum(map(workload.carried, reader.mailbox(agent)))
        if found != held[lines[member.participant]]:
            raise Violation(
                "I4",
                f"epoch {manifest.epoch}, {member.participant}: {found} recorded, {held[lines[member.participant]]} in the sorted history",
            )
