"""Carries out a restore order: halts the agents, keeps the incarnation on the disk, has the epoch loaded.

The order of these steps, and what is late, is the machine's (`participant.machine_restore`); here is only the doing. Which
agents are here may change with each restore: `hosts` is one list that pump, uploader and outlet share.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from participant.effects.reach import unnamed
from participant.host import AgentHost
from participant.machine_events import IncarnationPersisted, LocalNotRestored, LocalRestored
from participant.restoring import Numbers
from participant.runtime.loader import Beginning, Loader, failure_kind
from participant.runtime.log_files import Life
from participant.serializers import allow_own_pickle
from protocol.errors import FencedError, RecoveryError, SnapshotError
from protocol.failpoints import fp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from participant.agent import Agent
    from participant.codec import MessageRegistry
    from participant.inputs import TokenPair
    from participant.machine_events import Event
    from participant.runtime.clock import Clock
    from participant.runtime.intake import Intake
    from participant.runtime.loader import Loaded
    from participant.runtime.log_files import LocalFolder
    from participant.runtime.outlet import Outlet
    from participant.runtime.pump import Pump
    from participant.runtime.tasks import TaskSet
    from participant.runtime.turn_keeper import Recovered, TurnKeeper
    from participant.runtime.uploader import Uploader
    from participant.state import CutClock
    from protocol.ancestry import Ancestry
    from protocol.ids import ClusterName, ParticipantId
    from protocol.keys import ClusterKeys
    from protocol.messages import Member, Restore
    from protocol.ports import ObjectStore

log = logging.getLogger("cleancut.participant.restore")


class RestorerSink(Protocol):
    """Where outcomes go; called on the loop, must not block."""

    def restore_stepped(self, event: Event) -> None:
        """For the machine."""
        ...

    def restore_fenced(self, error: SnapshotError) -> None:
        """This process must end."""
        ...


class Restorer:
    """Restores of one participant."""

    def __init__(
        self,
        hosts: list[AgentHost],
        *,
        factories: Mapping[str, Callable[[str], Agent]],
        registry: MessageRegistry,
        cut_clock: CutClock,
        pump: Pump,
        uploader: Uploader,
        outlet: Outlet,
        intake: Intake | None,
        folder: LocalFolder | None,
        turns: TurnKeeper | None = None,
        covers: Callable[[str], bool],
        came_late: Callable[[], None],
        store: ObjectStore,
        keys: ClusterKeys,
        cluster: ClusterName,
        participant: ParticipantId,
        allow_cloudpickle: bool,
        clock: Clock,
        tasks: TaskSet,
        sink: RestorerSink,
    ) -> None:
        """Set up; the hosts have not run a turn yet.

        Args:
            hosts: Shared with pump, uploader and outlet; changed in place.
            factories: Kind -> how an agent of it is made from its name, for agents that come from others.
            registry: Message types known here.
            cut_clock: The participant's cuts.
            pump: Of the agents.
            uploader: Of their epochs.
            outlet: Of their outputs.
            intake: Of outside input; None: nothing is kept of it.
            turns: Their log; None: turns are not logged.
            covers: Whether what may be in the effect ledger of this name is in the one at hand.
            came_late: Has the effect ledger note that earlier lives may have had another one; blocks.
            folder: Where the incarnation is kept; None: nowhere.
            store: Of the cluster.
            keys: Of the cluster.
            cluster: Its name.
            participant: This one.
            allow_cloudpickle: The participant's setting.
            clock: Instants.
            tasks: The participant's.
            sink: The participant.
        """
        self._hosts = hosts
        self._factories = factories
        self._registry = registry
        self._cut_clock = cut_clock
        self._pump = pump
        self._uploader = uploader
        self._outlet = outlet
        self._intake = intake
        self._folder = folder
        self._turns = turns
        self._covers = covers
        self._came_late = came_late
        self._began_here = False
        """The agents began in this very process."""
        self._cluster = cluster
        self._participant = participant
        self._clock = clock
        self._tasks = tasks
        self._sink = sink
        self._declared = list(hosts)
        self._known: dict[str, AgentHost] = {host.id: host for host in hosts}
        """All that were here at any time: an agent that went and comes back is the same object."""
        self._taken: dict[str, None] = {}
        """Those that were others' before they came here."""
        self._beginnings = dict.fromkeys(self._known, Beginning(hosts, cut_clock))
        self._allow_cloudpickle = allow_cloudpickle
        self._loader = Loader(
            store=store,
            keys=keys,
            cluster=cluster,
            participant=participant,
            allow_cloudpickle=allow_cloudpickle,
            clock=clock,
            host_of=self._host_of,
            fresh=self._begin_again,
            covers=covers,
        )
        self._loading: asyncio.Task[None] | None = None
        self._fresh = Numbers()
        """Of agents that begin."""
        self.input_position: int | None = None
        """What the epoch that was loaded last says of this participant's input log."""
        self.input_tokens: Sequence[TokenPair] = ()
        """Outside input that the agents here have had."""
        self.input_from: int | None = None
        """Position at which this membership began, by the log of turns that was replayed; None: none was."""

    def halt(self) -> None:
        """No turn runs from here on."""
        fp("restore.halted")
        if self._loading is not None:
            self._loading.cancel()
        self._pump.halt()
        if self._turns is not None:
            self._turns.halt()

    async def recover(self) -> Recovered | None:
        """Bring the agents to where their log ends; None: there is none that is any good, and they are as they began.

        Raises:
            StoreError: Store or disk do not work.
            FencedError: A later life has the folder.
            RecoveryError: It holds outputs for a sink that is not here.
        """
        assert self._turns is not None, "turns are logged"
        recovered = await self._turns.recover(
            self._host_of,
            loader=self._loader,
            load=self._load,
            start_fresh=lambda host, fresh: host.start_fresh(self._cluster, fresh),
            covers=self._covers,
            allowed=allow_own_pickle() if self._allow_cloudpickle else None,
            now=self._clock.now,
        )
        if recovered is None:
            if self._turns.disturbed:
                self.forget()
        else:
            self._be_here([self._known[agent] for agent in recovered.base.agents])
            self._outlet.check(self._hosts)
            self.input_position, self.input_tokens = recovered.input_position, recovered.input_tokens
            if self._intake is not None:
                self.input_from = recovered.base.input_from
                # The folder has been ours only since: until then whoever had it may have acknowledged input.
                await self._intake.taken_over()
        return recovered

    def forget(self) -> None:
        """The agents that are declared here are here, and all are as they began."""
        self._be_here(self._declared)
        self.input_position, self.input_tokens, self.input_from = None, (), None
        for host in self._known.values():
            self._make_again(host, self._clock.now())
            host.turns = 0

    def persist(self, incarnation: int, session: int, *, returns: bool) -> None:
        """Put this life's incarnation onto the disk, and tell the machine.

        Args:
            incarnation: That is entered.
            session: Of this life.
            returns: Earlier lives of this participant may have run agents.
        """
        late = returns and not self._began_here
        self._tasks.spawn(self._persist(Life(incarnation, session), late=late), name=f"enter incarnation {incarnation}")

    def restore(self, order: Restore) -> None:
        """Load the order's epoch, and tell the machine."""
        if self._loading is not None:
            self._loading.cancel()
        name = f"restore incarnation {order.incarnation}"
        self._loading = self._tasks.spawn(self._restore(order), name=name)

    def start(self, member: Member, ancestry: Ancestry | None) -> None:
        """The agents placed here are here from now on, fresh; for a participant that joins.

        Args:
            member: This one.
            ancestry: Of the incarnation.
        """
        self._fresh = Numbers.of(member)
        self._began_here = True
        wanted = frozenset(member.agents)
        declared = [host for host in self._declared if host.id in wanted]
        given = [self._host_of(agent) for agent in sorted(wanted.difference(host.id for host in declared))]
        self._be_here([*declared, *given])
        for host in self._hosts:
            host.descend(host.id if ancestry is None else ancestry.first_name(host.id))
            host.start_fresh(self._cluster, self._fresh.number(host.id))

    async def _load(self, order: Restore) -> Loaded:
        """The agents that an order places here; those that its epoch does not hold begin as the order says."""
        mine = next((member for member in order.members if member.id == self._participant), None)
        self._fresh = Numbers.of(mine)
        return await self._loader.load(order)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _persist(self, life: Life, *, late: bool) -> None:
        assert self._folder is not None, "a number without a disk"
        try:
            if late:
                # Before the folder is anybody's: it says from then on that lives have had it.
                await asyncio.to_thread(self._came_late)
            if self._turns is not None:
                await self._turns.wait_begun()
            await asyncio.to_thread(self._folder.take_over, life)
            if self._intake is not None:
                await self._intake.taken_over()
        except FencedError as error:
            self._sink.restore_fenced(error)
        except SnapshotError as error:
            log.warning("incarnation %d is not on the disk: %s", life.incarnation, error)
            self._sink.restore_stepped(LocalNotRestored(incarnation=life.incarnation, kind="store", cause=str(error)))
        else:
            fp("restore.entered")
            self._sink.restore_stepped(IncarnationPersisted(incarnation=life.incarnation))

    async def _restore(self, order: Restore) -> None:
        began = self._clock.now()
        try:
            loaded = await self._load(order)
            self._outlet.check(loaded.hosts)
            if self._intake is not None:
                await self._intake.check(epoch=order.epoch, position=loaded.input_position, ancestry=order.ancestry)
            if self._turns is not None:
                await self._turns.wait_idle()
        except SnapshotError as error:
            self._failed(order, failure_kind(error), str(error))
        except Exception as error:  # an agent's own restore() or factory may raise anything
            log.exception("incarnation %d: the part cannot be taken", order.incarnation)
            self._failed(order, failure_kind(error), f"{type(error).__name__}: {error}")
        else:
            self._be_here(loaded.hosts)
            self.input_position = loaded.input_position
            self.input_tokens = loaded.input_tokens
            self.input_from = None
            self._outlet.enter(order.incarnation, order.session)
            self._outlet.restored(loaded.hosts, epoch=order.epoch)
            fp("restore.loaded")
            took_ns = self._clock.now() - began
            log.info("epoch %d loaded for incarnation %d in %.3f s", order.epoch, order.incarnation, took_ns / 1e9)
            self._sink.restore_stepped(
                LocalRestored(
                    incarnation=order.incarnation,
                    state=loaded.state,
                    unrouted=loaded.unrouted,
                    inputs=loaded.input_tokens,
                    took_ns=took_ns,
                )
            )

    def _failed(self, order: Restore, kind: str, cause: str) -> None:
        log.error("incarnation %d: epoch %d cannot be restored here: %s", order.incarnation, order.epoch, cause)
        self._sink.restore_stepped(LocalNotRestored(incarnation=order.incarnation, kind=kind, cause=cause))

    def _be_here(self, hosts: list[AgentHost]) -> None:
        self._hosts[:] = hosts
        self._pump.set_hosts(hosts)
        self._uploader.renew()

    def _host_of(self, agent: str) -> AgentHost:
        """The host of an agent that is placed here."""
        known = self._known.get(agent)
        if known is not None:
            return known
        kind, _, name = agent.partition("/")
        factory = self._factories.get(kind)
        if factory is None:
            raise RecoveryError(f"agent {agent} is placed on {self._participant}, which knows no agents of kind {kind}")
        try:
            made = factory(name)
        except Exception as error:  # a user's code may raise anything
            log.exception("agent %s cannot be made here", agent)
            raise RecoveryError(f"agent {agent} cannot be made here: {type(error).__name__}: {error}") from error
        if getattr(made, "id", None) != agent:
            raise RecoveryError(f"what was made for agent {agent} calls itself {getattr(made, 'id', made)!r}")
        host = AgentHost(made, self._registry, self._cut_clock)
        self._known[host.id] = host
        self._taken[host.id] = None
        self._beginnings[host.id] = Beginning([host], self._cut_clock)
        return host

    def _make_again(self, host: AgentHost, now: int) -> None:
        """An agent is as its ``__init__`` made it."""
        allowed = allow_own_pickle() if self._allow_cloudpickle else None
        self._beginnings[host.id].load(host, now=now, allowed=allowed)

    def _begin_again(self, host: AgentHost, now: int) -> None:
        """An agent that the epoch does not hold."""
        self._make_again(host, now)
        host.start_fresh(self._cluster, self._fresh.number(host.id))
        begun = unnamed("" if host.id in self._taken else self._participant, 0)
        if not self._covers(begun):
            host.has_done((begun,))
