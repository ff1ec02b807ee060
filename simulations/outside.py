"""The world outside of a cluster, where orders are charged and receipts are kept: nothing rolls back, nothing is forgiven.

A request leaves, arrives some time later whatever has become of the caller, and the answer comes back if there is still
somebody to hear it. The bank has two counters: at one of them a token's charge is made once, however often it comes; the
other one charges whenever it is told to, and only says whether a token has been charged. The archive is a sink that keeps
the fence of its writers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blake3 import blake3

from participant import DidNotHappen, InDoubt
from participant.outbox import DELIVERED, DUPLICATE, Receipt
from participant.sinks.base import SinkError
from protocol.errors import SnapshotError
from protocol.outputs import FenceState, FencingToken
from simulations.prng import stream
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from participant.sinks.base import SinkOutput
    from simulations.cluster import SimulatedCluster
    from simulations.participant_node import ParticipantLife

FAILS: Final = 24
"""One request in so many fails before it has an effect, and one afterwards."""


class Charge(NamedTuple):
    """Something that the bank did."""

    order: str
    cents: int
    token: str
    result: int
    at: int


class BankFailed(Exception):
    """No answer, or a useless one: whether it happened is not known."""


class Bank:
    """Charges, in the order in which they were made."""

    def __init__(self) -> None:
        self.charges: dict[str, Charge] = {}
        """By order."""
        self.tokens: dict[str, Charge] = {}
        self.void: dict[str, int] = {}
        """Token -> requests that left before this instant are not carried out any more: somebody was told so."""
        self.repeated = 0

    def charge(self, order: str, cents: int, token: str, *, sent: int, at: int, forgiving: bool) -> int:
        """Make a charge.

        Raises:
            Violation: I29.
        """
        before = self.tokens.get(token)
        if before is not None:
            if (before.order, before.cents) != (order, cents):
                raise Violation("I29", f"token {token} charges {before.order}, and now {order}")
            if forgiving:
                self.repeated += 1
                return before.result
        elif sent <= self.void.get(token, -1):
            raise BankFailed("too late")
        known = self.charges.get(order)
        if known is not None:
            raise Violation(
                "I29",
                f"order {order} is charged at {known.at / 1e6:.3f} ms as {known.token}, and at {at / 1e6:.3f} as {token}",
            )
        result = int.from_bytes(blake3(f"{order} {cents}".encode()).digest(length=6), "big")
        charge = self.charges[order] = self.tokens[token] = Charge(order, cents, token, result, at)
        return charge.result

    def find(self, token: str, *, at: int) -> int | None:
        """What a token's charge gave; None: it did not happen, and what is on its way is not carried out."""
        known = self.tokens.get(token)
        if known is not None:
            return known.result
        self.void[token] = at
        return None


class Archive:
    """Receipts that were put out, by token."""

    name = "receipts"

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.fence = FenceState()
        self.kept: dict[str, bytes] = {}
        self.duplicates = 0

    def raise_fence(self, incarnation: int) -> None:
        """Refuse older writers from now on."""
        self.fence.raise_fence(incarnation)

    def open(self, writer: FencingToken) -> None:
        """See `Sink`."""
        self.fence.admit(writer, self.name)

    def take(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink.deliver`."""
        self.fence.admit(writer, self.name)
        released = self._cluster.ghost.outputs
        released.writes(writer)
        receipts = []
        for output in outputs:
            known = self.kept.get(output.token)
            released.taken(output, known)
            if known is None:
                self.kept[output.token] = output.payload
            else:
                self.duplicates += 1
                self._cluster.probes.hit("output.repeated")
            receipts.append(DELIVERED if known is None else DUPLICATE)
        return receipts


class Outside:
    """All of it, for one run."""

    def __init__(self, cluster: SimulatedCluster, *, there_ns: int) -> None:
        self.cluster = cluster
        self.bank = Bank()
        self.archive = Archive(cluster)
        self.there_ns = there_ns
        """Longest time of a request on its way, and of an answer."""
        self.requests: list[str] = []
        """All that left, in words."""


class Ways:
    """From one life to what is outside."""

    def __init__(self, outside: Outside, life: ParticipantLife) -> None:
        self._outside = outside
        self._life = life
        self._random = stream(life.cluster.options.seed, f"outside:{life.name}:{life.number}")
        self._doubt = stream(life.cluster.options.seed, f"doubt:{life.name}:{life.number}")

    async def charge(self, order: str, cents: int, *, token: str) -> int:
        """At the counter that forgives."""
        return int(await self._charge(order, cents, token, forgiving=True))

    async def charge_once(self, order: str, cents: int, *, token: str) -> int:
        """At the counter that does not."""
        return int(await self._charge(order, cents, token, forgiving=False))

    async def find(self, token: str) -> int | DidNotHappen | InDoubt:
        """Whether a charge was made; where an operator decides, it cannot always be told."""
        outside = self._outside
        self._life.cluster.probes.hit("effect.in_doubt")
        if outside.cluster.options.settled and self._doubt.chance(1, 2):
            return InDoubt("the bank is closed")
        while True:
            try:
                found = await self.request(lambda: outside.bank.find(token, at=outside.cluster.world.now))
            except BankFailed:
                continue  # whoever cannot tell parks the turn
            return DidNotHappen() if found is None else int(found)

    async def _charge(self, order: str, cents: int, token: str, *, forgiving: bool) -> Any:  # noqa: ANN401 - the bank's answer
        outside, sent = self._outside, self._outside.cluster.world.now

        def arrive() -> int:
            repeated = outside.bank.repeated
            result = outside.bank.charge(
                order, cents, token, sent=sent, at=outside.cluster.world.now, forgiving=forgiving
            )
            outside.cluster.trace.note(outside.cluster.world.now, "bank", "Charged", f"{order} {token}", order.encode())
            if outside.bank.repeated > repeated:
                outside.cluster.probes.hit("effect.repeated_with_token")
            if not self._life.alive:
                outside.cluster.probes.hit("effect.caller_died")
            return result

        return await self.request(arrive)

    async def open_archive(self, writer: FencingToken) -> None:
        """See `Sink.open`."""
        await self.request(lambda: self._outside.archive.open(writer))

    async def archive(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink.deliver`."""
        found: list[Receipt] = await self.request(lambda: self._outside.archive.take(writer, outputs))
        return found

    @property
    def incarnation(self) -> int:
        """That the life is in."""
        return int(self._life.machine.incarnation)

    def wall(self) -> int:
        """Wall clock, nanoseconds."""
        return self._outside.cluster.wall(self._life.name)

    async def request(self, arrive: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it gives
        """Ask somebody outside.

        Args:
            arrive: What they do when it has come there; gives their answer.

        Raises:
            BankFailed: No answer, or a useless one.
        """
        life, random = self._life, self._random
        self._outside.requests.append(f"a request of {life.name} at {life.now / 1e6:.3f} ms")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there = random.below(self._outside.there_ns)
        life.world.at(life.now + there, random, self._arrived, arrive, answer)
        found = await answer
        if isinstance(found, Exception):
            raise found
        return found

    def _arrived(self, arrive: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        life, random = self._life, self._random
        if life.cluster.forked is not None:
            raise Violation("I37", f"a fork in dry-run reaches what is outside of it: {life.name}")
        found: Any
        draw = random.below(FAILS) if not life.cluster.healing else FAILS
        try:
            found = BankFailed("not reached") if draw == 0 else arrive()
        except (SnapshotError, BankFailed) as error:
            found = error
        if draw == 1 and not isinstance(found, Exception):
            found = BankFailed("no answer")
        life.world.after(random.below(self._outside.there_ns), random, life.enter, _answer, answer, found)


class ArchiveSink:
    """The archive as a life's own `Sink`."""

    name = Archive.name

    def __init__(self) -> None:
        self.ways: Ways | None = None

    async def open(self, writer: FencingToken) -> None:
        """See `Sink`."""
        await self._asked(self._ways.open_archive(writer))

    async def deliver(self, writer: FencingToken, outputs: Sequence[SinkOutput]) -> list[Receipt]:
        """See `Sink`."""
        receipts: list[Receipt] = await self._asked(self._ways.archive(writer, outputs))
        return receipts

    async def raise_fence(self, incarnation: int) -> None:
        """See `Sink`: the coordinators do."""
        raise NotImplementedError

    async def close(self) -> None:
        """See `Sink`."""

    @property
    def _ways(self) -> Ways:
        assert self.ways is not None, "a life is connected before it begins"
        return self.ways

    async def _asked(self, request: Any) -> Any:  # noqa: ANN401 - an awaitable of anything
        try:
            return await request
        except BankFailed as error:
            raise SinkError(self.name, str(error)) from None


class SinkFence:
    """As `coordinator.fences.Fence`."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def raise_to(self, incarnation: int, epoch: int) -> None:
        """See there."""
        del epoch
        self._cluster.workload.raise_fence(incarnation)


def _answer(answer: asyncio.Future[Any], found: object) -> None:
    if not answer.done():
        answer.set_result(found)
