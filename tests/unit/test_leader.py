"""The leader's machine, driven through a deterministic world: failures first, then what should go well."""

import pytest

from coordinator.events import (
    AbortRequested,
    BecameLeader,
    CloseConnection,
    CommandAmbiguous,
    CommandApplied,
    CommandRefused,
    CutAssembled,
    CutRefused,
    Disconnected,
    EpochTriggered,
    LeaderKnown,
    LostLeadership,
    ManifestFailed,
    ManifestForsaken,
    ManifestRefused,
    ManifestStored,
    MessageArrived,
    ParticipantConnected,
    PolicyChanged,
    Propose,
    Send,
    SnapshotsUnreadable,
    StoreManifest,
    TimerFired,
)
from coordinator.ledger import Ledger, encode_command, parse_result
from coordinator.machine import Leader
from coordinator.policy import PolicySettings
from protocol.digests import digest
from protocol.ids import Instant
from protocol.limits import AGENTS_PER_PARTICIPANT_MAX, COMMAND_BYTES_MAX, LEASE_NS, TOPOLOGY_ACCEPT_NS
from protocol.messages import (
    AbortEpoch,
    EpochCommitted,
    EpochFailed,
    EpochRequested,
    EpochSealed,
    Fenced,
    Heartbeat,
    Leave,
    LocalReport,
    Register,
    RegisterRefused,
    StartEpoch,
    TopologyAccepted,
)
from tests.coordinator_world import EVERY_SECOND, MANUAL, MS, SECOND, cluster, replace_struct

# --- epochs that fail -----------------------------------------------------------------------------------------------


def test_silent_participant_aborts_its_epoch_at_the_deadline_and_is_named():
    """D1: eight members, one never reports; the next epoch completes; numbers are not used again."""
    names = [f"p{i}" for i in range(8)]
    world = cluster(*names)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    world.participants["p3"]._take_part = lambda order: None  # obeys, and never says a word of it
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "aborted")
    record = world.epoch(2)
    assert 2 * SECOND <= record.took_ns <= 2.5 * SECOND
    assert (record.abort.participant, record.abort.phase) == ("p3", "record")
    assert "never said that it recorded its state" in record.abort.cause
    assert "last heard" in record.abort.cause
    assert [note.participant for note in record.abort.waiting] == ["p3"]
    world.run(0.1)
    assert all(p.ends == {1: "committed", 2: "aborted"} for p in world.participants.values())
    assert not world.store_has(2)
    del world.participants["p3"]._take_part
    request = world.trigger()
    world.run(1)
    assert world.answers[request]["epoch"] == 3
    assert world.state_of(3) == "committed"


def test_participant_that_cannot_do_its_part_aborts_the_epoch_at_once():
    world = cluster("a", "b")
    world.participants["b"].fails = "agent worker/b: memory.tools[2].client of type socket cannot be saved"
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "aborted", limit=0.1)
    abort = world.epoch(1).abort
    assert (abort.participant, abort.phase) == ("b", "encode")
    assert "memory.tools[2].client" in abort.cause


def test_hostile_cause_reaches_the_ledger_printable_and_short():
    world = cluster("a", "b")
    world.participants["b"].fails = "\x1b[31m" + "x\u202e" * 5000
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "aborted")
    cause = world.epoch(1).abort.cause
    assert cause.isprintable()
    assert len(cause) <= 400


def test_lost_member_aborts_its_epoch_without_waiting_for_the_deadline():
    world = cluster("a", "b", policy=replace_struct(MANUAL, deadline_ns=60 * SECOND))
    world.participants["b"].reports = False
    world.trigger()
    world.run(0.1)
    world.kill_participant("b")
    world.run(until=lambda: world.state_of(1) == "aborted", limit=LEASE_NS / SECOND + 0.6)
    abort = world.epoch(1).abort
    assert (abort.participant, abort.phase) == ("b", "lost")
    assert "disconnected (reset by peer)" in abort.cause
    assert [(note.participant, note.phase) for note in abort.waiting] == [("b", "channels")]
    world.run(until=world.ready)
    assert [m.id for m in world.ledger.state.topology.members] == ["a"]
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")


def test_connected_participant_that_says_nothing_loses_its_lease_and_is_fenced():
    world = cluster("a", "b")
    world.participants["b"].silent = True
    world.run(LEASE_NS / SECOND + 0.6)
    assert world.ledger.state.participants["b"].state == "lost"
    assert "silent for 3." in world.participants["b"].fenced
    assert world.participants["b"].connection is None, "hung up on"


def test_short_loss_of_connection_costs_nothing():
    world = cluster("a", "b")
    world.participants["b"].reports = False
    world.trigger()
    world.run(0.1)
    b = world.participants["b"]
    b.reports = True
    b.disconnect("wifi")
    world.later(500 * MS, b.connect)
    world.run(until=lambda: world.state_of(1) == "committed")
    assert b.session == 2
    assert len(b.orders) == 2, "the order is repeated; obeying it twice is one"


def test_late_report_is_refused_and_its_epoch_stays_aborted():
    """Pitfall 24."""
    world = cluster("a", "b")
    b = world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "aborted")
    b.say(b.report(1))
    world.run(0.1)
    assert "epoch 1 was aborted" in b.refusals[0].reason
    assert world.state_of(1) == "aborted"


def test_report_of_an_epoch_that_never_was_is_refused():
    world = cluster("a", "b")
    b = world.participants["b"]
    b.say(LocalReport(session=b.session, incarnation=1, epoch=77, snapshot=digest(b"x")))
    world.run(0.1)
    assert [(r.epoch, r.reason) for r in b.refusals] == [(77, "there is no such epoch")]


@pytest.mark.parametrize(
    "changes",
    [
        {"incarnation": 9},
        {"incarnation": 0},
        {"snapshot": "../../etc/passwd"},
        {"state_bytes": -1},
        {"in_flight": 2**63},
    ],
)
def test_report_that_is_not_of_this_epoch_or_not_one_harms_nobody_else(changes):
    world = cluster("a", "b")
    b = world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(0.1)
    b.say(b.report(1, **changes))
    world.run(0.1)
    assert len(b.refusals) == 1
    assert world.epoch(1).reported_count == 1
    b.say(b.report(1))
    world.run(0.1)
    assert world.state_of(1) == "committed"


def test_second_report_with_another_digest_is_refused_and_the_first_one_stands():
    world = cluster("a", "b", "c")
    world.participants["c"].reports = False
    world.trigger()
    world.run(0.1)
    b = world.participants["b"]
    first = world.epoch(1).members["b"].snapshot
    b.say(b.report(1, snapshot=digest(b"other")))
    world.run(0.1)
    assert len(b.refusals) == 1
    assert world.epoch(1).members["b"].snapshot == first


def test_message_for_another_session_on_a_connection_changes_nothing():
    world = cluster("a", "b")
    a, b = world.participants["a"], world.participants["b"]
    a.say(Leave(session=b.session))
    world.run(0.2)
    assert world.ledger.state.participants["b"].state == "member"
    assert a.fenced == "", "only hung up on: the session named is in good health"


def test_inconsistent_cut_is_refused_named_and_never_sealed():
    world = cluster("a", "b")
    b = world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(0.1)
    incoming = b.snapshot(b.orders[0]).incoming
    orphan = (replace_struct(incoming[0], received=3, closed_at=3),)
    b.say(b.report(1, snapshot_changes={"incoming": orphan}))
    world.run(until=lambda: world.state_of(1) == "aborted")
    abort = world.epoch(1).abort
    assert abort.phase == "assemble"
    assert "orphan at a->b (sent 0, received 3" in abort.cause
    assert not world.store_has(1)


def test_store_that_fails_until_the_deadline_aborts_and_the_next_epoch_works_when_it_heals():
    world = cluster("a", "b")
    world.store_fails = "ENOSPC: no space left on device"
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "aborted")
    assert world.epoch(1).abort.phase == "assemble"
    assert "ENOSPC" in world.epoch(1).abort.cause
    world.store_fails = ""
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")


def test_store_that_fails_after_the_seal_is_tried_until_it_heals_and_nothing_is_announced_before():
    """Pitfalls 30 and 31: success is never reported first."""
    world = cluster("a", "b")
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "sealed")
    world.store_fails = "EIO: input/output error"
    world.run(20)
    assert world.state_of(1) == "sealed", "a sealed epoch is not aborted, whatever its deadline"
    assert world.participants["a"].ends == {}
    assert "EIO" in " ".join(world.leader.machine.why(1, Instant(world.now))["sentences"])
    request = world.abort(1)
    world.run(3)
    assert world.answers[request]["code"] == "store", "the store has to agree, and it does not answer"
    assert world.state_of(1) == "sealed"
    request = world.trigger()
    assert world.answers[request]["code"] == "epoch-open"
    world.store_fails = ""
    world.run(3)
    assert world.participants["a"].ends == {1: "committed"}


def test_clock_that_jumps_an_hour_changes_no_decision():
    """D15: both ways, during an epoch; deadlines are monotonic, durations never negative, ids rise."""
    world = cluster("a", "b")
    b = world.participants["b"]
    for number, jump in ((1, -3600), (2, 3600)):
        b.reports = False
        world.trigger()
        world.run(0.5)
        world.wall_offset += jump * SECOND
        world.run(until=lambda n=number: world.state_of(n) == "aborted")
        assert 2 * SECOND <= world.epoch(number).took_ns <= 2.5 * SECOND
        b.reports = True
    world.trigger()
    world.run(0.001)
    world.wall_offset -= 3600 * SECOND
    world.run(until=lambda: world.state_of(3) == "committed")
    assert sorted(world.ledger.state.epochs) == [1, 2, 3]
    assert 0 < world.epoch(3).took_ns < SECOND


def test_two_triggers_in_one_millisecond_make_one_epoch_and_one_refusal():
    world = cluster("a", "b")
    first, second = world.trigger(), world.trigger()
    world.run(1)
    assert world.answers[first]["epoch"] == 1
    assert world.answers[second]["code"] == "epoch-open"
    assert world.ledger.state.epoch == 1


def test_deadline_of_an_epoch_goes_on_under_the_next_leader():
    """What the last report says has passed is not given again; less than that the ledger cannot know."""
    world = cluster("a", "b", "c", policy=replace_struct(MANUAL, deadline_ns=10 * SECOND))
    a, c = world.participants["a"], world.participants["c"]
    a.reports = c.reports = False
    world.trigger()
    world.run(6)
    a.say(a.report(1))
    world.run(0.1)
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    start = world.now
    world.run(until=lambda: world.state_of(1) == "aborted")
    assert 3 * SECOND < world.now - start < 4.2 * SECOND
    assert world.epoch(1).terms == (1, 2)
    assert world.epoch(1).took_ns > 9 * SECOND


def test_sleep_of_the_leader_itself_costs_no_participant_its_lease():
    world = cluster("a", "b")
    leader = world.leader
    leader.asleep = []
    world.run(10)
    waiting, leader.asleep = leader.asleep, None
    timers = [e for e in waiting if isinstance(e, TimerFired)]
    for event in timers + [e for e in waiting if not isinstance(e, TimerFired)]:
        leader.feed(event)
    world.run(1)
    assert {p.state for p in world.ledger.participants()} == {"member"}


def test_new_leader_gives_participants_time_to_find_it_before_it_fences_them():
    """1.5 s until they notice that the old one hangs, 3 s at a coordinator that hangs as well; its own lease is over then."""
    world = cluster("a", "b")
    world.sleep(world.leader)
    for participant in world.participants.values():
        world.later(int(LEASE_NS + 1.5 * SECOND), participant.connect)
        participant.connection = participant.at = None
    world.elect(world.coordinators[1])
    world.kill_participant("b")
    world.run(LEASE_NS / SECOND + 2.5)
    assert {p.id: p.state for p in world.ledger.participants()} == {"a": "member", "b": "member"}
    world.run(until=lambda: world.ledger.state.participants["b"].state == "lost", limit=4)
    world.run(LEASE_NS / SECOND + 10)
    assert {p.id: p.state for p in world.ledger.participants()} == {"a": "member", "b": "lost"}


def test_sleep_of_the_leader_itself_costs_no_newcomer_its_membership():
    """Its acceptance waits unread behind the timer that fires first when the process goes on."""
    world = cluster("a", "b")
    world.add("c")
    leader = world.leader
    world.run(until=lambda: world.ledger.state.topology.version == 2)
    leader.asleep = []
    world.run(TOPOLOGY_ACCEPT_NS / SECOND + 5)
    waiting, leader.asleep = leader.asleep, None
    assert any(isinstance(e, MessageArrived) and isinstance(e.message, TopologyAccepted) for e in waiting)
    for event in [TimerFired(), *waiting]:
        leader.feed(event)
    world.run(1)
    assert {p.id: p.state for p in world.ledger.participants()} == dict.fromkeys("abc", "member")


# --- joining, leaving, coming back ----------------------------------------------------------------------------------


def test_comings_and_goings_while_an_epoch_is_open():
    """D14: one leaves in order, one joins, one is removed and comes back under its name."""
    world = cluster("a", "b", "c", "d", policy=replace_struct(MANUAL, deadline_ns=60 * SECOND))
    a, b = world.participants["a"], world.participants["b"]
    a.reports = False
    world.trigger()
    world.run(0.1)
    b.say(Leave(session=b.session))
    world.add("e")
    world.run(1)
    assert not b.left, "it stays until the epoch has ended"
    assert [m.id for m in world.ledger.state.topology.members] == ["a", "b", "c", "d"]
    assert world.participants["e"].orders == [], "a newcomer has no part in an open epoch"
    a.reports = True
    a.say(a.report(1))
    world.run(until=lambda: world.state_of(1) == "committed")
    assert "b" in world.epoch(1).members
    world.run(until=world.ready)
    assert b.left
    assert [m.id for m in world.ledger.state.topology.members] == ["a", "c", "d", "e"]
    # Removed, and back: its old process is fenced, the new one is a member of the epochs that start from now on.
    old = world.participants["d"]
    old.silent = True
    world.run(LEASE_NS / SECOND + 0.6)
    assert old.fenced
    world.add("d", boot="boot-2")
    world.run(until=lambda: world.participants["d"].session and world.ready())
    assert world.participants["d"].session == 6
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")
    assert sorted(world.epoch(2).members) == ["a", "c", "d", "e"]


def test_lost_process_that_comes_back_to_life_is_fenced_and_not_given_a_session():
    world = cluster("a", "b")
    b = world.participants["b"]
    b.disconnect("partition")
    world.run(LEASE_NS / SECOND + 0.6)
    b.connect()
    world.run(0.2)
    assert b.refused == ["fenced"]
    assert "has ended: disconnected (partition)" in b.fenced


def test_second_process_under_a_live_name_is_refused():
    world = cluster("a", "b")
    first = world.participants["a"]
    world.add("a", boot="other-process")
    world.run(0.2)
    assert world.participants["a"].refused == ["id-taken"]
    assert first.connection is not None


def test_two_processes_that_register_one_name_at_once_get_one_session():
    world = cluster("a")
    world.add("b", boot="one")
    one = world.participants["b"]
    world.add("b", boot="two")
    two = world.participants["b"]
    world.run(0.2)
    assert sorted([one.session, two.session]) == [0, 2]
    assert one.refused + two.refused == ["id-taken"]


def test_agent_that_another_live_participant_hosts_is_refused():
    world = cluster("a")
    world.add("b", agents=("worker/a",))
    world.run(0.2)
    assert world.participants["b"].refused == ["agent-taken"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "other"}, "wrong-cluster"),
        ({"protocol": 99}, "wrong-version"),
        ({"participant": "../etc"}, "bad-name"),
        ({"participant": "a\x00b"}, "bad-name"),
        ({"participant": "x" * 300}, "bad-name"),
        ({"participant": "<img onerror=1>"}, "bad-name"),
        ({"agents": ("worker",)}, "bad-name"),
        ({"agents": ("worker/x", "worker/x")}, "bad-name"),
        ({"targets": ("new", "a")}, "bad-name"),
        ({"targets": ("\x1b[2J",)}, "bad-name"),
        ({"boot_id": ""}, "bad-name"),
        ({"boot_id": "\n"}, "bad-name"),
        ({"address": "x" * 1000}, "bad-name"),
        ({"agent_versions": {"worker": -1}}, "bad-name"),
        ({"agent_versions": {"No Kind": 1}}, "bad-name"),
        ({"session": -5}, "bad-name"),
        ({"incarnation": 7}, "fenced"),
        ({"session": 44}, "fenced"),
        ({"agents": tuple(f"worker/y{i}" for i in range(AGENTS_PER_PARTICIPANT_MAX + 1))}, "full"),
        ({"targets": tuple(f"{'y' * 50}-{i}" for i in range(1000))}, "full"),
    ],
)
def test_registration_that_is_not_in_order_is_refused_with_a_code(changes, code):
    world = cluster("a")
    leader = world.leader
    now = Instant(world.now)
    fields = {"cluster": "shop", "participant": "new", "boot_id": "b", "agents": ("worker/new",)}
    leader.machine.step(ParticipantConnected(connection=900), now)
    effects = leader.machine.step(MessageArrived(connection=900, message=Register(**{**fields, **changes})), now)
    for propose in [e for e in effects if isinstance(e, Propose)]:
        text = encode_command(propose.command, at=1)
        result = parse_result(leader.ledger.apply(text))
        effects = leader.machine.step(CommandApplied(id=propose.command.id, result=result), now)
    refused = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, RegisterRefused)]
    assert [r.code for r in refused] == [code]
    assert refused[0].sentence.isprintable()
    assert any(isinstance(e, CloseConnection) for e in effects)


def test_joins_that_wait_hold_back_the_next_epoch_and_are_not_starved():
    world = cluster("a", "b", policy=replace_struct(EVERY_SECOND, interval_ns=20 * MS))
    world.run(2)
    assert world.ledger.state.committed > 5, "one after the other"
    world.add("c")
    world.run(0.5)
    assert "c" in [m.id for m in world.ledger.state.topology.members]
    newest = world.ledger.state.epoch
    world.run(0.5)
    assert world.ledger.state.committed > newest
    assert "c" in world.epoch(world.ledger.state.committed).members


def test_newcomer_that_never_accepts_the_topology_is_lost_and_holds_up_nobody_for_long():
    world = cluster("a", "b", policy=EVERY_SECOND)
    world.run(2.5)
    world.add("c", accepts=False)
    world.run(1)
    stuck = world.ledger.state.epoch
    assert world.leader.machine.waits_for(Instant(world.now)) == "topology 2 is not accepted yet by c"
    world.run(TOPOLOGY_ACCEPT_NS / SECOND + 3)
    assert "did not accept topology 2" in world.ledger.state.participants["c"].cause
    assert world.ledger.state.committed > stuck


def test_newcomer_that_has_accepted_and_reconnects_much_later_keeps_its_session():
    """Only a newcomer that never accepted holds up everybody; later, the lease alone decides."""
    world = cluster("a", "b", policy=EVERY_SECOND)
    c = world.add("c")
    world.run(TOPOLOGY_ACCEPT_NS / SECOND + 5)
    session = world.ledger.state.participants["c"].session
    c.disconnect()
    world.run(LEASE_NS / SECOND / 3)
    assert world.ledger.state.participants["c"].state == "member", world.ledger.state.participants["c"].cause
    c.connect()
    world.run(2)
    assert world.ledger.state.participants["c"].session == session
    assert world.ledger.state.participants["c"].state == "member"


def test_many_joins_at_once_make_few_topology_versions():
    world = cluster(*[f"p{i:02}" for i in range(40)])
    assert len(world.ledger.state.topology.members) == 40
    assert world.ledger.state.topology.version <= 3


def test_resumed_sessions_put_nothing_into_the_log():
    """A change of leader must not flood it with registrations."""
    world = cluster("a", "b", "c")
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    length = len(world.log)
    world.run(until=world.ready)
    assert len(world.log) == length + 1, "only the new leader's own entry"


def test_participant_with_thousands_of_agents_registers_in_parts_that_each_fit():
    world = cluster("a")
    agents = tuple(f"worker/{'y' * 50}-{i:04}" for i in range(3000))
    before = len(world.log)
    world.add("b", agents=agents)
    world.fates["announce"] = "lose"
    world.run(until=lambda: world.participants["b"].session and world.ready())
    parts = [t for t in world.log[before:] if '"kind":"announce"' in t]
    assert len(parts) >= 7
    assert all(len(t) <= COMMAND_BYTES_MAX for t in world.log)
    assert world.ledger.state.participants["b"].agents == agents
    assert world.ledger.state.announced == {}
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")


def test_leader_that_dies_between_two_parts_leaves_an_announcement_that_the_next_one_begins_anew():
    world = cluster("a")
    agents = tuple(f"worker/{'y' * 50}-{i:04}" for i in range(3000))
    world.add("b", agents=agents)
    world.run(until=lambda: bool(world.ledger.state.announced))
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    world.run(until=lambda: world.participants["b"].session and world.ready())
    assert world.ledger.state.participants["b"].agents == agents


def test_start_before_anybody_is_a_member_is_refused():
    world = cluster("a")
    world.kill_participant("a")
    world.run(LEASE_NS / SECOND + 1)
    request = world.trigger()
    assert world.answers[request]["code"] == "no-members"


# --- requests -------------------------------------------------------------------------------------------------------


def test_whoever_does_not_lead_refuses_requests_and_points_to_the_leader():
    ledger = Ledger("shop")
    machine = Leader(ledger, coordinator="c1", client="c1.1")
    now = Instant(5)
    machine.step(LeaderKnown(leader="http://c2:7400"), now)
    machine.step(ParticipantConnected(connection=1), now)
    effects = machine.step(
        MessageArrived(connection=1, message=Register(cluster="shop", participant="a", boot_id="b")), now
    )
    assert [e.message.leader for e in effects if isinstance(e, Send)] == ["http://c2:7400"]
    assert isinstance(effects[-1], CloseConnection)
    for event in (
        EpochTriggered(request="r"),
        AbortRequested(request="r", epoch=1),
        PolicyChanged(request="r", policy=PolicySettings()),
    ):
        (answer,) = machine.step(event, now)
        assert answer.result["code"] == "not-leader"


def test_nothing_is_acted_on_before_the_own_entry_is_applied():
    ledger = Ledger("shop")
    machine = Leader(ledger, coordinator="c1", client="c1.1")
    now = Instant(5)
    (lead,) = [e for e in machine.step(BecameLeader(term=1), now) if isinstance(e, Propose)]
    assert lead.command.kind == "lead"
    machine.step(ParticipantConnected(connection=1), now)
    register = MessageArrived(connection=1, message=Register(cluster="shop", participant="a", boot_id="b"))
    assert not [e for e in machine.step(register, now) if isinstance(e, Propose | Send)]
    assert machine.step(EpochTriggered(request="r"), now)[0].result["code"] == "not-leader"
    result = parse_result(ledger.apply(encode_command(lead.command, at=1)))
    kinds = [
        e.command.kind
        for e in machine.step(CommandApplied(id=lead.command.id, result=result), now)
        if isinstance(e, Propose)
    ]
    assert sorted(kinds) == ["configure", "register"], "the registration waited"


def test_request_on_its_way_when_leadership_is_lost_is_answered_as_unknown():
    world = cluster("a", "b")
    world.fates["start"] = "lose"
    request = world.trigger()
    world.run(0.01)
    world.leader.feed(LostLeadership(leader=""))
    assert world.answers[request]["code"] == "unknown-outcome"


def test_minimum_pause_refuses_a_request_that_comes_too_soon():
    world = cluster("a", "b", policy=replace_struct(MANUAL, pause_ns=SECOND))
    world.trigger()
    world.run(until=lambda: world.participants["a"].ends == {1: "committed"})
    request = world.trigger()
    assert world.answers[request]["code"] == "too-soon"
    world.run(1)
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "committed")


def test_operator_aborts_an_open_epoch_and_it_does_not_count_as_a_failure():
    world = cluster("a", "b")
    world.participants["b"].reports = False
    world.trigger()
    world.run(0.1)
    request = world.abort(1, "deploying")
    world.run(0.1)
    assert world.answers[request]["ok"]
    assert world.epoch(1).abort.cause == "deploying"
    assert world.ledger.state.failures == 0
    assert world.answers[world.abort(1)]["code"] == "ended"
    assert world.answers[world.abort(50)]["code"] == "unknown"


def test_agent_that_asks_for_an_epoch_gets_one_as_soon_as_one_can_start():
    world = cluster("a", "b")
    a, b = world.participants["a"], world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(0.1)
    a.say(EpochRequested(session=a.session, reason="before the big payment"))
    world.run(0.1)
    b.reports = True
    b.say(b.report(1))
    world.run(until=lambda: world.state_of(2) == "committed")
    assert world.epoch(2).reason == "requested: a: before the big payment"


def test_policy_changes_while_it_runs():
    world = cluster("a", "b", policy=EVERY_SECOND)
    world.run(3.5)
    assert 2 <= world.ledger.state.epoch <= 4
    world.set_policy(MANUAL)
    world.run(0.5)
    newest = world.ledger.state.epoch
    world.run(5)
    assert world.ledger.state.epoch == newest
    world.set_policy(replace_struct(EVERY_SECOND, interval_ns=100 * MS))
    world.run(2)
    assert world.ledger.state.epoch >= newest + 10


def test_failures_beyond_the_tolerable_number_slow_the_policy_down_until_one_commits():
    policy = replace_struct(EVERY_SECOND, tolerable_failures=2, interval_ns=100 * MS)
    world = cluster("a", "b", policy=policy)
    b = world.participants["b"]
    b.fails = "no room"
    world.run(10)
    assert world.ledger.state.failures == world.ledger.state.epoch < 12, "100 attempts without slowing down"
    assert world.leader.machine.statistics()["struggling"] == 1
    b.fails = ""
    world.run(until=lambda: world.ledger.state.committed > 0)
    newest = world.ledger.state.epoch
    world.run(1)
    assert world.ledger.state.epoch >= newest + 8
    assert world.leader.machine.statistics()["struggling"] == 0


# --- what should go well --------------------------------------------------------------------------------------------


def test_order_leaves_only_after_the_start_entry_is_applied():
    world = cluster("a", "b")
    world.fates["start"] = "lose"
    world.trigger()
    world.run(0.05)
    assert world.participants["a"].orders == []
    world.run(0.5)
    assert [o.epoch for o in world.participants["a"].orders] == [1]
    order = world.participants["a"].orders[0]
    assert (order.term, order.session, order.incarnation, order.topology) == (1, 1, 1, 1)
    assert 0 < order.deadline_ns <= 2 * SECOND


def test_reports_that_arrive_together_go_into_few_entries_that_each_fit():
    names = [f"p{i:03}" for i in range(150)]
    world = cluster(*names)
    before = len(world.log)
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "committed")
    entries = [t for t in world.log[before:] if '"kind":"reports"' in t]
    assert len(entries) <= 8
    assert all(len(t) <= COMMAND_BYTES_MAX for t in entries)


def test_each_member_hears_of_seal_and_commit_and_a_repeated_report_is_answered_again():
    world = cluster("a", "b")
    world.trigger()
    world.run(1)
    a = world.participants["a"]
    assert a.sealed == [1]
    heard = len(a.received)
    a.say(a.report(1))
    world.run(0.1)
    assert [type(m) for m in a.received[heard:]] == [EpochCommitted]


def test_participant_that_missed_the_end_is_told_when_it_comes_back_and_by_its_heartbeat():
    world = cluster("a", "b")
    b = world.participants["b"]
    world.trigger()
    world.run(until=lambda: world.epoch(1).complete if world.state_of(1) != "none" else False)
    b.disconnect("wifi")
    world.run(until=lambda: world.state_of(1) == "committed")
    assert b.ends == {}
    b.connect()
    world.run(0.1)
    assert b.ends == {1: "committed"}
    b.reports = False
    world.trigger()
    world.run(until=lambda: world.state_of(2) == "aborted")
    world.run(0.1)
    heard = len(b.received)
    b.say(Heartbeat(session=b.session, open_epochs=(1, 2)))
    world.run(0.1)
    assert [type(m) for m in b.received[heard:]] == [EpochCommitted, AbortEpoch]


def test_overlapping_epochs_are_sealed_and_committed_in_order():
    world = cluster("a", "b", policy=replace_struct(MANUAL, max_concurrent=3, deadline_ns=30 * SECOND))
    b = world.participants["b"]
    b.reports = False
    for _ in range(3):
        world.trigger()
        world.run(0.1)
    assert world.answers[world.trigger()]["code"] == "epoch-open"
    b.say(b.report(3))
    b.say(b.report(2))
    world.run(0.5)
    assert [world.state_of(n) for n in (1, 2, 3)] == ["started"] * 3, "they wait for the first"
    b.say(b.report(1))
    world.run(0.5)
    assert [world.state_of(n) for n in (1, 2, 3)] == ["committed"] * 3
    assert [world.epoch(n).previous for n in (1, 2, 3)] == ["", world.epoch(1).manifest, world.epoch(2).manifest]


def test_earlier_epoch_that_aborts_lets_the_later_one_go_on():
    """I32."""
    world = cluster("a", "b", policy=replace_struct(MANUAL, max_concurrent=2))
    b = world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(0.5)
    world.trigger()
    world.run(0.1)
    b.say(b.report(2))
    world.run(3)
    assert [world.state_of(n) for n in (1, 2)] == ["aborted", "committed"]
    assert world.epoch(2).previous == ""
    assert world.ledger.state.ended_through == 2


def test_timer_is_not_armed_in_the_past_and_not_without_end():
    world = cluster("a", "b", policy=EVERY_SECOND)
    world.run(1)
    before = len(world.happened)
    steps = next(world.serial)
    world.run(10)
    assert next(world.serial) - steps < 3000, "no spinning"
    assert len(world.happened) > before


def test_old_connection_of_a_session_is_closed_when_a_new_one_registers():
    world = cluster("a", "b")
    a = world.participants["a"]
    old, at = a.connection, a.at
    a.connection = None  # the participant has given up on it; the coordinator has not noticed
    a.connect()
    world.run(0.2)
    assert a.connection != old
    live = world.leader.machine.live(Instant(world.now))
    assert live.connected(a.session)
    at.feed(Disconnected(connection=old, reason="late news"))
    assert world.leader.machine.live(Instant(world.now)).connected(a.session)


def test_live_view_says_who_was_heard_when_and_who_is_how_far():
    world = cluster("a", "b")
    b = world.participants["b"]
    b.reports = False
    world.trigger()
    world.run(0.25)
    live = world.leader.machine.live(Instant(world.now))
    assert live.phase_of(1, "b") == "channels"
    assert 200 <= live.elapsed_ms(1) <= 250
    assert 0 <= live.heartbeat_age_ms(b.session) <= 510
    assert live.heartbeat_age_ms(99) is None
    assert live.phase_of(9, "b") is None
    assert live.elapsed_ms(9) is None
    assert not live.connected(99)


def test_stale_acceptance_does_not_count():
    world = cluster("a", "b")
    world.participants["a"].accepts = False
    world.add("c")
    world.run(0.5)
    a = world.participants["a"]
    a.say(TopologyAccepted(session=a.session, version=1))
    world.run(0.1)
    assert not world.ready()
    a.say(TopologyAccepted(session=a.session, version=2))
    world.run(0.1)
    assert world.ready()


def test_start_orders_name_the_seal_only_after_all_reports():
    world = cluster("a", "b")
    world.trigger()
    world.run(1)
    kinds = [type(m) for m in world.participants["a"].received]
    assert kinds.index(StartEpoch) < kinds.index(EpochSealed) < kinds.index(EpochCommitted)


# --- rare answers of the driver -------------------------------------------------------------------------------------


def sealed_world():
    """An epoch that is sealed, with a store that fails, so that it stays so."""
    world = cluster("a", "b")
    world.trigger()
    world.run(until=lambda: world.state_of(1) == "sealed")
    world.store_fails = "EIO: input/output error"
    return world


def test_manifest_that_differs_from_the_sealed_one_is_never_written():
    """I9: objects and entries are the same, so the bytes must be; a build that makes others has to stop there."""
    world = sealed_world()
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    world.run(0.05)
    leader = world.leader
    wrong = CutAssembled(epoch=1, previous="", manifest=b"{}", digest=digest(b"{}"))
    now = Instant(world.now)
    effects = leader.machine.step(wrong, now)
    assert not [e for e in effects if isinstance(e, StoreManifest)]
    assert "but b3:" in " ".join(leader.machine.why(1, now)["sentences"])
    world.store_fails = ""
    world.run(until=lambda: world.state_of(1) == "committed")


def test_object_of_a_sealed_epoch_that_rots_is_trouble_and_not_an_abort():
    world = sealed_world()
    world.kill(world.coordinators[0])
    world.elect(world.coordinators[1])
    world.run(0.05)
    now = Instant(world.now)
    rotten = CutRefused(epoch=1, participant="a", cause="expected digest b3:1, found b3:2")
    effects = world.leader.machine.step(rotten, now)
    assert not [e for e in effects if isinstance(e, Propose)]
    assert "Last trouble: expected digest" in " ".join(world.leader.machine.why(1, now)["sentences"])


@pytest.mark.parametrize(
    "event",
    [
        CutAssembled(epoch=9, previous="", manifest=b"", digest=digest(b"")),
        CutRefused(epoch=9, participant="a", cause="x"),
        SnapshotsUnreadable(epoch=9, participant="a", cause="x"),
        ManifestStored(epoch=9, digest=digest(b"")),
        ManifestFailed(epoch=9, cause="x"),
        ManifestRefused(epoch=9, cause="x"),
        ManifestForsaken(epoch=9, digest=digest(b"")),
        CommandApplied(id=("somebody", 1), result={"ok": True}),
        CommandRefused(id=("somebody", 1)),
        CommandAmbiguous(id=("c1.1", 999)),
        Disconnected(connection=999),
        MessageArrived(connection=999, message=Heartbeat(session=1)),
    ],
)
def test_answer_that_nobody_waits_for_any_more_changes_nothing(event):
    world = cluster("a", "b")
    before = world.leader.machine.statistics()
    effects = world.leader.machine.step(event, Instant(world.now))
    assert not [e for e in effects if isinstance(e, Propose | Send | StoreManifest)]
    assert world.leader.machine.statistics() == before


def test_manifest_is_committed_only_with_the_digest_that_is_sealed():
    world = sealed_world()
    world.leader.machine.step(ManifestStored(epoch=1, digest=digest(b"other")), Instant(world.now))
    world.run(1)
    assert world.state_of(1) == "sealed"


def test_repeated_report_of_a_sealed_epoch_is_answered_with_the_seal():
    world = sealed_world()
    world.run(0.1)
    a = world.participants["a"]
    a.say(a.report(1))
    world.run(0.1)
    assert a.sealed == [1, 1]


def test_stranger_that_speaks_for_a_dead_session_is_fenced():
    world = cluster("a", "b")
    world.kill_participant("b")
    world.run(LEASE_NS / SECOND + 1)
    now = Instant(world.now)
    machine = world.leader.machine
    machine.step(ParticipantConnected(connection=700), now)
    effects = machine.step(MessageArrived(connection=700, message=Leave(session=2)), now)
    assert [type(e.message) for e in effects if isinstance(e, Send)] == [Fenced]
    assert [e.reason for e in effects if isinstance(e, CloseConnection)] == ["fenced"]


def test_failure_told_of_an_epoch_that_has_ended_or_is_sealed_changes_nothing():
    world = sealed_world()
    a = world.participants["a"]
    for epoch in (1, 8):
        a.say(EpochFailed(session=a.session, incarnation=1, epoch=epoch, phase="encode", cause="too late"))
    world.run(0.2)
    assert world.state_of(1) == "sealed"
    assert [r.epoch for r in a.refusals] == [8]


def test_second_request_of_one_kind_waits_for_the_first_to_be_settled():
    world = cluster("a", "b")
    world.participants["b"].reports = False
    world.trigger()
    world.run(0.1)
    first, second = world.abort(1), world.abort(1)
    assert world.answers[second]["code"] == "busy"
    one, other = world.set_policy(MANUAL), world.set_policy(EVERY_SECOND)
    assert world.answers[other]["code"] == "busy"
    world.run(0.1)
    assert world.answers[first]["ok"]
    assert world.answers[one]["ok"]


def test_leader_deposed_without_being_told_answers_who_waits():
    world = cluster("a", "b")
    old, new = world.coordinators[:2]
    world.term += 1
    world.leader = new
    new.apply_through(len(world.log))
    new.feed(BecameLeader(term=world.term))
    world.run(0.0005)
    world.requests = iter([71])
    world.leader = old
    request = world.trigger()
    world.leader = new
    world.run(1)
    assert world.answers[request]["code"] in ("not-leader", "unknown-outcome")
    assert world.ledger.state.epoch == 0
