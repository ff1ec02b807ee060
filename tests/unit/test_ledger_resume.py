"""The ledger's rules of `durability="turn"`: who comes back with a log is a member as before, and nobody goes back."""

from __future__ import annotations

import pytest

from coordinator.ledger import AdoptCommand, ConfigureCommand, Ledger, MarkLostCommand
from coordinator.policy import PolicySettings
from protocol.streams import Resumption, StreamEnd
from tests.unit.test_ledger import cluster
from tests.unit.test_ledger_rollback import begin, roll_back

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


HELD = ("w/a", "w/b")


def moved(**fields):
    """The agent of a is b's now, in incarnation 2, where both have lines of their own."""
    log = cluster()
    log.do(ConfigureCommand, policy=PolicySettings(recovery="auto", durability="turn"))
    log.register("a", durability="turn")
    log.register("b", durability="turn", kinds=("w",), **fields)
    log.topology()
    assert log.do(AdoptCommand, session=2, agents=("w/a",), move=True)["ok"]
    assert roll_back(log, 0)["ok"]
    begin(log, "a", "b")
    return log


def given_back(log, name="b", held=HELD, **fields):
    session = log.ledger.state.participants[name].session
    told = Resumption(session=session, line=session, incarnation=2, agents=held)
    settings = {"durability": "turn", "kinds": ("w",), **fields}
    return log.register(name, boot=f"boot-after-{session}", resumes=told, **settings)


def test_member_that_was_given_agents_goes_on_with_them():
    log = moved()
    lose(log, "b")
    assert given_back(log)["ok"]
    record = log.ledger.state.participants["b"]
    assert (record.state, record.agents, record.adopted, record.line) == ("member", HELD, ("w/a",), 2)
    assert log.ledger.lost_members() == ()
    assert log.topology()["ok"]
    assert [member.agents for member in log.ledger.state.topology.members] == [(), HELD]
    # And again, from what that life has written.
    lose(log, "b")
    log.register(
        "b",
        boot="boot-3",
        durability="turn",
        kinds=("w",),
        resumes=Resumption(session=3, line=2, incarnation=2, agents=HELD),
    )
    assert log.ledger.lost_members() == ()


def test_member_that_gave_its_agent_away_goes_on_without_it_also_while_its_host_is_lost():
    log = moved()
    lose(log, "b")
    lose(log, "a")
    assert given_back(log, "a", (), kinds=())["ok"]
    assert log.ledger.state.participants["a"].agents == ()
    assert log.ledger.host_of("w/a") is None
    assert [member.id for member in log.ledger.lost_members()] == ["b"]
    assert given_back(log)["ok"]
    assert log.ledger.host_of("w/a") == "b"
    assert log.ledger.lost_members() == ()


@pytest.mark.parametrize(
    ("held", "fields"),
    [
        (("w/b",), {}),
        (None, {}),
        (("w/a", "w/b", "w/c"), {}),
        (HELD, {"agents": HELD}),
        (HELD, {"agents": ()}),
    ],
    ids=[
        "not what it was given",
        "of its program's agents alone",
        "one that it never had",
        "declares it now",
        "declares none",
    ],
)
def test_log_of_other_agents_than_it_has_is_no_reason_to_be_a_member(held, fields):
    log = moved()
    lose(log, "b")
    assert given_back(log, held=held, **fields)["ok"]
    assert [member.id for member in log.ledger.lost_members()] == ["b"]


@pytest.mark.parametrize("adopted", [False, True])
def test_member_whose_agent_another_has_or_is_to_have_goes_back_with_all(adopted):
    log = moved()
    lose(log, "b")
    if adopted:
        assert log.do(AdoptCommand, session=1, agents=("w/a",))["ok"]
    else:
        lose(log, "a")
        log.register("a", boot="boot-anew", durability="turn")
        assert log.ledger.host_of("w/a") == "a"
    assert given_back(log)["ok"]
    record = log.ledger.state.participants["b"]
    assert (record.state, record.agents) == ("joining", ("w/b",))
    assert "b" in [member.id for member in log.ledger.lost_members()]


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
