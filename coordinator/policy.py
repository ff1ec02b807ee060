"""When the leader starts an epoch by itself.

``periodic`` starts one every `interval_ns`, counted from start to start, but never sooner than `pause_ns` after the end
of the one before: an epoch that takes longer than its interval is followed by a pause, not by another one at once.
Ticks that could not be used are skipped, not caught up with. ``manual`` starts none.

**Tolerable failures.** Epochs that abort in a row, for a reason that another attempt may meet again (not an operator's
abort, not a member that was lost: the next topology has solved that one), are counted in the ledger. Up to
`tolerable_failures` of them change nothing. Each one beyond doubles the interval, up to `SLOWDOWN_MAX` intervals, and
the cluster counts as struggling, which status and health show. We slow down instead of stopping because the cause
(a full disk, a store that is down) is mostly removed by somebody who does not know about epochs: the next attempt then
commits, and the first commit sets the count back to zero. 0 means that no number of failures is too many.

Differences: Flink fails the job when its tolerable number is passed; here a failing store must never cost the agents
anything (DESIGN.md P3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from protocol.errors import ConfigError
from protocol.ids import Duration, Instant
from protocol.limits import CONCURRENT_EPOCHS_MAX, EPOCH_DEADLINE_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

MILLISECOND_NS: Final = 1_000_000
SLOWDOWN_MAX: Final = 32
"""Intervals between two attempts of a struggling cluster, at most: a healed cause is noticed within half an hour even
at the interval of a minute."""
UNCOUNTED_PHASES: Final = ("operator", "lost", "rollback")
"""Phases of an abort that say nothing about the next attempt."""

_Positive = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy as the ledger keeps it."""

    kind: Literal["periodic", "manual"] = "periodic"
    interval_ns: _Positive = 10_000 * MILLISECOND_NS
    """From start to start."""
    pause_ns: _Count = 500 * MILLISECOND_NS
    """From the end of one epoch to the start of the next, asked-for ones included."""
    deadline_ns: _Positive = EPOCH_DEADLINE_NS
    """An epoch that is not sealed after this long is aborted."""
    tolerable_failures: _Count = 0
    """Aborts in a row that change nothing; 0: any number."""
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=CONCURRENT_EPOCHS_MAX)] = 1
    """Epochs that may be open at once."""
    recovery: Literal["auto", "manual", "off"] = "auto"
    """After the loss of a member: ``auto`` rolls back as soon as all agents have a host, ``manual`` waits for an operator,
    ``off`` goes on without it (its agents' state is lost; for agents whose state does not matter)."""
    takeover_after_ns: _Count = 30_000 * MILLISECOND_NS
    """Agents of a lost member go to others that can take them after this long; 0: they wait for it to come back."""
    max_rollbacks: _Count = 10
    """Automatic rollbacks within `rollback_window_ns`, after which an operator has to look; 0: any number."""
    rollback_window_ns: _Positive = 600_000 * MILLISECOND_NS
    fallback: Literal["newest-good", "refuse"] = "newest-good"
    """Where the epoch to go back to is damaged: the newest older one that is good, or an operator has to say."""

    durability: Literal["epoch", "turn"] = "epoch"
    """What a crash costs: ``epoch`` takes everybody back to the newest epoch, with ``turn`` the participant that crashed goes on
    from its log and the others notice nothing. One for all participants, which are started with it; can be changed only while
    none is there."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PolicySettings:
        """From the form of the API and of the configuration: milliseconds, missing keys take their default.

        Raises:
            ConfigError: Unknown key, wrong type, out of range.
        """
        fields: dict[str, Any] = {}
        for key, value in sorted(document.items()):
            if key.endswith("_ms") and isinstance(value, int) and not isinstance(value, bool):
                fields[f"{key[:-3]}_ns"] = value * MILLISECOND_NS
            else:
                fields[key] = value
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise ConfigError("policy", str(error).replace("_ns", "_ms")) from None

    def document(self) -> dict[str, str | int]:
        """As the API shows it: milliseconds."""
        return {
            "kind": self.kind,
            "interval_ms": self.interval_ns // MILLISECOND_NS,
            "pause_ms": self.pause_ns // MILLISECOND_NS,
            "deadline_ms": self.deadline_ns // MILLISECOND_NS,
            "tolerable_failures": self.tolerable_failures,
            "max_concurrent": self.max_concurrent,
            "recovery": self.recovery,
            "takeover_after_ms": self.takeover_after_ns // MILLISECOND_NS,
            "max_rollbacks": self.max_rollbacks,
            "rollback_window_ms": self.rollback_window_ns // MILLISECOND_NS,
            "durability": self.durability,
            "fallback": self.fallback,
        }


def is_struggling(policy: PolicySettings, failures: int) -> bool:
    """More epochs failed in a row than the policy tolerates."""
    return 0 < policy.tolerable_failures < failures


def interval_after(policy: PolicySettings, failures: int) -> Duration:
    """The interval after so many aborts in a row, nanoseconds."""
    if not is_struggling(policy, failures):
        return Duration(policy.interval_ns)
    beyond = min(failures - policy.tolerable_failures, SLOWDOWN_MAX.bit_length())
    return Duration(policy.interval_ns * min(2**beyond, SLOWDOWN_MAX))


def next_start(
    policy: PolicySettings, *, last_started: Instant, last_ended: Instant | None, failures: int
) -> Instant | None:
    """When the policy wants the next epoch; None: not by itself.

    Args:
        policy: The settings of now: a change takes effect at once, also for the interval that runs.
        last_started: When this leader saw the newest epoch start, or began to lead.
        last_ended: When it saw the newest one end; None if it saw none.
        failures: Aborts in a row, from the ledger.

    Returns:
        An instant, perhaps in the past: then it is due.
    """
    if policy.kind == "manual":
        return None
    by_interval = last_started + interval_after(policy, failures)
    by_pause = earliest_start(policy, last_ended=last_ended)
    return Instant(max(by_interval, by_pause))


def earliest_start(policy: PolicySettings, *, last_ended: Instant | None) -> Instant:
    """Before this instant nobody's request starts an epoch: the minimum pause. 0 where none ended yet."""
    if last_ended is None or policy.pause_ns == 0:
        return Instant(0)
    return Instant(last_ended + policy.pause_ns)
