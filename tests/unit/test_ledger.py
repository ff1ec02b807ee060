"""The replicated state machine: what it refuses, what it decides, and that it is the same everywhere."""

import json
import time
from random import Random

import pytest

from coordinator.ledger import (
    AbortCommand,
    AnnounceCommand,
    CommitCommand,
    ConfigureCommand,
    FoundCommand,
    LeadCommand,
    LeaveCommand,
    Ledger,
    MarkLostCommand,
    RegisterCommand,
    Report,
    ReportsCommand,
    RollbackCommand,
    SealCommand,
    StartCommand,
    TopologyCommand,
    WaitingNote,
    encode_command,
    parse_result,
)
from coordinator.ledger.commands import command_bytes, sentence, word
from coordinator.policy import PolicySettings
from protocol.digests import digest
from protocol.errors import LimitExceeded, RecoveryError
from protocol.limits import (
    CLIENTS_REMEMBERED_MAX,
    COMMAND_BYTES_MAX,
    EPOCH_HISTORY_MAX,
    EPOCH_MEMBER_ROWS_MAX,
    LEDGER_RESULTS_REMEMBERED_MAX,
)

SNAPSHOT = digest(b"snapshot")
MANIFEST = digest(b"manifest")
OTHER = digest(b"other")


class Log:
    """Commands of one client, put straight into a ledger."""

    def __init__(self, ledger: Ledger | None = None, *, client: str = "c1.1", term: int = 1) -> None:
        self.ledger = ledger or Ledger("shop")
        self.client = client
        self.term = term
        self.number = 0
        self.at = 1_000
        self.texts: list[str] = []
        if ledger is None:
            self.do(LeadCommand, coordinator="c1")

    def do(self, kind, **fields):
        self.number += 1
        self.at += 1_000
        fields = {"id": (self.client, self.number), "term": self.term, **fields}
        text = encode_command(kind(**fields), at=self.at)
        self.texts.append(text)
        return parse_result(self.ledger.apply(text))

    def register(self, name, boot="boot-1", **fields):
        return self.do(RegisterCommand, participant=name, boot_id=boot, **{"agents": (f"w/{name}",), **fields})

    def members(self, *names):
        for name in names:
            self.register(name)
        return self.topology()

    def topology(self):
        return self.do(TopologyCommand, version=self.ledger.state.topology.version + 1)

    def start(self, **fields):
        version = max(1, self.ledger.state.topology.version)
        return self.do(StartCommand, **{"topology": version, "reason": "manual", "deadline_ns": 10, **fields})

    def report(self, epoch, name, **fields):
        session = self.ledger.state.participants[name].session
        report = {"epoch": epoch, "participant": name, "session": session, "incarnation": 1, "snapshot": SNAPSHOT}
        (outcome,) = self.do(ReportsCommand, reports=(Report(**{**report, **fields}),))["outcomes"]
        return outcome["outcome"]

    def seal(self, epoch, manifest=MANIFEST, previous=""):
        return self.do(SealCommand, epoch=epoch, manifest=manifest, previous=previous)

    def commit(self, epoch, manifest=MANIFEST):
        return self.do(CommitCommand, epoch=epoch, manifest=manifest)

    def abort(self, epoch, phase="record", **fields):
        return self.do(AbortCommand, epoch=epoch, phase=phase, cause="because", **fields)


def cluster(*names, recovery="off", **policy):
    log = Log()
    log.do(ConfigureCommand, policy=PolicySettings(recovery=recovery, **policy))
    log.members(*names)
    return log


def sealed(*names):
    log = cluster(*names)
    log.start()
    for name in names:
        log.report(1, name)
    assert log.seal(1)["ok"]
    return log


# --- input that is not a command ------------------------------------------------------------------------------------

GOOD = encode_command(LeadCommand(id=("c1.1", 1), term=1, coordinator="c1"), at=1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "{" * 20_000,
        "[" * 20_000,
        "\ud800",
        "\x00",
        GOOD[:-1],
        GOOD + GOOD,
        GOOD.replace('"lead"', '"leap"'),
        GOOD.replace('"lead"', "7"),
        GOOD.replace('"term":1', '"term":-1'),
        GOOD.replace('"term":1', '"term":1e400'),
        GOOD.replace('"term":1', '"term":1.5'),
        GOOD.replace('"term":1', f'"term":{"9" * 5000}'),
        GOOD.replace('"term":1', '"term":1,"surplus":1'),
        GOOD.replace("c1.1", "../../x"),
        GOOD.replace('["c1.1",1]', '["c1.1"]'),
        GOOD.replace('["c1.1",1]', '["c1.1",0]'),
        GOOD.replace('"coordinator":"c1"', '"coordinator":"\\ud800"'),
        GOOD.replace('"coordinator":"c1"', '"coordinator":"C1\\n"'),
        GOOD + " " * COMMAND_BYTES_MAX,
        b"bytes",
        None,
        7,
    ],
)
def test_malformed_command_gives_an_error_result_and_changes_nothing(text):
    ledger = Ledger("shop")
    before = ledger.dump()
    result = parse_result(ledger.apply(text))
    assert (result["ok"], result["code"]) == (False, "malformed")
    assert ledger.dump() == before


def test_command_of_a_later_version_is_refused_as_such_known_kind_or_not():
    ledger = Ledger("shop")
    for text in (GOOD.replace('"v":1', '"v":2'), '{"v":3,"kind":"rollback","to":7}'):
        assert parse_result(ledger.apply(text))["code"] == "unsupported-version"
    assert ledger.state.term == 0


def test_command_that_is_too_large_is_not_even_encoded():
    command = RegisterCommand(id=("c", 1), term=1, participant="a", boot_id="b", agents=("k/n" * 20,) * 1000)
    assert command_bytes(command) > COMMAND_BYTES_MAX
    with pytest.raises(LimitExceeded, match="ledger command 'register' of"):
        encode_command(command, at=1)


def test_largest_abort_fits_an_entry():
    note = WaitingNote(participant="p" * 63, phase="channels", open_channels=("q" * 63,) * 8, open_count=2**60)
    command = AbortCommand(
        id=("c" * 80, 2**60),
        term=2**60,
        epoch=2**60,
        participant="p" * 63,
        phase="\U0001f600" * 64,
        cause="\U0001f600" * 400,
        waiting=(note,) * 16,
    )
    assert len(encode_command(command, at=2**62)) <= COMMAND_BYTES_MAX


def test_words_and_sentences_are_printable_and_bounded():
    assert sentence("a\x1b[2Jb\u202ec\n") == "a [2Jb c "
    assert len(sentence("x" * 1000)) == 400
    assert len(word("x" * 1000)) == 64


# --- ids ------------------------------------------------------------------------------------------------------------


def test_command_that_comes_again_is_applied_once_and_answered_with_its_first_result():
    log = cluster("a")
    first = log.start()
    text = log.texts[-1]
    before = log.ledger.dump()
    assert parse_result(log.ledger.apply(text)) == first
    # Another attempt of the same proposal may carry another time.
    again = json.loads(text)
    again["at"] += 5_000
    assert parse_result(log.ledger.apply(json.dumps(again))) == first
    assert log.ledger.dump() == before
    assert log.ledger.state.epoch == 1


def test_refusal_is_remembered_too():
    log = cluster("a")
    log.start()
    refused = log.start()
    text = log.texts[-1]
    log.abort(1)
    assert parse_result(log.ledger.apply(text)) == refused, "though it would succeed now"


def test_answered_command_that_was_forgotten_is_not_applied_again():
    log = cluster("a")
    log.start()
    text = log.texts[-1]
    log.abort(1, done=log.number)
    assert parse_result(log.ledger.apply(text))["code"] == "stale-id"
    assert log.ledger.state.epoch == 1


def test_later_command_may_overtake_an_earlier_one():
    log = cluster("a")
    log.number += 5
    log.start()
    log.number -= 6
    assert log.abort(1)["ok"]


def test_memory_of_clients_and_results_is_bounded():
    log = cluster("a")
    for _ in range(LEDGER_RESULTS_REMEMBERED_MAX + 50):
        log.do(LeaveCommand, session=99)
    (results,) = [c["results"] for name, c in json.loads(log.ledger.dump())["clients"] if name == "c1.1"]
    assert len(results) == LEDGER_RESULTS_REMEMBERED_MAX
    for i in range(CLIENTS_REMEMBERED_MAX + 10):
        Log(log.ledger, client=f"x{i}").do(LeaveCommand, session=99)
        if i == 100:
            log.do(LeaveCommand, session=99)  # used again: no longer the oldest
    names = [name for name, _ in json.loads(log.ledger.dump())["clients"]]
    assert len(names) == CLIENTS_REMEMBERED_MAX
    assert "c1.1" in names
    assert "x0" not in names


# --- terms ----------------------------------------------------------------------------------------------------------


def test_nothing_is_applied_before_somebody_leads():
    log = Log(Ledger("shop"), term=0)
    assert log.register("a")["code"] == "stale-term"
    assert log.ledger.state.participants == {}


def test_a_command_that_came_before_its_term_began_has_no_effect_when_it_comes_again():
    ledger = Ledger("shop")
    early = encode_command(RegisterCommand(id=("c1.x", 1), term=2, participant="a", boot_id="b"), at=1)
    refused = ledger.apply(early)
    assert parse_result(refused)["code"] == "stale-term"
    assert parse_result(ledger.apply(encode_command(LeadCommand(id=("c1.x", 2), term=2, coordinator="c1"), at=1)))["ok"]
    assert ledger.apply(early) == refused
    assert ledger.state.participants == {}


def test_every_command_of_an_earlier_term_is_refused_and_leaves_no_trace():
    log = cluster("a")
    log.start()
    Log(log.ledger, client="c2.1", term=2).do(LeadCommand, coordinator="c2")
    before = log.ledger.dump()
    for result in (
        log.do(LeadCommand, coordinator="c1"),
        log.do(ConfigureCommand, policy=PolicySettings()),
        log.register("b"),
        log.do(MarkLostCommand, session=1, cause="x"),
        log.do(LeaveCommand, session=1),
        log.topology(),
        log.start(),
        log.do(
            ReportsCommand, reports=(Report(epoch=1, participant="a", session=1, incarnation=1, snapshot=SNAPSHOT),)
        ),
        log.abort(1),
        log.seal(1),
        log.commit(1),
    ):
        assert (result["code"], result["term"]) == ("stale-term", 2)
    assert log.ledger.dump() == before


def test_two_coordinators_cannot_lead_in_one_term():
    log = Log()
    other = Log(log.ledger, client="c2.1", term=1)
    assert other.do(LeadCommand, coordinator="c2")["code"] == "stale-term"
    assert log.ledger.state.leader == "c1"


def test_new_leader_is_recorded_with_each_open_epoch():
    log = cluster("a")
    log.start()
    new = Log(log.ledger, client="c2.1", term=7)
    new.do(LeadCommand, coordinator="c2")
    assert log.ledger.epoch(1).terms == (1, 7)


# --- participants ---------------------------------------------------------------------------------------------------


def test_same_boot_id_keeps_its_session_and_may_change_what_it_offers():
    log = cluster("a")
    result = log.register("a", agents=("w/a", "w/z"), address="ws://new")
    assert (result["session"], result["resumed"]) == (1, True)
    assert log.ledger.host_of("w/z") == "a"
    assert log.ledger.topology_is_stale


def test_other_boot_id_of_a_live_session_is_refused():
    log = cluster("a")
    before = log.ledger.state.session
    assert log.register("a", boot="boot-2")["code"] == "id-taken"
    assert log.ledger.state.session == before


@pytest.mark.parametrize("state", ["joining", "member", "leaving"])
def test_agent_of_a_live_participant_cannot_be_taken(state):
    log = Log()
    log.register("a")
    if state != "joining":
        log.topology()
    if state == "leaving":
        log.do(LeaveCommand, session=1)
    assert log.ledger.state.participants["a"].state == state
    refused = log.register("b", agents=("w/b", "w/a"))
    assert (refused["code"], refused["agent"], refused["host"]) == ("agent-taken", "w/a", "a")
    assert "b" not in log.ledger.state.participants, "all or nothing"


def test_lost_participant_returns_with_a_new_process_only():
    log = cluster("a")
    log.do(MarkLostCommand, session=1, cause="silent")
    assert log.register("a")["code"] == "fenced", "the same process: its session is over"
    assert log.register("a", boot="boot-2", session=1)["code"] == "fenced", "a claim on a session that ended"
    assert log.register("a", boot="boot-2")["session"] == 2
    assert log.do(MarkLostCommand, session=1, cause="again")["code"] == "ended"


def test_participant_of_a_later_incarnation_is_not_of_this_cluster():
    assert Log().register("a", incarnation=2)["code"] == "fenced"


def test_announcement_is_used_by_its_own_process_only_and_must_be_whole():
    log = Log()
    parts = {"participant": "a", "boot_id": "boot-1"}
    log.do(AnnounceCommand, **parts, offset=0, agents=("w/1", "w/2"))
    assert log.do(AnnounceCommand, **parts, offset=1, agents=("w/3",))["code"] == "not-announced"
    assert log.do(AnnounceCommand, **{**parts, "boot_id": "x"}, offset=2, agents=("w/3",))["code"] == "not-announced"
    assert log.do(AnnounceCommand, **parts, offset=2, agents=("w/3",))["announced"] == 3
    assert log.register("a", announced=2)["code"] == "not-announced"
    assert log.register("a", boot="x", announced=3)["code"] == "not-announced"
    assert log.register("a", announced=3)["ok"]
    assert log.ledger.state.participants["a"].agents == ("w/1", "w/2", "w/3", "w/a")
    assert log.register("b", announced=3)["code"] == "not-announced", "used up"


def test_announcements_are_bounded_in_number_and_length(monkeypatch):
    monkeypatch.setattr("coordinator.ledger.ledger.ANNOUNCED_MAX", 2)
    monkeypatch.setattr("coordinator.ledger.ledger.AGENTS_PER_PARTICIPANT_MAX", 3)
    log = Log()
    for name in ("c", "b", "a"):
        log.do(AnnounceCommand, participant=name, boot_id="x", offset=0, agents=("w/1", "w/2"))
    assert sorted(log.ledger.state.announced) == ["a", "b"]
    too_many = log.do(AnnounceCommand, participant="a", boot_id="x", offset=2, agents=("w/3", "w/4"))
    assert too_many["code"] == "full"


def test_agents_of_a_lost_participant_are_free():
    log = cluster("a")
    log.do(MarkLostCommand, session=1, cause="silent")
    assert log.register("b", agents=("w/a",))["ok"]
    assert log.ledger.host_of("w/a") == "b"


def test_participant_that_leaves_before_it_was_a_member_has_left_at_once():
    log = Log()
    log.register("a")
    assert log.do(LeaveCommand, session=1)["state"] == "left"
    assert log.ledger.host_of("w/a") is None


def test_session_that_never_was_cannot_leave():
    assert Log().do(LeaveCommand, session=5)["code"] == "unknown"


def test_ended_participants_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr("coordinator.ledger.ledger.PARTICIPANTS_ENDED_MAX", 2)
    log = cluster("a", "b", "c")
    for session in (2, 1, 3):
        log.do(MarkLostCommand, session=session, cause="x")
    assert sorted(log.ledger.state.participants) == ["b", "c"]
    assert log.do(LeaveCommand, session=1)["code"] == "ended"


def test_full_cluster_refuses_newcomers_and_not_those_who_resume(monkeypatch):
    monkeypatch.setattr("coordinator.ledger.ledger.PARTICIPANTS_MAX", 2)
    log = cluster("a", "b")
    assert log.register("c")["code"] == "full"
    assert log.register("a")["resumed"]
    log.do(MarkLostCommand, session=1, cause="x")
    assert log.register("c")["ok"]


# --- topology -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["started", "sealed"])
def test_topology_never_changes_while_an_epoch_is_open(state):
    log = sealed("a") if state == "sealed" else cluster("a")
    if state == "started":
        log.start()
    log.register("b")
    assert log.topology()["code"] == "epoch-open"


def test_topology_change_proposed_twice_is_one_change():
    log = cluster("a")
    log.register("b")
    version = log.ledger.state.topology.version + 1
    assert log.do(TopologyCommand, version=version)["ok"]
    assert log.do(TopologyCommand, version=version)["code"] == "topology-changed"
    assert log.topology()["code"] == "topology-unchanged"


def test_leaver_is_out_and_joiner_is_in_with_the_next_topology():
    log = cluster("b", "a")
    log.do(LeaveCommand, session=1)
    log.register("c")
    result = log.topology()
    assert result["left"] == [1]
    assert [m.id for m in log.ledger.state.topology.members] == ["a", "c"]
    assert log.ledger.state.participants["b"].state == "left"


def test_command_that_changes_the_topology_is_small_for_any_number_of_members():
    log = cluster(*[f"p{i}" for i in range(500)])
    assert max(len(t) for t in log.texts) < 400
    assert len(log.ledger.state.topology.members) == 500


# --- epochs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["join", "leave", "lost"])
def test_epoch_does_not_start_while_a_change_of_topology_waits(change):
    log = cluster("a", "b")
    match change:
        case "join":
            log.register("c")
        case "leave":
            log.do(LeaveCommand, session=1)
        case "lost":
            log.do(MarkLostCommand, session=1, cause="x")
    assert log.start()["code"] == "topology-stale"
    log.topology()
    assert log.start()["ok"]


def test_epoch_does_not_start_for_another_topology_or_without_members():
    log = cluster("a")
    assert log.start(topology=2)["code"] == "topology-changed"
    log.do(LeaveCommand, session=1)
    log.topology()
    assert log.start()["code"] == "no-members"


def test_epochs_beyond_the_allowed_number_are_refused_and_no_number_is_used_up():
    log = cluster("a", max_concurrent=2)
    assert [log.start()["epoch"] for _ in range(2)] == [1, 2]
    refused = log.start()
    assert (refused["code"], refused["epoch"]) == ("epoch-open", 1)
    log.abort(1)
    assert log.start()["epoch"] == 3


def test_members_and_sessions_are_fixed_at_the_start():
    log = cluster("a", "b")
    log.start()
    log.register("c")
    log.do(LeaveCommand, session=1)
    assert {n: m.session for n, m in log.ledger.epoch(1).members.items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"session": 9}, "foreign"),
        ({"session": 2}, "foreign"),
        ({"incarnation": 2}, "foreign"),
        ({"participant": "c"}, "foreign"),
    ],
)
def test_report_that_is_not_of_this_epoch_is_an_outcome_and_counts_nothing(fields, outcome):
    log = cluster("a", "b")
    log.start()
    assert log.report(1, "a", **fields) == outcome
    assert log.report(2, "a") == "unknown"
    assert log.ledger.epoch(1).reported_count == 0


def test_repeated_report_is_a_duplicate_and_another_digest_a_conflict():
    log = cluster("a", "b")
    log.start()
    assert log.report(1, "a", state_bytes=5) == "accepted"
    assert log.report(1, "a", state_bytes=5) == "duplicate"
    assert log.report(1, "a", snapshot=OTHER) == "conflict"
    record = log.ledger.epoch(1)
    assert (record.reported_count, record.state_bytes, record.members["a"].snapshot) == (1, 5, SNAPSHOT)


def test_report_after_the_end_is_late():
    log = cluster("a", "b")
    log.start()
    log.report(1, "a")
    log.abort(1)
    assert log.report(1, "b") == "late"
    assert log.report(1, "a") == "late", "also one that was taken: its data is of no use any more"
    assert log.ledger.epoch(1).state == "aborted"


def test_repeated_report_of_a_sealed_or_committed_epoch_is_a_duplicate():
    log = sealed("a")
    assert log.report(1, "a") == "duplicate"
    log.commit(1)
    assert log.report(1, "a") == "duplicate"


def test_one_bad_report_in_a_batch_does_not_touch_the_others():
    log = cluster("a", "b")
    log.start()
    good = {"epoch": 1, "incarnation": 1, "snapshot": SNAPSHOT}
    result = log.do(
        ReportsCommand,
        reports=(
            Report(participant="a", session=7, **good),
            Report(participant="b", session=2, **good),
            Report(participant="b", session=2, **good),
        ),
    )
    assert [o["outcome"] for o in result["outcomes"]] == ["foreign", "accepted", "duplicate"]


def test_seal_needs_every_report():
    log = cluster("a", "b")
    log.start()
    log.report(1, "a")
    refused = log.seal(1)
    assert refused["code"] == "incomplete"
    assert "1 of 2 reports" in refused["sentence"]


def test_sealed_epoch_cannot_be_aborted_by_anybody():
    log = sealed("a", "b")
    assert log.abort(1)["code"] == "sealed"
    assert log.do(MarkLostCommand, session=1, cause="gone")["aborted"] == []
    assert log.ledger.epoch(1).state == "sealed"
    assert log.commit(1)["outcome"] == "committed"
    assert log.abort(1)["code"] == "sealed"


def test_second_seal_with_another_manifest_is_refused():
    log = sealed("a")
    assert log.seal(1)["outcome"] == "already"
    assert log.seal(1, OTHER)["code"] == "sealed"
    assert log.commit(1, OTHER)["code"] == "sealed"
    assert log.ledger.epoch(1).manifest == MANIFEST


def test_commit_needs_the_seal_and_happens_once():
    log = cluster("a")
    log.start()
    log.report(1, "a")
    assert log.commit(1)["code"] == "not-sealed"
    log.seal(1)
    assert log.commit(1)["outcome"] == "committed"
    assert log.commit(1)["outcome"] == "already"
    assert log.ledger.state.committed_count == 1


def test_aborted_epoch_is_neither_sealed_nor_committed_nor_aborted_again():
    log = cluster("a")
    log.start()
    log.report(1, "a")
    assert log.abort(1)["ok"]
    assert log.seal(1)["code"] == "ended"
    assert log.commit(1)["code"] == "not-sealed"
    assert log.abort(1)["code"] == "ended"
    assert log.ledger.state.aborted_count == 1


def test_epoch_that_never_was_is_unknown():
    log = cluster("a")
    assert [log.abort(4)["code"], log.seal(4)["code"], log.commit(4)["code"]] == ["unknown"] * 3


def test_lost_member_aborts_its_unsealed_epochs_in_the_same_entry():
    log = cluster("a", "b", max_concurrent=3)
    log.start()
    log.start()
    log.report(1, "a")
    result = log.do(MarkLostCommand, session=1, cause="silent for 3.1 s")
    assert result["aborted"] == [1, 2]
    for number in (1, 2):
        abort = log.ledger.epoch(number).abort
        assert (abort.participant, abort.phase, abort.cause) == ("a", "lost", "silent for 3.1 s")
    assert log.ledger.state.failures == 0, "the next topology has solved that one"


def test_epochs_are_sealed_and_committed_in_order():
    log = cluster("a", max_concurrent=3)
    for _ in range(3):
        log.start()
    for epoch in (1, 2, 3):
        log.report(epoch, "a")
    assert (log.seal(2)["code"], log.seal(2)["epoch"]) == ("earlier-open", 1)
    log.seal(1)
    assert (log.seal(3, OTHER, MANIFEST)["code"], log.seal(3)["epoch"]) == ("earlier-open", 2)
    assert log.seal(2, OTHER)["code"] == "chain-moved"
    assert log.seal(2, OTHER, MANIFEST)["ok"]
    assert log.commit(2, OTHER)["code"] == "earlier-open"
    assert log.commit(1)["ok"]
    assert log.commit(2, OTHER)["ok"]
    assert log.ledger.state.ended_through == 2
    assert log.ledger.state.committed == 2


def test_low_water_mark_stands_below_the_oldest_open_epoch():
    log = cluster("a", max_concurrent=3)
    for _ in range(3):
        log.start()
    log.abort(2)
    assert log.ledger.state.ended_through == 0
    log.abort(1)
    assert log.ledger.state.ended_through == 2
    log.abort(3)
    assert log.ledger.state.ended_through == 3


def test_wall_clock_that_steps_back_makes_no_negative_duration():
    log = cluster("a")
    log.at += 10_000_000
    log.start()
    log.report(1, "a", waited_ns=77)
    log.at = 5
    log.abort(1)
    assert log.ledger.epoch(1).took_ns == 77


def test_history_is_bounded_and_keeps_the_newest_committed_epoch():
    log = sealed("a")
    log.commit(1)
    for _ in range(EPOCH_HISTORY_MAX + 20):
        log.start()
        log.abort(log.ledger.state.epoch)
    state = log.ledger.state
    assert len(state.epochs) == EPOCH_HISTORY_MAX + 1
    assert state.epochs[1].state == "committed"
    assert state.epochs[1].members["a"].snapshot == SNAPSHOT
    assert (state.committed_count, state.aborted_count) == (1, EPOCH_HISTORY_MAX + 20)
    assert log.abort(2)["code"] == "ended"
    assert log.report(2, "a") == "late"


def test_rows_of_old_epochs_are_dropped_before_the_epochs_are(monkeypatch):
    monkeypatch.setattr("coordinator.ledger.ledger.EPOCH_MEMBER_ROWS_MAX", 7)
    log = cluster("a", "b", "c")
    for number in (1, 2, 3):
        log.start()
        log.report(number, "a", state_bytes=9)
        log.abort(number)
    assert [log.ledger.epoch(n).trimmed for n in (1, 2, 3)] == [True, False, False]
    assert log.ledger.epoch(1).members == {}
    assert (log.ledger.epoch(1).members_count, log.ledger.epoch(1).state_bytes) == (3, 9)
    assert log.report(1, "a") == "late"


def test_failures_in_a_row_are_counted_and_a_commit_or_a_new_policy_forgets_them():
    log = cluster("a")
    for number, phase in ((1, "record"), (2, "upload"), (3, "operator"), (4, "assemble")):
        log.start()
        log.abort(number, phase)
    assert log.ledger.state.failures == 3, "an operator's abort says nothing of the next one"
    log.do(ConfigureCommand, policy=PolicySettings())
    assert log.ledger.state.failures == 0
    log.start()
    log.abort(5)
    log.start()
    log.report(6, "a")
    log.seal(6)
    log.commit(6)
    assert log.ledger.state.failures == 0


# --- snapshots ------------------------------------------------------------------------------------------------------


def everything():
    log = sealed("a", "b")
    log.commit(1)
    log.do(LeaveCommand, session=2)
    log.register("c")
    log.topology()
    log.start()
    log.report(2, "c", timings={"upload": 3, "encode": 1})
    log.do(MarkLostCommand, session=1, cause="silent")
    log.topology()
    log.start()
    return log


def test_loaded_replica_is_equal_and_stays_equal():
    log = everything()
    copy = Ledger("shop")
    copy.load(log.ledger.dump())
    assert copy.dump() == log.ledger.dump()
    assert copy.digest() == log.ledger.digest()
    assert [e.epoch for e in copy.open_epochs()] == [3]
    before = len(log.texts)
    log.report(3, "c")
    log.seal(3, OTHER, MANIFEST)
    log.register("a", boot="boot-9", agents=("w/c",))
    log.register("a", boot="boot-9", agents=("w/q",))
    log.start()
    for text in log.texts[before:]:
        copy.apply(text)
    copy.apply(log.texts[3])
    assert copy.dump() == log.ledger.dump()


def test_dump_is_ascii_and_the_same_each_time():
    log = everything()
    assert log.ledger.dump().isascii()
    assert log.ledger.dump() == log.ledger.dump()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: "",
        lambda d: d[:-2],
        lambda d: "[]",
        lambda d: d.replace('"cluster":"shop"', '"cluster":"other"'),
        lambda d: d.replace('"format":1', '"format":3'),
        lambda d: d.replace('"epoch":3', '"epoch":"x"', 1),
        lambda d: "\ud800",
    ],
)
def test_snapshot_that_is_not_one_is_refused_and_changes_nothing(spoil):
    dump = everything().ledger.dump()
    ledger = Ledger("shop")
    before = ledger.dump()
    with pytest.raises(RecoveryError):
        ledger.load(spoil(dump))
    assert ledger.dump() == before


def test_dump_of_a_full_history_takes_less_time_than_an_election_timeout():
    """It is taken on the thread that sends Raft's signs of life: 0.5 s here deposed the leader at each compaction."""
    log = Log()
    log.members(*(f"participant-{i:03}" for i in range(200)))
    for _ in range(EPOCH_MEMBER_ROWS_MAX // 200):
        number = log.start()["epoch"]
        record = log.ledger.state.epochs[number]
        for member in record.members.values():
            member.snapshot, member.timings = SNAPSHOT, dict.fromkeys(("channels", "encode", "record", "upload"), 10**8)
        log.do(AbortCommand, epoch=number, phase="operator", cause="ä\u2028\U0001f600" * 100)
    took = []
    for _ in range(3):
        begun = time.thread_time()
        dump = log.ledger.dump()
        took.append(time.thread_time() - begun)
    assert len(dump) > 5_000_000
    assert dump.isascii()
    assert min(took) < 0.2, took
    copy = Ledger("shop")
    copy.load(dump)
    assert copy.state == log.ledger.state


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_of_a_waiting_topology_without_comparing_all_is_what_the_comparison_says(seed):
    """Joins, losses, leaves, changed agents and returns in any order, over `load` as well."""
    random = Random(seed)
    log = Log()
    for step in range(200):
        name = random.choice("abcd")
        known = log.ledger.state.participants.get(name)
        match random.choice(("register", "register", "again", "lost", "leave", "topology", "load")):
            case "register":
                log.register(name, boot=f"boot-{step}")
            case "again" if known is not None:
                log.register(name, boot=known.boot_id, agents=(f"w/{name}{random.randrange(2)}",))
            case "lost" if known is not None:
                log.do(MarkLostCommand, session=known.session, cause="silent")
            case "leave" if known is not None:
                log.do(LeaveCommand, session=known.session)
            case "topology":
                log.topology()
            case "load":
                log.ledger.load(log.ledger.dump())
        ledger = log.ledger
        assert ledger.topology_is_stale == (ledger.wanted_members() != ledger.state.topology.members), step


def test_each_of_many_that_join_costs_the_same_however_many_there_are():
    log = Log()
    for number in range(2_000):
        log.register(f"p{number}")
        assert log.ledger.topology_is_stale
    assert log.ledger._wanted is None, "no comparison of all was made"
    log.topology()
    for number in range(1, 1_000):
        log.do(MarkLostCommand, session=number, cause="silent")
        assert log.ledger.topology_is_stale
    assert log.ledger._wanted is None


# --- forks ----------------------------------------------------------------------------------------------------------


def found(log, **fields):
    given = {
        "epoch": 7,
        "manifest": MANIFEST,
        "incarnation": 3,
        "session": 12,
        "members": 2,
        "started_at": 5,
        "origin_cluster": "original",
        "origin_manifest": OTHER,
        "dry_run": True,
    }
    return log.do(FoundCommand, **{**given, **fields})


def test_a_fork_begins_from_an_epoch_that_it_did_not_take_and_goes_on_from_its_numbers():
    log = Log()
    assert found(log)["outcome"] == "founded"
    state = log.ledger.state
    assert (state.incarnation, state.base, state.epoch, state.committed, state.session) == (3, 7, 7, 7, 12)
    assert (state.origin.cluster, state.origin.dry_run) == ("original", True)
    assert log.ledger.recovery_epoch == 7
    assert not log.ledger.incarnation_begun, "nothing runs before it was taken to the epoch"
    log.register("p1")
    assert state.participants["p1"].session == 13
    begun = log.do(RollbackCommand, incarnation=4, epoch=7, membership=log.ledger.state.membership, cause="a fork")
    assert (begun["outcome"], begun["epoch"]) == ("begun", 7)
    assert log.ledger.state.rollbacks[4].manifest == MANIFEST


def test_a_fork_is_founded_once_and_never_where_something_has_happened():
    log = Log()
    found(log)
    before = log.ledger.digest()
    assert found(log, epoch=9)["outcome"] == "duplicate"
    assert log.ledger.state.origin.epoch == 7
    assert before != log.ledger.digest(), "the command is remembered"
    other = cluster("p1", "p2")
    assert found(other)["code"] == "not-new"
    assert other.ledger.state.origin is None


def test_a_fork_comes_out_of_a_snapshot_as_it_went_in():
    log = Log()
    found(log)
    log.register("p1")
    copy = Ledger("shop")
    copy.load(log.ledger.dump())
    assert copy.digest() == log.ledger.digest()
    assert copy.state.origin == log.ledger.state.origin
