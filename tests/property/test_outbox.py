"""The outbox against a sink that keeps what it took: whatever fails, each output once, none too early, in order."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from participant.outbox import (
    DELIVERED,
    DUPLICATE,
    BatchDelivered,
    BatchFailed,
    CutTaken,
    DeliverBatch,
    EpochCommitted,
    EpochDropped,
    HoldOutputs,
    LetGoOutputs,
    Outbox,
    OutboxReset,
    OutboxTimerFired,
    OutputsEmitted,
    OutputsRestored,
)
from protocol.ids import AgentId, Epoch

AGENTS = [AgentId("a/1"), AgentId("a/2")]
SINKS = ["s1", "s2"]


class World:
    """One participant whose agents emit at numbered positions; a rollback takes it back to a committed epoch."""

    def __init__(self) -> None:
        self.box = Outbox(SINKS)
        self.position = dict.fromkeys(AGENTS, 0)
        self.held: dict[AgentId, dict[int, object]] = {agent: {} for agent in AGENTS}
        self.sent: deque[DeliverBatch] = deque()
        self.taken: dict[str, list[bytes]] = {sink: [] for sink in SINKS}
        self.epoch = 0
        self.open: dict[int, tuple[dict, dict]] = {}
        self.committed: tuple[dict, dict] = (dict(self.position), dict.fromkeys(AGENTS, ()))
        self.now = 0

    def step(self, event) -> None:
        for effect in self.box.step(event, self.now):
            match effect:
                case HoldOutputs():
                    for number, output in enumerate(effect.outputs, effect.first):
                        self.held[effect.agent][number] = output
                case LetGoOutputs():
                    for agent, number in effect.outputs:
                        del self.held[agent][number]
                case DeliverBatch():
                    self.sent.append(effect)
                case _:
                    pass

    def emit(self, agent: AgentId, sink: str) -> None:
        position = self.position[agent]
        self.position[agent] += 1
        identity = f"{agent}:{position:08}".encode().ljust(16, b".")[:16]
        self.step(OutputsEmitted(agent=agent, outputs=[(identity, sink, identity)]))

    def cut(self) -> None:
        self.epoch += 1
        held = {agent: tuple(outputs.values()) for agent, outputs in self.held.items()}
        self.open[self.epoch] = (dict(self.position), held)
        self.step(CutTaken(epoch=Epoch(self.epoch)))

    def end(self, *, commit: bool) -> None:
        if not self.open:
            return
        epoch = min(self.open)
        part = self.open.pop(epoch)
        if commit:
            self.committed = part
        self.step(EpochCommitted(epoch=Epoch(epoch)) if commit else EpochDropped(epoch=Epoch(epoch)))

    def roll_back(self) -> None:
        self.open.clear()
        position, held = self.committed
        self.position = dict(position)
        self.held = {agent: {} for agent in AGENTS}
        self.step(OutboxReset())
        for agent in AGENTS:
            self.step(OutputsRestored(agent=agent, outputs=held[agent], through=self.epoch))

    def sink(self, *, fails: bool, answer_lost: bool) -> None:
        if not self.sent:
            return
        batch = self.sent.popleft()
        receipts = []
        if not fails:
            for output in batch.outputs:
                # What leaves is in the past of a committed epoch: no rollback takes its turn back.
                agent, number = output.id.decode().rstrip(".").split(":")
                assert int(number) < self.committed[0][AgentId(agent)], f"{output.id!r} left before its epoch"
                known = output.id in self.taken[batch.sink]
                receipts.append(DUPLICATE if known else DELIVERED)
                if not known:
                    self.taken[batch.sink].append(output.id)
        if fails or answer_lost:
            self.step(BatchFailed(sink=batch.sink, batch=batch.batch, reason="told to"))
        else:
            self.step(BatchDelivered(sink=batch.sink, batch=batch.batch, receipts=receipts))

    def time(self) -> None:
        self.now += 40_000_000_000
        self.step(OutboxTimerFired())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("emit"), st.sampled_from(AGENTS), st.sampled_from(SINKS)),
            st.sampled_from([("cut",), ("commit",), ("abort",), ("rollback",), ("time",)]),
            st.tuples(st.just("sink"), st.booleans(), st.booleans()),
        ),
        max_size=60,
    )
)
def test_each_output_of_committed_work_reaches_its_sink_once_and_in_order(steps) -> None:
    world = World()
    for name, *arguments in steps:
        match name:
            case "emit":
                world.emit(*arguments)
            case "cut":
                world.cut()
            case "commit" | "abort":
                world.end(commit=name == "commit")
            case "rollback":
                world.roll_back()
            case "time":
                world.time()
            case "sink":
                world.sink(fails=arguments[0], answer_lost=arguments[1])
    # Now everything works: one more epoch, and the sinks take all.
    world.cut()
    while world.open:
        world.end(commit=True)
    for _ in range(1_000):
        if not world.box.waiting:
            break
        world.time()
        world.sink(fails=False, answer_lost=False)
    assert world.box.waiting == 0
    assert world.box.waiting_bytes == 0
    assert not any(world.held.values())
    for sink, taken in world.taken.items():
        assert len(set(taken)) == len(taken), f"{sink} took one twice"
    both = {identity for taken in world.taken.values() for identity in taken}
    # Which sink a position went to may differ between two tries of it, so each position is there at least at one.
    assert both == {
        f"{agent}:{number:08}".encode().ljust(16, b".")[:16]
        for agent in AGENTS
        for number in range(world.position[agent])
    }
    for taken in world.taken.values():
        for agent in AGENTS:
            mine = [identity for identity in taken if identity.startswith(agent.encode())]
            assert mine == sorted(mine), "out of order"
