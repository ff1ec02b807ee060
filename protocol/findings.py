"""What a verification finds, and the collector that turns failures into findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import msgspec

from protocol.errors import ObjectCorrupt, ObjectMissing, StoreError, UnsupportedVersion

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

SignatureState: TypeAlias = Literal["verified", "wrong", "missing", "not checked"]
FINDINGS_MAX: Final = 10_000
"""A report holds at most this many; a store that is wrong everywhere need not fill memory with it."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    kind: str
    """``missing``, ``unreadable``, ``corrupt``, ``manifest``, ``signature``, ``foreign``, ``agents``, ``channel-table``,
    ``packs``, ``content``, or a kind of `protocol.cut.Violation`."""
    key: str = ""
    """The object."""
    participant: str = ""
    channel: str = ""
    """``source->target``."""
    expected: str = ""
    found: str = ""
    detail: str

    def __str__(self) -> str:
        """Kind, place and what is wrong, as a sentence for people."""
        place = self.channel or self.participant or self.key
        counts = f" (expected {self.expected}, found {self.found})" if self.expected or self.found else ""
        return f"{self.kind}{f' at {place}' if place else ''}: {self.detail}{counts}"


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying one epoch gave."""

    epoch: int
    ok: bool
    """No findings."""
    deep: bool
    manifest: str
    """Digest of the manifest's stored bytes, to compare with the ledger's; "" if it could not be read."""
    signature: SignatureState
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    """What was looked at: members, agents, channels, items and messages in flight, packs, chunks, bytes."""
    notes: tuple[str, ...]


class EnoughFound(Exception):
    """Ends a verification: the caller wanted the first finding only, or the report is full."""


class Findings:
    """Collects findings, counts and notes of one epoch.

    Raises from every method that finds something: `EnoughFound`, when no more are wanted.
    """

    def __init__(self, *, stop_at_first: bool) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.counts: dict[str, int] = {}
        self._max = 1 if stop_at_first else FINDINGS_MAX

    def add(
        self,
        kind: str,
        detail: str,
        *,
        key: str = "",
        participant: str = "",
        channel: str = "",
        expected: object = "",
        found: object = "",
    ) -> None:
        """One finding."""
        self.findings.append(
            Finding(
                kind=kind,
                key=key,
                participant=participant,
                channel=channel,
                expected=str(expected),
                found=str(found),
                detail=detail,
            )
        )
        if len(self.findings) >= self._max:
            self.notes.append(f"stopped after {len(self.findings)} finding{'s' if self._max > 1 else ''}")
            raise EnoughFound

    def attempt(
        self, read: Callable[[], _T], *, key: str = "", participant: str = "", channel: str = "", place: str = ""
    ) -> _T | None:
        """What `read` returns, or None after its failure became a finding.

        Args:
            read: Raises `StoreError` or `UnsupportedVersion` if anything.
            key: The object that is read; "" when it is the content of several.
            participant: Whose it is.
            channel: Whose it is.
            place: What is read, for the detail.
        """
        prefix = f"{place}: " if place else ""
        try:
            return read()
        except ObjectMissing as error:
            kind, detail = "missing", error.reason
        except ObjectCorrupt as error:
            kind, detail = ("corrupt", error.reason) if key else ("content", f"{error.key}: {error.reason}")
        except UnsupportedVersion as error:
            kind, detail = "manifest", str(error)
        except StoreError as error:
            kind = "unreadable"
            detail = f"{error.errno_name}: {error.reason}" if error.errno_name else error.reason
        self.add(kind, prefix + detail, key=key, participant=participant, channel=channel)
        return None

    def count(self, name: str, more: int = 0) -> None:
        """Count what was looked at."""
        self.counts[name] = self.counts.get(name, 0) + more
