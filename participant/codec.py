"""Messages: which types a participant knows, under which registered names and versions, and their encoding.

Rules:
    * A message is a dataclass, a msgspec Struct or a pydantic model. What travels is the registered name and version,
      never a class path: what arrives can choose only among types that this participant's agents declared.
    * Nothing registers globally. The registry belongs to a participant and is built from its agents' handlers and the
      ``messages=[...]`` that it only sends. `message` leaves a mark on the class, no more.
    * A message is checked like a state value when it is sent: what the receiver could not decode is refused at the sender,
      in the handler that sends it.
    * Unknown names and versions on receipt are `UndecodableMessage`: the host puts the message to the dead letters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from blake3 import blake3

from participant.schema import Schema, hook_in, is_pydantic, type_name
from protocol.errors import ConfigError, LimitExceeded, UndecodableMessage, Unsavable
from protocol.limits import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from participant.agent import Agent

C = TypeVar("C", bound=type)

_MARK: Final = "__cleancut_message__"
NAME_LENGTH_MAX: Final = 128
RESERVED_PREFIX: Final = "cleancut."
"""Names of the messages that hosts make themselves."""


def message(name: str, *, version: int = 1, renamed_from: Sequence[str] = ()) -> Callable[[C], C]:
    """Give a message class its registered name and version; without it: the class's own name, version 1.

    ::

        @message("order", version=2, renamed_from=("Order",))
        class Order(msgspec.Struct, frozen=True): ...

    Args:
        name: Travels with each message.
        version: Likewise; raise it when old messages cannot be read any more.
        renamed_from: Names that the same type, in this version, had before: messages under them, in flight or in an epoch, are
            taken as this type.
    """
    for each in (name, *renamed_from):
        if not each or len(each) > NAME_LENGTH_MAX or not each.isprintable() or each.startswith(RESERVED_PREFIX):
            raise ConfigError("message", f"{ascii(each)[:80]} is no name for a message type")
    if version < 1:
        raise ConfigError("message", f"version of {name!r} is {version}; versions start at 1")

    def mark(cls: C) -> C:
        setattr(cls, _MARK, (name, version, tuple(renamed_from)))
        return cls

    return mark


def is_message_type(candidate: object) -> bool:
    """Whether instances can be messages."""
    return isinstance(candidate, type) and (
        issubclass(candidate, msgspec.Struct) or hasattr(candidate, "__dataclass_fields__") or is_pydantic(candidate)
    )


@lru_cache(1024)
def _schema_of(cls: type) -> Schema:
    """A class's schema never changes, and many participants of one process may have the same messages."""
    return Schema(cls)


class MessageType:
    """One registered type."""

    __slots__ = ("cls", "name", "old_names", "schema", "version")

    def __init__(self, cls: type) -> None:
        if not is_message_type(cls):
            shown = getattr(cls, "__qualname__", repr(cls))
            raise ConfigError("messages", f"{shown} is neither a dataclass nor a msgspec Struct nor a pydantic model")
        self.cls = cls
        self.name, self.version, self.old_names = cls.__dict__.get(_MARK, (cls.__name__, 1, ()))
        try:
            self.schema = _schema_of(cls)
        except TypeError as error:
            raise ConfigError("messages", str(error)) from None


class MessageRegistry:
    """The message types of one participant.

    Raises:
        ConfigError: Two types have the same name and version, or one is no message type.
    """

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._by_type: dict[type, MessageType] = {}
        self._by_name: dict[tuple[str, int], MessageType] = {}
        self.hasher: Final = blake3()
        """Scratch for the ids of the participant's messages; it belongs to the participant's loop, as the registry does."""
        for cls in types:
            self.add(cls)

    @classmethod
    def of_agents(cls, agents: Iterable[Agent | type[Agent]], messages: Iterable[type] = ()) -> MessageRegistry:
        """A registry of all that these agents handle, and of `messages`, which they only send."""
        registry = cls()
        for agent in agents:
            for handled in agent.__cleancut_handlers__:
                registry.add(handled)
        for sent in messages:
            registry.add(sent)
        return registry

    def add(self, cls: type) -> None:
        """Register one type; again is fine."""
        if cls in self._by_type:
            return
        entry = MessageType(cls)
        names = (entry.name, *entry.old_names)
        for name in names:
            other = self._by_name.get((name, entry.version))
            if other is not None:
                raise ConfigError(
                    "messages",
                    f"{_path(cls)} and {_path(other.cls)} are both registered as {name!r} version {entry.version}; "
                    f"give one another name with @message",
                )
        self._by_type[cls] = entry
        self._by_name.update(dict.fromkeys(((name, entry.version) for name in names), entry))

    def encode(self, value: Any, agent: str = "") -> tuple[str, int, bytes]:  # noqa: ANN401 - a registered type
        """Registered name, version and encoded body.

        Args:
            value: An instance of a registered type.
            agent: Who sends, for the error.

        Raises:
            Unsavable: Not of a registered type, or a part of it cannot be saved.
            LimitExceeded: Longer than `MESSAGE_BYTES_MAX`.
        """
        entry = self._by_type.get(type(value))
        if entry is None:
            known = ", ".join(sorted(known.__name__ for known in self._by_type)) or "none"
            raise Unsavable(
                agent,
                "message",
                type_name(value),
                f"this participant knows no such message type (known: {known}); handle it in one of its agents or name it in messages=[...]",
            )
        body, _ = entry.schema.save(value, agent, entry.cls.__name__)
        if len(body) > MESSAGE_BYTES_MAX:
            raise LimitExceeded(f"message {entry.name!r} of {len(body)} bytes; at most {MESSAGE_BYTES_MAX} are sent")
        return entry.name, entry.version, body

    def encode_json(self, name: str, version: int, text: bytes) -> tuple[str, int, bytes]:
        """A message that came as JSON, as `encode` gives it.

        Args:
            name: Registered name, or one that the type had before.
            version: Registered version; 0: the newest.
            text: JSON of the message: an object with its fields. Bytes are base64 text, times ISO 8601.

        Raises:
            UndecodableMessage: Unknown name or version, or JSON that does not fit the registered type.
            LimitExceeded: Longer than `MESSAGE_BYTES_MAX`.
        """
        known = version or max((number for other, number in self._by_name if other == name), default=0)
        entry = self._by_name.get((name, known))
        if entry is None:
            raise UndecodableMessage(self.why_not(name, version, ""))
        try:
            value = msgspec.json.decode(text, type=entry.schema.declared, dec_hook=hook_in)
            return self.encode(value)
        except LimitExceeded:
            raise
        except Exception as error:  # noqa: BLE001 - a message class's own __post_init__ or validation may raise anything
            raise UndecodableMessage(f"message {name!r} version {known} cannot be made of this: {error}") from None

    def decode(self, name: str, version: int, body: bytes) -> Any:  # noqa: ANN401 - a registered type
        """The message.

        Raises:
            UndecodableMessage: Unknown name or version, or a body that does not fit the registered type.
        """
        entry = self._by_name.get((name, version))
        if entry is None:
            raise UndecodableMessage(self.why_not(name, version, ""))
        try:
            return entry.schema.decode(body)
        except Exception as error:  # noqa: BLE001 - a message class's own __post_init__ or validation may raise anything
            raise UndecodableMessage(f"message {name!r} version {version} cannot be decoded: {error}") from None

    def type_of(self, cls: type) -> MessageType:
        """The registration of a type.

        Raises:
            ConfigError: It has none.
        """
        entry = self._by_type.get(cls)
        if entry is None:
            raise ConfigError("messages", f"{_path(cls)} is not registered")
        return entry

    def why_not(self, name: str, version: int, agent: str) -> str:
        """Why an agent cannot take a message of this name and version: a sentence for its dead letter."""
        if (name, version) in self._by_name:
            return f"agent {agent} has no handler for {name!r} version {version}"
        versions = sorted(known for other, known in self._by_name if other == name)
        if versions:
            return f"message {ascii(name)[:80]} has version {version}; known here: {', '.join(map(str, versions))}"
        return f"message type {ascii(name)[:80]} is not registered here"

    def names(self) -> tuple[tuple[str, int], ...]:
        """Every name, old ones too, and version under which a message is known here, sorted."""
        return tuple(sorted(self._by_name))

    def types(self) -> tuple[type, ...]:
        """All registered types, in order of registration."""
        return tuple(self._by_type)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
