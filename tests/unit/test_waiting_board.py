"""Who waits for somebody's decision, as heartbeats say it."""

from __future__ import annotations

from typing import Any

from coordinator.ledger import ParticipantRecord
from coordinator.ledger.records import MEMBER
from coordinator.runtime.waiting import LISTED_MAX, WaitingBoard
from protocol.limits import PARTICIPANTS_MAX, WAITING_LISTED_MAX
from protocol.messages import Heartbeat, WaitingAgent


def waiting(*names: str, cause: str = "in-doubt") -> tuple[WaitingAgent, ...]:
    return tuple(WaitingAgent(agent=f"a/{name}", step="charge", token=f"t{name}", cause=cause) for name in names)


def beat(session: int, *names: str, more: int = 0, questions: int = 0) -> Heartbeat:
    listed = waiting(*names)
    return Heartbeat(session=session, waiting=listed, waiting_count=len(listed) + more, questions=questions)


def record(name: str, session: int) -> ParticipantRecord:
    return ParticipantRecord(id=name, session=session, boot_id="", state=MEMBER)


def test_each_change_is_told_once_and_heartbeats_that_say_the_same_are_no_news():
    told: list[tuple[str, str]] = []
    board = WaitingBoard(lambda kind, details: told.append((kind, details["agent"])))
    board.heard("p1", beat(1))
    board.heard("p1", beat(1, "x"))
    board.heard("p1", beat(1, "x"))
    board.heard("p1", beat(1, "x", "y"))
    board.heard("p1", beat(1, "y"))
    board.heard("p1", beat(1))
    assert told == [
        ("agent-waits", "a/x"),
        ("agent-waits", "a/y"),
        ("agent-goes-on", "a/x"),
        ("agent-goes-on", "a/y"),
    ]
    assert board.of(1).total == 0


def test_one_that_was_only_pushed_off_the_list_is_not_said_to_go_on():
    told: list[tuple[str, str]] = []
    board = WaitingBoard(lambda kind, details: told.append((kind, details["agent"])))
    board.heard("p1", beat(1, "x"))
    board.heard("p1", beat(1, "y", more=30))
    assert told == [("agent-waits", "a/x"), ("agent-waits", "a/y")]


def test_the_same_agent_waiting_for_another_step_is_news():
    told: list[str] = []
    board = WaitingBoard(lambda kind, details: told.append(f"{kind} {details['token']}"))
    board.heard("p1", beat(1, "x"))
    other = WaitingAgent(agent="a/x", step="charge", token="t2", cause="diverged")
    board.heard("p1", Heartbeat(session=1, waiting=(other,), waiting_count=1))
    assert told == ["agent-waits tx", "agent-waits t2", "agent-goes-on tx"]


def test_the_status_adds_up_live_participants_only():
    board = WaitingBoard()
    board.heard("p1", beat(1, "x", questions=2))
    board.heard("p2", beat(2, "y", more=5))
    board.heard("gone", beat(3, "z"))
    found = board.document([record("p1", 1), record("p2", 2), record("p4", 4)])
    assert (found["count"], found["questions"]) == (7, 2)
    assert [(each["participant"], each["agent"]) for each in found["agents"]] == [("p1", "a/x"), ("p2", "a/y")]
    assert board.participant(4) == {"waiting": [], "waiting_count": 0, "questions": 0}


def test_what_a_participant_says_is_bounded():
    board = WaitingBoard()
    many = waiting(*map(str, range(1_000)))
    for session in range(1, PARTICIPANTS_MAX + 50):
        board.heard("p", Heartbeat(session=session, waiting=many, waiting_count=-5))
        if session == 3:
            assert (len(board.of(3).agents), board.of(3).total) == (WAITING_LISTED_MAX, 0)
    assert board.of(1).total == 0
    records = [record(f"p{session}", session) for session in range(PARTICIPANTS_MAX, PARTICIPANTS_MAX + 40)]
    document: Any = board.document(records)
    assert len(document["agents"]) == LISTED_MAX
