"""Named points of the drivers at which tests make a process die, fail or be slow.

In production a point is a look-up in a dict that is empty. Points are armed by the environment alone, and only where both
variables agree::

    CLEANCUT_ALLOW_FAILPOINTS=1
    CLEANCUT_FAILPOINTS="report.before_send=exit@2; pack.before_put=sleep:2000; manifest.before_put=error:ENOSPC@1"

===============  ======================================================================================================
action           what happens at the point
===============  ======================================================================================================
``exit``         the process ends at once, as by ``kill -9``: no handler, no flush, no farewell; its exit code is 137
``error:ERRNO``  `OSError` with that errno (`fp`), or the `StoreError` that a store would make of it (`fp_store`)
``sleep:MS``     the calling thread sleeps: at a point on the event loop the whole loop does
===============  ======================================================================================================

``@N`` after an action: only when the point is passed for the N-th time. ``?FILE``: only when `FILE` is there, and whoever
removes it acts: so a test chooses the moment, and of several processes with the same environment just one acts.

Whatever acts says so first in one line on standard error (``failpoint report.before_send: exit (passed 2 times)``): a test
proves by it that its fault happened. A process that listens beyond loopback refuses to start with points armed
(RELIABILITY.md T25). Machines never call these: crash points lie between their events.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import os
import re
import time  # noqa: TID251 - the one action that takes time; never for a decision
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from protocol.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

VARIABLE: Final = "CLEANCUT_FAILPOINTS"
PERMISSION: Final = "CLEANCUT_ALLOW_FAILPOINTS"
EXIT_CODE: Final = 137
"""What a shell shows for a process that SIGKILL ended."""
SLEEP_MS_MAX: Final = 600_000

POINTS: Final[Mapping[str, str]] = {
    # Participant, in the order of an epoch.
    "local.frozen": "The cut is taken: the local state is frozen; nothing is encoded, no marker has left.",
    "local.encoded": "The frozen state is encoded; channels may still be recording.",
    "pack.before_put": "A pack is about to be written. In a thread: a sleep here is a slow store.",
    "pack.after_put": "A pack is durable, and nothing names it yet.",
    "snapshot.before_put": "All packs are durable; the local-snapshot object is about to be written. In a thread.",
    "snapshot.after_put": "The local-snapshot object is durable, and nobody knows.",
    "report.before_send": "The part is durable; its report is about to be queued for the coordinator.",
    "report.after_send": "The report has been handed to the control connection's socket.",
    # Participant, logs on its own disk. All in threads.
    "log.before_append": "A batch of a log is about to be written.",
    "log.before_sync": "A batch is written and not synced; nobody has been told.",
    "log.after_sync": "A batch is durable; nobody has been told.",
    "log.before_rotate": "A batch is about to be written as the first of a new segment.",
    "log.after_rotate": "A new segment is durable, with its first batch and under its name; nobody has been told.",
    "log.before_truncate": "Segments that a committed epoch covers are about to be deleted.",
    "turns.before_replay": "The log of turns is about to be applied to agents as its base has them.",
    "turns.base_written": "The log of turns is to be applied to a newer epoch; what that covers is about to be deleted.",
    # Participant: outputs and outside input.
    "output.before_deliver": "Released outputs are about to be given to their sink.",
    "output.after_deliver": "A sink has taken outputs for good; the outbox does not know.",
    "sink.file_written": "Lines are in a sink's file, not synced, and its index does not know. In a thread.",
    "sink.file_synced": "Lines are durable in a sink's file, and its index does not know. In a thread.",
    "sink.file_indexed": "The index of a sink's file knows of the new lines in a transaction that is not committed. In a thread.",
    "sink.file_committed": "Lines and tokens of a batch are durable in a sink's file and index, and nobody knows. In a thread.",
    "sink.before_commit": "Rows and tokens of a batch are in a transaction that is not committed. In a thread.",
    "sink.after_commit": "Rows and tokens of a batch are committed, and nobody knows. In a thread.",
    "input.durable": "Inputs are durable in the log; no client has been told, no agent has them.",
    # Participant, one step.
    "effect.before_claim": "A step is about to be claimed in the effect ledger.",
    "effect.claimed": "The claim is durable; the call is not made.",
    "effect.called": "The call has returned; nobody has recorded its result.",
    "effect.before_record": "A step's end is about to be recorded.",
    "effect.recorded": "A step's end is durable; its turn does not know it.",
    # Coordinator that leads, in the order of an epoch.
    "start.before_propose": "An epoch is about to be proposed to the ledger.",
    "start.applied": "The entry that starts an epoch is in the ledger; no order has left.",
    "order.sent": "A start order has been handed to one participant's socket.",
    "reports.before_propose": "Reports have arrived and are about to be proposed.",
    "reports.applied": "A batch of reports is in the ledger; the leader has not acted on it.",
    "cut.before_assemble": "All reports are in the ledger; the objects are about to be read. In a thread.",
    "cut.assembled": "The cut has passed its check; the seal is not proposed.",
    "seal.before_propose": "The seal is about to be proposed.",
    "seal.applied": "The seal is in the ledger; the manifest is not written.",
    "manifest.before_put": "The manifest is about to be written. In a thread.",
    "manifest.after_put": "The manifest is durable; the commit is not in the ledger. In a thread.",
    "commit.before_propose": "The commit is about to be proposed.",
    "commit.applied": "The commit is in the ledger and announced to nobody.",
    "commit.announced": "The news of the commit has been handed to one participant's socket.",
    "abort.before_propose": "An abort is about to be proposed.",
    "abort.applied": "The abort is in the ledger and announced to nobody.",
    # Coordinator that leads, with a sealed epoch whose manifest cannot be made any more.
    "tombstone.before_put": "The key of a sealed epoch's manifest is about to be taken in the store. In a thread.",
    "tombstone.after_put": "It is taken for good, or the manifest was found there; the ledger does not know. In a thread.",
    "forsake.before_propose": "A sealed epoch is about to be proposed as forsaken.",
    "forsake.applied": "A sealed epoch is forsaken in the ledger, and nobody has been told.",
    # Coordinator that leads, in the order of a rollback.
    "rollback.before_propose": "A rollback is about to be proposed to the ledger.",
    "rollback.applied": "The incarnation is in the ledger; no fence is raised, no order has left.",
    "fence.before_raise": "A store or sink is about to be told the incarnation. In a thread.",
    "fence.after_raise": "It refuses what is older, and the ledger does not know. In a thread.",
    "restore.sent": "A restore order has been handed to one participant's socket.",
    "restored.applied": "Acknowledgements are in the ledger; the leader has not acted on them.",
    # Participant, in the order of a rollback.
    "restore.halted": "The restore order has come: no turn runs, nothing is on the disk of it.",
    "restore.before_read": "The epoch's manifest is about to be read. In a thread.",
    "restore.entered": "The incarnation is on the participant's disk; no state is loaded.",
    "restore.loaded": "State and in-flight messages are loaded; nobody knows.",
    "restored.after_send": "The acknowledgement has been handed to the control connection's socket.",
    # Every coordinator: the replicated log.
    "journal.before_sync": "Entries are written to the journal and not synced.",
    "journal.after_sync": "Entries are durable; no message that tells of them has left.",
    "journal.before_vote_sync": "A new term or vote is written to the journal and not synced.",
    "journal.before_rewrite": "A compaction begins: the log is shorter in memory, the file is the old one.",
    "journal.after_rewrite": "A compaction is over: the file is the new one, durable under its name.",
    "file.before_rename": "A journal's or snapshot's new file is durable under its temporary name.",
    "file.after_rename": "The new file has taken the old one's name; the folder is not synced.",
}
"""Every point, with what is true when it is passed. A name that is not here cannot be armed, nor placed."""

_SETTING: Final = re.compile(
    r"(?P<point>[a-z_.]+)\s*=\s*(?P<action>exit|error:(?P<errno>[A-Z0-9]+)|sleep:(?P<ms>\d{1,6}))"
    r"(?:@(?P<nth>[1-9]\d{0,8}))?(?:\?(?P<ticket>[^;]+))?\Z"
)
_LOOPBACK_NAMES: Final = frozenset({"localhost", "ip6-localhost"})


@dataclass(slots=True)
class _Armed:
    """One armed point."""

    action: str
    errno: int
    sleep_ms: int
    nth: int
    """0: every time."""
    ticket: str
    counter: itertools.count[int]
    """Passes so far; its `next` is atomic, for points that several threads pass."""


_armed: dict[str, _Armed] = {}
_armed_text = ""
_WATCHED: Final = "watched"
_watcher: Callable[[str], object] = str


def fp(point: str) -> None:
    """Pass a point.

    Raises:
        OSError: The point is armed with ``error``.
    """
    armed = _armed.get(point)
    if armed is not None:
        _pass(point, armed)


def fp_store(point: str, key: str) -> None:
    """Pass a point beside a store's operation on `key`.

    Raises:
        StoreError: The point is armed with ``error``.
    """
    armed = _armed.get(point)
    if armed is None:
        return
    try:
        _pass(point, armed)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0)
        raise StoreError("put", key, f"{error.strerror} (failpoint {point})", errno_name=name) from error


def armed() -> bool:
    """Whether any point is armed in this process."""
    return bool(_armed)


def arm_failpoints(environment: Mapping[str, str], hosts: Iterable[str]) -> None:
    """Arm what the environment names; called once by each driver before it does anything else.

    Args:
        environment: Of the process.
        hosts: Every host that this process listens on, or under which it can be reached.

    Raises:
        ConfigError: Not allowed, reachable from beyond this machine, or not a setting. Nothing is armed.
    """
    global _armed_text  # noqa: PLW0603 - as the table itself: one process, one environment
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return
    if environment.get(PERMISSION) != "1":
        raise ConfigError(VARIABLE, f"failpoints are for tests only; they need {PERMISSION}=1 as well")
    for host in hosts:
        if not is_loopback(host):
            raise ConfigError(VARIABLE, f"failpoints are refused where others can connect: {host!r} is not loopback")
    if text == _armed_text:
        return  # Another participant of this process has armed them; what was counted stays counted.
    settings = [_parse(part) for part in text.split(";") if part.strip()]
    names = [point for point, _ in settings]
    for point in names:
        if names.count(point) > 1:
            raise ConfigError(VARIABLE, f"{point} is set twice")
    _armed.clear()
    _armed.update(settings)
    _armed_text = text
    _say(f"failpoints are armed: {text}")


def disarm_failpoints() -> None:
    """Back to production, for tests in one process."""
    global _armed_text, _watcher  # noqa: PLW0603 - see above
    _armed.clear()
    _armed_text = ""
    _watcher = str


def watch_failpoints(watcher: Callable[[str], object]) -> None:
    """Have `watcher` told of every point that is passed, for simulations; it may raise. `disarm_failpoints` ends it."""
    global _watcher  # noqa: PLW0603 - one simulated world at a time in a process
    _watcher = watcher
    _armed.clear()
    _armed.update((point, _Armed(_WATCHED, 0, 0, 0, "", itertools.count(1))) for point in POINTS)


def is_loopback(host: str) -> bool:
    """Whether a host's name is this machine to itself."""
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse(part: str) -> tuple[str, _Armed]:
    found = _SETTING.match(part.strip())
    if found is None:
        raise ConfigError(
            VARIABLE, f"{part.strip()!a} is not POINT=ACTION[@N][?FILE] with action exit, error:ERRNO or sleep:MS"
        )
    point = found["point"]
    if point not in POINTS:
        raise ConfigError(VARIABLE, f"there is no point {point!a}; there are {', '.join(POINTS)}")
    number = 0
    if found["errno"]:
        number = getattr(errno, found["errno"], 0)
        if not isinstance(number, int) or number <= 0:
            raise ConfigError(VARIABLE, f"{found['errno']} is no errno of this system")
    sleep_ms = int(found["ms"] or 0)
    if sleep_ms > SLEEP_MS_MAX:
        raise ConfigError(VARIABLE, f"a sleep of {sleep_ms} ms; at most {SLEEP_MS_MAX}")
    nth, ticket = int(found["nth"] or 0), (found["ticket"] or "").strip()
    return point, _Armed(found["action"], number, sleep_ms, nth, ticket, itertools.count(1))


def _pass(point: str, armed: _Armed) -> None:
    if armed.action == _WATCHED:
        _watcher(point)
        return
    passed = next(armed.counter)
    if armed.nth and passed != armed.nth:
        return
    if armed.ticket and not _take(armed.ticket):
        return
    _say(f"failpoint {point}: {armed.action} (passed {passed} times)")
    if armed.action == "exit":
        os._exit(EXIT_CODE)
    if armed.sleep_ms:
        time.sleep(armed.sleep_ms / 1000)
    if armed.errno:
        raise OSError(armed.errno, os.strerror(armed.errno), f"failpoint {point}")


def _take(ticket: str) -> bool:
    try:
        os.unlink(ticket)
    except FileNotFoundError:
        return False
    return True


def _say(line: str) -> None:
    # Straight to the file: an exit flushes nothing, and a logger may be set up or not.
    os.write(2, f"{line}\n".encode())
