"""The theorem of 1985 as an oracle: right snapshots pass, each planted bug is found, each demand has its own verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.reach_oracle import Fault, HistoryEvent, Kind, RecordedCut, judge_reachability
from tests.model.token_world import TokenWorld, Transfer, step

SEEDS = 100
AB = ("a", "b")
# a sends 1, records, sends 2; b receives 1 after it recorded: 1 is in flight at the cut.
SENT_1 = HistoryEvent(participant="a", kind=Kind.SEND, channel=AB, message=(1, 1), recorded=False)
SENT_2 = HistoryEvent(participant="a", kind=Kind.SEND, channel=AB, message=(2, 2), recorded=True)
GOT_1 = HistoryEvent(participant="b", kind=Kind.RECEIVE, channel=AB, message=(1, 1), recorded=True)
GOT_2 = HistoryEvent(participant="b", kind=Kind.RECEIVE, channel=AB, message=(2, 2), recorded=True)
HISTORY = [SENT_1, SENT_2, GOT_1, GOT_2]
CUT: RecordedCut[int, Transfer] = RecordedCut(states={"a": 4, "b": 5}, channels={AB: [(1, 1)]})
FINAL = {"a": 2, "b": 8}


def judge(history=HISTORY, cut=CUT, final=FINAL, initial=None, channels=None):
    return judge_reachability(
        initial=initial or {"a": 5, "b": 5}, history=history, cut=cut, final=final, step=step, initial_channels=channels
    )


@pytest.mark.slow
def test_every_snapshot_of_the_algorithm_is_reachable_and_most_have_messages_in_flight():
    in_flight = 0
    for seed in range(SEEDS):
        world = TokenWorld(seed, participants=2 + seed % 4)
        assert world.run() is None
        in_flight += any(world.channels.values())
    assert in_flight > SEEDS // 2


@pytest.mark.slow
@pytest.mark.parametrize("bug", TokenWorld.BUGS)
def test_a_planted_bug_is_found_in_more_than_a_third_of_the_runs(bug):
    verdicts = [TokenWorld(seed, participants=2 + seed % 4, bug=bug).run() for seed in range(SEEDS)]
    assert sum(verdict is not None for verdict in verdicts) > SEEDS // 3


def test_a_message_that_crosses_the_cut_belongs_to_the_recorded_channel():
    assert judge() is None


def test_an_orphan_makes_the_prefix_impossible():
    received = replace(GOT_2, recorded=False)
    verdict = judge(history=[replace(SENT_1, recorded=True), SENT_2, replace(GOT_1, recorded=False), received])
    assert verdict is not None
    assert verdict.fault is Fault.PREFIX
    assert "b receives (1, 1) on a->b, whose head is nothing" in str(verdict)


def test_a_state_that_was_not_recorded_at_the_cut_is_named():
    verdict = judge(cut=replace(CUT, states={"a": 2, "b": 5}))
    assert verdict is not None
    assert verdict.fault is Fault.STATES
    assert verdict.detail == "a recorded 2, it was 4"


@pytest.mark.parametrize("recorded", [[], [(1, 1), (2, 2)], [(2, 2)], [(1, 1), (1, 1)]])
def test_a_channel_state_that_lacks_or_adds_a_message_is_named(recorded):
    verdict = judge(cut=replace(CUT, channels={AB: recorded}))
    assert verdict is not None
    assert verdict.fault is Fault.CHANNELS
    assert verdict.detail == f"a->b recorded {recorded!r}, in flight [(1, 1)]"


def test_a_swap_after_the_cut_makes_the_suffix_impossible():
    verdict = judge(history=[SENT_1, SENT_2, GOT_2, GOT_1])
    assert verdict is not None
    assert verdict.fault is Fault.SUFFIX


def test_a_run_that_ends_elsewhere_is_named():
    verdict = judge(final={"a": 2, "b": 7})
    assert verdict is not None
    assert verdict.fault is Fault.FINAL
    assert verdict.detail == "b ends as 7, played again 8"


def test_what_was_in_flight_before_the_first_event_is_received_first():
    before = {AB: [(0, 3)]}
    got = replace(GOT_1, message=(0, 3), recorded=False)
    cut: RecordedCut[int, Transfer] = RecordedCut(states={"a": 5, "b": 8}, channels={})
    assert judge(history=[got], cut=cut, final={"a": 5, "b": 8}, channels=before) is None
    assert before == {AB: [(0, 3)]}, "arguments are left as they were"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (replace(SENT_1, participant="c"), "no initial state"),
        (replace(SENT_1, channel=None), "needs a channel"),
        (replace(SENT_1, message=None), "needs a channel and a message"),
        (replace(SENT_1, channel=("b", "a")), "wrong end"),
        (replace(GOT_1, channel=("b", "a")), "wrong end"),
        (replace(SENT_1, kind=Kind.LOCAL), "is local"),
    ],
)
def test_what_is_no_history_is_refused(event, words):
    with pytest.raises(ValueError, match=words):
        judge(history=[event])


def test_an_event_cannot_be_from_before_a_recording_that_was_earlier():
    with pytest.raises(ValueError, match="which was earlier"):
        judge(history=[SENT_2, SENT_1])
