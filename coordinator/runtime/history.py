"""What an applied ledger entry means to people: the events of `/v1/events` and the log.

Every coordinator applies every entry, so every coordinator tells the same events, in the same order, whoever leads.
Entries of the journal are told again at a start, with their own times, as events; the log, whose times are of its writing,
has them at level debug only. A command that was applied once and came again is told once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from coordinator.ledger import (
    AbortCommand,
    AdoptCommand,
    AnnounceCommand,
    Command,
    CommitCommand,
    ConfigureCommand,
    FenceCommand,
    ForsakeCommand,
    FoundCommand,
    LeadCommand,
    LeaveCommand,
    MarkLostCommand,
    PinCommand,
    RegisterCommand,
    ReportsCommand,
    RestoredCommand,
    RollbackCommand,
    RollbackFailedCommand,
    SealCommand,
    StartCommand,
    TopologyCommand,
    UnpinCommand,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.ledger import CommandId, Ledger, Result
    from coordinator.runtime.events import EventLog

log = logging.getLogger("cleancut.ledger")

REMEMBERED_MAX: Final = 4_096
"""Ids of commands told lately: a command is sent again within seconds or never."""

_commands: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)


class Historian:
    """Turns applied entries into events."""

    def __init__(self, ledger: Ledger, events: EventLog) -> None:
        self._ledger = ledger
        self._events = events
        self._told: dict[CommandId, None] = {}

    def applied(self, command_json: str, result: Result, *, old: bool = False) -> CommandId | None:
        """Tell what this entry did.

        Args:
            command_json: The entry.
            result: What it came to.
            old: It is of before this process started, as far as is known.

        Returns:
            The command's id; None: the entry is not a command.
        """
        try:
            command = _commands.decode(command_json)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            log.warning("an entry of the log is not a command of this build: %a", command_json[:120])
            return None
        if command.id in self._told:
            return command.id
        self._told[command.id] = None
        if len(self._told) > REMEMBERED_MAX:
            del self._told[next(iter(self._told))]
        if result["ok"]:
            for kind, details in self._told_by(command, result):
                self._events.record(kind, command.at // 1_000_000, **details)
                level = logging.DEBUG if old else logging.INFO
                log.log(level, "%s %s", kind, " ".join(f"{name}={_shown(value)}" for name, value in details.items()))
        return command.id

    def _told_by(self, command: Command, result: Result) -> Iterator[tuple[str, dict[str, Any]]]:
        match command:
            case LeadCommand():
                yield "leader-elected", {"leader": command.coordinator, "term": command.term}
            case ConfigureCommand():
                yield "policy-changed", {"policy": command.policy.document()}
            case FoundCommand():
                if result.get("outcome") == "founded":
                    yield "fork-founded", {"epoch": command.epoch, "origin": command.origin_cluster}
            case AnnounceCommand():
                pass  # a part of a registration, which is told when it is whole
            case RegisterCommand():
                yield "participant-registered", {"participant": command.participant, "session": result.get("session")}
            case MarkLostCommand():
                participant = result.get("participant")
                details = {"participant": participant, "session": command.session, "cause": command.cause}
                yield "participant-lost", details
                for epoch in result.get("aborted", []):
                    yield "epoch-aborted", self._aborted(epoch)
            case LeaveCommand():
                yield "participant-leaving", {"participant": result.get("participant"), "session": command.session}
            case TopologyCommand():
                yield "topology-changed", {"version": command.version, "members": result.get("members")}
                for session in result.get("left", []):
                    record = self._ledger.by_session(session)
                    yield "participant-left", {"participant": record.id if record else None, "session": session}
            case StartCommand():
                details = {"epoch": result["epoch"], "reason": command.reason, "members": result.get("members")}
                yield "epoch-started", details
            case ReportsCommand():
                for details in _by_epoch(result.get("outcomes", [])):
                    yield "epoch-reported", details
            case AbortCommand() | ForsakeCommand():
                yield "epoch-aborted", self._aborted(command.epoch)
            case SealCommand():
                if result.get("outcome") == "sealed":
                    yield "epoch-sealed", {"epoch": command.epoch, "manifest": command.manifest}
            case CommitCommand():
                if result.get("outcome") == "committed":
                    yield "epoch-committed", self._committed(command)
            case AdoptCommand():
                yield "agents-adopted", {"participant": result.get("participant"), "agents": list(command.agents)}
            case RollbackCommand():
                if result.get("outcome") == "stopped":
                    yield "recovery-stopped", {"cause": result.get("sentence")}
                else:
                    details = {"incarnation": command.incarnation, "epoch": command.epoch, "cause": command.cause}
                    yield "rollback-begun", details
            case FenceCommand():
                yield "fence-raised", {"incarnation": command.incarnation, "fence": command.fence}
            case RestoredCommand():
                names = [
                    note.participant
                    for note, outcome in zip(command.restored, result.get("outcomes", []), strict=False)
                    if outcome == "accepted"
                ]
                if names:
                    yield "participants-restored", {"incarnation": command.incarnation, "participants": names}
                if names and result.get("state") == "done":
                    yield "rollback-done", {"incarnation": command.incarnation, "took_ms": command.took_ns // 1_000_000}
            case RollbackFailedCommand():
                details = {
                    "incarnation": command.incarnation,
                    "participant": command.participant,
                    "cause": command.cause,
                }
                yield "rollback-failed", details
            case PinCommand():
                if result.get("outcome") == "pinned":
                    yield "epoch-pinned", {"epoch": command.epoch, "name": command.name}
            case UnpinCommand():
                yield "epoch-unpinned", {"epoch": result.get("epoch"), "name": command.name}
            case _:
                assert_never(command)

    def _aborted(self, epoch: int) -> dict[str, Any]:
        record = self._ledger.epoch(epoch)
        if record is None or record.abort is None:
            return {"epoch": epoch}
        why = record.abort
        return {"epoch": epoch, "participant": why.participant or None, "phase": why.phase, "cause": why.cause}

    def _committed(self, command: CommitCommand) -> dict[str, Any]:
        details: dict[str, Any] = {"epoch": command.epoch, "manifest": command.manifest}
        record = self._ledger.epoch(command.epoch)
        if record is not None:
            details |= {
                "duration_ms": record.took_ns // 1_000_000,
                "state_bytes": record.state_bytes,
                "in_flight": record.in_flight,
            }
        return details


def _by_epoch(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One event per epoch and entry, not per report: an entry of a large cluster holds a hundred of them."""
    told: dict[int, dict[str, Any]] = {}
    for each in outcomes:
        details = told.setdefault(each["epoch"], {"epoch": each["epoch"], "participants": []})
        if each["outcome"] == "accepted":
            details["participants"].append(each["participant"])
        else:
            details[each["outcome"]] = details.get(each["outcome"], 0) + 1
    return [details for _, details in sorted(told.items())]


def _shown(value: object) -> str:
    return ascii(value) if isinstance(value, str) and (" " in value or not value.isprintable()) else str(value)
