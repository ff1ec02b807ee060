"""What an epoch waited for, in words."""

import pytest

from coordinator.blame import judge_deadline, why
from coordinator.ledger import EpochRecord, MemberRecord
from coordinator.ledger.records import AbortRecord
from coordinator.progress import begin_notes
from protocol.ids import Instant
from tests.coordinator_world import MANUAL, MS, SECOND, cluster, replace_struct


def record(*names: str, **fields) -> EpochRecord:
    return EpochRecord(
        epoch=7,
        started_at=0,
        deadline_ns=2 * SECOND,
        terms=(1,),
        incarnation=1,
        topology=1,
        members={name: MemberRecord(session=i + 1) for i, name in enumerate(names)},
        members_count=len(names),
        **fields,
    )


def judge(told: dict[str, tuple[str, tuple[str, ...]]], reported: tuple[str, ...] = ()):
    epoch = record("a", "b", "c", "d")
    for name in reported:
        epoch.members[name].snapshot = "b3:x"
    notes = begin_notes(epoch, Instant(0))
    for name, (phase, open_channels) in told.items():
        notes.told(name, phase, open_channels, Instant(SECOND))
    return judge_deadline(epoch, notes, heard_at=lambda _: Instant(SECOND), now=Instant(2 * SECOND))


def test_participant_that_has_not_recorded_is_to_blame_before_those_that_wait_for_its_marker():
    verdict = judge({"a": ("channels", ("c",)), "b": ("channels", ("c",)), "d": ("channels", ("c",))})
    assert (verdict.participant, verdict.phase) == ("c", "record")
    assert verdict.cause == (
        "c never said that it recorded its state; last heard 1.00 s ago; 4 of 4 members had not reported"
    )
    assert [(n.participant, n.phase, n.open_channels) for n in verdict.waiting] == [
        ("c", "record", ()),
        ("a", "channels", ("c",)),
        ("b", "channels", ("c",)),
        ("d", "channels", ("c",)),
    ]


def test_open_channels_are_named_when_everybody_has_recorded():
    verdict = judge({"b": ("channels", ("d", "a"))}, reported=("a", "c", "d"))
    assert (verdict.participant, verdict.phase) == ("b", "channels")
    assert "b was still waiting for markers on its channels (a->b, d->b)" in verdict.cause


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("encode", "to encode its state"),
        ("upload", "to write its state to the store"),
        ("report", "to report"),
    ],
)
def test_phase_is_the_one_that_was_told_last(phase, words):
    verdict = judge({"b": (phase, ())}, reported=("a", "c", "d"))
    assert verdict.phase == phase
    assert words in verdict.cause


def test_progress_never_goes_backwards_and_unknown_phases_are_ignored():
    epoch = record("a")
    notes = begin_notes(epoch, Instant(0))
    notes.told("a", "upload", (), Instant(1))
    notes.told("a", "channels", ("b",), Instant(2))
    notes.told("a", "dancing", (), Instant(3))
    assert notes.progress["a"].phase == "upload"


def test_a_phase_that_is_told_again_has_been_waited_in_since_it_was_told_first():
    notes = begin_notes(record("a"), Instant(0))
    notes.told("a", "channels", ("b", "c"), Instant(1))
    notes.told("a", "channels", ("c",), Instant(2))
    assert (notes.progress["a"].told_at, notes.progress["a"].open_channels) == (1, ("c",))


def test_leader_itself_is_to_blame_when_all_reports_are_in():
    verdict = judge({}, reported=("a", "b", "c", "d"))
    assert (verdict.participant, verdict.phase) == ("", "assemble")
    assert "all 4 reports were in" in verdict.cause


def test_many_missing_participants_are_counted_and_some_named():
    names = [f"p{i:03}" for i in range(100)]
    epoch = record(*names)
    notes = begin_notes(epoch, Instant(0))
    verdict = judge_deadline(epoch, notes, heard_at=lambda _: None, now=Instant(SECOND))
    assert verdict.waiting_count == 100
    assert len(verdict.waiting) == 16
    assert "last heard" not in verdict.cause


def test_aborted_epoch_tells_participant_phase_cause_and_open_channels():
    world = cluster("a", "b", "c", policy=MANUAL)
    c = world.participants["c"]
    c._take_part = lambda order: None
    a = world.participants["a"]
    a.reports = False
    world.trigger()
    world.run(0.1)
    from protocol.messages import EpochProgress

    a.say(EpochProgress(session=a.session, epoch=1, phase="channels", open_channels=("c", "nobody", "\x1b[2J")))
    world.run(until=lambda: world.state_of(1) == "aborted")
    answer = why(world.epoch(1))
    text = " ".join(answer["sentences"])
    assert "Epoch 1 (manual) was aborted after 2.0" in text
    assert "It ended in phase record of c: deadline of 2 s: c never said that it recorded its state" in text
    assert "a had been waiting for markers on its channels for" in text
    assert "(c->a)" in text
    assert "\x1b" not in text
    assert {"participant": "a", "phase": "channels", "channel": "c->a"}.items() <= next(
        row for row in answer["phases"] if row.get("channel")
    ).items()


def test_committed_epoch_names_the_slowest_of_each_phase_and_the_leaders_part():
    epoch = record("a", "b", state="committed", took_ns=120 * MS, phases={"collect": 90 * MS, "assemble": 5 * MS})
    for name, factor in (("a", 1), ("b", 2)):
        member = epoch.members[name]
        member.snapshot = "b3:x"
        member.waited_ns = 40 * MS * factor
        timings = {"record": MS, "channels": 10 * MS, "encode": 20 * MS, "upload": 35 * MS}
        member.timings = {phase: ns * factor for phase, ns in timings.items()}
    answer = why(epoch)
    assert answer["sentences"] == [
        "Epoch 7 committed after 0.12 s with 2 members.",
        "Slowest in phase record: b with 2.0 ms.",
        "Slowest in phase channels: b with 20.0 ms.",
        "Slowest in phase encode: b with 20.0 ms.",
        "Slowest in phase upload: b with 30.0 ms.",
        "The last report came from b after 80.0 ms.",
        "The leader's own part: collect 90.0 ms, assemble 5.0 ms.",
    ]
    assert answer["phases"][0] == {"participant": "", "phase": "collect", "ms": 90.0}
    assert answer["phases"][1] == {"participant": "b", "phase": "upload", "ms": 30.0}


def test_open_epoch_tells_who_is_waited_for_here_and_on_a_follower():
    world = cluster("a", "b", policy=replace_struct(MANUAL, deadline_ns=60 * SECOND))
    world.participants["b"].reports = False
    world.trigger()
    world.run(1)
    now = Instant(world.now)
    leader = world.leader.machine.why(1, now)
    assert "is open: 1 of 2 members have reported." in leader["sentences"][0]
    assert leader["sentences"][1].startswith("b has been waiting for markers on its channels for 1.00 s")
    assert why(world.epoch(1))["sentences"][1] == "Not reported yet: b."
    assert world.leader.machine.why(99, now) is None


def test_epoch_that_outlived_its_leader_says_so():
    epoch = record("a", state="sealed")
    epoch.terms = (3, 4)
    epoch.members["a"].snapshot = "b3:x"
    epoch.reported_count = 1
    sentences = why(epoch)["sentences"]
    assert "It is sealed: its manifest is being stored, then it is committed." in sentences
    assert "Leadership changed while it was open: terms 3, 4." in sentences


def test_epoch_that_waits_for_nothing_but_the_leader_says_so():
    epoch = record("a")
    epoch.members["a"].snapshot = "b3:x"
    epoch.reported_count = 1
    assert why(epoch)["sentences"][1] == "All reports are in; it waits for the cut to be read and checked."


def test_unnamed_rest_is_counted():
    epoch = record(
        "a", state="aborted", abort=AbortRecord(participant="", phase="operator", cause="x", waiting_count=3)
    )
    assert "3 more had not reported either." in why(epoch)["sentences"]
