"""The values of one field of one agent: committed form, and the buffers of a turn. See `participant.state`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from participant.failure import describe
from participant.forms import container_header
from participant.history import DELETED, MISSING, RELEASED, Cell
from participant.schema import ENCODER, INT_MAX, INT_MIN, step_into
from participant.turnlog.records import NOTHING
from protocol.errors import Unsavable

if TYPE_CHECKING:
    from participant.agent import Agent
    from participant.forms import Form
    from participant.serializers import PickleAllowed
    from participant.state import AgentState, Field, Keyed, Serializer, Value
    from participant.turnlog.records import Change

K = TypeVar("K")
V = TypeVar("V")

LIVE_KEPT: Final = 64
"""Decoded copies that one keyed field keeps between turns: a hot key is not decoded each turn, and memory stays flat."""
LIVE_KEPT_IN_TURN: Final = 1_024
"""The same while something reads through all keys."""


def _is_just(value: Any, plain: type | None) -> bool:  # noqa: ANN401 - any value
    """Whether `Schema.check_plain` has nothing to say: asked first, because its message takes longer than all the rest."""
    given = type(value)
    if given is not plain:
        return False
    if given is int:
        return bool(INT_MIN <= value <= INT_MAX)
    return given is not str or value.isascii()


class PlainCell(Cell):
    """A `value` of int, str, bool, float or bytes: kept as it is."""

    __slots__ = ("committed", "current", "schema")

    shape = "value"
    serializer: Serializer = "msgpack"

    def __init__(self, spec: Value[Any], state: AgentState) -> None:
        super().__init__(spec, state)
        self.schema = spec.schema
        self.current = self.committed = spec.default

    def set(self, value: Any) -> None:  # noqa: ANN401 - of the declared type
        """Write inside a turn."""
        state = self.state
        if not state.in_turn():
            state.refuse_write(self.name)
        given = type(value)
        if (
            given is not self.schema.plain
            or (given is int and not INT_MIN <= value <= INT_MAX)
            or (given is str and not value.isascii())
        ):
            value = self.schema.check_plain(value, state.agent_id, self.name)
        self.current = value
        if not self.touched:
            self.touched = True
            state.touched.append(self)

    def change(self) -> Change | None:
        """See `Cell`."""
        if self.current is self.committed:
            return None
        return (self.name, msgspec.Raw(ENCODER.encode(self.current)), NOTHING)

    def replay(self, payload: msgspec.Raw, removed: msgspec.Raw, allowed: PickleAllowed | None) -> None:
        """See `Cell`."""
        self.note(None, RELEASED)
        self.current = self.committed = self.schema.decode(payload)

    def apply(self) -> None:
        """See `Cell`."""
        self.touched = False
        if self.current is not self.committed:
            self.note(None, self.committed)
            self.committed = self.current

    def drop(self) -> None:
        """See `Cell`."""
        self.touched = False
        self.current = self.committed

    def stored_at(self, generation: int) -> Any:  # noqa: ANN401 - a committed form
        """The committed form at a cut."""
        past = self.past(generation, None)
        return self.committed if past is RELEASED else past

    def load(self, segments: list[bytes], removed: bytes, allowed: PickleAllowed | None) -> None:
        """Take saved bytes as the committed state; see `load_cell`."""
        value = self.schema.decode(_only(segments)) if segments else cast("Value[Any]", self.spec).default
        self.note(None, RELEASED)
        self.current = self.committed = value

    def clear(self) -> None:
        """Back to the default."""
        self.current = self.committed = cast("Value[Any]", self.spec).default


class ObjectCell(Cell):
    """A `value` of any other type: kept encoded."""

    __slots__ = ("form", "live", "mutable", "prepared", "stored", "written")

    shape = "value"

    def __init__(self, spec: Value[Any], state: AgentState, form: Form) -> None:
        super().__init__(spec, state)
        self.form = form
        self.mutable = form.mutable
        self.live: Any = MISSING
        """The working copy, or MISSING: not decoded yet."""
        self.written: Any = MISSING
        """Committed form of what the turn set, or MISSING."""
        self.prepared: Any = MISSING
        self.stored: Any = MISSING
        self.clear()

    @property
    def serializer(self) -> Serializer:
        """Format of the stored form."""
        return self.form.serializer

    @property
    def current(self) -> Any:  # noqa: ANN401 - of the declared type
        """The turn's working copy; outside of a turn a copy of the committed value."""
        if self.mutable and not self.state.in_turn():
            return MISSING if self.stored is MISSING else self.form.load(self.stored)
        if self.live is MISSING:
            if self.stored is MISSING:
                return MISSING
            self.live = self.form.load(self.stored)
        elif self.mutable and not self.touched and not self.form.is_form_of(self.stored, self.live):
            # Somebody outside of any turn has a reference to the working copy, and changed it.
            self.live = self.form.load(self.stored)
        if self.mutable and not self.touched:
            self.touch()
        return self.live

    def set(self, value: Any) -> None:  # noqa: ANN401 - of the declared type
        """Write inside a turn."""
        state = self.state
        if not state.in_turn():
            state.refuse_write(self.name)
        if value is self.live and self.touched and self.mutable:
            return  # `self.items += [x]` reads, grows in place and sets the same object: turn commit checks it
        self.written = self.form.save(value, state.agent_id, self.name)
        self.live = value
        if not self.touched:
            self.touch()

    def prepare(self) -> None:
        """See `Cell`."""
        base = self.stored if self.written is MISSING else self.written
        self.prepared = self.form.again(self.live, base, self.state.agent_id, self.name) if self.mutable else base

    def change(self) -> Change | None:
        """See `Cell`."""
        prepared, stored = self.prepared, self.stored
        if prepared is stored or prepared == stored:
            return None
        return (self.name, self.form.logged(prepared, () if stored is MISSING else stored), NOTHING)

    def replay(self, payload: msgspec.Raw, removed: msgspec.Raw, allowed: PickleAllowed | None) -> None:
        """See `Cell`."""
        self.note(None, RELEASED)
        before = () if self.stored is MISSING else self.stored
        self.live = MISSING
        self.stored = self.form.replayed(payload, before, allowed, self.state.agent_id, self.name)

    def apply(self) -> None:
        """See `Cell`."""
        if self.prepared != self.stored:
            self.note(None, self.stored)
            if self.written is not MISSING or not self._detached():
                self.live = MISSING
            self.stored = self.prepared
        elif self.written is not MISSING:
            self.live = MISSING
        self.written = self.prepared = MISSING
        self.touched = False

    def _detached(self) -> bool:
        """Whether nothing that came into the working copy in this turn is known to anybody else now."""
        try:
            return self.stored is not MISSING and self.form.detach(self.live, self.prepared, self.stored)
        except Exception:  # noqa: BLE001 - a model's own validation may raise anything
            return False

    def drop(self) -> None:
        """See `Cell`."""
        self.live = self.written = self.prepared = MISSING
        self.touched = False

    def stored_at(self, generation: int) -> Any:  # noqa: ANN401 - a committed form
        """The committed form at a cut."""
        past = self.past(generation, None)
        return self.stored if past is RELEASED else past

    def load(self, segments: list[bytes], removed: bytes, allowed: PickleAllowed | None) -> None:
        """Take saved bytes as the committed state; see `load_cell`."""
        self.note(None, RELEASED)
        self.clear()
        if segments:
            self.stored = self.form.restore(_only(segments), allowed, self.state.agent_id, self.name)

    def clear(self) -> None:
        """Back to the default."""
        default = cast("Value[Any]", self.spec).fresh_default()
        self.live = MISSING
        self.stored = MISSING if default is MISSING else self.form.save(default, self.state.agent_id, self.name)


class KeyedState(Cell, MutableMapping[K, V]):
    """What a `keyed` field gives: a mapping that is saved key by key.

    Iteration is in order of insertion; after a restore it is in another order, so nothing may depend on it.
    """

    __slots__ = ("data", "encodings", "form", "key_schema", "live", "mutable", "prepared", "writes")

    shape = "keyed"

    def __init__(self, spec: Keyed[K, V], state: AgentState, form: Form | None) -> None:
        super().__init__(spec, state)
        self.key_schema = spec.key_schema
        self.form = form
        """None: plain values."""
        self.mutable = form is not None and form.mutable
        self.data: dict[Any, Any] = {}
        """Committed forms."""
        self.writes: dict[Any, Any] = {}
        """What the turn set, and the working copies of mutable values that it read."""
        self.encodings: dict[Any, Any] = {}
        """Committed forms of what the turn set."""
        self.prepared: dict[Any, Any] = {}
        self.live: dict[Any, Any] = {}
        """Decoded copies of committed values."""

    @property
    def serializer(self) -> Serializer:
        """Format of the values."""
        return "msgpack" if self.form is None else self.form.serializer

    def __getitem__(self, key: K) -> V:
        writes = self.writes
        if (
            writes
            and (value := writes.get(key, MISSING)) is not MISSING
            # A working copy is for its turn alone, not for a task of an earlier one.
            and (not self.mutable or self.state.in_turn())
        ):
            if value is DELETED:
                raise KeyError(key)
            return cast("V", value)
        stored = self.data[key]
        if self.form is None:
            return cast("V", stored)
        if self.mutable and not self.state.in_turn():
            return cast("V", self.form.load(stored))
        value = self.live.get(key, MISSING)
        # As in `ObjectCell.current`.
        if value is MISSING or (self.mutable and not self.form.is_form_of(stored, value)):
            if len(self.live) >= LIVE_KEPT_IN_TURN:
                self.live.clear()
            value = self.live[key] = self.form.load(stored)
        if self.mutable:
            writes[key if type(key) is self.key_schema.plain else self._own(key)] = value
            if not self.touched:
                self.touch()
        return cast("V", value)

    def _own(self, key: object) -> Any:  # noqa: ANN401 - a key
        """The key as it is saved: one of another type that is equal to it has another encoding (True for 1)."""
        with contextlib.suppress(Exception):  # a key's own code may raise anything
            copy = self.key_schema.decode(ENCODER.encode(key))
            if copy == key and hash(copy) == hash(key):
                return copy
        return next((own for own in (*self.data, *self.writes) if own == key), key)

    def __setitem__(self, key: K, value: V) -> None:
        state = self.state
        if not state.in_turn():
            state.refuse_write(self.name)
        schema = self.key_schema
        checked = key
        if not _is_just(key, schema.plain):
            if schema.plain:
                checked = schema.check_plain(key, state.agent_id, f"key {step_into(self.name, key)}")
            else:
                schema.save(key, state.agent_id, f"key {step_into(self.name, key)}")
        if self.form is None:
            plain = self.spec.schema
            if not _is_just(value, plain.plain):
                value = plain.check_plain(value, state.agent_id, step_into(self.name, key))
        elif not (self.mutable and self.writes.get(checked, MISSING) is value):
            self.encodings[checked] = self.form.save(value, state.agent_id, step_into(self.name, key))
        self.writes[checked] = value
        if not self.touched:
            self.touch()

    def __delitem__(self, key: K) -> None:
        state = self.state
        if not state.in_turn():
            state.refuse_write(self.name)
        if key not in self:
            raise KeyError(key)
        own = key if type(key) is self.key_schema.plain else self._own(key)
        self.writes[own] = DELETED
        self.encodings.pop(own, None)
        if not self.touched:
            self.touch()

    def __contains__(self, key: object) -> bool:
        if self.writes and (value := self.writes.get(key, MISSING)) is not MISSING:
            return value is not DELETED
        return key in self.data

    def __iter__(self) -> Iterator[K]:
        if not self.writes:
            return iter(self.data)
        writes, data = self.writes, self.data
        kept = [key for key in data if writes.get(key) is not DELETED]
        kept.extend(key for key, value in writes.items() if value is not DELETED and key not in data)
        return iter(kept)

    def __len__(self) -> int:
        size = len(self.data)
        for key, value in self.writes.items():
            if value is DELETED:
                size -= key in self.data
            elif key not in self.data:
                size += 1
        return size

    def __repr__(self) -> str:
        return f"<keyed {self.name} of {self.state.agent_id}: {len(self)} keys>"

    def prepare(self) -> None:
        """See `Cell`."""
        if self.form is None:
            return
        agent = self.state.agent_id
        prepared: dict[Any, Any] = {}
        for key, value in self.writes.items():
            if value is DELETED:
                continue
            base = self.encodings.get(key, MISSING)
            if base is MISSING:
                base = self.data[key]
            prepared[key] = self.form.again(value, base, agent, step_into(self.name, key)) if self.mutable else base
        self.prepared = prepared

    def change(self) -> Change | None:
        """See `Cell`."""
        data = self.data
        source = self.writes if self.form is None else self.prepared
        pairs: list[bytes] = []
        gone: list[bytes] = []
        for key, written in self.writes.items():
            old = data.get(key, MISSING)
            if written is DELETED:
                if old is not MISSING:
                    gone.append(ENCODER.encode(key))
                continue
            new = source[key]
            if new is old or (new == old and type(new) is type(old)):
                continue
            encoded = ENCODER.encode(new) if self.form is None else bytes(self.form.logged(new, ()))
            pairs += (b"\x92", ENCODER.encode(key), encoded)
        if not pairs and not gone:
            return None
        payload = b"".join((container_header(len(pairs) // 3, is_map=False), *pairs))
        removed = msgspec.Raw(b"".join((container_header(len(gone), is_map=False), *gone))) if gone else NOTHING
        return (self.name, msgspec.Raw(payload), removed)

    def replay(self, payload: msgspec.Raw, removed: msgspec.Raw, allowed: PickleAllowed | None) -> None:
        """See `Cell`."""
        spec = cast("Keyed[K, V]", self.spec)
        data = self.data
        form = self.form
        if form is None:
            pairs = spec.decode_plain(payload)
            data.update(pairs)
        else:
            agent = self.state.agent_id
            pairs = [
                (key, form.replayed(item, (), allowed, agent, step_into(self.name, key)))
                for key, item in spec.decode_raw(payload)
            ]
            data.update(pairs)
            self.live.clear()
        gone = spec.decode_keys(removed) if removed != NOTHING else ()
        for key in gone:
            data.pop(key, None)
        if self.clock.generation:
            for key in (*(key for key, _ in pairs), *gone):
                self.note(key, RELEASED)

    def apply(self) -> None:
        """See `Cell`."""
        data, live = self.data, self.live
        source = self.writes if self.form is None else self.prepared
        # As `Cell.note`, for many keys at once.
        noted = self.clock.generation > 0
        changes = self.interval()
        keeps = self.clock.newest_open > self.read_through
        if keeps:
            self.holds_old = True
        for key, written in self.writes.items():
            old = data.get(key, MISSING)
            if written is DELETED:
                live.pop(key, None)
                if old is MISSING:
                    continue
                del data[key]
            else:
                new = source[key]
                if key in self.encodings:
                    live.pop(key, None)
                if new is old or (new == old and type(new) is type(old)):
                    continue
                data[key] = new
                # What the turn put into a value may be known elsewhere: the next one decodes its own.
                live.pop(key, None)
            if noted and key not in changes:
                changes[key] = old if keeps else RELEASED
        if len(live) > LIVE_KEPT:
            live.clear()
        self._reset()

    def drop(self) -> None:
        """See `Cell`."""
        for key in self.writes:
            self.live.pop(key, None)
        self._reset()

    def _reset(self) -> None:
        self.writes.clear()
        if self.encodings:
            self.encodings.clear()
        if self.prepared:
            self.prepared = {}
        self.touched = False

    def stored_at(self, generation: int, key: object) -> Any:  # noqa: ANN401 - a committed form
        """The committed form of `key` at a cut; MISSING if it was not there."""
        past = self.past(generation, key)
        return self.data.get(key, MISSING) if past is RELEASED else past

    def stored_many(self, generation: int, keys: list[Any]) -> list[Any]:
        """`stored_at` for each of these keys."""
        data = self.data
        if self.generation < generation:
            # Nothing of this field has changed since the cut: no look into the past is needed.
            return list(map(data.get, keys, repeat(MISSING)))
        if any(interval[0] >= generation for interval in self.history):
            return [self.stored_at(generation, key) for key in keys]
        before = [self.changes.get(key, RELEASED) for key in keys]
        return [data.get(key, MISSING) if old is RELEASED else old for key, old in zip(keys, before, strict=True)]

    def keys_at(self, generation: int) -> list[Any]:
        """All keys at a cut, and maybe some that came later: their value at the cut is MISSING.

        One copy in C, since nothing else may run meanwhile; to tell the later ones apart is left to the slices.
        """
        data = self.data
        keys = list(data)
        keys.extend(key for key in self.changed(generation, self.clock.generation + 1) if key not in data)
        return keys

    def load(self, segments: list[bytes], removed: bytes, allowed: PickleAllowed | None) -> None:
        """Take saved bytes as the committed state; see `load_cell`."""
        spec = cast("Keyed[K, V]", self.spec)
        self.clear()
        data = self.data
        for segment in segments:
            if self.form is None:
                data.update(spec.decode_plain(segment))
            elif self.form.serializer == "msgpack" and _decodes(spec, segment):
                data.update({key: bytes(item) for key, item in spec.decode_raw(segment)})
            else:
                self._load_each(segment, allowed)
        for key in spec.decode_keys(removed) if removed else ():
            data.pop(key, None)
        if self.clock.generation:  # else nobody can ask: see `note`
            changes = self.interval()
            for key in data:
                changes.setdefault(key, RELEASED)

    def _load_each(self, segment: bytes, allowed: PickleAllowed | None) -> None:
        """Entry by entry: pickles, and segments that do not fit, whose error names the entry."""
        spec = cast("Keyed[K, V]", self.spec)
        assert self.form is not None, "plain values are decoded as they are"
        for key, item in spec.decode_raw(segment):
            raw = item
            if self.form.serializer == "cloudpickle":
                raw = msgspec.msgpack.decode(item, type=bytes)
            self.data[key] = self.form.restore(bytes(raw), allowed, self.state.agent_id, step_into(self.name, key))

    # The names `keys`, `items`, `values`, `get`, `pop`, ... come from MutableMapping; `clear` is both the mapping's
    # (inside a turn) and the loader's (between turns).
    def clear(self) -> None:
        """Remove every key: inside a turn as part of it, before a load at once."""
        if self.state.in_turn():
            for key in list(self):
                del self[key]
            return
        for key in self.data:
            self.note(key, RELEASED)
        self.data = {}
        self.live = {}


class WholeCell(Cell):
    """The state of an agent with `capture` and `restore` of its own.

    It is captured before each turn: a turn that raises is rolled back to that, and a cut that meets the turn running holds
    it. So each turn of such an agent costs one `capture()`; what is large or busy belongs into `keyed` and `value`. Between
    turns it is captured only when a cut is being encoded, since nothing but turns changes an agent.
    """

    __slots__ = ("agent", "form", "fresh", "stored")

    shape = "whole"

    def __init__(self, spec: Field[Any], state: AgentState, form: Form, agent: Agent) -> None:
        super().__init__(spec, state)
        self.agent = agent
        self.form = form
        self.stored: Any = MISSING
        """MISSING: a turn has committed since the last capture."""
        self.fresh: Any = MISSING
        """Captured for the log, at the end of the turn that commits now."""

    @property
    def serializer(self) -> Serializer:
        """Format of the captured state."""
        return self.form.serializer

    def capture_now(self) -> Any:  # noqa: ANN401 - a committed form
        """The committed form, captured now unless it is known; between turns only. Raises `Unsavable`."""
        if self.stored is MISSING or isinstance(self.stored, Unsavable):
            try:
                state = self.agent.capture()
            except Exception as error:
                problem = f"capture() raised {describe(error)}"
                raise Unsavable(self.state.agent_id, self.name, type(self.agent).__qualname__, problem) from error
            self.stored = self.form.save(state, self.state.agent_id, self.name)
        return self.stored

    def capture_before_turn(self) -> None:
        """Capture, for a rollback and for a cut that meets the turn.

        A state that cannot be saved does not keep the agent from working: it fails the epochs that need it, and a rollback.
        """
        try:
            self.capture_now()
        except Unsavable as error:
            self.stored = error
        self.touch()

    def change(self) -> Change | None:
        """See `Cell`: turn commit has it captured. Raises `Unsavable`: such a turn cannot be logged, so it fails."""
        before, self.stored = self.stored, MISSING
        try:
            self.fresh = self.capture_now()
        finally:
            self.stored = before
        if self.fresh == before:
            return None
        return (self.name, self.form.logged(self.fresh, ()), NOTHING)

    def replay(self, payload: msgspec.Raw, removed: msgspec.Raw, allowed: PickleAllowed | None) -> None:
        """See `Cell`. The agent gets it when the replay is through: `restored`."""
        self.note(None, RELEASED)
        self.stored = self.form.replayed(payload, (), allowed, self.state.agent_id, self.name)

    def give_to_agent(self) -> None:
        """After a replay: let the agent have what it came to."""
        if self.stored is not MISSING and not isinstance(self.stored, Unsavable):
            self.agent.restore(self.form.load(self.stored))

    def apply(self) -> None:
        """See `Cell`."""
        self.note(None, self.stored)
        self.stored, self.fresh = self.fresh, MISSING
        self.touched = False

    def drop(self) -> None:
        """See `Cell`."""
        self.touched = False
        if isinstance(self.stored, Unsavable):
            raise self.stored
        self.agent.restore(self.form.load(self.stored))

    def stored_at(self, generation: int) -> Any:  # noqa: ANN401 - a committed form
        """The committed form at a cut; raises `Unsavable`."""
        past = self.past(generation, None)
        stored = self.stored if past is RELEASED and self.state.open else past
        if stored is RELEASED:
            stored = self.capture_now()
        if isinstance(stored, Unsavable):
            raise stored
        return stored

    def load(self, segments: list[bytes], removed: bytes, allowed: PickleAllowed | None) -> None:
        """Give saved bytes to the agent's `restore`; see `load_cell`."""
        self.stored = self.form.restore(_only(segments), allowed, self.state.agent_id, self.name)
        self.agent.restore(self.form.load(self.stored))
        self.note(None, RELEASED)


def _decodes(spec: Keyed[Any, Any], segment: bytes) -> bool:
    """Whether all values of a segment fit the declared type: what `WholeForm.restore` asks for each, at once."""
    try:
        spec.decode_plain(segment)
    except Exception:  # noqa: BLE001 - a pydantic model's own validation may raise anything; it is told entry by entry
        return False
    return True


def _only(segments: list[bytes]) -> bytes:
    if len(segments) != 1:
        raise msgspec.DecodeError(f"{len(segments)} segments where one value is declared")
    return segments[0]
