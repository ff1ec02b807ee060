"""The driver's half of a restore: reads an epoch's objects in threads, and loads agents on the loop, a few at a time.

Everything is checked against the digest that names it, from the manifest (whose digest the order brings from the ledger)
down to each chunk. Nothing is delivered before all of it is loaded: what cannot be taken fails the restore by name.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from participant.capture import Capturer
from participant.effects.reach import unnamed
from participant.inputs import NO_DIGEST, HadInputs, came_with_token, message_digest
from participant.loading import load_agent, read_agent, split_envelopes
from participant.restoring import (
    Plan,
    Restoration,
    StateHash,
    goes_on_here,
    in_flight,
    plan,
    renamed_bytes,
    renamed_delivery,
)
from participant.runtime.backoff import Backoff
from participant.runtime.collector import collector_off
from participant.serializers import allow_own_pickle, allow_pickle
from participant.state import CutClock
from protocol.contents import decode_envelope, decode_tokens
from protocol.digests import manifest_key, snapshot_key
from protocol.documents import decode_local_snapshot, decode_manifest
from protocol.errors import ObjectCorrupt, ObjectMissing, RecoveryError, StoreError
from protocol.failpoints import fp_store
from protocol.ids import ClusterName, Epoch
from protocol.limits import CONTENT_BYTES_MAX, KIB, MANIFEST_BYTES_MAX, RESTORE_RETRY_NS, SNAPSHOT_OBJECT_BYTES_MAX
from protocol.pack import ChunkReader
from protocol.storage.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    from participant.host import AgentHost
    from participant.inputs import TokenPair
    from participant.loading import SavedAgent
    from participant.machine_events import Delivery
    from participant.runtime.clock import Clock
    from participant.serializers import PickleAllowed
    from protocol.ids import ParticipantId
    from protocol.journal import OpenQuestion
    from protocol.keys import ClusterKeys
    from protocol.manifest import AgentSnapshot, ChunkRef, LocalSnapshot, Manifest
    from protocol.messages import Restore
    from protocol.ports import ObjectStore

T = TypeVar("T")

BATCH_AGENTS: Final = 32
"""Agents that one thread reads before the loop loads them."""
BATCH_BYTES: Final = 512 * KIB
"""Bytes of the same, at least one agent: what was just unfolded is decoded while the processor still has it at hand, which
spares an eighth of the work (batches of 8 MiB); two batches are in memory beside what is loaded."""

Batch: TypeAlias = "list[tuple[str, AgentSnapshot]]"
"""Agents' parts, each with the participant that hosted it."""


class Loaded(NamedTuple):
    """A restore that went through."""

    hosts: list[AgentHost]
    state: str
    """Digest over what was taken."""
    unrouted: tuple[Delivery, ...]
    input_position: int | None
    """Newest entry of this participant's input log that the epoch holds; None: it was no member of it."""
    input_tokens: Sequence[TokenPair] = ()
    """That the agents here, and others of their hosts, have had."""


class Own(NamedTuple):
    """A participant's own part of an epoch, without what was in flight: its log has that."""

    snapshot: LocalSnapshot
    unrouted: tuple[Delivery, ...]
    input_tokens: list[TokenPair]


class _Sources(NamedTuple):
    """The objects that a plan needs, read and checked."""

    plan: Plan
    manifest: Manifest | None
    snapshots: dict[str, LocalSnapshot]
    flying: dict[str, list[Delivery]]
    unrouted: list[Delivery]
    allowed: PickleAllowed | None
    tokens: list[TokenPair]
    renames: Mapping[str, str]


class Beginning:
    """Agents as their ``__init__`` made them: what a restore to the start gives them back.

    Args:
        hosts: Before their first turn.
        clock: The participant's cuts; nothing of this is seen on it.
    """

    def __init__(self, hosts: Sequence[AgentHost], clock: CutClock) -> None:
        own = CutClock()
        for host in hosts:
            _on_clock(host, own)
        frozen = Capturer(own).freeze(1, hosts, now=0)
        store = MemoryStore(ClusterName("beginning"))
        for slices in (frozen.slices(), frozen.channel_slices(())):
            for pack in slices:
                if pack is not None:
                    store.put(pack.key, pack.data)
        for host in hosts:
            _on_clock(host, clock)
        self._snapshots = {snapshot.id: snapshot for snapshot in frozen.agent_snapshots()}
        self._reader = ChunkReader(store)

    def load(self, host: AgentHost, *, now: int, allowed: PickleAllowed | None) -> None:
        """Give an agent its first state back."""
        load_agent(host, self._snapshots[host.id], self._read, now=now, allowed=allowed)

    def _read(self, refs: Iterable[ChunkRef]) -> bytes:
        return self._reader.join(refs, size_max=CONTENT_BYTES_MAX)


def _on_clock(host: AgentHost, clock: CutClock) -> None:
    host.state.clock = clock
    for cell in host.state.cells.values():
        cell.start(clock)


class Loader:
    """Loads one restore order after the other."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        keys: ClusterKeys,
        cluster: ClusterName,
        participant: ParticipantId,
        allow_cloudpickle: bool,
        clock: Clock,
        host_of: Callable[[str], AgentHost],
        fresh: Callable[[AgentHost, int], None],
        covers: Callable[[str], bool] = lambda _: True,
        run: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        begin: Callable[[Coroutine[Any, Any, Any]], asyncio.Future[Any]] | None = asyncio.ensure_future,
    ) -> None:
        """Set up.

        Args:
            store: Of the cluster.
            keys: For the manifest's signature, where something is to be unpickled.
            cluster: Its name.
            participant: This one.
            allow_cloudpickle: The participant's setting.
            clock: Instants.
            host_of: The host of an agent that is placed here, made if there is none; raises `RecoveryError` if its kind is
                not known here.
            fresh: Makes an agent begin from its beginning; host, now.
            covers: Whether what may be in the effect ledger of this name is in the one at hand.
            run: Blocking work on the store, elsewhere.
            sleep: Seconds.
            begin: Has work go on by itself; None: one thing after the other.
        """
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._participant = participant
        self._allow_cloudpickle = allow_cloudpickle
        self._clock = clock
        self._host_of = host_of
        self._fresh = fresh
        self._covers = covers
        self._run = run
        self._sleep = sleep
        self._begin = begin

    async def load(self, order: Restore) -> Loaded:
        """Give the agents placed here what the order's epoch holds of them.

        Raises:
            ObjectCorrupt: An object is not what it must be, or is gone.
            RecoveryError: The code here does not fit the state.
            StoreError: The store does not answer.
        """
        with collector_off():
            return await self._load(order)

    async def _load(self, order: Restore) -> Loaded:
        sources = await self._retried(lambda: self._read_sources(order))
        state = StateHash()
        renames = sources.renames
        hosts = {
            agent: self._host_of(renames.get(agent, agent))
            for agents in sources.plan.agents.values()
            for agent in agents
        }
        # An agent of the epoch may have had the name that one of these has now.
        fresh = [self._host_of(agent) for agent in sources.plan.fresh]
        reader = ChunkReader(self._store)
        batches = list(_batches(sources))
        ahead: asyncio.Future[list[SavedAgent]] | None = None
        try:
            for number, batch in enumerate(batches):
                saved = await (ahead or self._retried(partial(_read_batch, batch, reader)))
                ahead = None
                if self._begin is not None and number + 1 < len(batches):
                    # A thread reads it while the loop loads this one.
                    ahead = self._begin(self._retried(partial(_read_batch, batches[number + 1], reader)))
                    ahead.add_done_callback(_retrieve)
                for (source, snapshot), part in zip(batch, saved, strict=True):
                    self._load_one(hosts[snapshot.id], source, snapshot, part, sources, order)
                    state.agent(snapshot, sources.flying.get(snapshot.id, ()))
                    await self._sleep(0)
        finally:
            if ahead is not None:
                ahead.cancel()
        for host in fresh:
            # The epoch may be older than the agent, which may have another name by now: it does the same work again.
            host.descend(host.id if order.ancestry is None else order.ancestry.first_name(host.id))
            self._note_stays(host, order)
            self._fresh(host, self._clock.now())
            state.fresh(host.id)
        ordered = sorted((*hosts.values(), *fresh), key=lambda host: host.id)
        mine = sources.snapshots.get(self._participant)
        position = None if mine is None else mine.input_position or 0
        return Loaded(ordered, state.digest(), tuple(sources.unrouted), position, sources.tokens)

    async def load_own(self, named: str, *, elapsed_ns: int) -> Own:
        """Give the agents here what a local snapshot of this participant holds of them, as it was at the cut.

        Args:
            named: Its digest.
            elapsed_ns: Wall time since the cut.

        Raises:
            ObjectCorrupt: An object is not what it must be.
            ObjectMissing: It is gone.
            RecoveryError: The code here does not fit the state.
            StoreError: The store does not answer.
        """
        own = await self._retried(lambda: self._read_own(named))
        allowed = allow_own_pickle() if self._allow_cloudpickle else None
        reader = ChunkReader(self._store)
        agents = own.snapshot.agents
        for start in range(0, len(agents), BATCH_AGENTS):
            batch = [(str(self._participant), agent) for agent in agents[start : start + BATCH_AGENTS]]
            saved = await self._retried(partial(_read_batch, batch, reader))
            for (_, snapshot), part in zip(batch, saved, strict=True):
                host = self._host_of(snapshot.id)
                host.descend(snapshot.was or snapshot.id)
                self._note_ledgers(host, own.snapshot, snapshot)
                host.load(
                    part.fields,
                    state_version=snapshot.state_version,
                    mailbox=part.mailbox,
                    timers=[(left - elapsed_ns, data) for left, data in part.timers],
                    outputs=part.outputs,
                    journal=part.journal,
                    questions=[_aged(question, elapsed_ns) for question in part.questions],
                    dead=snapshot.dead,
                    now=self._clock.now(),
                    allowed=allowed,
                )
            await self._sleep(0)
        return own

    def _read_own(self, named: str) -> Own:
        snapshot = self._read_snapshot(named)
        reader = ChunkReader(self._store)
        name = f"unrouted messages of {self._participant}"
        held = split_envelopes(_join(reader, snapshot.unrouted), name)
        tokens = _read_tokens(snapshot, reader)
        return Own(snapshot, tuple((decode_envelope(data, name), data) for data in held), tokens)

    def _load_one(
        self,
        host: AgentHost,
        source: str,
        snapshot: AgentSnapshot,
        saved: SavedAgent,
        sources: _Sources,
        order: Restore,
    ) -> None:
        flying = sources.flying.get(snapshot.id, [])
        renames = sources.renames
        mailbox = saved.mailbox
        timers = [(left - order.elapsed_ns, data) for left, data in saved.timers]
        if renames:
            where = f"messages of {snapshot.id}"
            mailbox = [renamed_bytes(data, renames, where) for data in mailbox]
            timers = [(left, renamed_bytes(data, renames, where)) for left, data in timers]
        host.descend(snapshot.was or snapshot.id)
        self._note_ledgers(host, sources.snapshots[source], snapshot)
        self._note_stays(host, order)
        host.load(
            saved.fields,
            state_version=snapshot.state_version,
            mailbox=mailbox,
            timers=timers,
            outputs=saved.outputs,
            journal=saved.journal,
            questions=[_aged(question, order.elapsed_ns) for question in saved.questions],
            dead=snapshot.dead,
            now=self._clock.now(),
            allowed=sources.allowed,
        )
        what = Restoration(
            epoch=order.epoch,
            incarnation=order.incarnation,
            host=source,
            running=snapshot.running,
            waiting=snapshot.mailbox_count,
            in_flight=len(flying),
            timers=sum(left > 0 for left, _ in timers),
            overdue=sum(left <= 0 for left, _ in timers),
            was=snapshot.id if host.id != snapshot.id else "",
        )
        host.come_back(self._cluster, what, flying)

    def _note_ledgers(self, host: AgentHost, part: LocalSnapshot, snapshot: AgentSnapshot) -> None:
        """Effect ledgers that may hold what the agent has done, and are not at hand."""
        at_hand = part.ledger or unnamed(part.participant, part.session)
        host.has_done(name for name in (*snapshot.ledgers, at_hand) if not self._covers(name))

    def _note_stays(self, host: AgentHost, order: Restore) -> None:
        """The same of hosts that no epoch tells of."""
        names = (unnamed(participant, 0) for participant, agents in order.elsewhere.items() if host.id in agents)
        host.has_done(name for name in names if not self._covers(name))

    # --- in threads ---------------------------------------------------------------------------------------------------

    def _read_sources(self, order: Restore) -> _Sources:
        manifest, allowed = None, None
        if order.epoch:
            key = manifest_key(Epoch(order.epoch))
            fp_store("restore.before_read", key)
            data = self._store.get(key, size_max=MANIFEST_BYTES_MAX)
            manifest = decode_manifest(data, expected=order.manifest, name=key)
            if self._allow_cloudpickle:
                allowed = allow_pickle(data, self._keys, allow_cloudpickle=True)
        renames = dict(order.renames)
        wanted = plan(self._participant, order.members, manifest, renames)
        named = {} if manifest is None else {member.participant: member.snapshot for member in manifest.members}
        snapshots = {source: self._read_snapshot(named[source]) for source in wanted.sources()}
        placed = {agent: str(member.id) for member in order.members for agent in member.agents}
        flying: dict[str, list[Delivery]] = {}
        unrouted: list[Delivery] = []
        tokens: list[TokenPair] = []
        reader = ChunkReader(self._store)
        for source, snapshot in snapshots.items():
            read = _read_tokens(snapshot, reader)
            tokens += read
            had = HadInputs(read)
            heir = source in wanted.inherits
            name = f"unrouted messages of {source}"
            held = split_envelopes(_join(reader, snapshot.unrouted), name)
            unrouted += goes_on_here(
                [(decode_envelope(data, name), data) for data in held],
                self._participant,
                {agent.id: placed.get(renames.get(agent.id, agent.id), "") for agent in snapshot.agents},
                heir=heir,
            )
            here = frozenset(wanted.agents.get(source, ()))
            theirs = frozenset(agent.id for agent in snapshot.agents)
            for channel in snapshot.incoming:
                name = f"channel {channel.source}->{source}"
                items = _join(reader, channel.chunks)
                mine, others = in_flight(channel, items, name, here=here, theirs=theirs)
                for delivery in mine:
                    message = delivery[0]
                    if came_with_token(message.source, message.id):
                        # As its host would have done: it may have come there by another way before the cut.
                        if not had.add(message):
                            continue
                        tokens.append((message.id, message_digest(message)))
                    flying.setdefault(message.target, []).append(delivery)
                if heir:
                    unrouted += others
        if renames:
            # A second try may have the new name: it is the same.
            tokens = [(message, NO_DIGEST) for message, _ in tokens]
            flying = {agent: [renamed_delivery(each, renames) for each in held] for agent, held in flying.items()}
            unrouted = [renamed_delivery(each, renames) for each in unrouted]
        return _Sources(wanted, manifest, snapshots, flying, unrouted, allowed, tokens, renames)

    def _read_snapshot(self, named: str) -> LocalSnapshot:
        key = snapshot_key(named)
        return decode_local_snapshot(self._store.get(key, size_max=SNAPSHOT_OBJECT_BYTES_MAX), expected=named, name=key)

    async def _retried(self, work: Callable[[], T]) -> T:
        """Run in a thread, again while the store does not answer."""
        backoff = Backoff(first=0.05, most=1.0)
        give_up = self._clock.now() + RESTORE_RETRY_NS
        while True:
            try:
                return cast("T", await self._run(work))
            except (ObjectCorrupt, ObjectMissing):
                raise
            except StoreError:
                if self._clock.now() >= give_up:
                    raise
                await self._sleep(backoff.next())


def _aged(question: OpenQuestion, elapsed_ns: int) -> OpenQuestion:
    """A question runs on while nobody was there to be asked, as a timer does."""
    if question.left_ns < 0:
        return question
    return msgspec.structs.replace(question, left_ns=max(0, question.left_ns - elapsed_ns))


def failure_kind(error: Exception) -> str:
    """Which kind of `RestoreFailed` an error is."""
    if isinstance(error, ObjectCorrupt | ObjectMissing):
        return "corrupt"
    return "store" if isinstance(error, StoreError) else "unfit"


def _retrieve(ahead: asyncio.Future[Any]) -> None:
    """Where the load has failed before, nobody asks how this went."""
    if not ahead.cancelled():
        ahead.exception()


def _batches(sources: _Sources) -> Iterator[Batch]:
    batch: Batch = []
    size = 0
    for source, agents in sources.plan.agents.items():
        known: Mapping[str, AgentSnapshot] = {agent.id: agent for agent in sources.snapshots[source].agents}
        for agent in agents:
            snapshot = known.get(agent)
            if snapshot is None:
                raise RecoveryError(
                    f"the local snapshot of {source} does not hold agent {agent}, which its manifest names"
                )
            batch.append((source, snapshot))
            size += sum(ref.bytes for field in snapshot.fields for segment in field.segments for ref in segment)
            if len(batch) == BATCH_AGENTS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _read_batch(batch: Batch, reader: ChunkReader) -> list[SavedAgent]:
    """In a thread."""
    return [read_agent(snapshot, partial(_join, reader)) for _, snapshot in batch]


def _read_tokens(snapshot: LocalSnapshot, reader: ChunkReader) -> list[TokenPair]:
    found: list[TokenPair] = []
    for ref in snapshot.input_tokens or ():
        found += decode_tokens(_join(reader, (ref,)), f"input tokens of {snapshot.participant}")
    return found


def _join(reader: ChunkReader, refs: Iterable[ChunkRef]) -> bytes:
    return reader.join(refs, size_max=CONTENT_BYTES_MAX)
