"""The past of one field: what changed between cuts, and what it was at one.

Theory of operation:
    * A cut adds one to the participant's `CutClock`; no field is touched. Each field keeps its changes by *interval*, the
      time between two cuts: key -> value before its first change in it. The first change after a cut opens the interval.
      The value at cut g is the oldest entry of the intervals from g on, else today's. The keys changed since an older
      cut are the keys of the intervals between them.
    * An interval keeps old values only while some cut that has not read this field needs them; the keys stay until the
      epoch they matter for has committed. Intervals that no question can tell apart become one: a thousand epochs that
      abort one after the other leave what a single one would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec

    from participant.serializers import PickleAllowed
    from participant.state import AgentState, Field
    from participant.turnlog.records import Change


class _Mark:
    """A sentinel that prints its name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


MISSING: Final[Any] = _Mark("missing")
"""No value: never set, or no such key."""
DELETED: Final[Any] = _Mark("deleted")
"""In a turn's buffer: the key goes at turn commit."""
RELEASED: Final[Any] = _Mark("released")
"""In an interval: the key changed, and no cut needs its old value."""


class CutClock:
    """The number of cuts so far and what of the past is still wanted; shared by all agents of a participant."""

    __slots__ = ("generation", "marks", "newest_open", "open")

    def __init__(self) -> None:
        self.generation = 0
        """Number of the newest cut."""
        self.open: list[int] = []
        """Cuts whose values are still being read, ascending."""
        self.newest_open = -1
        """The last of `open`, or -1."""
        self.marks: tuple[int, ...] = ()
        """Cuts that epochs compare with or are taken at: "what changed" is asked from one to another. Ascending."""

    def cut(self) -> int:
        """Take a cut: every value as it is now stays readable until `close`."""
        self.generation += 1
        self.open.append(self.generation)
        self.newest_open = self.generation
        return self.generation

    def close(self, generation: int) -> None:
        """Nobody reads this cut any more; closing twice is fine."""
        if generation in self.open:
            self.open.remove(generation)
            self.newest_open = self.open[-1] if self.open else -1


class Cell:
    """One field of one agent: history by intervals. Subclasses hold the values."""

    __slots__ = (
        "changes",
        "clock",
        "generation",
        "history",
        "holds_old",
        "name",
        "read_through",
        "spec",
        "state",
        "touched",
    )

    def __init__(self, spec: Field[Any], state: AgentState) -> None:
        self.spec = spec
        self.name = spec.name
        self.state = state
        self.touched = False
        self.start(state.clock)

    def start(self, clock: CutClock) -> None:
        """Begin a history on this clock: everything counts as changed before its next cut."""
        self.clock = clock
        self.generation = clock.generation
        """Cut that began the newest interval."""
        self.changes: dict[Any, Any] = {}
        """The newest interval: key -> value before its first change in it."""
        self.holds_old = False
        """The newest interval holds values, not only keys."""
        self.history: list[tuple[int, dict[Any, Any], bool]] = []
        """Older intervals, ascending: cut that began it, changes, whether it holds values."""
        self.read_through = clock.generation
        """Cuts up to this one need no old value of this field."""

    def prepare(self) -> None:
        """Encode what the turn touched; raise `Unsavable` before anything has changed."""

    def change(self) -> Change | None:
        """What the turn made of this field, for a log; between `prepare` and `apply`. None: it is what it was."""
        raise NotImplementedError

    def replay(self, payload: msgspec.Raw, removed: msgspec.Raw, allowed: PickleAllowed | None) -> None:
        """Take a logged change over; between turns. Raises what decoding raises."""
        raise NotImplementedError

    def apply(self) -> None:
        """Make the turn's values the committed ones; cannot fail."""
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the turn's values."""
        raise NotImplementedError

    def touch(self) -> None:
        """Have turn commit look at this field."""
        self.touched = True
        self.state.touched.append(self)

    def interval(self) -> dict[Any, Any]:
        """The interval that a change made now belongs to."""
        clock = self.clock
        if self.generation != clock.generation:
            if self.changes:
                self.history.append((self.generation, self.changes, self.holds_old))
                self._compact()
            self.changes = {}
            self.holds_old = False
            self.generation = clock.generation
        return self.changes

    def _compact(self) -> None:
        """Release values that no open cut needs, and join intervals that no mark tells apart."""
        clock = self.clock
        oldest_open = clock.open[0] if clock.open else clock.generation + 1
        kept: list[tuple[int, dict[Any, Any], bool]] = []
        for began, changes, holds_old in self.history:
            if holds_old and began < oldest_open:
                changes, holds_old = dict.fromkeys(changes, RELEASED), False  # noqa: PLW2901 - the same interval
            if kept and not any(kept[-1][0] < mark <= began for mark in clock.marks):
                first, joined, held = kept[-1]
                for key, old in changes.items():
                    joined.setdefault(key, old)
                kept[-1] = (first, joined, held or holds_old)
            else:
                kept.append((began, changes, holds_old))
        self.history = kept

    def note(self, key: object, old: object) -> None:
        """Record that `key` is about to change from `old`."""
        if not self.clock.generation:
            return  # before the first cut nobody can ask what has changed
        changes = self.interval()
        if key not in changes:
            if self.clock.newest_open > self.read_through:
                changes[key] = old
                self.holds_old = True
            else:
                changes[key] = RELEASED

    def past(self, generation: int, key: object) -> Any:  # noqa: ANN401 - a committed form
        """The value of `key` at a cut if it has changed since, else RELEASED."""
        for began, changes, _ in self.history:
            if began >= generation and key in changes:
                return changes[key]
        if self.generation >= generation and key in self.changes:
            return self.changes[key]
        return RELEASED

    def changed(self, since: int, until: int) -> dict[Any, None]:
        """Keys changed between two cuts, in order of change."""
        keys: dict[Any, None] = {}
        for began, changes, _ in [*self.history, (self.generation, self.changes, False)]:
            if since <= began < until:
                keys.update(dict.fromkeys(changes))
        return keys

    def forget(self, before: int, read_through: int) -> None:
        """Let go of the past.

        Args:
            before: Intervals that began before this cut matter to nobody's question "what changed since".
            read_through: Cuts up to this one have read this field.
        """
        self.read_through = max(self.read_through, read_through)
        if self.generation < before:
            self.changes = {}
            self.holds_old = False
            self.generation = before
        elif self.generation <= read_through and self.holds_old:
            self.changes = dict.fromkeys(self.changes, RELEASED)
            self.holds_old = False
        kept: list[tuple[int, dict[Any, Any], bool]] = []
        for began, changes, holds_old in self.history:
            if began < before:
                continue
            if holds_old and began <= read_through:
                kept.append((began, dict.fromkeys(changes, RELEASED), False))
            else:
                kept.append((began, changes, holds_old))
        self.history = kept
