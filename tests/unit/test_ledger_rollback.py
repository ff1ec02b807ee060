"""The ledger's rules of rollbacks."""

from __future__ import annotations

import random

import pytest

from coordinator.ledger import (
    AdoptCommand,
    ConfigureCommand,
    FenceCommand,
    LeadCommand,
    LeaveCommand,
    Ledger,
    MarkLostCommand,
    RestoredCommand,
    RestoredNote,
    RollbackCommand,
    RollbackFailedCommand,
)
from coordinator.policy import PolicySettings
from protocol.ancestry import Ancestry
from protocol.digests import digest
from protocol.limits import RENAMES_MAX, ROLLBACKS_REMEMBERED_MAX
from tests.unit.test_ledger import MANIFEST, OTHER, Log, cluster

THIRD = digest(b"a third manifest")


def recovering(*names, **policy):
    """A cluster with one committed epoch, recovery on."""
    log = cluster(*names, recovery="auto", **policy)
    commit(log, 1)
    return log


def commit(log, epoch, manifest=MANIFEST, previous=""):
    assert log.start()["epoch"] == epoch
    for member in log.ledger.state.topology.members:
        log.report(epoch, member.id, incarnation=log.ledger.state.incarnation)
    assert log.seal(epoch, manifest, previous)["ok"]
    assert log.commit(epoch, manifest)["ok"]


def lose(log, name):
    return log.do(MarkLostCommand, session=log.ledger.state.participants[name].session, cause="silent")


def roll_back(log, epoch=None, **fields):
    state = log.ledger.state
    wanted = {
        "incarnation": state.incarnation + 1,
        "epoch": log.ledger.recovery_epoch if epoch is None else epoch,
        "membership": state.membership,
        "cause": "p is lost",
        "fences": ("store",),
    }
    return log.do(RollbackCommand, **{**wanted, **fields})


def fence(log, name="store"):
    return log.do(FenceCommand, incarnation=log.ledger.state.incarnation, fence=name)


def restored(log, *names, incarnation=None, **fields):
    state = log.ledger.state
    notes = tuple(
        RestoredNote(
            **{"participant": name, "session": state.participants[name].session, "state": digest(b"s"), **fields}
        )
        for name in names
    )
    return log.do(RestoredCommand, incarnation=incarnation or state.incarnation, restored=notes)


def test_rollback_goes_through_its_states_and_then_epochs_start_again():
    log = recovering("a", "b")
    lose(log, "a")
    assert log.register("a", boot="boot-2")["session"] == 3
    assert log.topology()["code"] == "members-lost"
    result = roll_back(log)
    assert (result["incarnation"], result["epoch"], result["members"]) == (2, 1, 2)
    record = log.ledger.rollback
    assert record.state == "fencing"
    assert record.manifest == MANIFEST
    assert {name: member.session for name, member in record.members.items()} == {"a": 3, "b": 2}
    assert restored(log, "a")["outcomes"] == ["late"]
    assert log.start(topology=2)["code"] == "rollback-open"
    assert fence(log)["state"] == "restoring"
    assert restored(log, "a")["state"] == "restoring"
    assert restored(log, "a")["outcomes"] == ["duplicate"]
    assert log.start(topology=2)["code"] == "rollback-open"
    assert restored(log, "b")["state"] == "done"
    assert log.start(topology=2)["epoch"] == 2
    assert log.ledger.epoch(2).incarnation == 2


def test_incarnations_grow_by_one_and_two_proposals_make_one_rollback():
    log = recovering("a")
    lose(log, "a")
    log.register("a", boot="boot-2")
    assert roll_back(log)["ok"]
    assert roll_back(log, incarnation=2)["code"] == "incarnation-changed"
    assert roll_back(log, incarnation=5)["code"] == "incarnation-changed"
    assert log.ledger.state.incarnation == 2


def test_what_the_leader_placed_must_be_what_is_there():
    log = recovering("a", "b")
    before = log.ledger.state.membership
    lose(log, "a")
    assert roll_back(log, membership=before)["code"] == "membership-changed"


def test_started_epochs_abort_and_sealed_ones_are_committed_first():
    log = recovering("a", "b", max_concurrent=2)
    log.start()
    log.start()
    for name in "ab":
        log.report(2, name)
    log.seal(2, OTHER, MANIFEST)
    refused = roll_back(log)
    assert (refused["code"], refused["epoch"]) == ("sealed-open", 2)
    assert log.commit(2, OTHER)["ok"]
    assert roll_back(log)["epoch"] == 2
    assert log.ledger.epoch(3).state == "aborted"
    assert log.ledger.epoch(3).abort.phase == "rollback"
    fence(log)
    restored(log, "a", "b")
    assert log.start(topology=2)["epoch"] == 4


def test_reports_of_the_incarnation_before_are_late():
    log = recovering("a", "b")
    log.start()
    roll_back(log)
    assert log.report(2, "a") == "late"


def test_rollback_to_an_epoch_that_is_not_committed_is_refused():
    log = recovering("a")
    log.start()
    assert roll_back(log, epoch=2)["code"] == "not-committed"
    assert roll_back(log, epoch=7)["code"] == "not-committed"


def test_before_the_first_epoch_it_goes_to_the_start():
    log = cluster("a", "b", recovery="auto")
    lose(log, "b")
    log.register("b", boot="boot-2")
    assert roll_back(log)["epoch"] == 0
    assert log.ledger.rollback.manifest == ""


def test_after_an_operator_went_further_back_the_next_rollback_does_not_go_forward():
    log = recovering("a")
    commit(log, 2, OTHER, MANIFEST)
    roll_back(log, epoch=1, automatic=False)
    fence(log)
    restored(log, "a")
    assert log.ledger.recovery_epoch == 1
    commit(log, 3, digest(b"third"), OTHER)
    assert log.ledger.recovery_epoch == 3


def test_second_failure_during_a_restore_supersedes_it():
    log = recovering("a", "b")
    lose(log, "a")
    log.register("a", boot="boot-2")
    roll_back(log)
    fence(log)
    restored(log, "b")
    lose(log, "a")
    log.register("a", boot="boot-3")
    assert roll_back(log)["incarnation"] == 3
    assert log.ledger.state.rollbacks[2].state == "superseded"
    assert restored(log, "b", incarnation=2)["code"] == "incarnation-changed"
    fence(log)
    assert restored(log, "a", "b")["state"] == "done"


def test_restored_of_another_session_does_not_count():
    log = recovering("a")
    roll_back(log)
    fence(log)
    assert restored(log, "a", session=9)["outcomes"] == ["foreign"]
    assert log.ledger.rollback.state == "restoring"


def test_fences_that_are_repeated_or_unknown_change_nothing():
    log = recovering("a")
    roll_back(log, fences=("sink", "store"))
    assert fence(log, "other")["code"] == "unknown"
    assert fence(log, "store")["state"] == "fencing"
    assert fence(log, "store")["state"] == "fencing"
    assert fence(log, "sink")["state"] == "restoring"
    assert fence(log, "sink")["state"] == "restoring"


def test_who_was_about_to_leave_is_a_member_again():
    log = recovering("a", "b")
    log.do(LeaveCommand, session=2)
    lose(log, "a")
    log.register("a", boot="boot-2")
    assert roll_back(log)["members"] == 2
    assert log.ledger.state.participants["b"].state == "member"


def test_agents_of_a_lost_member_are_adopted_and_stay_where_they_are():
    log = recovering("a", "b")
    lose(log, "a")
    assert log.do(AdoptCommand, session=2, agents=("w/b",))["ok"]
    assert log.do(AdoptCommand, session=1, agents=("w/a",))["code"] == "ended"
    assert log.do(AdoptCommand, session=2, agents=("w/a",))["ok"]
    assert log.ledger.state.participants["b"].agents == ("w/b",)
    roll_back(log)
    (member,) = log.ledger.state.topology.members
    assert member.agents == ("w/a", "w/b")
    assert log.register("a", boot="boot-2")["ok"]
    assert log.ledger.state.participants["a"].agents == ()
    assert log.ledger.host_of("w/a") == "b"
    # The host's own registration, said again, keeps what it adopted.
    log.register("b", boot="boot-1", address="elsewhere")
    assert log.ledger.state.participants["b"].agents == ("w/a", "w/b")


@pytest.mark.parametrize(
    ("kinds", "recovery", "again"),
    [(("w",), "auto", ("w/a",)), ((), "auto", ()), (("w",), "off", ())],
    ids=["takes it", "takes it no more", "nobody is brought back"],
)
def test_lost_member_has_again_what_it_had_been_given(kinds, recovery, again):
    log = recovering("a", "b")
    assert log.do(AdoptCommand, session=2, agents=("w/a",), move=True)["ok"]
    assert roll_back(log)["ok"]
    begin(log, "a", "b")
    assert log.do(ConfigureCommand, policy=PolicySettings(recovery=recovery))["ok"]
    lose(log, "b")
    for boot in ("boot-2", "boot-3"):
        assert log.register("b", boot=boot, kinds=kinds)["ok"]
        record = log.ledger.state.participants["b"]
        assert (record.adopted, record.agents) == (again, tuple(sorted((*again, "w/b"))))
        assert log.ledger.host_of("w/a") == ("b" if again else None)
        lose(log, "b")


@pytest.mark.parametrize("undone", [False, True])
def test_an_agent_that_left_in_order_with_its_new_host_is_a_new_one_where_it_begins_again(undone):
    """As the same one, its messages would be named as those that others have from it. Where all of it is undone, it is the same."""
    log = recovering("a", "b", "c")
    lose(log, "a")
    assert log.do(AdoptCommand, session=2, agents=("w/a",))["ok"]
    assert roll_back(log)["ok"]
    begin(log, "b", "c")
    assert log.do(LeaveCommand, session=2)["ok"]
    assert log.topology()["ok"]
    assert log.ledger.host_of("w/a") is None
    if undone:
        assert roll_back(log, 0)["ok"]
        begin(log, "c")
    session = log.register("a", boot="boot-2")["session"]
    assert log.ledger.state.participants["a"].fresh == (0 if undone else session)
    assert log.ledger.state.participants["a"].agents == ("w/a",)


def left_elsewhere():
    """The agent of a, which is there, was moved to b and left with it."""
    log = recovering("a", "b", "c")
    assert log.do(AdoptCommand, session=2, agents=("w/a",), move=True)["ok"]
    assert roll_back(log)["ok"]
    begin(log, "a", "b", "c")
    assert log.do(LeaveCommand, session=2)["ok"]
    assert log.topology()["ok"]
    return log


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("undone", [False, True])
def test_what_a_rollback_undoes_decides_whether_an_agent_that_left_elsewhere_is_a_new_one(alive, undone):
    """Of a member, live or lost: it may come in with a rollback to before that, and then all that it did comes again as it was."""
    log = left_elsewhere()
    commit(log, 2, OTHER, MANIFEST)
    if not alive:
        lose(log, "a")
        assert log.register("a", boot="boot-2")["ok"]
    assert log.ledger.state.participants["a"].fresh == 0
    assert roll_back(log, 1 if undone else 2)["ok"]
    fresh = log.ledger.state.participants["a"].fresh
    assert (fresh == 0) == undone
    members = {member.id: member for member in log.ledger.state.topology.members}
    assert members["a"].fresh == fresh
    assert all(record.session != fresh for record in log.ledger.participants())
    begin(log, "a", "c")
    assert roll_back(log, log.ledger.state.base)["ok"]
    assert log.ledger.state.participants["a"].fresh == fresh, "the same one from then on"


def test_who_connects_anew_is_not_given_back_what_it_gave_away_and_has_left():
    """It runs it no more: a message for it would find nobody there."""
    log = left_elsewhere()
    assert log.register("a")["resumed"]
    assert log.ledger.host_of("w/a") is None
    assert not log.ledger.topology_is_stale
    assert log.register("a", agents=("w/a", "w/z"))["resumed"]
    assert log.ledger.state.participants["a"].agents == ("w/z",)


def test_nobody_takes_an_agent_under_the_name_that_it_had_before():
    log = recovering("a", "b", "c")
    lose(log, "b")
    log.do(AdoptCommand, session=log.ledger.state.participants["a"].session, agents=("w/b",))
    assert roll_back(log, renames=(("w/b", "w/z"),))["ok"]
    assert log.ledger.host_of("w/b") is None
    assert log.ledger.state.participants["a"].agents == ("w/a",)
    assert log.ledger.state.adoptions == {}


def test_member_that_comes_back_is_a_new_one_where_the_policy_is_off_by_then():
    """No rollback undoes what its former life has sent: under the same names it would be taken for that one."""
    log = recovering("a", "b")
    lose(log, "b")
    session = log.register("b", boot="boot-2")["session"]
    assert log.ledger.state.participants["b"].fresh == 0, "a rollback makes it what it was"
    assert log.do(ConfigureCommand, policy=PolicySettings(recovery="off"))["ok"]
    assert log.topology()["ok"]
    members = {member.id: member for member in log.ledger.state.topology.members}
    assert (members["b"].session, members["b"].fresh, members["a"].fresh) == (session, session, 0)


def number(member, agent):
    """What an agent's first message is named after."""
    return dict(member.fresh_of).get(agent, member.fresh)


@pytest.mark.parametrize("over", [{"dropped": ("w/b",)}, {"renames": (("w/b", "w/z"),)}], ids=["given up", "renamed"])
@pytest.mark.parametrize("who", ["b", "x"])
def test_an_agent_that_was_given_up_or_renamed_and_begins_anew_is_not_the_one_that_was(who, over):
    """Were its messages named as before, those that have heard of it would take them for the same."""
    log = recovering("a", "b", "c")
    lose(log, "b")
    assert roll_back(log, **over)["ok"]
    assert log.register(who, agents=("w/b",), boot="boot-2")["ok"]
    first = log.ledger.state.participants[who].fresh_as("w/b")
    assert first != 0
    assert all(record.session != first for record in log.ledger.participants() if record.id != who)
    # Lost again, it is the same one: what it did is done again under the same names.
    lose(log, who)
    assert log.register(who, agents=("w/b",), boot="boot-3")["ok"]
    assert log.ledger.state.participants[who].fresh_as("w/b") == first
    begin(log, "a", "c")
    assert log.topology()["ok"]
    lose(log, who)
    assert roll_back(log, **over)["ok"]
    assert log.register(who, agents=("w/b",), boot="boot-4")["ok"]
    assert log.ledger.state.participants[who].fresh_as("w/b") == first


def test_names_that_are_only_exchanged_are_nobody_s_second_life():
    log = recovering("a", "b", "c")
    lose(log, "b")
    assert roll_back(log, renames=(("w/b", "w/c"), ("w/c", "w/b")))["ok"]
    assert log.register("b", boot="boot-2")["ok"]
    assert log.ledger.state.participants["b"].fresh == 0


@pytest.mark.parametrize("taken", [False, True])
def test_one_of_two_that_have_exchanged_names_begins_anew_as_a_new_one(taken):
    """The epoch holds only the other one, whose first life had the name: its messages and steps are named after it."""
    log = recovering("a", "b")
    if taken:
        lose(log, "b")
        assert log.do(AdoptCommand, session=1, agents=("w/b",))["ok"]
    assert roll_back(log, renames=(("w/a", "w/b"), ("w/b", "w/a")))["ok"]
    begin(log, *(("a",) if taken else ("a", "b")))
    assert roll_back(log, renames=(("w/b", "w/a"),))["ok"]
    member = next(each for each in log.ledger.state.topology.members if "w/b" in each.agents)
    assert member.id == ("a" if taken else "b")
    assert number(member, "w/b") != 0
    assert [number(member, each) for each in member.agents if each != "w/b"] == [0] * taken, (
        "the other goes on as it was"
    )
    assert roll_back(log, renames=(("w/b", "w/a"),))["ok"]
    assert member in log.ledger.state.topology.members, "undone, it is the same one again"


def test_an_agent_that_moves_and_begins_anew_does_so_as_it_would_have_where_it_was():
    """It had left with its host, and come back as another one: no epoch holds it yet."""
    log = recovering("a", "b")
    log.do(LeaveCommand, session=2)
    log.topology()
    log.register("b", boot="boot-2")
    log.topology()
    before = log.ledger.state.participants["b"].fresh
    assert before != 0
    session = log.ledger.state.participants["a"].session
    assert log.do(AdoptCommand, session=session, agents=("w/b",), move=True)["ok"]
    assert roll_back(log)["ok"]
    members = {member.id: member for member in log.ledger.state.topology.members}
    assert members["a"].agents == ("w/a", "w/b")
    assert (number(members["a"], "w/a"), number(members["a"], "w/b")) == (0, before), "what a had goes on as it was"


def test_one_agent_of_a_host_that_begins_anew_leaves_the_others_their_names():
    """Back at the very start they do again what they did, and no effect of it comes a second time."""
    log = recovering("a")
    assert log.register("b", agents=("w/b", "w/c"), boot="boot-1")["ok"]
    assert log.topology()["ok"]
    commit(log, 2, OTHER, MANIFEST)
    assert roll_back(log, epoch=2, dropped=("w/b",))["ok"]
    begin(log, "a", "b")
    assert roll_back(log, epoch=0)["ok"]
    record = log.ledger.state.participants["b"]
    assert record.fresh_as("w/b") != 0
    assert record.fresh_as("w/c") == 0
    # Moved, each takes its own number along.
    begin(log, "a", "b")
    session = log.ledger.state.participants["a"].session
    assert log.do(AdoptCommand, session=session, agents=("w/b", "w/c"), move=True)["ok"]
    assert roll_back(log, epoch=0)["ok"]
    members = {member.id: member for member in log.ledger.state.topology.members}
    assert [number(members["a"], each) for each in ("w/a", "w/b", "w/c")] == [0, record.fresh_as("w/b"), 0]


def test_agent_of_a_live_host_is_adopted_only_when_it_is_to_move():
    log = recovering("a", "b")
    assert log.do(AdoptCommand, session=2, agents=("w/a",))["code"] == "agent-taken"
    assert log.do(AdoptCommand, session=2, agents=("w/a",), move=True)["ok"]
    roll_back(log)
    assert [member.agents for member in log.ledger.state.topology.members] == [(), ("w/a", "w/b")]


def test_adoption_is_dropped_when_its_host_goes_or_the_old_one_comes_back():
    log = recovering("a", "b", "c")
    lose(log, "a")
    log.do(AdoptCommand, session=2, agents=("w/a",))
    lose(log, "b")
    assert log.ledger.state.adoptions == {}
    log.do(AdoptCommand, session=3, agents=("w/a", "w/b"))
    log.register("a", boot="boot-2")
    assert log.ledger.state.adoptions == {"w/b": "c"}
    roll_back(log)
    placed = {member.id: member.agents for member in log.ledger.state.topology.members}
    assert placed == {"a": ("w/a",), "c": ("w/b", "w/c")}


def test_move_does_not_change_the_topology_before_the_rollback():
    log = recovering("a", "b")
    log.do(AdoptCommand, session=2, agents=("w/a",), move=True)
    assert log.topology()["code"] == "topology-unchanged"
    assert log.ledger.host_of("w/a") == "a"


def test_part_that_does_not_fit_stops_recovery_until_another_life_comes():
    log = recovering("a", "b")
    roll_back(log)
    fence(log)
    failed = {"incarnation": 2, "participant": "a", "session": 1, "why": "unfit", "cause": "no field x"}
    assert log.do(RollbackFailedCommand, **{**failed, "session": 7})["code"] == "foreign"
    assert log.do(RollbackFailedCommand, **failed)["state"] == "failed"
    assert "no field x" in log.ledger.state.stopped
    assert restored(log, "b")["outcomes"] == ["late"]
    assert log.start(topology=2)["code"] == "rollback-open"
    lose(log, "a")
    log.register("a", boot="boot-2")
    assert log.ledger.state.stopped == ""


def test_too_many_rollbacks_in_the_window_stop_it_until_an_operator_acts():
    log = recovering("a", max_rollbacks=2, rollback_window_ns=1_000_000)
    assert [roll_back(log)["outcome"] for _ in range(3)] == ["begun", "begun", "stopped"]
    assert log.ledger.state.incarnation == 3
    assert log.ledger.state.stopped.startswith("2 rollbacks within")
    assert roll_back(log, automatic=False)["outcome"] == "begun"
    assert log.ledger.state.stopped == ""
    log.at += 10_000_000
    assert roll_back(log)["outcome"] == "begun"


def test_rollback_without_anybody_is_refused():
    log = recovering("a")
    lose(log, "a")
    assert roll_back(log)["code"] == "no-members"


def test_timers_learn_how_much_time_has_passed_since_the_epoch():
    log = recovering("a")
    log.at += 5_000_000
    roll_back(log)
    assert log.ledger.rollback.elapsed_ns >= 5_000_000


def test_new_leader_is_noted_in_a_running_rollback():
    log = recovering("a")
    roll_back(log)
    log.do(LeadCommand, coordinator="c2", term=2)
    assert log.ledger.rollback.terms == (1, 2)


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_repeated_and_late_commands_ends_alike(seed):
    """Notes of two incarnations, shuffled and repeated: the record is done exactly when all members of its own said so."""
    chance = random.Random(seed)
    log = recovering("a", "b", "c")
    roll_back(log)
    fence(log)
    lose(log, "c")
    log.register("c", boot="boot-2")
    roll_back(log)
    said: set[str] = set()
    fenced = False
    for _ in range(60):
        incarnation = chance.choice([2, 3, 3])
        if chance.random() < 0.3:
            done = log.do(FenceCommand, incarnation=incarnation, fence="store")["ok"]
            fenced = fenced or (done and incarnation == 3)
        else:
            name = chance.choice("abc")
            result = restored(log, name, incarnation=incarnation)
            assert result["ok"] == (incarnation == 3)
            if incarnation == 3 and fenced:
                said.add(name)
        record = log.ledger.rollback
        assert record.restored_count == len(said)
        expected = "fencing" if not fenced else "done" if len(said) == 3 else "restoring"
        assert record.state == expected
    copy = Ledger("shop")
    copy.load(log.ledger.dump())
    assert copy.digest() == log.ledger.digest()
    assert isinstance(log, Log)


def test_a_rollback_that_comes_late_does_not_give_up_what_was_committed_since():
    log = recovering("a", "b")
    newest = log.ledger.recovery_epoch
    commit(log, 2, previous=MANIFEST)
    assert roll_back(log, epoch=newest, newest=newest)["code"] == "epoch-committed"
    assert roll_back(log, epoch=newest)["ok"], "an operator named it"


def test_names_and_losses_follow_all_rollbacks_since_an_epoch():
    """A is renamed twice, each time by a rollback to an epoch of its own; what was given up between has its new name, too."""
    log = recovering("a", "b", "c")
    assert roll_back(log, renames=(("w/a", "w/m"), ("w/b", "w/n")))["ok"]
    begin(log, "a", "b", "c")
    commit(log, 2, OTHER, MANIFEST)
    assert roll_back(log, epoch=2, renames=(("w/m", "w/n"), ("w/n", "w/m")), dropped=("w/c",))["ok"]
    begin(log, "a", "b", "c")
    commit(log, 3, THIRD, OTHER)
    assert roll_back(log, epoch=3, renames=(("w/c", "w/z"),))["ok"]
    assert log.ledger.names_since(1, ("w/a", "w/b", "w/c")) == {"w/a": "w/n", "w/b": "w/m", "w/c": "w/z"}
    assert log.ledger.names_since(2, ("w/m", "w/n", "w/x")) == {"w/m": "w/n", "w/n": "w/m", "w/c": "w/z"}
    assert log.ledger.names_since(0, ()) == {"w/a": "w/n", "w/b": "w/m", "w/c": "w/z"}
    named = log.ledger.ancestry.named
    assert [(each.incarnation, each.base) for each in named] == [(2, 1), (3, 2), (4, 3)]
    assert log.ledger.ancestry.called("w/a", 1) == "w/n"
    assert log.ledger.ancestry.first_name("w/n") == "w/a"
    assert log.ledger.given_up_since(1) == log.ledger.given_up_since(2) == {"w/z"}
    assert log.ledger.given_up_since(3) == frozenset()


def test_an_incarnation_comes_from_those_of_its_epochs_and_what_lies_between_has_not_happened():
    log = recovering("a", "b")
    assert log.ledger.ancestry == Ancestry(incarnation=1)
    roll_back(log)
    begin(log, "a", "b")
    commit(log, 2, OTHER, MANIFEST)
    roll_back(log)
    assert log.ledger.ancestry == Ancestry(incarnation=3, through=((2, 2), (1, 1)))
    begin(log, "a", "b")
    roll_back(log)
    assert log.ledger.ancestry == Ancestry(incarnation=4, through=((2, 2), (1, 1)))
    roll_back(log, epoch=1)
    assert log.ledger.ancestry == Ancestry(incarnation=5, through=((1, 1),))
    again = Ledger(log.ledger.state.cluster)
    again.load(log.ledger.dump())
    assert again.ancestry == log.ledger.ancestry
    roll_back(log, epoch=0)
    assert log.ledger.ancestry == Ancestry(incarnation=6)


def test_what_is_not_remembered_of_incarnations_is_said():
    log = recovering("a", "b")
    for _ in range(ROLLBACKS_REMEMBERED_MAX + 2):
        number = log.ledger.state.epoch + 1
        roll_back(log, automatic=False)
        begin(log, "a", "b")
        commit(log, number, digest(b"%d" % number), log.ledger.state.sealed_manifest)
    roll_back(log, automatic=False)
    found = log.ledger.ancestry
    assert found.incarnation == ROLLBACKS_REMEMBERED_MAX + 4
    assert found.known_from == found.incarnation - ROLLBACKS_REMEMBERED_MAX == found.through[-1][0]
    assert [incarnation for incarnation, _ in found.through] == list(
        range(found.incarnation - 1, found.known_from - 1, -1)
    )
    assert not found.undone(found.known_from - 1, 10_000), "nobody knows"
    assert found.undone(found.known_from, 10_000)


def test_ledger_remembers_where_agents_have_run_since_an_epoch():
    """Only incarnations that began count, and only hosts that the epoch does not tell."""
    log = recovering("a", "b")
    move(log, "w/a", "b")
    assert log.ledger.elsewhere("b") == {}, "it was at a at the cut, and all of its incarnation"
    begin(log, "a", "b")
    move(log, "w/a", "a")
    assert log.ledger.elsewhere("a") == {"b": ("w/a",)}
    assert log.ledger.elsewhere("b") == {}
    copy = Ledger("shop")
    copy.load(log.ledger.dump())
    assert copy.elsewhere("a") == {"b": ("w/a",)}
    begin(log, "a", "b")
    commit(log, 2, OTHER, MANIFEST)
    assert roll_back(log)["ok"]
    assert log.ledger.elsewhere("a") == {}, "the epoch is of a later stay"
    begin(log, "a", "b")
    assert roll_back(log, epoch=1)["ok"]
    assert log.ledger.elsewhere("a") == {"b": ("w/a",)}


def test_host_of_an_incarnation_that_never_began_is_none():
    log = recovering("a", "b")
    move(log, "w/a", "b")
    move(log, "w/a", "a")
    assert log.ledger.elsewhere("a") == {}
    assert log.ledger.state.stays == {"w/a": {"a": 1}}


def move(log, agent, to):
    session = log.ledger.state.participants[to].session
    assert log.do(AdoptCommand, session=session, agents=(agent,), move=True)["ok"]
    assert roll_back(log)["ok"]


def begin(log, *names):
    fence(log)
    restored(log, *names)


def test_names_are_told_from_the_last_time_that_everybody_was_back_at_the_start():
    log = recovering("a", "b")
    assert roll_back(log, renames=(("w/a", "w/m"),))["ok"]
    begin(log, "a", "b")
    assert roll_back(log, epoch=0, renames=(("w/a", "w/n"),))["ok"]
    assert log.ledger.names_since(0, ()) == {"w/a": "w/n"}
    assert log.ledger.ancestry.called("w/m", 2) == "w/n"
    assert log.ledger.ancestry.first_name("w/n") == "w/a"


def test_names_of_many_restores_are_carried_on_by_one_rollback():
    """An operator maps 64 at a time; whoever goes further back than several of those has all of them."""
    log = recovering("a")
    renames = tuple((f"w/{number}", f"w/{number}-new") for number in range(3 * RENAMES_MAX))
    assert roll_back(log, renames=renames)["ok"]
    assert log.ledger.names_since(0, ()) == dict(renames)
