"""The ledger's rules of sealed epochs that end without a manifest."""

import json

import pytest

from coordinator.ledger import ForsakeCommand, Ledger, encode_command, parse_result
from coordinator.ledger.commands import COMMAND_VERSION, LATER_KINDS, VERSIONS
from protocol.digests import digest
from tests.unit.test_ledger import MANIFEST, cluster, sealed

OTHER = digest(b"another manifest")


def forsake(log, epoch=1, manifest=MANIFEST, **fields):
    fields = {"phase": "manifest", "cause": "its parts are gone", "participant": "a", **fields}
    return log.do(ForsakeCommand, epoch=epoch, manifest=manifest, **fields)


def test_only_a_sealed_epoch_can_be_forsaken():
    log = cluster("a")
    assert forsake(log)["code"] == "unknown"
    log.start()
    assert forsake(log)["code"] == "not-sealed"
    log.report(1, "a")
    log.seal(1)
    assert log.commit(1)["ok"]
    assert forsake(log)["code"] == "ended"
    log.start()
    log.abort(2)
    assert forsake(log, 2)["code"] == "ended"


def test_epoch_that_is_sealed_with_another_manifest_is_not_forsaken():
    log = sealed("a")
    assert forsake(log, manifest=OTHER)["code"] == "sealed"
    assert log.ledger.epoch(1).state == "sealed"


def test_forsaken_epoch_is_aborted_with_its_cause_and_never_commits():
    log = sealed("a", "b")
    assert forsake(log) == {"ok": True, "epoch": 1}
    record, state = log.ledger.epoch(1), log.ledger.state
    assert (record.state, record.manifest) == ("aborted", "")
    assert (record.abort.participant, record.abort.phase, record.abort.cause) == ("a", "manifest", "its parts are gone")
    assert (state.aborted_count, state.committed_count, state.failures) == (1, 0, 1)
    assert (state.ended_through, log.ledger.open_epochs()) == (1, ())
    assert log.commit(1)["code"] == "not-sealed"
    assert log.seal(1)["code"] == "ended"
    assert forsake(log)["code"] == "ended"
    assert log.report(1, "a") == "late"


def test_next_epoch_is_sealed_behind_the_newest_that_has_a_manifest():
    log = sealed("a")
    assert log.commit(1)["ok"]
    log.start()
    log.report(2, "a")
    assert log.seal(2, OTHER, previous=MANIFEST)["ok"]
    assert forsake(log, 2, OTHER)["ok"]
    log.start()
    log.report(3, "a")
    assert log.seal(3, OTHER, previous=OTHER)["code"] == "chain-moved"
    assert log.seal(3, OTHER, previous=MANIFEST)["ok"]


def test_later_epochs_that_are_sealed_already_stay_as_they_are():
    log = cluster("a", max_concurrent=3)
    names = [digest(bytes([number])) for number in range(4)]
    for number in (1, 2, 3):
        log.start()
        log.report(number, "a")
        assert log.seal(number, names[number], previous=names[number - 1] if number > 1 else "")["ok"]
    assert forsake(log, 2, names[2])["ok"]
    assert log.ledger.state.sealed_manifest == names[3]
    assert forsake(log, 3, names[3])["ok"]
    assert log.ledger.state.sealed_manifest == names[1]
    assert log.commit(1, names[1])["ok"]


def test_operators_word_does_not_count_as_a_failure():
    log = sealed("a")
    assert forsake(log, phase="operator")["ok"]
    assert log.ledger.state.failures == 0


def test_deposed_leader_forsakes_nothing():
    log = sealed("a")
    assert forsake(log, term=log.term - 1)["code"] == "stale-term"
    assert log.ledger.epoch(1).state == "sealed"


def test_build_that_does_not_know_it_stops_before_the_entry_instead_of_drifting():
    """It would go on with a sealed epoch that others have ended."""
    log = sealed("a")
    before = log.ledger.dump()
    text = encode_command(
        ForsakeCommand(id=("c1.1", 99), term=1, epoch=1, manifest=MANIFEST, phase="manifest", cause="gone"), at=1
    )
    document = json.loads(text)
    assert document["v"] == VERSIONS["forsake"] == LATER_KINDS > COMMAND_VERSION
    for unknown in ({**document, "kind": "forsaken"}, {**document, "v": COMMAND_VERSION}):
        assert parse_result(log.ledger.apply(json.dumps(unknown)))["code"] == "unsupported-version"
        assert log.ledger.dump() == before


@pytest.mark.parametrize("cause", ["", "x" * 400])
def test_replica_that_is_loaded_goes_on_the_same(cause):
    log = sealed("a")
    forsake(log, cause=cause)
    other = Ledger(log.ledger.state.cluster)
    other.load(log.ledger.dump())
    assert other.digest() == log.ledger.digest()
