"""JSON documents of the API, made from the ledger and from what this process knows besides.

Pure functions over one replica's state. What is not replicated (heartbeats, the phase that a participant is in, which
coordinators are up) is known to the leader alone; a follower's document has null there.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.blame import phase_steps
from coordinator.ledger.records import SEALED
from coordinator.progress import FIRST_PHASE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.ledger import EpochRecord, Ledger, MemberRecord, OriginRecord, ParticipantRecord, RollbackRecord

NS_PER_MS = 1_000_000
STUCK_AFTER_SECONDS = 3
"""From its seal on an epoch takes a hundredth of this, and less than all of it where another leader takes over."""
CHANNELS_LISTED_MAX = 20_000
"""Channels that one answer lists: a thousand members have a million, which would stall the coordinator for seconds."""


class LiveView(Protocol):
    """What only the leader knows."""

    def heartbeat_age_ms(self, session: int) -> int | None:
        """Since the session was last heard; None: not known here."""
        ...

    def phase_of(self, epoch: int, participant: str) -> str | None:
        """Last phase that a participant told of an open epoch; None: not known here."""
        ...

    def elapsed_ms(self, epoch: int) -> int | None:
        """Monotonic time since an open epoch started; None: not known here."""
        ...

    def connected(self, session: int) -> bool:
        """Whether the session has a control connection here."""
        ...

    def trouble(self, epoch: int) -> str:
        """What holds up an open epoch; "" while all goes well."""
        ...

    def recovery(self) -> tuple[str, str]:
        """What recovery is doing, and why."""
        ...


def milliseconds(ns: int) -> int:
    """Nanoseconds as whole milliseconds."""
    return ns // NS_PER_MS


def epoch_short(record: EpochRecord, live: LiveView | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """One row of the list of epochs; `names` are those of the epoch as a savepoint."""
    duration: int | None = milliseconds(record.took_ns) if not record.open else None
    if record.open and live is not None:
        duration = live.elapsed_ms(record.epoch)
    return {
        "epoch": record.epoch,
        "names": list(names),
        "state": record.state,
        "reason": record.reason,
        "started_at_ms": milliseconds(record.started_at),
        "ended_at_ms": milliseconds(record.ended_at) if record.ended_at else None,
        "duration_ms": duration,
        "term": record.terms[-1],
        "terms": list(record.terms),
        "incarnation": record.incarnation,
        "topology": record.topology,
        "members_count": record.members_count,
        "reported_count": record.reported_count,
        "state_bytes": record.state_bytes,
        "new_bytes": record.new_bytes,
        "in_flight": record.in_flight,
        "manifest": record.manifest or None,
        "abort": _abort(record),
    }


def epoch_full(record: EpochRecord, live: LiveView | None = None, names: Sequence[str] = ()) -> dict[str, Any]:
    """All that is known of one epoch."""
    return {
        **epoch_short(record, live, names),
        "deadline_ms": milliseconds(record.deadline_ns),
        "sealed_at_ms": milliseconds(record.sealed_at) if record.sealed_at else None,
        "previous": record.previous or None,
        "trimmed": record.trimmed,
        "phases": {name: round(ns / NS_PER_MS, 3) for name, ns in sorted(record.phases.items())},
        "members": {name: _member(record, name, member, live) for name, member in sorted(record.members.items())},
    }


def _member(record: EpochRecord, name: str, member: MemberRecord, live: LiveView | None) -> dict[str, Any]:
    reported = bool(member.snapshot)
    phase = "reported" if reported else None
    if not reported and record.open and live is not None:
        phase = live.phase_of(record.epoch, name) or FIRST_PHASE
    if not reported and record.abort is not None:
        phase = next((note.phase for note in record.abort.waiting if note.participant == name), None)
    return {
        "session": member.session,
        "phase": phase,
        "reported_ms": milliseconds(member.waited_ns) if reported else None,
        "snapshot": member.snapshot or None,
        "state_bytes": member.state_bytes,
        "new_bytes": member.new_bytes,
        "in_flight": member.in_flight,
        "timings": {phase: round(ns / NS_PER_MS, 3) for phase, ns in phase_steps(member.timings).items()},
    }


def _abort(record: EpochRecord) -> dict[str, Any] | None:
    why = record.abort
    if why is None:
        return None
    return {
        "participant": why.participant or None,
        "phase": why.phase,
        "cause": why.cause,
        "waiting": [
            {
                "participant": note.participant,
                "phase": note.phase,
                "waited_ms": milliseconds(note.waited_ns),
                "open_channels": list(note.open_channels),
                "open_count": note.open_count,
            }
            for note in why.waiting
        ],
        "waiting_count": why.waiting_count,
    }


def epochs(ledger: Ledger, live: LiveView | None, *, limit: int, before: int, named: bool = False) -> dict[str, Any]:
    """Newest first; `before` 0: from the newest; `named`: only savepoints."""
    numbers = sorted(
        (n for n in ledger.state.epochs if (before == 0 or n < before) and (not named or ledger.names_of(n))),
        reverse=True,
    )
    rows = [epoch_short(ledger.state.epochs[number], live, ledger.names_of(number)) for number in numbers[:limit]]
    return {"epochs": rows, "more": len(numbers) > limit}


def savepoints(ledger: Ledger) -> dict[str, Any]:
    """All names, by name."""
    return {"savepoints": [savepoint(ledger, name) for name in sorted(ledger.state.savepoints)]}


def savepoint(ledger: Ledger, name: str) -> dict[str, Any]:
    """A name that is there, and its epoch."""
    record = ledger.state.savepoints[name]
    epoch = ledger.epoch(record.epoch)
    assert epoch is not None, "what has a name stays in the ledger"
    return {
        "name": name,
        "epoch": record.epoch,
        "pinned_at_ms": milliseconds(record.pinned_at),
        "started_at_ms": milliseconds(epoch.started_at),
        "incarnation": epoch.incarnation,
        "state_bytes": epoch.state_bytes,
    }


def participant(record: ParticipantRecord, live: LiveView | None) -> dict[str, Any]:
    """One participant."""
    known = live is not None and record.live
    return {
        "id": record.id,
        "session": record.session,
        "state": record.state,
        "up": live.connected(record.session) if live is not None and known else None,
        "address": record.address,
        "agents": list(record.agents),
        "declared": list(record.declared),
        "kinds": list(record.kinds),
        "agent_versions": dict(sorted(record.agent_versions.items())),
        "targets": None if record.targets is None else list(record.targets),
        "build": record.build,
        "heartbeat_age_ms": live.heartbeat_age_ms(record.session) if live is not None and known else None,
        "joined_at": milliseconds(record.registered_at),
        "ended_at": milliseconds(record.ended_at) if record.ended_at else None,
        "cause": record.cause or None,
    }


def participants(ledger: Ledger, live: LiveView | None) -> dict[str, Any]:
    """All that are remembered, by id."""
    return {"participants": [participant(record, live) for record in ledger.participants()]}


def topology(ledger: Ledger) -> dict[str, Any]:
    """The current topology; of its channels, which grow with the square of its members, the first."""
    from protocol.ids import ParticipantId, TopologyVersion
    from protocol.topology import Topology

    record = ledger.state.topology
    built = Topology(TopologyVersion(record.version), record.members)
    channels = (channel for member in record.members for channel in built.outgoing(ParticipantId(member.id)))
    ids = {member.id for member in record.members}
    return {
        "version": record.version,
        "members": [
            {
                "id": member.id,
                "session": member.session,
                "address": member.address,
                "agents": list(member.agents),
                "targets": None if member.targets is None else list(member.targets),
            }
            for member in record.members
        ],
        "channels": [[channel.source, channel.target] for channel in islice(channels, CHANNELS_LISTED_MAX)],
        "channels_count": sum(
            len(ids) - 1 if member.targets is None else len(ids.intersection(member.targets))
            for member in record.members
        ),
        "stale": ledger.topology_is_stale,
    }


def stuck(ledger: Ledger, live: LiveView | None, wall: int) -> list[dict[str, Any]]:
    """Sealed epochs that do not come to their commit: no other epoch starts, and nothing is rolled back, before they end.

    What the leader knows, and those that were sealed long before `wall`, nanoseconds since 1970.
    """
    found = []
    for record in ledger.open_epochs():
        if record.state != SEALED:
            continue
        seconds = max(0, wall - record.sealed_at) // 1_000_000_000
        why = live.trouble(record.epoch) if live is not None else ""
        if not why and seconds >= STUCK_AFTER_SECONDS:
            why = f"it was sealed {seconds} s ago"
        if why:
            found.append({"epoch": record.epoch, "why": why})
    return found


def counts(ledger: Ledger, live: LiveView | None, wall: int) -> dict[str, Any]:
    """Epochs in numbers; `wall` as for `stuck`."""
    state = ledger.state
    return {
        "newest": state.epoch,
        "newest_committed": state.committed,
        "committed": state.committed_count,
        "aborted": state.aborted_count,
        "failures_in_a_row": state.failures,
        "open": [record.epoch for record in ledger.open_epochs()],
        "stuck": stuck(ledger, live, wall),
    }


def rollback(record: RollbackRecord) -> dict[str, Any]:
    """One rollback: the beginning of an incarnation."""
    return {
        "incarnation": record.incarnation,
        "epoch": record.epoch,
        "state": record.state,
        "cause": record.cause,
        "automatic": record.automatic,
        "topology": record.topology,
        "terms": list(record.terms),
        "members_count": record.members_count,
        "restored_count": record.restored_count,
        "members": {
            name: {"session": member.session, "restored": member.restored, "load_ms": milliseconds(member.took_ns)}
            for name, member in sorted(record.members.items())
        },
        "map": dict(record.renames),
        "dropped": list(record.dropped),
        "fences": dict(sorted(record.fences.items())),
        "started_at_ms": milliseconds(record.started_at),
        "ended_at_ms": milliseconds(record.ended_at) if record.ended_at else None,
        "waited_ms": milliseconds(record.waited_ns),
        "fence_ms": milliseconds(record.fenced_ns),
        "took_ms": milliseconds(record.took_ns),
        "failure": {"participant": record.participant, "kind": record.why, "cause": record.failure}
        if record.failure
        else None,
    }


def recovery(ledger: Ledger, live: LiveView | None) -> dict[str, Any]:
    """What recovery is doing; a follower knows less of why."""
    state = ledger.state
    record = ledger.rollback
    if live is not None:
        doing, why = live.recovery()
    elif state.stopped:
        doing, why = "stopped", state.stopped
    elif record is not None and record.running:
        doing, why = "restoring", record.cause
    elif ledger.policy.recovery != "off" and ledger.lost_members():
        doing, why = "waiting", f"{ledger.lost_members()[0].id} is lost"
    else:
        doing, why = "running", ""
    return {
        "state": doing,
        "why": why or None,
        "epoch": ledger.recovery_epoch,
        "rollbacks": len(state.rollbacks),
        "last": None if record is None else rollback(record),
    }


def incarnations(ledger: Ledger) -> dict[str, Any]:
    """All rollbacks that are remembered, newest first."""
    records = ledger.state.rollbacks
    return {
        "incarnation": ledger.state.incarnation,
        "rollbacks": [rollback(records[number]) for number in sorted(records, reverse=True)],
    }


def fork_of(origin: OriginRecord) -> dict[str, Any]:
    """What the cluster is a fork of."""
    return {"cluster": origin.cluster, "epoch": origin.epoch, "manifest": origin.manifest, "dry_run": origin.dry_run}


def status(
    ledger: Ledger,
    live: LiveView | None,
    *,
    coordinators: list[Mapping[str, Any]],
    leader: str | None,
    version: str,
    wall: int,
) -> dict[str, Any]:
    """The whole cluster at a glance, at an instant of the wall clock, nanoseconds since 1970."""
    from coordinator.policy import is_struggling

    state = ledger.state
    known = [record for record in ledger.participants() if record.live]
    up = len(known) if live is None else sum(live.connected(record.session) for record in known)
    return {
        "cluster": state.cluster,
        "term": state.term,
        "leader": leader,
        "coordinators": coordinators,
        "incarnation": state.incarnation,
        "fork_of": None if state.origin is None else fork_of(state.origin),
        "recovery": recovery(ledger, live),
        "topology": state.topology.version,
        "epochs": counts(ledger, live, wall),
        "participants": {"count": len(known), "up": up, "members": len(state.topology.members)},
        "policy": ledger.policy.document(),
        "struggling": is_struggling(ledger.policy, state.failures),
        "version": version,
    }
