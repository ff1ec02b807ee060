"""The ledger's rules of `durability="turn"`: who comes back with a log is a member as before, and nobody goes back."""

from __future__ import annotations

import pytest

from coordinator.ledger import ConfigureCommand, Ledger, MarkLostCommand
from coordinator.policy import PolicySettings
from protocol.streams import Resumption, StreamEnd
from tests.unit.test_ledger import cluster

STREAMS = (StreamEnd("b", 2, 40, 50),)


def turned(*names):
    log = cluster()
    log.do(ConfigureCommand, policy=PolicySettings(recovery="auto", durability="turn"))
    for name in names:
        assert log.register(name, durability="turn")["ok"]
    assert log.topology()["ok"]
    return log


def lose(log, name):
    return log.do(MarkLostCommand, session=log.ledger.state.participants[name].session, cause="killed")


def come_back(log, name, boot="boot-2", **fields):
    told = {"session": 1, "line": 1, "incarnation": log.ledger.state.incarnation, "streams": STREAMS, **fields}
    return log.register(name, boot=boot, durability="turn", resumes=Resumption(**told))


def test_member_that_is_lost_and_has_its_log_is_a_member_again_without_a_rollback():
    log = turned("a", "b")
    lose(log, "a")
    assert [member.id for member in log.ledger.lost_members()] == ["a"]
    assert log.topology()["code"] == "members-lost"
    assert come_back(log, "a")["session"] == 3
    record = log.ledger.state.participants["a"]
    assert (record.state, record.line, record.streams) == ("member", 1, STREAMS)
    assert log.ledger.lost_members() == ()
    assert log.ledger.topology_is_stale
    assert log.topology()["ok"]
    members = {member.id: member for member in log.ledger.state.topology.members}
    assert (members["a"].session, members["a"].line, members["a"].streams) == (3, 1, STREAMS)
    assert (members["b"].session, members["b"].line, members["b"].streams) == (2, 0, ())
    assert log.start()["ok"]


def test_the_same_ledger_comes_out_of_its_dump_in_the_middle_of_it():
    log = turned("a", "b")
    lose(log, "a")
    come_back(log, "a")
    other = Ledger("shop")
    other.state.cluster = log.ledger.state.cluster
    other.load(log.ledger.dump())
    assert other.digest() == log.ledger.digest()
    assert other.lost_members() == ()
    assert other.topology_is_stale


def test_open_epoch_ends_with_the_loss_and_the_next_one_has_the_new_session():
    log = turned("a", "b")
    epoch = log.start()["epoch"]
    assert lose(log, "a")["aborted"] == [epoch]
    come_back(log, "a")
    log.topology()
    number = log.start()["epoch"]
    assert log.ledger.epoch(number).members["a"].session == 3


def test_it_comes_back_again_and_again_also_before_it_has_written_anything():
    log = turned("a", "b")
    lose(log, "a")
    come_back(log, "a")
    log.topology()
    lose(log, "a")
    # Died before the log said a word of session 3.
    assert come_back(log, "a", boot="boot-3")["session"] == 4
    assert log.ledger.lost_members() == ()
    lose(log, "a")
    assert come_back(log, "a", boot="boot-4", session=3)["session"] == 5
    assert log.ledger.lost_members() != (), "session 3 is neither the last nor the one that the last went on from"


@pytest.mark.parametrize(
    "fields",
    [{"session": 2}, {"line": 2}, {"incarnation": 7}],
    ids=["another session", "another line", "another incarnation"],
)
def test_log_of_something_else_is_no_reason_to_be_a_member(fields):
    log = turned("a", "b")
    lose(log, "a")
    assert come_back(log, "a", **fields)["ok"]
    assert log.ledger.state.participants["a"].state == "joining"
    assert [member.id for member in log.ledger.lost_members()] == ["a"]


def test_log_that_is_not_what_it_had_promised_is_never_gone_on_from():
    log = turned("a", "b")
    lose(log, "a")
    come_back(log, "a")
    log.topology()
    session = log.ledger.state.participants["a"].session
    log.do(MarkLostCommand, session=session, cause="its disk has lost what it had synced", damaged=True)
    come_back(log, "a", boot="boot-3", session=session)
    assert log.ledger.state.participants["a"].state == "joining"
    assert log.ledger.lost_members() != ()


def test_other_agents_or_targets_are_another_participant():
    for fields in ({"agents": ("w/a", "w/more")}, {"targets": ("b",)}):
        log = turned("a", "b")
        lose(log, "a")
        resumption = Resumption(session=1, line=1, incarnation=1, streams=STREAMS)
        assert log.register("a", boot="boot-2", durability="turn", resumes=resumption, **fields)["ok"]
        assert log.ledger.lost_members() != ()


def test_durability_is_one_for_all_and_is_refused_by_name():
    log = turned("a")
    refused = log.register("b")
    assert refused["code"] == "durability"
    assert "b was started with durability 'epoch', the cluster's is 'turn'" in refused["sentence"]


def test_durability_is_changed_only_while_nobody_is_there():
    log = turned("a")
    assert log.do(ConfigureCommand, policy=PolicySettings(durability="epoch"))["code"] == "durability"
    assert log.do(ConfigureCommand, policy=PolicySettings(durability="turn", interval_ns=5))["ok"]
    lose(log, "a")
    assert log.do(ConfigureCommand, policy=PolicySettings(durability="epoch"))["ok"]
    assert log.register("a", boot="boot-2")["ok"]
