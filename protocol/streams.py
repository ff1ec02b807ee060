"""Streams that outlive a session: who resumes what, and from which number on both ends compute the digest. Pure.

With `durability="turn"` a participant that crashed comes back with its log. Its new session takes over from the one before: it
is the same *line*, and the streams to and from it go on with their numbers, while frames of the old session are fenced like all
others of a session that has ended. A line is named after its first session; a member that joins, or is taken to an epoch,
begins one.

* A stream goes on as long as both ends keep their lines; then it has both lines for its identity.
* A running digest cannot be kept in a log (a hash in the middle is not a value). So each resumption begins it anew, at the
  *base* of the stream: the digest is over the items behind it. Both ends must name the same base. They know it from the members
  alone: of the two, the later session has told in its registration where its ends stand, and this is it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from protocol.messages import Member


class StreamEnd(msgspec.Struct, frozen=True, array_like=True):
    """Where the two streams between a participant and one peer stand, by the participant's log."""

    peer: str
    line: int
    """Of the peer."""
    sent: int
    """Number of the last item to it. What is up to here, and not acknowledged, is sent again."""
    received: int
    """Number up to which everything from it is taken in for good."""


class Resumption(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a participant that has its log says when it registers."""

    session: int
    """That wrote the log last."""
    line: int
    incarnation: int
    streams: tuple[StreamEnd, ...] = ()
    agents: tuple[str, ...] | None = None
    """That the log holds, in order; None: those that the participant declares."""


def line_of(member: Member) -> int:
    """The line that a member's session belongs to."""
    return member.line or member.session


def stream_base(source: Member, target: Member) -> int:
    """Number behind which both ends of the stream from one member to the other compute the digest; 0: from its beginning."""
    later, other = (source, target) if source.session > target.session else (target, source)
    if line_of(later) == later.session:
        return 0
    for end in later.streams:
        if end.peer == other.id:
            if end.line != line_of(other):
                return 0
            return end.sent if later is source else end.received
    return 0
