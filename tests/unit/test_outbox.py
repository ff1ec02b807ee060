"""The outbox machine: when an output may leave, what becomes of it, and what a restore does to it."""

from __future__ import annotations

import pytest

from participant.outbox import (
    BATCH_OUTPUTS_MAX,
    DELIVERED,
    DUPLICATE,
    FENCED_NS,
    RETRY_NS,
    RETRY_NS_MAX,
    BatchDelivered,
    BatchFailed,
    CutTaken,
    DeliverBatch,
    EndFenced,
    EpochCommitted,
    EpochDropped,
    HoldOutputs,
    LetGoOutputs,
    Outbox,
    OutboxReset,
    OutboxTimerFired,
    Outcome,
    OutputsEmitted,
    OutputsRestored,
    PutOutputAside,
    Receipt,
    RefuseEmits,
    SetOutboxTimer,
    SinkFenced,
    TellDiverged,
    TellSinkFailing,
    TurnsLogged,
    WantEpoch,
)
from protocol.ids import AgentId, Epoch
from protocol.outputs import Output

BUYER = AgentId("buyer/main")
SELLER = AgentId("seller/main")


def emitted(*numbers: int, sink: str = "receipts", agent: AgentId = BUYER, size: int = 1) -> OutputsEmitted:
    return OutputsEmitted(
        agent=agent, outputs=[(number.to_bytes(16, "big"), sink, bytes([number % 256]) * size) for number in numbers]
    )


def numbers(effects, sink: str = "receipts") -> list[int]:
    """Ids of what was given to a sink."""
    return [
        int.from_bytes(output.id, "big")
        for effect in effects
        if isinstance(effect, DeliverBatch) and effect.sink == sink
        for output in effect.outputs
    ]


def batch_of(effects, sink: str = "receipts") -> DeliverBatch:
    (found,) = [effect for effect in effects if isinstance(effect, DeliverBatch) and effect.sink == sink]
    return found


def answered(batch: DeliverBatch, *receipts: Receipt) -> BatchDelivered:
    return BatchDelivered(
        sink=batch.sink, batch=batch.batch, receipts=receipts or tuple(DELIVERED for _ in batch.outputs)
    )


def released(box: Outbox, *outputs: int, now: int = 0) -> DeliverBatch:
    box.step(emitted(*outputs), now)
    box.step(CutTaken(epoch=Epoch(1)), now)
    return batch_of(box.step(EpochCommitted(epoch=Epoch(1)), now))


def test_an_output_is_held_with_its_agent_until_the_epoch_that_has_its_turn_is_committed():
    box = Outbox(["receipts"])
    (held,) = box.step(emitted(1, 2), 0)
    assert isinstance(held, HoldOutputs)
    assert (held.agent, held.first, [output.payload for output in held.outputs]) == (BUYER, 1, [b"\1", b"\2"])
    assert box.step(CutTaken(epoch=Epoch(1)), 0) == []
    assert numbers(box.step(emitted(3), 0)) == []
    assert numbers(box.step(EpochCommitted(epoch=Epoch(1)), 0)) == [1, 2]
    assert box.waiting == 3


def test_an_epoch_that_was_aborted_releases_nothing_and_the_next_one_releases_all():
    box = Outbox(["receipts"])
    box.step(emitted(1), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    assert box.step(EpochDropped(epoch=Epoch(1)), 0) == []
    assert box.step(EpochCommitted(epoch=Epoch(1)), 0) == []
    box.step(CutTaken(epoch=Epoch(2)), 0)
    assert numbers(box.step(EpochCommitted(epoch=Epoch(2)), 0)) == [1]


def test_overlapping_epochs_release_each_what_its_own_cut_has():
    box = Outbox(["receipts"])
    box.step(emitted(1), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    box.step(emitted(2), 0)
    box.step(CutTaken(epoch=Epoch(2)), 0)
    box.step(emitted(3), 0)
    first = batch_of(box.step(EpochCommitted(epoch=Epoch(2)), 0))
    assert [output.payload for output in first.outputs] == [b"\1", b"\2"]
    assert numbers(box.step(EpochCommitted(epoch=Epoch(1)), 0)) == []
    assert box.step(answered(first), 0) == [LetGoOutputs(outputs=((BUYER, 1), (BUYER, 2)))]


def test_an_epoch_without_a_cut_here_releases_nothing():
    box = Outbox(["receipts"])
    box.step(emitted(1), 0)
    assert box.step(EpochCommitted(epoch=Epoch(9)), 0) == []


def test_with_turn_durability_a_logged_turn_releases_its_outputs():
    box = Outbox(["receipts"], durability="turn")
    box.step(emitted(1, 2), 0)
    box.step(emitted(3), 0)
    assert numbers(box.step(TurnsLogged(through=2), 0)) == [1, 2]


def test_with_epoch_durability_a_logged_turn_releases_nothing():
    box = Outbox(["receipts"])
    box.step(emitted(1), 0)
    assert box.step(TurnsLogged(through=1), 0) == []


def test_one_batch_at_a_time_goes_to_a_sink_and_the_rest_follows_in_order():
    box = Outbox(["receipts"])
    count = BATCH_OUTPUTS_MAX + 10
    first = released(box, *range(1, count + 1))
    assert len(first.outputs) == BATCH_OUTPUTS_MAX
    second = batch_of(box.step(answered(first), 0))
    assert numbers([first, second]) == list(range(1, count + 1))
    assert box.waiting == 10
    box.step(answered(second), 0)
    assert (box.waiting, box.waiting_bytes) == (0, 0)


def test_a_batch_is_cut_by_bytes_too_but_never_empty():
    box = Outbox(["receipts"], bytes_max=1 << 40)
    box.step(emitted(1, 2, 3, size=700_000), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    batch = batch_of(box.step(EpochCommitted(epoch=Epoch(1)), 0))
    assert len(batch.outputs) == 1
    assert len(batch_of(box.step(answered(batch), 0)).outputs) == 1


def test_sinks_do_not_wait_for_each_other():
    box = Outbox(["receipts", "audit"])
    box.step(emitted(1, sink="receipts"), 0)
    box.step(emitted(2, sink="audit", agent=SELLER), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    effects = box.step(EpochCommitted(epoch=Epoch(1)), 0)
    assert numbers(effects, "receipts") == [1]
    assert numbers(effects, "audit") == [2]
    failed = batch_of(effects, "receipts")
    box.step(BatchFailed(sink="receipts", batch=failed.batch, reason="down"), 0)
    assert box.step(answered(batch_of(effects, "audit")), 0) == [LetGoOutputs(outputs=((SELLER, 2),))]


def test_a_failing_sink_is_tried_again_with_doubling_pauses_and_said_once():
    box = Outbox(["receipts"])
    batch = released(box, 1)
    now, pause = 0, RETRY_NS
    told = 0
    for _ in range(15):
        effects = box.step(BatchFailed(sink="receipts", batch=batch.batch, reason="down"), now)
        told += sum(isinstance(effect, TellSinkFailing) for effect in effects)
        assert SetOutboxTimer(at=now + pause) in effects
        assert numbers(box.step(OutboxTimerFired(), now + pause - 1)) == []
        now += pause
        batch = batch_of(box.step(OutboxTimerFired(), now))
        pause = min(RETRY_NS_MAX, 2 * pause)
    assert told == 1
    box.step(answered(batch), now)
    assert box.waiting == 0


def test_after_a_success_the_pauses_begin_small_again():
    box = Outbox(["receipts"])
    batch = released(box, *range(1, BATCH_OUTPUTS_MAX + 2))
    for _ in range(3):
        box.step(BatchFailed(sink="receipts", batch=batch.batch, reason="down"), 0)
        batch = batch_of(box.step(OutboxTimerFired(), 1 << 60))
    batch = batch_of(box.step(answered(batch), 0))
    effects = box.step(BatchFailed(sink="receipts", batch=batch.batch, reason="down"), 0)
    assert SetOutboxTimer(at=RETRY_NS) in effects
    assert any(isinstance(effect, TellSinkFailing) for effect in effects)


def test_a_refused_output_is_put_aside_and_the_others_go_on():
    box = Outbox(["receipts"])
    batch = released(box, 1, 2, 3)
    effects = box.step(answered(batch, DELIVERED, Receipt(Outcome.REFUSED, "no such column"), DUPLICATE), 0)
    (aside,) = [effect for effect in effects if isinstance(effect, PutOutputAside)]
    assert (aside.output.payload, aside.reason) == (b"\2", "no such column")
    assert box.waiting == 0
    assert {name: box.statistics()[name] for name in ("delivered", "duplicate", "refused")} == {
        "delivered": 1,
        "duplicate": 1,
        "refused": 1,
    }


def test_a_payload_that_came_out_differently_is_said():
    box = Outbox(["receipts"])
    batch = released(box, 1)
    effects = box.step(answered(batch, Receipt(Outcome.DIVERGED)), 0)
    assert TellDiverged(output=batch.outputs[0]) in effects
    assert box.waiting == 0


def test_a_restore_drops_what_was_emitted_and_releases_what_the_epoch_held():
    box = Outbox(["receipts"])
    box.step(emitted(7), 0)
    box.step(CutTaken(epoch=Epoch(3)), 0)
    box.step(OutboxReset(), 0)
    held = [Output(b"x" * 16, BUYER, "receipts", b"\1")]
    effects = box.step(OutputsRestored(agent=BUYER, outputs=held, through=2), 0)
    assert isinstance(effects[0], HoldOutputs)
    assert batch_of(effects).outputs == tuple(held)
    assert box.step(EpochCommitted(epoch=Epoch(3)), 0) == [], "a cut that the rollback undid"


def test_what_a_sink_says_of_a_batch_from_before_the_restore_is_ignored():
    box = Outbox(["receipts"])
    old = released(box, 1)
    box.step(OutboxReset(), 0)
    new = batch_of(box.step(OutputsRestored(agent=BUYER, outputs=old.outputs), 0))
    assert box.step(answered(old), 0) == []
    assert box.step(BatchFailed(sink="receipts", batch=old.batch, reason="late"), 0) == []
    assert box.step(SinkFenced(sink="receipts", batch=old.batch, reason="old writer"), 0) == []
    assert not box.fenced
    assert box.waiting == 1
    box.step(answered(new, DUPLICATE), 0)
    assert box.waiting == 0


def test_a_fenced_writer_ends_and_nothing_leaves_any_more():
    box = Outbox(["receipts", "audit"])
    box.step(emitted(1), 0)
    box.step(emitted(2, sink="audit"), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    effects = box.step(EpochCommitted(epoch=Epoch(1)), 0)
    batch = batch_of(effects)
    assert box.step(SinkFenced(sink="receipts", batch=batch.batch, reason="zombie"), 0) == [EndFenced(reason="zombie")]
    assert box.step(emitted(3), 0) == []
    assert box.step(OutboxTimerFired(), 1 << 60) == []


def test_an_overtaken_incarnation_waits_for_its_restore_order_with_nothing_leaving():
    """Fences are raised before restore orders leave: whoever is told so is not yet a zombie."""
    box = Outbox(["receipts", "audit"])
    box.step(emitted(1), 0)
    box.step(emitted(2, sink="audit"), 0)
    box.step(CutTaken(epoch=Epoch(1)), 0)
    effects = box.step(EpochCommitted(epoch=Epoch(1)), 0)
    refused = batch_of(effects)
    told = box.step(SinkFenced(sink="receipts", batch=refused.batch, reason="incarnation 2", final=False), 5)
    assert told == [SetOutboxTimer(at=5 + FENCED_NS)]
    box.step(answered(batch_of(effects, "audit")), 6)
    box.step(emitted(3, sink="audit"), 6)
    box.step(CutTaken(epoch=Epoch(2)), 6)
    assert numbers(box.step(EpochCommitted(epoch=Epoch(2)), 6), "audit") == []
    assert box.step(OutboxTimerFired(), 7) == [SetOutboxTimer(at=5 + FENCED_NS)]
    box.step(OutboxReset(), 8)
    assert numbers(box.step(OutputsRestored(agent=BUYER, outputs=refused.outputs), 8)) == [1]
    assert not any(isinstance(effect, EndFenced) for effect in box.step(OutboxTimerFired(), 10 * FENCED_NS))


def test_an_overtaken_incarnation_without_an_order_ends():
    box = Outbox(["receipts"])
    batch = released(box, 1)
    box.step(SinkFenced(sink="receipts", batch=batch.batch, reason="incarnation 2", final=False), 5)
    assert box.step(OutboxTimerFired(), 5 + FENCED_NS) == [EndFenced(reason="incarnation 2")]
    assert box.fenced


def test_a_sink_that_does_not_open_for_the_writer_of_the_moment_stops_it_too():
    box = Outbox(["receipts"])
    assert box.step(SinkFenced(sink="receipts", batch=0, reason="session 2"), 5) == [EndFenced(reason="session 2")]


def test_outputs_know_the_newest_epoch_that_they_are_no_part_of():
    box = Outbox(["receipts"])
    (held,) = box.step(emitted(1), 0)
    assert held.outputs[0].after == 0
    box.step(CutTaken(epoch=Epoch(4)), 0)
    (held,) = box.step(emitted(2), 0)
    assert held.outputs[0].after == 4
    box.step(OutboxReset(), 0)
    box.step(OutputsRestored(agent=BUYER, outputs=(), through=6), 0)
    (held,) = box.step(emitted(3), 0)
    assert held.outputs[0].after == 6


def test_much_that_is_held_asks_for_an_epoch_once_and_too_much_stops_agents_from_emitting():
    box = Outbox(["receipts"], bytes_max=10_000, wants_epoch_bytes=5_000)
    assert not any(isinstance(effect, WantEpoch) for effect in box.step(emitted(1, size=3_000), 0))
    assert any(isinstance(effect, WantEpoch) for effect in box.step(emitted(2, size=3_000), 0))
    effects = box.step(emitted(3, size=6_000), 0)
    assert not any(isinstance(effect, WantEpoch) for effect in effects)
    (refusal,) = [effect for effect in effects if isinstance(effect, RefuseEmits)]
    assert "the limit is 10000" in refusal.reason
    box.step(CutTaken(epoch=Epoch(1)), 0)
    batch = batch_of(box.step(EpochCommitted(epoch=Epoch(1)), 0))
    assert RefuseEmits(reason="") in box.step(answered(batch), 0)


def test_a_restore_lets_agents_emit_again():
    box = Outbox(["receipts"], bytes_max=10)
    box.step(emitted(1), 0)
    assert box.step(OutboxReset(), 0) == [RefuseEmits(reason="")]


def test_a_sink_that_gives_too_few_receipts_is_our_own_bug():
    box = Outbox(["receipts"])
    batch = released(box, 1, 2)
    with pytest.raises(AssertionError, match="one receipt per output"):
        box.step(answered(batch, DELIVERED), 0)
