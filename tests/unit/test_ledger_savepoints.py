"""The ledger's rules of savepoints: what is refused, what is kept, and what a build makes of it that does not know them."""

from __future__ import annotations

import json

import pytest

from coordinator.ledger import LeadCommand, LeaveCommand, Ledger, PinCommand, UnpinCommand, encode_command, parse_result
from coordinator.ledger.commands import COMMAND_VERSION, LATER_KINDS, VERSIONS
from protocol.errors import RecoveryError
from protocol.limits import EPOCH_HISTORY_MAX, SAVEPOINTS_MAX
from tests.unit.test_ids import HOSTILE
from tests.unit.test_ledger import MANIFEST, OTHER, SNAPSHOT, Log, cluster, found, sealed
from tests.unit.test_ledger_rollback import commit, fence, recovering, restored, roll_back


def pin(log, epoch, name):
    return log.do(PinCommand, epoch=epoch, name=name)


def unpin(log, name):
    return log.do(UnpinCommand, name=name)


def committed():
    log = sealed("a")
    log.commit(1)
    return log


def epochs_that_abort(log, count):
    for _ in range(count):
        log.start()
        log.abort(log.ledger.state.epoch)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HOSTILE, "latest", "start", "7", "0", "007", "1_000"])
def test_name_that_is_none_or_means_something_else_does_not_even_get_into_the_ledger(name):
    log = committed()
    text = encode_command(PinCommand(id=("c1.1", 99), term=1, epoch=1, name="x"), at=1)
    before = log.ledger.dump()
    result = parse_result(log.ledger.apply(json.dumps({**json.loads(text), "name": name})))
    assert (result["ok"], result["code"]) == (False, "malformed")
    assert log.ledger.dump() == before


def test_only_a_committed_epoch_that_is_remembered_gets_a_name():
    log = cluster("a")
    assert pin(log, 1, "x")["code"] == "unknown"
    log.start()
    assert pin(log, 1, "x")["code"] == "not-committed"
    log.report(1, "a")
    log.seal(1)
    refused = pin(log, 1, "x")
    assert (refused["code"], refused["sentence"]) == (
        "not-committed",
        "epoch 1 is sealed: only a committed one gets a name",
    )
    log.commit(1)
    log.start()
    log.abort(2)
    assert pin(log, 2, "x")["code"] == "not-committed"
    assert log.ledger.state.savepoints == {}
    epochs_that_abort(log, EPOCH_HISTORY_MAX)
    assert pin(log, 2, "x")["code"] == "ended"
    assert pin(log, 1, "x")["ok"]


def test_name_in_use_is_refused_saying_for_which_epoch_and_stays():
    log = committed()
    pin(log, 1, "x")
    commit(log, 2, OTHER, MANIFEST)
    refused = pin(log, 2, "x")
    assert (refused["code"], refused["epoch"]) == ("name-taken", 1)
    assert "savepoint x is epoch 1" in refused["sentence"]
    assert log.ledger.savepoint("x").epoch == 1
    assert log.ledger.names_of(2) == ()


def test_number_of_savepoints_is_bounded_and_those_that_are_there_can_be_said_again():
    log = committed()
    for number in range(SAVEPOINTS_MAX):
        assert pin(log, 1, f"s{number}")["ok"]
    refused = pin(log, 1, "one-more")
    assert refused["code"] == "full"
    assert str(SAVEPOINTS_MAX) in refused["sentence"]
    assert pin(log, 1, "s0")["outcome"] == "already"
    unpin(log, "s0")
    assert pin(log, 1, "one-more")["ok"]


def test_name_that_nothing_has_cannot_be_taken_back():
    log = committed()
    assert unpin(log, "x")["code"] == "unknown"
    pin(log, 1, "x")
    assert unpin(log, "x") == {"ok": True, "epoch": 1, "name": "x"}
    assert unpin(log, "x")["code"] == "unknown"


def test_command_of_a_term_that_does_not_lead_names_nothing():
    log = committed()
    log.term = 7
    assert pin(log, 1, "x")["code"] == "stale-term"
    assert log.ledger.state.savepoints == {}


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_the_same_again_is_fine_and_an_epoch_may_have_several_names():
    log = committed()
    assert pin(log, 1, "b")["outcome"] == "pinned"
    at = log.ledger.savepoint("b").pinned_at
    assert pin(log, 1, "b")["outcome"] == "already"
    assert log.ledger.savepoint("b").pinned_at == at
    pin(log, 1, "a")
    assert log.ledger.names_of(1) == ("a", "b")
    unpin(log, "b")
    assert log.ledger.names_of(1) == ("a",)


def test_what_has_a_name_outlives_the_history_and_goes_when_its_last_name_goes():
    log = committed()
    commit(log, 2, OTHER, MANIFEST)
    pin(log, 1, "x")
    pin(log, 1, "y")
    epochs_that_abort(log, EPOCH_HISTORY_MAX + 5)
    state = log.ledger.state
    assert sorted(state.epochs)[:3] == [1, 2, 8], "the savepoint, the newest committed, the history"
    assert state.epochs[1].manifest == MANIFEST
    unpin(log, "x")
    assert 1 in state.epochs
    unpin(log, "y")
    assert 1 not in state.epochs
    assert pin(log, 1, "x")["code"] == "ended"


def test_members_of_savepoints_count_as_rows_like_all_others(monkeypatch):
    monkeypatch.setattr("coordinator.ledger.ledger.EPOCH_MEMBER_ROWS_MAX", 2)
    log = committed()
    commit(log, 2, OTHER, MANIFEST)
    pin(log, 1, "x")
    assert log.ledger.epoch(1).members["a"].snapshot == SNAPSHOT
    epochs_that_abort(log, 2)
    assert log.ledger.epoch(1).trimmed
    assert log.ledger.epoch(1).state == "committed"


def test_replica_that_is_loaded_forgets_the_same_members(monkeypatch):
    """Epochs of a larger cluster, from before it was loaded, count there, too."""
    monkeypatch.setattr("coordinator.ledger.ledger.EPOCH_MEMBER_ROWS_MAX", 4)
    log = cluster("a", "b", "c")
    epochs_that_abort(log, 1)
    for name in ("b", "c"):
        log.do(LeaveCommand, session=log.ledger.state.participants[name].session)
    log.topology()
    loaded = Ledger("shop")
    loaded.load(log.ledger.dump())
    after = len(log.texts)
    epochs_that_abort(log, 2)
    assert log.ledger.epoch(1).trimmed
    for text in log.texts[after:]:
        loaded.apply(text)
    assert loaded.digest() == log.ledger.digest()


def test_the_beginning_of_an_incarnation_stays_though_its_name_is_taken_back():
    """Whoever is lost before the next commit takes everybody back to it."""
    log = recovering("a", "b")
    commit(log, 2, OTHER, MANIFEST)
    pin(log, 1, "x")
    epochs_that_abort(log, EPOCH_HISTORY_MAX + 1)
    roll_back(log, 1, automatic=False)
    fence(log)
    restored(log, "a", "b")
    unpin(log, "x")
    epochs_that_abort(log, EPOCH_HISTORY_MAX + 1)
    assert log.ledger.recovery_epoch == 1
    assert log.ledger.epoch(1) is not None
    commit(log, log.ledger.state.epoch + 1, SNAPSHOT, OTHER)
    assert log.ledger.recovery_epoch != 1
    assert roll_back(log)["ok"]
    log.ledger._forget()
    assert log.ledger.epoch(1) is None


def test_rollbacks_and_leaders_change_no_name_not_even_of_what_was_given_up():
    log = recovering("a")
    commit(log, 2, OTHER, MANIFEST)
    pin(log, 1, "old")
    pin(log, 2, "given-up")
    roll_back(log, 1, automatic=False)
    fence(log)
    restored(log, "a")
    log.term = 2
    log.do(LeadCommand, coordinator="c2")
    assert {name: record.epoch for name, record in log.ledger.state.savepoints.items()} == {"old": 1, "given-up": 2}
    assert pin(log, 2, "too")["ok"], "it is committed, and can be gone back to"
    assert roll_back(log, 2, automatic=False)["ok"]


def test_a_fork_begins_without_names_and_has_its_own():
    log = Log(Ledger("shop"))
    log.do(LeadCommand, coordinator="c1")
    found(log)
    assert log.ledger.state.savepoints == {}
    assert pin(log, log.ledger.state.committed, "x")["ok"]


# --- dumps, and other builds ----------------------------------------------------------------------------------------


def test_savepoints_are_in_the_dump_in_the_digest_and_the_same_whatever_came_first():
    one, other = committed(), committed()
    for log, names in ((one, ("a", "b", "c")), (other, ("c", "a", "b"))):
        for name in names:
            log.ledger.apply(encode_command(PinCommand(id=(f"c.{name}", 1), term=1, epoch=1, name=name), at=5))
    before = json.loads(one.ledger.dump())
    assert before["state"] == json.loads(other.ledger.dump())["state"]
    assert json.dumps(before["state"]["savepoints"]) == json.dumps(
        {name: {"epoch": 1, "pinned_at": 5} for name in ("a", "b", "c")}
    )
    copy = Ledger("shop")
    copy.load(one.ledger.dump())
    assert copy.digest() == one.ledger.digest()
    assert copy.names_of(1) == ("a", "b", "c")
    unpin(one, "a")
    assert copy.digest() != one.ledger.digest()
    copy.apply(one.texts[-1])
    assert copy.digest() == one.ledger.digest()


def test_build_that_does_not_know_savepoints_stops_before_the_entry_instead_of_drifting():
    """It goes by the version, as this build does with kinds that it does not know."""
    for kind, command in (
        ("pin", PinCommand(id=("c1.1", 2), term=1, epoch=1, name="x")),
        ("unpin", UnpinCommand(id=("c1.1", 2), term=1, name="x")),
    ):
        document = json.loads(encode_command(command, at=1))
        assert document["v"] == LATER_KINDS > COMMAND_VERSION
        assert VERSIONS[kind] == LATER_KINDS
        unknown = json.dumps({**document, "kind": "repin"})
        for text in (unknown, json.dumps({**document, "v": COMMAND_VERSION})):
            log = committed()
            before = log.ledger.dump()
            assert parse_result(log.ledger.apply(text))["code"] == "unsupported-version"
            assert log.ledger.dump() == before
    assert VERSIONS["lead"] == VERSIONS["commit"] == COMMAND_VERSION


def test_dump_that_an_older_build_would_read_wrongly_says_so_and_any_other_does_not():
    log = committed()
    assert '"format":1' in log.ledger.dump()
    pin(log, 1, "x")
    assert '"format":2' in log.ledger.dump()
    unpin(log, "x")
    assert '"format":1' in log.ledger.dump()
    document = json.loads(log.ledger.dump())
    del document["state"]["savepoints"]
    older = Ledger("shop")
    older.load(json.dumps(document))
    assert older.digest() == log.ledger.digest()
    document["state"]["format"] = 3
    with pytest.raises(RecoveryError, match="format 3; this build reads 1 and 2"):
        older.load(json.dumps(document))
