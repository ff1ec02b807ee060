"""Reads a committed epoch for people: agents, their state, mailboxes, timers, and what was in flight.

Values are decoded without the user's classes (`protocol.contents`). What was saved with cloudpickle is shown as `Opaque`
with its size and never loaded. Every object is checked against the digest that the manifest names before it is decoded;
whether the manifest itself is genuine is for `protocol.verify`.
"""

from __future__ import annotations

import base64
import datetime
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from protocol.contents import (
    decode_channel,
    decode_journal,
    decode_keys,
    decode_mailbox,
    decode_outputs,
    decode_questions,
    decode_segment,
    decode_timers,
    decode_tokens,
    decode_value,
    messages_of,
)
from protocol.digests import manifest_key, snapshot_key
from protocol.documents import decode_local_snapshot, decode_manifest
from protocol.errors import ObjectCorrupt, UnknownAgent
from protocol.limits import CONTENT_BYTES_MAX, MANIFEST_BYTES_MAX, NESTING_MAX, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.pack import ChunkReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.journal import FinishedStep, OpenQuestion
    from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef, LocalSnapshot, Manifest
    from protocol.messages import Envelope
    from protocol.outputs import Output
    from protocol.ports import ObjectStore

_INTEGER_MAX: Final = 2**53
"""Larger integers are text in JSON documents: JavaScript would round them."""


class Opaque(msgspec.Struct, frozen=True):
    """A value that is there and is not shown: to see it, code would have to run."""

    serializer: str
    size: int
    """Bytes."""

    def __str__(self) -> str:
        return f"<{self.serializer}, {self.size} bytes, not loaded>"


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in an epoch."""

    agent: str
    participant: str
    """Where it was."""
    state_version: int
    running: bool
    """A turn was running at the cut; its message is the first of the mailbox."""
    dead: bool
    fields: dict[str, Any]
    """Field name to value: plain Python for msgpack (a dict for a keyed field), `Opaque` for cloudpickle. A value that was
    never set is not among them."""


class EpochReader:
    """One epoch in a store. Not thread safe; reads objects when they are asked for and keeps the small ones.

    Raises from every method: `ObjectCorrupt` for what does not fit its digest or form, `UnsupportedVersion`, any
    `StoreError` of the store.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest, *, chunks: ChunkReader | None = None) -> None:
        """A reader.

        Args:
            store: Where the epoch is.
            manifest: Its manifest.
            chunks: Shared by the readers of several epochs, which have most packs in common; default: one of its own.
        """
        self._store = store
        self._manifest = manifest
        self._chunks = ChunkReader(store) if chunks is None else chunks
        self._snapshots: dict[str, LocalSnapshot] = {}
        self._digests = {member.participant: member.snapshot for member in manifest.members}
        self._hosts = {agent: member.participant for member in manifest.members for agent in member.agents}

    @classmethod
    def open(cls, store: ObjectStore, epoch: int) -> EpochReader:
        """The reader of one committed epoch. Raises `ObjectMissing` if it is not in the store."""
        key = manifest_key(epoch)
        manifest = decode_manifest(store.get(key, size_max=MANIFEST_BYTES_MAX), name=key)
        if manifest.epoch != epoch:
            raise ObjectCorrupt("get", key, f"this is the manifest of epoch {manifest.epoch}")
        return cls(store, manifest)

    @property
    def manifest(self) -> Manifest:
        """The epoch's manifest."""
        return self._manifest

    def agents(self) -> tuple[str, ...]:
        """Every agent of the epoch, sorted."""
        return tuple(sorted(self._hosts))

    def host_of(self, agent: str) -> str:
        """The participant that hosted an agent. Raises `UnknownAgent`."""
        try:
            return self._hosts[agent]
        except KeyError:
            raise UnknownAgent(f"epoch {self._manifest.epoch} holds no agent {ascii(agent)[:150]}") from None

    def snapshot(self, participant: str) -> LocalSnapshot:
        """The local snapshot of a member. Raises `UnknownAgent` for somebody who was none."""
        found = self._snapshots.get(participant)
        if found is not None:
            return found
        named = self._digests.get(participant)
        if named is None:
            raise UnknownAgent(f"epoch {self._manifest.epoch} has no member {ascii(participant)[:150]}")
        key = snapshot_key(named)
        data = self._store.get(key, size_max=SNAPSHOT_OBJECT_BYTES_MAX)
        found = decode_local_snapshot(data, expected=named, name=key)
        self._snapshots[participant] = found
        return found

    def agent_snapshot(self, agent: str) -> AgentSnapshot:
        """An agent's part of its host's local snapshot: references, not yet values."""
        host = self.host_of(agent)
        for found in self.snapshot(host).agents:
            if found.id == agent:
                return found
        raise ObjectCorrupt(
            "get", snapshot_key(self._digests[host]), f"the manifest places agent {agent} there; it is not"
        )

    def state(self, agent: str) -> AgentState:
        """An agent's decoded state."""
        found = self.agent_snapshot(agent)
        return AgentState(
            agent=agent,
            participant=self.host_of(agent),
            state_version=found.state_version,
            running=found.running,
            dead=found.dead,
            fields={
                field.name: self._field(agent, field)
                for field in found.fields
                if field.segments or field.shape == "keyed"
            },
        )

    def mailbox(self, agent: str) -> list[Envelope]:
        """Messages that the agent had not handled, next to handle first."""
        return decode_mailbox(self._join(self.agent_snapshot(agent).mailbox), f"mailbox of {agent}")

    def timers(self, agent: str) -> list[tuple[int, Envelope]]:
        """The agent's timers: nanoseconds after the cut, and the message that comes then."""
        return decode_timers(self._join(self.agent_snapshot(agent).timers), f"timers of {agent}")

    def outputs(self, agent: str) -> list[Output]:
        """Outputs of the agent that were held at the cut, in order of emission."""
        return decode_outputs(self._join(self.agent_snapshot(agent).outputs), f"outputs of {agent}")

    def journal(self, agent: str) -> list[FinishedStep]:
        """Finished steps of the agent's turn that was running at the cut."""
        return decode_journal(self._join(self.agent_snapshot(agent).journal), f"finished steps of {agent}")

    def questions(self, agent: str) -> list[OpenQuestion]:
        """Questions of the agent that nobody had answered at the cut."""
        return decode_questions(self._join(self.agent_snapshot(agent).questions), f"questions of {agent}")

    def unrouted(self, participant: str) -> list[Envelope]:
        """Messages that a participant held for agents that nobody hosted yet."""
        return decode_mailbox(self._join(self.snapshot(participant).unrouted), f"unrouted messages of {participant}")

    def input_tokens(self, participant: str) -> list[tuple[bytes, bytes]]:
        """Outside input with tokens that a participant's agents had had: id of its message, and digest of what was asked for."""
        name = f"input tokens of {participant}"
        found: list[tuple[bytes, bytes]] = []
        for ref in self.snapshot(participant).input_tokens or ():
            found += decode_tokens(self._join((ref,)), name)
        return found

    def channel(self, source: str, target: str) -> list[Envelope]:
        """Messages in flight on a channel, in order. Raises `UnknownAgent` for a channel that is not there."""
        for incoming in self.snapshot(target).incoming:
            if incoming.source == source:
                name = f"channel {source}->{target}"
                return messages_of(decode_channel(self._join(incoming.chunks), incoming.items, name), name)
        raise UnknownAgent(f"epoch {self._manifest.epoch} has no channel {ascii(f'{source}->{target}')[:300]}")

    def read(self, refs: Iterable[ChunkRef]) -> bytes:
        """Verified bytes of chunks that the epoch names, joined."""
        return self._join(refs)

    def document(self, agent: str) -> dict[str, Any]:
        """An agent as a JSON document: state, mailbox and timers, with bytes and other values in the forms of `shown`."""
        state = self.state(agent)
        return {
            "agent": agent,
            "participant": state.participant,
            "epoch": self._manifest.epoch,
            "state_version": state.state_version,
            "running": state.running,
            "dead": state.dead,
            "fields": {name: shown(value) for name, value in state.fields.items()},
            "mailbox": [shown_message(envelope) for envelope in self.mailbox(agent)],
            "timers": [{"in_ns": left, **shown_message(envelope)} for left, envelope in self.timers(agent)],
            "outputs": [shown_output(output) for output in self.outputs(agent)],
            "steps": [shown_step(step) for step in self.journal(agent)],
            "questions": [shown_question(question) for question in self.questions(agent)],
        }

    def _field(self, agent: str, field: FieldRef) -> Any:  # noqa: ANN401 - any value
        if field.serializer not in {"msgpack", "json"}:
            return Opaque(field.serializer, sum(ref.bytes for segment in field.segments for ref in segment))
        name = f"field {field.name} of {agent}"
        if field.shape == "keyed":
            # A later segment with the same key wins (overlays over a base); then the removed keys go.
            values = {
                hashable(key): value
                for segment in field.segments
                for key, value in decode_segment(self._join(segment), name)
            }
            for key in decode_keys(self._join(field.removed), name):
                values.pop(hashable(key), None)
            return values
        data = self._join(ref for segment in field.segments for ref in segment)
        if field.serializer == "json":
            return _decode_json(data, name)
        return decode_value(data, name)

    def _join(self, refs: Iterable[ChunkRef]) -> bytes:
        return self._chunks.join(refs, size_max=CONTENT_BYTES_MAX)


def shown_message(envelope: Envelope) -> dict[str, Any]:
    """A message as a JSON document; its body decoded if it is msgpack."""
    try:
        body = shown(decode_value(envelope.body, "message"))
    except ObjectCorrupt:
        body = shown(envelope.body)
    return {
        "id": envelope.id.hex(),
        "source": envelope.source,
        "target": envelope.target,
        "type": envelope.type,
        "version": envelope.version,
        "body": body,
    }


def shown_step(step: FinishedStep) -> dict[str, Any]:
    """A finished step, or an answered question, as a JSON document."""
    found: dict[str, Any] = {"kind": step.kind, "name": step.name, "ordinal": step.ordinal, "state": step.state}
    if step.reason:
        found["reason"] = step.reason
    if step.result:
        found["result"] = _shown_value(step.result, "result")
    return found


def shown_question(question: OpenQuestion) -> dict[str, Any]:
    """An open question as a JSON document."""
    left = None if question.left_ns < 0 else question.left_ns
    return {"token": question.token, "question": _shown_value(question.question, "question"), "left_ns": left}


def _shown_value(data: bytes, what: str) -> Any:  # noqa: ANN401 - any value
    try:
        return shown(decode_value(data, what))
    except ObjectCorrupt:
        return shown(data)


def shown_output(output: Output) -> dict[str, Any]:
    """A held output as a JSON document."""
    try:
        payload = shown(decode_value(output.payload, "output"))
    except ObjectCorrupt:
        payload = shown(output.payload)
    return {"id": output.id.hex(), "sink": output.sink, "payload": payload}


def shown(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any value to any JSON value
    """A decoded value in JSON's terms.

    Bytes become ``{"bytes": base64}`` (``{"hex": ...}`` up to 32 of them), opaque values ``{"opaque": serializer, "size":
    n}``, extension types ``{"ext": code, "hex": ...}``, times ISO 8601 text, not-a-number and infinities text, integers
    beyond 2**53 text; a map whose keys are not all text becomes a list of pairs, ``{"pairs": [[key, value], ...]}``.
    """
    if depth > NESTING_MAX:
        return "..."
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -_INTEGER_MAX <= value <= _INTEGER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return {"hex": data.hex()} if len(data) <= 32 else {"bytes": base64.b64encode(data).decode()}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: shown(item, depth + 1) for key, item in value.items()}
        return {"pairs": [[shown(key, depth + 1), shown(item, depth + 1)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [shown(item, depth + 1) for item in value]
    if isinstance(value, Opaque):
        return {"opaque": value.serializer, "size": value.size}
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "hex": bytes(value.data).hex()}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value)


def hashable(key: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any key
    """A decoded key of a map in a form that can be one in Python: arrays become tuples."""
    if depth > NESTING_MAX:
        return "..."
    if isinstance(key, list | tuple):
        return tuple(hashable(part, depth + 1) for part in key)
    if isinstance(key, dict):
        return tuple((hashable(name, depth + 1), hashable(value, depth + 1)) for name, value in key.items())
    if isinstance(key, msgspec.msgpack.Ext):
        return (key.code, bytes(key.data))
    return key


def _decode_json(data: bytes, name: str) -> Any:  # noqa: ANN401 - any value
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise ObjectCorrupt("get", name, f"not JSON: {error}") from None
    except RecursionError:
        raise ObjectCorrupt("get", name, f"nested far deeper than {NESTING_MAX} levels") from None
