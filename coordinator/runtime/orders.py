"""Encoding orders to participants.

A new topology goes to every member with the same list of members and another session: encoded one by one that costs the
square of the cluster's size (0.6 s of a stalled loop for a thousand members). The list is therefore encoded once and
put into each message as it is; the bytes are those of `encode_control`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from protocol.ancestry import Ancestry
from protocol.messages import Control, Restore, TopologyChanged, encode_control

if TYPE_CHECKING:
    from protocol.messages import Member, ToParticipant

_encoder: Final = msgspec.msgpack.Encoder()


class _TopologyChanged(Control, frozen=True, kw_only=True, tag="topology-changed"):
    """`TopologyChanged` with members that are encoded already; same fields in the same order."""

    term: int
    session: int
    incarnation: int
    version: int
    members: msgspec.Raw


assert _TopologyChanged.__struct_fields__ == TopologyChanged.__struct_fields__


class _Restore(Control, frozen=True, kw_only=True, tag="restore"):
    """`Restore` likewise."""

    term: int
    session: int
    incarnation: int
    epoch: int
    manifest: str
    newest_epoch: int
    elapsed_ns: int
    version: int
    members: msgspec.Raw
    renames: tuple[tuple[str, str], ...] = ()
    ancestry: Ancestry | None = None
    elsewhere: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - msgspec copies it
    returns: bool | None = None


assert _Restore.__struct_fields__ == Restore.__struct_fields__


class OrderEncoder:
    """Remembers the last list of members."""

    def __init__(self) -> None:
        self._members: tuple[Member, ...] = ()
        self._encoded = msgspec.Raw(_encoder.encode(()))

    def encode(self, message: ToParticipant) -> bytes:
        """The message as bytes."""
        if not isinstance(message, TopologyChanged | Restore):
            return encode_control(message)
        if message.members is not self._members:
            self._members = message.members
            self._encoded = msgspec.Raw(_encoder.encode(message.members))
        if isinstance(message, Restore):
            return _encoder.encode(
                _Restore(
                    term=message.term,
                    session=message.session,
                    incarnation=message.incarnation,
                    epoch=message.epoch,
                    manifest=message.manifest,
                    newest_epoch=message.newest_epoch,
                    elapsed_ns=message.elapsed_ns,
                    version=message.version,
                    members=self._encoded,
                    renames=message.renames,
                    ancestry=message.ancestry,
                    elsewhere=message.elsewhere,
                    returns=message.returns,
                )
            )
        return _encoder.encode(
            _TopologyChanged(
                term=message.term,
                session=message.session,
                incarnation=message.incarnation,
                version=message.version,
                members=self._encoded,
            )
        )
