"""Names of epochs against a dictionary: whatever else happens to the epochs, a name is what was said last."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.ledger import Ledger, PinCommand, UnpinCommand
from protocol.digests import digest
from tests.unit.test_ledger import cluster
from tests.unit.test_ledger_rollback import commit, fence, restored, roll_back

NAMES = st.sampled_from(["a", "b", "c", "d"])
STEPS = st.one_of(
    st.tuples(st.just("pin"), NAMES, st.integers(1, 12)),
    st.tuples(st.just("pin"), NAMES, st.integers(1, 12)),
    st.tuples(st.just("unpin"), NAMES, st.just(0)),
    st.tuples(st.just("commit"), st.just(""), st.just(0)),
    st.tuples(st.just("abort"), st.just(""), st.integers(1, 4)),
    st.tuples(st.just("go back"), st.just(""), st.integers(1, 12)),
    st.tuples(st.just("reload"), st.just(""), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_name_is_what_was_said_last_and_its_epoch_stays(steps):
    """With a history of two ended epochs, so that much is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordinator.ledger.ledger.EPOCH_HISTORY_MAX", 2)
        patch.setattr("coordinator.ledger.savepoints.SAVEPOINTS_MAX", 3)
        log = cluster("p", recovery="auto")
        names: dict[str, int] = {}
        committed: set[int] = set()
        for what, name, number in steps:
            state = log.ledger.state
            if what == "pin":
                result = log.do(PinCommand, epoch=number, name=name)
                is_there = number in committed and number in state.epochs
                fits = name in names or len(names) < 3
                assert result["ok"] == (names[name] == number if name in names else is_there and fits)
                if result["ok"]:
                    names[name] = number
            elif what == "unpin":
                assert log.do(UnpinCommand, name=name)["ok"] == (name in names)
                names.pop(name, None)
            elif what == "commit":
                commit(log, state.epoch + 1, digest(b"%d" % state.epoch), state.sealed_manifest)
                committed.add(state.epoch)
            elif what == "abort":
                for _ in range(number):
                    log.start()
                    log.abort(log.ledger.state.epoch)
            elif what == "go back" and number in committed and number in state.epochs:
                assert roll_back(log, number, automatic=False)["ok"]
                fence(log)
                restored(log, "p")
            elif what == "reload":
                dump = log.ledger.dump()
                log.ledger = Ledger("shop")
                log.ledger.load(dump)
                assert log.ledger.dump() == dump
            state = log.ledger.state
            assert {each: record.epoch for each, record in state.savepoints.items()} == names
            for epoch in {*names.values(), log.ledger.recovery_epoch} - {0}:
                assert state.epochs[epoch].state == "committed", "what can be gone back to is there"
                assert log.ledger.names_of(epoch) == tuple(sorted(each for each in names if names[each] == epoch))
            assert log.ledger.kept_epochs() == tuple(sorted(set(names.values())))
            assert len(state.epochs) <= 2 + 3 + 2
