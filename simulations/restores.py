"""A participant's way back, under virtual time: the incarnation on its disk, the epoch out of the store, the agents.

The order of `participant.runtime.restorer`, with the product's own loader; what it does not have are threads. A load is one
moment, some time after its order; a store that fails is asked again for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from participant.host import AgentHost
from participant.machine_events import IncarnationPersisted, LocalNotRestored, LocalRestored
from participant.restoring import Numbers
from participant.runtime.loader import Beginning, Loader, failure_kind
from participant.runtime.log_files import Life
from protocol.errors import FencedError, RecoveryError, SnapshotError, StoreError
from protocol.ids import Instant, ParticipantId
from protocol.limits import RESTORE_RETRY_NS
from simulations.world import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from participant.runtime.loader import Loaded
    from protocol.messages import Member, Restore
    from simulations.participant_node import ParticipantLife

_DISK_NS: Final = 2 * MS
_RETRY_NS: Final = 200 * MS


class _LifeClock:
    """The loader's: a life's own time."""

    def __init__(self, life: ParticipantLife) -> None:
        self._life = life

    def now(self) -> Instant:
        """The participant's time."""
        return Instant(self._life.now)


class Restores:
    """All restores of one life."""

    def __init__(self, life: ParticipantLife) -> None:
        self._life = life
        self._known: dict[str, AgentHost] = {host.id: host for host in life.hosts}
        self._beginnings = dict.fromkeys(self._known, Beginning(life.hosts, life.cut_clock))
        self._fresh = Numbers()
        self._order: Restore | None = None
        """That is being carried out."""

    def halt(self) -> None:
        """No turn runs from here on."""
        self._order = None
        self._life.pump.halt()
        self._life.point("restore.halted")

    def persist(self, incarnation: int) -> None:
        """Put the incarnation onto the disk, which survives the life."""
        self._life.later(_DISK_NS, self._persisted, incarnation)

    def _persisted(self, incarnation: int) -> None:
        life = self._life
        try:
            assert life.folder is not None, "lives of this mode have one"
            life.folder.take_over(Life(incarnation, life.ghost.session))
        except FencedError as error:
            life.end(f"fenced: {error}")
            return
        life.ghost.persisted(incarnation)
        life.point("restore.entered")
        if life.alive:
            life.step(IncarnationPersisted(incarnation=incarnation))

    def restore(self, order: Restore) -> None:
        """Load the order's epoch."""
        life = self._life
        self._order = order
        self._fresh = Numbers.of(next((member for member in order.members if member.id == life.name), None))
        life.later(life.cluster.store.delay(), self._load, order, life.now)

    def start(self, member: Member) -> None:
        """The agents placed here begin, fresh; for a life that joins."""
        self._fresh = Numbers.of(member)
        self._be_here([self._known[agent] for agent in member.agents])
        ancestry = self._life.machine.ancestry
        for host in self._life.hosts:
            host.descend(host.id if ancestry is None else ancestry.first_name(host.id))
            host.start_fresh(self._life.cluster.name, self._fresh.number(host.id))

    def _load(self, order: Restore, began: int) -> None:
        life = self._life
        if self._order is not order:
            return  # a newer one has come
        life.point("restore.before_read")
        if not life.alive:
            return
        trouble = life.cluster.store.trouble(life.name, "get", f"epoch {order.epoch}") if order.epoch else None
        try:
            if trouble is not None:
                raise trouble
            loaded = self._loaded(order)
        except StoreError as error:
            if failure_kind(error) == "store" and life.now < began + RESTORE_RETRY_NS:
                life.later(_RETRY_NS, self._load, order, began)
                return
            self._failed(order, error)
        except SnapshotError as error:
            self._failed(order, error)
        else:
            self._be_here(loaded.hosts)
            life.ghost.restored(order, loaded)
            life.point("restore.loaded")
            if life.alive:
                life.step(
                    LocalRestored(
                        incarnation=order.incarnation,
                        state=loaded.state,
                        unrouted=loaded.unrouted,
                        inputs=loaded.input_tokens,
                        took_ns=life.now - began,
                    )
                )

    def _loaded(self, order: Restore) -> Loaded:
        life = self._life
        loader = Loader(
            store=life.cluster.store.reader(),
            keys=life.cluster.keys,
            cluster=life.cluster.name,
            participant=ParticipantId(life.name),
            allow_cloudpickle=False,
            clock=_LifeClock(life),  # type: ignore[arg-type]  # it only asks what time it is
            host_of=self._host_of,
            fresh=self._begin_again,
            run=_at_once,
            sleep=_no_time,
            begin=None,
        )
        steps = loader.load(order)
        try:
            steps.send(None)
        except StopIteration as end:
            loaded: Loaded = end.value
            return loaded
        raise AssertionError("a loader that waits for something")

    def _failed(self, order: Restore, error: SnapshotError) -> None:
        self._life.cluster.probes.hit(f"restore.failed_{failure_kind(error)}")
        self._life.step(LocalNotRestored(incarnation=order.incarnation, kind=failure_kind(error), cause=str(error)))

    def _host_of(self, agent: str) -> AgentHost:
        host = self._known.get(agent)
        if host is not None:
            return host
        life = self._life
        if agent.partition("/")[0] not in {kind.kind for kind in life.takes}:
            raise RecoveryError(f"agent {agent} is placed on {life.name}, which does not know it")
        host = self._known[agent] = AgentHost(life.cluster.workload.take(agent), life.registry, life.cut_clock)
        self._beginnings[agent] = Beginning([host], life.cut_clock)
        return host

    def _begin_again(self, host: AgentHost, now: int) -> None:
        self._beginnings[host.id].load(host, now=now, allowed=None)
        host.start_fresh(self._life.cluster.name, self._fresh.number(host.id))

    def _be_here(self, hosts: list[AgentHost]) -> None:
        self._life.hosts[:] = hosts
        self._life.pump.set_hosts(hosts)
        self._life.uploads.renew()


async def _at_once(work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it gives
    return work()


async def _no_time(_seconds: float) -> None:
    return None
