import pytest

from coordinator.policy import (
    SLOWDOWN_MAX,
    PolicySettings,
    earliest_start,
    interval_after,
    is_struggling,
    next_start,
)
from protocol.errors import ConfigError

POLICY = PolicySettings(interval_ns=1_000, pause_ns=100, tolerable_failures=3)


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "sometimes"},
        {"interval_ms": 0},
        {"interval_ms": "10"},
        {"interval_ms": True},
        {"interval_ms": 2**62},
        {"interval_ms": 1.5},
        {"pause_ms": -1},
        {"max_concurrent": 0},
        {"max_concurrent": 9},
        {"intervall_ms": 1000},
        {"interval_ms": None},
    ],
)
def test_settings_that_are_wrong_are_refused_with_their_name(document):
    with pytest.raises(ConfigError) as caught:
        PolicySettings.from_document(document)
    assert caught.value.setting == "policy"


def test_document_and_settings_are_the_same():
    document = {
        "kind": "manual",
        "interval_ms": 7,
        "pause_ms": 0,
        "deadline_ms": 9,
        "tolerable_failures": 2,
        "max_concurrent": 3,
        "recovery": "manual",
        "takeover_after_ms": 0,
        "max_rollbacks": 4,
        "rollback_window_ms": 5,
        "fallback": "refuse",
        "durability": "turn",
    }
    settings = PolicySettings.from_document(document)
    assert settings.interval_ns == 7_000_000
    assert settings.document() == document
    assert PolicySettings.from_document({}) == PolicySettings()


def test_manual_policy_starts_nothing():
    manual = PolicySettings(kind="manual")
    assert next_start(manual, last_started=0, last_ended=None, failures=0) is None


def test_interval_is_counted_from_start_to_start():
    assert next_start(POLICY, last_started=5_000, last_ended=5_200, failures=0) == 6_000


def test_epoch_longer_than_its_interval_is_followed_by_the_pause():
    assert next_start(POLICY, last_started=5_000, last_ended=9_000, failures=0) == 9_100


def test_leader_that_saw_no_end_waits_for_no_pause():
    assert earliest_start(POLICY, last_ended=None) == 0
    assert next_start(POLICY, last_started=5_000, last_ended=None, failures=0) == 6_000


def test_tolerable_failures_change_nothing_and_each_one_beyond_doubles_the_interval():
    intervals = [interval_after(POLICY, failures) for failures in range(7)]
    assert intervals == [1_000, 1_000, 1_000, 1_000, 2_000, 4_000, 8_000]
    assert interval_after(POLICY, 1_000_000) == 1_000 * SLOWDOWN_MAX
    assert [is_struggling(POLICY, n) for n in (3, 4)] == [False, True]


def test_no_number_of_failures_is_too_many_for_zero():
    endless = PolicySettings(interval_ns=1_000, tolerable_failures=0)
    assert interval_after(endless, 10**9) == 1_000
    assert not is_struggling(endless, 10**9)
