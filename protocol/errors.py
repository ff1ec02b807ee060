"""The whole tree of errors.

::

    SnapshotError                   never raised itself; `definite`: True means the thing certainly did not happen
      ProtocolError                 abstract
        LocalProtocolError          our caller's bug: a machine was fed what its contract forbids
        RemoteProtocolError         the peer's
      WireError                     bytes that are not ours
        MalformedFrame              cannot be parsed, or does not say what it must
        ForgedFrame                 parsed; the MAC does not fit the cluster's secret
        UnsupportedVersion          of a later (or too early) format
        UndecodableMessage          an agent's message of unknown name or version, or whose body does not fit its type
      StoreError                    carries `operation`, `key`, `errno_name` (None where the system gave none)
        ObjectMissing               no such key
        ObjectConflict              create-only put of a key that holds other bytes
        ObjectCorrupt               bytes do not match their digest, index or schema
      ManifestConflict              two manifests of one epoch
      InconsistentCut               the cut is not consistent: carries the first `Violation`
      FencedError                   older incarnation or session
      RecoveryError                 no way back from here (NoRecoveryLine)
      LimitExceeded                 a bound of limits.py
        Overloaded                  outside input is refused for now (HTTP 429)
      ConfigError                   a setting is wrong: carries `setting` and what to do
        IllegalName                 a name that is not one
      Unsavable                     a state value or message that cannot be saved: agent, key path, type
      UnknownAgent                  no participant of the topology hosts it
      Refused                       the other side said no: code and sentence
        DryRun                      a fork in dry-run does no effect
      Unreachable                   the other side did not answer

Losing a race, a duplicate and a stale epoch are outcomes, not errors.
"""

from __future__ import annotations


class SnapshotError(Exception):
    """Base of all; never raised itself."""

    definite: bool = True
    """True: what was asked certainly did not happen. False: it may have."""


class ProtocolError(SnapshotError):
    """Abstract: somebody broke the protocol."""


class LocalProtocolError(ProtocolError):
    """Our own caller's bug."""


class RemoteProtocolError(ProtocolError):
    """The peer's doing; its connection is dropped, nothing else is harmed."""


class WireError(SnapshotError):
    """Bytes that cannot be taken. The only error that a decoder raises."""


class MalformedFrame(WireError):
    """Not one of our frames, or cut short, or oversized."""


class ForgedFrame(WireError):
    """The MAC does not verify under the cluster's secret."""


class UnsupportedVersion(WireError):
    """A format version that this build cannot read."""


class UndecodableMessage(WireError):
    """An agent message that this participant cannot turn into an object; it goes to the dead letters."""


class StoreError(SnapshotError):
    """An object store failed.

    Attributes:
        operation: ``put``, ``get``, ``list``, ``delete``, ``open``.
        key: The object's key, or the folder.
        errno_name: ``ENOSPC`` and the like; None where there is none.
    """

    def __init__(
        self, operation: str, key: str, reason: str, *, errno_name: str | None = None, definite: bool = True
    ) -> None:
        self.operation = operation
        self.key = key
        self.reason = reason
        self.errno_name = errno_name
        self.definite = definite
        code = f"{errno_name}: " if errno_name else ""
        super().__init__(f"store {operation} of {key!r} failed: {code}{reason}")


class ObjectMissing(StoreError):
    """No object has this key."""


class ObjectConflict(StoreError):
    """Create-only put of a key that holds other bytes."""


class ObjectCorrupt(StoreError):
    """The object's bytes are not what its name, checksum or schema promises."""


class ManifestConflict(SnapshotError):
    """Another manifest of the same epoch exists."""


class InconsistentCut(SnapshotError):
    """The cut breaks P1; the message names the first violation."""


class FencedError(SnapshotError):
    """The caller belongs to an older incarnation or session and must stop."""


class RecoveryError(SnapshotError):
    """The cluster cannot be brought back from what is there."""


class NoRecoveryLine(RecoveryError):
    """No consistent set of local snapshots exists."""


class LimitExceeded(SnapshotError):
    """A bound of `protocol.limits` was passed."""


class Overloaded(LimitExceeded):
    """Too much is in flight; outside input is refused until it drains."""


class ConfigError(SnapshotError):
    """A setting is wrong.

    Attributes:
        setting: Its name, as the user wrote it.
    """

    def __init__(self, setting: str, problem: str) -> None:
        self.setting = setting
        self.problem = problem
        super().__init__(f"{setting}: {problem}")


class IllegalName(ConfigError):
    """A name that is not ``[a-z0-9][a-z0-9._-]{0,62}``, or, as `why` says, one that is but means something else."""

    def __init__(self, what: str, text: object, why: str = "") -> None:
        shown = ascii(text)
        if len(shown) > 80:
            shown = f"{shown[:60]}... ({len(shown)} characters)"
        if why:
            super().__init__(what, f"{shown} is not allowed: {why}")
            return
        rule = "kind/name, each half" if what == "agent" else "a name is"
        if what == "channel":
            super().__init__(what, f"{shown} is not allowed: source and target must differ")
            return
        super().__init__(what, f"{shown} is not allowed: {rule} 1 to 63 of a-z 0-9 . _ - and starts with a-z or 0-9")


class Unsavable(SnapshotError):
    """A value that cannot be saved, refused at the moment it is set.

    Attributes:
        agent: Agent id, or "" where no agent is known yet.
        path: Key path to the offending part, such as ``memory.tools[2].client``.
        type_name: Its type.
    """

    def __init__(self, agent: str, path: str, type_name: str, problem: str) -> None:
        self.agent = agent
        self.path = path
        self.type_name = type_name
        self.problem = problem
        where = f"agent {agent}: " if agent else ""
        super().__init__(f"{where}{path} of type {type_name} cannot be saved: {problem}")


class UnknownAgent(SnapshotError):
    """No participant of the topology hosts this agent, or no channel leads to it."""


class Refused(SnapshotError):
    """The other side said no.

    Attributes:
        code: Short stable word, such as ``id-taken``, ``wrong-token``, ``wrong-cluster``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        self.code = code
        super().__init__(sentence)


class DryRun(Refused):
    """An effect was not done: this cluster is a fork in dry-run, and no result of it is known. It certainly did not happen."""

    def __init__(self, sentence: str) -> None:
        super().__init__("dry-run", sentence)


class Unreachable(SnapshotError):
    """The other side did not answer; whether it acted is unknown."""

    definite = False


def printable(text: object, length_max: int = 300) -> str:
    """Text from a stranger, safe for logs and terminals: everything but printable ASCII is escaped, and it is cut."""
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in str(text)[:length_max])
    return shown if len(shown) <= length_max else shown[:length_max]
