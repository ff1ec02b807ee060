"""What an epoch waited for, in words: open, committed and aborted ones.

A deadline has one culprit: of those that have not reported, the one that is furthest behind. A participant that has not
recorded holds up all others (no marker comes from it), so being early in the order of phases outweighs everything; among
equals the first name. Somebody who waits for markers is named with the channels, whose sources may be the true cause.

Phases by participant: ``record`` (cut not taken), ``channels`` (markers missing), ``encode``, ``upload``, ``report``; by
the leader: ``assemble``, ``seal``, ``manifest``, ``commit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.ledger.commands import OPEN_CHANNELS_MAX, WAITING_NOTES_MAX, WaitingNote
from coordinator.ledger.records import ABORTED, COMMITTED, SEALED, STARTED
from coordinator.progress import FIRST_PHASE, PARTICIPANT_PHASES, ParticipantProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.ledger import EpochRecord
    from coordinator.progress import EpochNotes
    from protocol.ids import Instant

_WAITS_FOR = {
    "record": "to record its state",
    "channels": "for markers on its channels",
    "encode": "to encode its state",
    "upload": "to write its state to the store",
    "report": "to report",
    "assemble": "for the cut to be read and checked",
    "seal": "for the seal to enter the ledger",
    "manifest": "for the manifest to be stored",
    "commit": "for the commit to enter the ledger",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whom a deadline is put down to."""

    participant: str
    """"" where it is the leader's own phase."""
    phase: str
    cause: str
    waiting: tuple[WaitingNote, ...]
    waiting_count: int


def missing(record: EpochRecord) -> list[str]:
    """Members that have not reported, by id."""
    return [name for name, member in sorted(record.members.items()) if not member.snapshot]


def judge_deadline(
    record: EpochRecord, notes: EpochNotes, *, heard_at: Callable[[int], Instant | None], now: Instant
) -> Verdict:
    """Why an epoch did not make it within its deadline.

    Args:
        record: A started epoch.
        notes: This leader's.
        heard_at: Session -> when this leader heard it last.
        now: The deadline, or a little later.
    """
    names = missing(record)
    if not names:
        phase = "seal" if notes.assembled is not None else "assemble"
        return Verdict(
            participant="",
            phase=phase,
            cause=notes.trouble or f"all {record.members_count} reports were in, but the cut was not sealed in time",
            waiting=(),
            waiting_count=0,
        )
    ranked = sorted(names, key=lambda name: (_rank(notes.progress.get(name)), name))
    culprit = ranked[0]
    progress = notes.progress.get(culprit)
    phase = progress.phase if progress is not None else FIRST_PHASE
    heard = heard_at(record.members[culprit].session)
    parts = [_what_is_missing(culprit, progress)]
    if heard is not None:
        parts.append(f"last heard {_seconds(now - heard)} ago")
    parts.append(f"{len(names)} of {record.members_count} members had not reported")
    return Verdict(
        participant=culprit,
        phase=phase,
        cause="; ".join(parts),
        waiting=waiting_notes(ranked, notes, now),
        waiting_count=len(names),
    )


def waiting_notes(names: list[str], notes: EpochNotes, now: Instant) -> tuple[WaitingNote, ...]:
    """Where these participants are, in this order, as many as fit an entry of the ledger."""
    found: list[WaitingNote] = []
    for name in names[:WAITING_NOTES_MAX]:
        progress = notes.progress.get(name)
        channels = progress.open_channels if progress is not None else ()
        found.append(
            WaitingNote(
                participant=name,
                phase=progress.phase if progress is not None else FIRST_PHASE,
                waited_ns=max(0, now - (progress.told_at if progress is not None else notes.since)),
                open_channels=channels[:OPEN_CHANNELS_MAX],
                open_count=len(channels),
            )
        )
    return tuple(found)


def why(record: EpochRecord, notes: EpochNotes | None = None, now: Instant | None = None) -> dict[str, Any]:
    """What ``cleancut epoch why`` says.

    Args:
        record: From the ledger.
        notes: Of the leader, for an open epoch; None elsewhere.
        now: With `notes`.

    Returns:
        ``{epoch, state, sentences, phases}``: phases are ``{participant, phase, ms}`` in order of time taken, longest
        first, ``channel`` beside those that wait for one; participant "" is the leader.
    """
    sentences = [_opening(record)]
    if record.state == ABORTED and record.abort is not None:
        sentences += _aborted(record)
    elif record.state == STARTED:
        sentences += _in_progress(record, notes, now)
    elif record.state == SEALED:
        sentences.append("It is sealed: its manifest is being stored, then it is committed.")
        if notes is not None and notes.trouble:
            sentences.append(
                "If its manifest cannot be made any more it is given up, unless the store has it: by itself after some seconds, "
                f"at once by `cleancut epoch abort {record.epoch}`."
            )
    if notes is not None and notes.trouble:
        sentences.append(f"Last trouble: {notes.trouble}.")
    sentences += _slowest(record)
    if len(record.terms) > 1:
        listed = ", ".join(str(term) for term in record.terms)
        sentences.append(f"Leadership changed while it was open: terms {listed}.")
    return {
        "epoch": record.epoch,
        "state": record.state,
        "sentences": sentences,
        "phases": _phase_rows(record, notes, now),
    }


# --- sentences ------------------------------------------------------------------------------------------------------


def _opening(record: EpochRecord) -> str:
    members = f"{record.members_count} member{'s' if record.members_count != 1 else ''}"
    reason = f" ({record.reason})" if record.reason else ""
    if record.state == COMMITTED:
        return f"Epoch {record.epoch}{reason} committed after {_seconds(record.took_ns)} with {members}."
    if record.state == ABORTED:
        return f"Epoch {record.epoch}{reason} was aborted after {_seconds(record.took_ns)}; it had {members}."
    return f"Epoch {record.epoch}{reason} is open: {record.reported_count} of {members} have reported."


def _aborted(record: EpochRecord) -> list[str]:
    abort = record.abort
    assert abort is not None
    first = abort.waiting[0] if abort.waiting else None
    if abort.phase == "lost":
        where = f" in phase {first.phase}" if first is not None and first.participant == abort.participant else ""
        sentences = [f"{abort.participant} was lost{where}: {abort.cause}."]
    elif abort.phase == "operator":
        sentences = [f"It was aborted by hand: {abort.cause}."]
    else:
        who = f" of {abort.participant}" if abort.participant else " of the leader"
        sentences = [f"It ended in phase {abort.phase}{who}: {abort.cause}."]
    sentences += [
        f"{note.participant} had been waiting {_WAITS_FOR.get(note.phase, f'in {note.phase}')} "
        f"for {_seconds(note.waited_ns)}{_channels(note.open_channels, note.open_count, note.participant)}."
        for note in abort.waiting
    ]
    more = abort.waiting_count - len(abort.waiting)
    if more > 0:
        sentences.append(f"{more} more had not reported either.")
    return sentences


def _in_progress(record: EpochRecord, notes: EpochNotes | None, now: Instant | None) -> list[str]:
    names = missing(record)
    if not names:
        return [f"All reports are in; it waits {_WAITS_FOR['assemble']}."]
    if notes is None or now is None:
        shown = ", ".join(names[:WAITING_NOTES_MAX])
        return [f"Not reported yet: {shown}{' and more' if len(names) > WAITING_NOTES_MAX else ''}."]
    ranked = sorted(names, key=lambda name: (_rank(notes.progress.get(name)), name))
    return [
        f"{note.participant} has been waiting {_WAITS_FOR[note.phase]} for {_seconds(note.waited_ns)}"
        f"{_channels(note.open_channels, note.open_count, note.participant)}."
        for note in waiting_notes(ranked, notes, now)
    ]


def _slowest(record: EpochRecord) -> list[str]:
    """The slowest participant of each phase, for those that reported."""
    slowest: dict[str, tuple[int, str]] = {}
    for name, member in sorted(record.members.items()):
        for phase, ns in sorted(phase_steps(member.timings).items()):
            if ns > slowest.get(phase, (-1, ""))[0]:
                slowest[phase] = (ns, name)
    sentences = [
        f"Slowest in phase {phase}: {slowest[phase][1]} with {_milliseconds(slowest[phase][0])}."
        for phase in sorted(slowest, key=_order)
    ]
    last = max(
        ((member.waited_ns, name) for name, member in sorted(record.members.items()) if member.snapshot),
        default=None,
    )
    if last is not None:
        sentences.append(f"The last report came from {last[1]} after {_milliseconds(last[0])}.")
    if record.phases:
        own = ", ".join(f"{phase} {_milliseconds(record.phases[phase])}" for phase in sorted(record.phases, key=_order))
        sentences.append(f"The leader's own part: {own}.")
    return sentences


def _phase_rows(record: EpochRecord, notes: EpochNotes | None, now: Instant | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, member in sorted(record.members.items()):
        rows += [
            {"participant": name, "phase": phase, "ms": _ms(ns)}
            for phase, ns in sorted(phase_steps(member.timings).items())
        ]
    rows += [{"participant": "", "phase": phase, "ms": _ms(ns)} for phase, ns in sorted(record.phases.items())]
    waiting = record.abort.waiting if record.abort is not None else ()
    if notes is not None and now is not None and record.state == STARTED:
        waiting = waiting_notes(missing(record), notes, now)
    for note in waiting:
        row = {"participant": note.participant, "phase": note.phase, "ms": _ms(note.waited_ns)}
        rows.append(row)
        rows += [{**row, "channel": f"{source}->{note.participant}"} for source in note.open_channels]
    return sorted(rows, key=lambda row: (-row["ms"], row["participant"], row["phase"], row.get("channel", "")))


def phase_steps(timings: dict[str, int]) -> dict[str, int]:
    """Durations of the phases from a report's timings.

    Args:
        timings: ``record`` is a duration; the others are instants since the cut, each the end of its phase and the begin
            of the next.

    Returns:
        Nanoseconds by phase, in the order in which they ended.
    """
    steps = {"record": timings["record"]} if "record" in timings else {}
    previous = 0
    for phase, ns in sorted(timings.items(), key=lambda item: (item[1], _order(item[0]))):
        if phase == "record":
            continue
        steps[phase] = max(0, ns - previous)
        previous = max(previous, ns)
    return steps


def _what_is_missing(name: str, progress: ParticipantProgress | None) -> str:
    if progress is None:
        return f"{name} never said that it recorded its state"
    open_channels = _channels(progress.open_channels[:OPEN_CHANNELS_MAX], len(progress.open_channels), name)
    return f"{name} was still waiting {_WAITS_FOR[progress.phase]}{open_channels}"


def _channels(sources: tuple[str, ...], count: int, target: str) -> str:
    if not sources:
        return ""
    listed = ", ".join(f"{source}->{target}" for source in sources)
    more = count - len(sources)
    return f" ({listed}{f' and {more} more' if more > 0 else ''})"


def _rank(progress: ParticipantProgress | None) -> int:
    return PARTICIPANT_PHASES.index(progress.phase) if progress is not None else 0


def _order(phase: str) -> tuple[int, str]:
    """Phases in the order in which they happen; unknown ones last."""
    known = list(_WAITS_FOR)
    known.insert(5, "collect")
    return (known.index(phase) if phase in known else len(known), phase)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)


def _milliseconds(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.2f} s"
