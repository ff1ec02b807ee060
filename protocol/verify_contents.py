"""The deep part of a verification: every pack, every chunk, and what the chunks hold.

Recorded items are parsed and counted again, and hashed again where the recording begins at the stream's first item (else
the digest continues from the receiver's position, which no object holds). Mailboxes, timers and values are decoded without
the user's classes (`protocol.contents`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from blake3 import blake3

from protocol import contents
from protocol.digests import DIGEST_PREFIX, digest, pack_key
from protocol.documents import chunk_refs
from protocol.items import message_count
from protocol.limits import CONTENT_BYTES_MAX, MIB
from protocol.pack import ChunkReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from protocol.findings import Findings
    from protocol.manifest import AgentSnapshot, ChunkRef, FieldRef, IncomingCut, LocalSnapshot
    from protocol.ports import ObjectStore

_T = TypeVar("_T")

VERIFIED_CHUNKS_MAX: Final = 1_000_000
"""Chunks remembered as right while several epochs are verified; most are shared by neighbours."""


class ContentVerifier:
    """Checks packs, chunks and contents; remembers over several epochs what was right."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._chunks = ChunkReader(store)
        self._good_packs: set[str] = set()
        self._good_chunks: set[ChunkRef] = set()
        self._gone: set[str] = set()
        """Packs that cannot be read at all: named once, not once for each of their chunks."""

    def check(self, packs: Iterable[str], snapshots: Mapping[str, LocalSnapshot], into: Findings) -> None:
        """Check everything that these local snapshots name.

        Args:
            packs: What the manifest lists and the local snapshots name, sorted.
            snapshots: By participant, their digests already checked.
            into: Takes the findings.
        """
        self._gone = set()
        for pack in packs:
            self._check_pack(pack, into)
        references = {ref for snapshot in snapshots.values() for ref in chunk_refs(snapshot)}
        into.count("chunks", len(references))
        into.count("bytes", sum(ref.bytes for ref in references))
        for name in (
            "items_in_flight",
            "messages_in_flight",
            "messages_in_mailboxes",
            "timers",
            "outputs",
            "finished_steps",
            "questions",
        ):
            into.count(name)
        for participant, snapshot in snapshots.items():
            check = _Check(self, participant, into)
            for agent in snapshot.agents:
                check.agent(agent)
            check.messages(f"unrouted messages of {participant}", snapshot.unrouted, snapshot.unrouted_count)
            check.tokens(f"input tokens of {participant}", snapshot.input_tokens or ())
            for incoming in snapshot.incoming:
                check.recording(incoming)

    def _check_pack(self, pack: str, into: Findings) -> None:
        if pack in self._good_packs:
            return
        found = into.attempt(partial(self._digest_of, pack), key=pack_key(pack))
        if found is None:
            self._gone.add(pack)
        elif found != pack:
            into.add(
                "corrupt", "the pack's bytes are not those of its name", key=pack_key(pack), expected=pack, found=found
            )
        else:
            self._good_packs.add(pack)

    def _digest_of(self, pack: str) -> str:
        """Digest of a pack's bytes, read in steps, so that memory stays flat."""
        key = pack_key(pack)
        size = self._store.size(key)
        hasher = blake3()
        for offset in range(0, size, MIB):
            hasher.update(self._store.get_range(key, offset, min(MIB, size - offset)))
        return DIGEST_PREFIX + hasher.hexdigest()

    def is_good(self, refs: Iterable[ChunkRef]) -> bool:
        """Whether an epoch verified before had all of these, and what they hold was right."""
        return all(ref in self._good_chunks for ref in refs)

    def mark_good(self, refs: Iterable[ChunkRef]) -> None:
        """Remember these as right."""
        if len(self._good_chunks) < VERIFIED_CHUNKS_MAX:
            self._good_chunks.update(refs)

    def is_gone(self, refs: Iterable[ChunkRef]) -> bool:
        """Whether any of these lies in a pack that cannot be read; that was named already."""
        return any(ref.pack in self._gone for ref in refs)

    def read(self, ref: ChunkRef) -> bytes:
        """One chunk; raises `StoreError`."""
        return self._chunks.read(ref)


class _Check:
    """One participant's contents."""

    def __init__(self, verifier: ContentVerifier, participant: str, into: Findings) -> None:
        self._verifier = verifier
        self._participant = participant
        self._into = into

    def agent(self, agent: AgentSnapshot) -> None:
        self.messages(f"mailbox of {agent.id}", agent.mailbox, agent.mailbox_count)
        if agent.running and not agent.mailbox_count:
            self._into.add(
                "content", f"{agent.id} was in a turn, but its mailbox is empty", participant=self._participant
            )
        place = f"timers of {agent.id}"
        data = self._join(agent.timers, place)
        if data is not None:
            timers = self._decoded(partial(contents.decode_timers, data, place))
            if timers is not None:
                self._into.count("timers", len(timers))
                self._compare(place, agent.timers_count, len(timers))
        place = f"outputs of {agent.id}"
        data = self._join(agent.outputs, place)
        if data is not None:
            outputs = self._decoded(partial(contents.decode_outputs, data, place))
            if outputs is not None:
                self._into.count("outputs", len(outputs))
                self._compare(place, agent.outputs_count, len(outputs))
        self._counted(
            f"finished steps of {agent.id}",
            "finished_steps",
            agent.journal,
            agent.journal_count,
            contents.decode_journal,
        )
        self._counted(
            f"questions of {agent.id}", "questions", agent.questions, agent.questions_count, contents.decode_questions
        )
        for field in agent.fields:
            self._field(agent, field)

    def _counted(
        self,
        place: str,
        name: str,
        refs: tuple[ChunkRef, ...],
        count: int,
        decode: Callable[[bytes, str], Sequence[object]],
    ) -> None:
        """Chunks that hold a list of this length."""
        data = self._join(refs, place)
        if data is None:
            return
        found = self._decoded(partial(decode, data, place))
        if found is not None:
            self._into.count(name, len(found))
            self._compare(place, count, len(found))

    def messages(self, place: str, refs: tuple[ChunkRef, ...], count: int) -> None:
        data = self._join(refs, place)
        if data is None:
            return
        envelopes = self._decoded(partial(contents.decode_mailbox, data, place))
        if envelopes is not None:
            self._into.count("messages_in_mailboxes", len(envelopes))
            self._compare(place, count, len(envelopes))

    def tokens(self, place: str, refs: tuple[ChunkRef, ...]) -> None:
        for ref in refs:
            self._unit((ref,), contents.decode_tokens, place)

    def recording(self, incoming: IncomingCut) -> None:
        channel = f"{incoming.source}->{self._participant}"
        place = "recorded items"
        data = self._join(incoming.chunks, place, channel)
        if data is None:
            return
        items = self._decoded(partial(contents.decode_channel, data, incoming.items, place), channel)
        if items is None:
            return
        messages = message_count(items)
        self._into.count("items_in_flight", len(items))
        self._into.count("messages_in_flight", messages)
        self._compare("recorded messages", incoming.messages, messages, channel)
        self._decoded(partial(contents.messages_of, items, place), channel)
        skipped = (incoming.base or 0) - incoming.received
        if skipped >= 0 and (found := digest(b"".join(items[skipped:]))) != incoming.digest:
            self._into.add(
                "digest",
                "what was recorded is all that its digest is over, and not the bytes that were sent",
                participant=self._participant,
                channel=channel,
                expected=incoming.digest,
                found=found,
            )

    def _field(self, agent: AgentSnapshot, field: FieldRef) -> None:
        place = f"field {field.name} of {agent.id}"
        plain = field.serializer == "msgpack"
        if field.shape == "keyed":
            for segment in field.segments:
                self._unit(segment, contents.decode_segment if plain else None, place)
        elif field.segments:
            # Without chunks it is a value that was never set.
            whole = tuple(ref for segment in field.segments for ref in segment)
            self._unit(whole, contents.decode_value if plain else None, place)
        if field.removed:
            self._unit(field.removed, contents.decode_keys, f"{place}, keys that have gone")

    def _unit(self, refs: tuple[ChunkRef, ...], decode: Callable[[bytes, str], object] | None, place: str) -> None:
        """Chunks that together decode to one thing; None: they are opaque."""
        if refs and self._verifier.is_good(refs):
            return
        data = self._join(refs, place)
        if data is not None and (
            decode is None or self._decoded(partial(_decoded_unit, decode, data, place)) is not None
        ):
            self._verifier.mark_good(refs)

    def _join(self, refs: tuple[ChunkRef, ...], place: str, channel: str = "") -> bytes | None:
        """Chunks joined, or None after each that cannot be read was named."""
        total = sum(ref.bytes for ref in refs)
        if total > CONTENT_BYTES_MAX:
            self._into.add(
                "content",
                f"{place}: too large to be read",
                participant=self._participant,
                channel=channel,
                expected=f"at most {CONTENT_BYTES_MAX}",
                found=total,
            )
            return None
        if self._verifier.is_gone(refs):
            return None
        parts = [
            self._into.attempt(
                partial(self._verifier.read, ref),
                key=pack_key(ref.pack),
                participant=self._participant,
                channel=channel,
                place=place,
            )
            for ref in refs
        ]
        whole = [part for part in parts if part is not None]
        return b"".join(whole) if len(whole) == len(parts) else None

    def _decoded(self, decode: Callable[[], _T], channel: str = "") -> _T | None:
        return self._into.attempt(decode, participant=self._participant, channel=channel)

    def _compare(self, place: str, expected: int, found: int, channel: str = "") -> None:
        if expected != found:
            self._into.add(
                "content",
                f"{place}: another number than the local snapshot says",
                participant=self._participant,
                channel=channel,
                expected=expected,
                found=found,
            )


def _decoded_unit(decode: Callable[[bytes, str], object], data: bytes, place: str) -> tuple[object]:
    """What it decodes to, in a tuple: None is a value."""
    return (decode(data, place),)
