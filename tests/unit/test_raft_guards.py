"""The rules around the library's messages, one by one, against a real replica."""

import pytest

from coordinator.runtime.raft.pinned import Member, next_index_of
from protocol.errors import RemoteProtocolError
from simulations.raft.disk import SimulatedFiles
from simulations.raft.members import GuardedMember
from simulations.raft.prng import Prng

NAMES = ["c1", "c2", "c3"]
LEADER = Member("c2")


class Follower:
    """c1, that hears c2 and records its answers."""

    def __init__(self, *, rejoin: bool = False) -> None:
        self.files = SimulatedFiles(Prng(1))
        self.member = GuardedMember("c1", NAMES, lambda *_: None, self.files, lambda: 0.0, 10**9, rejoin=rejoin)
        self.answers: list[dict] = []
        self.member._wire._send = lambda _peer, message: self.answers.append(self.guards.outgoing(message)) or True
        self.guards = self.member.raft.guards

    def hear(self, message: dict) -> list[dict]:
        self.answers.clear()
        extra = self.guards.receive(LEADER, message, lambda m: self.member._wire._onMessageReceived(LEADER, m))
        return self.answers + extra

    def append(self, after: tuple[int, int], entries: list, term: int = 1, commit: int = 1) -> list[dict]:
        """`after` is (index, term) of the entry before; an entry is (index, term)."""
        packed = [(b"\x01", index, entry_term) for index, entry_term in entries]
        message = {"type": "append_entries", "term": term, "commit_index": commit, "entries": packed}
        return self.hear({**message, "prevLogIdx": after[0], "prevLogTerm": after[1]})

    @property
    def log(self) -> list[tuple[int, int]]:
        return [(index, term) for _, index, term in self.member.raft.journal[:]]


@pytest.fixture
def follower():
    made = Follower()
    made.append((1, 0), [(2, 1), (3, 1), (4, 1), (5, 1)])
    assert made.log == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1)]
    yield made
    made.member.end()


def outcome(answers: list[dict]) -> list[tuple]:
    return [(each["next_node_idx"], each["reset"], each["success"]) for each in answers]


def test_a_late_append_deletes_nothing_that_agrees_and_acknowledges_only_what_it_verified(follower):
    """Rule 1. The stock library would cut the log back to entry 3 here, entries 4 and 5 acknowledged and all."""
    answers = follower.append((1, 0), [(2, 1), (3, 1)])
    assert follower.log[-1] == (5, 1)
    assert outcome(answers) == [(4, False, True)]


def test_a_late_heartbeat_deletes_nothing_either(follower):
    answers = follower.append((2, 1), [])
    assert follower.log[-1] == (5, 1)
    assert outcome(answers) == [(3, False, True)]


def test_a_late_append_commits_nothing_beyond_what_it_verified(follower):
    follower.append((1, 0), [(2, 1)], commit=5)
    assert follower.member.raft.raftCommitIndex == 2


def test_an_append_that_overlaps_adds_only_what_is_new(follower):
    answers = follower.append((3, 1), [(4, 1), (5, 1), (6, 1)])
    assert follower.log[-2:] == [(5, 1), (6, 1)]
    assert outcome(answers) == [(7, False, True)]


def test_a_conflicting_entry_is_replaced_with_all_that_follow_it(follower):
    """Raft, figure 2, AppendEntries rule 3."""
    answers = follower.append((2, 1), [(3, 1), (4, 2)], term=2)
    assert follower.log == [(1, 0), (2, 1), (3, 1), (4, 2)]
    assert outcome(answers) == [(5, False, True)]


def test_a_rejection_asks_for_what_follows_the_committed_prefix(follower):
    """Rule 2. The stock library walks back one entry per heartbeat, or for ever."""
    follower.append((5, 1), [], commit=3)
    assert outcome(follower.append((9, 1), [(10, 1)])) == [(4, True, False)]
    assert outcome(follower.append((5, 7), [(6, 7)], term=7)) == [(4, True, False)]


def test_an_append_of_an_older_term_changes_nothing_and_is_not_answered(follower):
    follower.append((5, 1), [(6, 3)], term=3)
    assert follower.append((1, 0), [(2, 2)], term=2) == []
    assert follower.log[-1] == (6, 3)


def test_an_append_with_a_gap_is_a_broken_peer_and_changes_nothing(follower):
    before = follower.log
    for entries in ([(7, 1)], [(6, 1), (8, 1)]):
        with pytest.raises(RemoteProtocolError):
            follower.append((5, 1), entries)
    assert follower.log == before


def test_acknowledgements_carry_the_term(follower):
    assert [each["term"] for each in follower.append((5, 1), [(6, 4)], term=4)] == [4]


def test_a_piece_of_a_snapshot_is_answered_as_a_sign_of_life(follower):
    """Rule 6."""
    piece = {"type": "append_entries", "term": 1, "commit_index": 5, "serialized": (b"first part", True, False)}
    assert outcome(follower.hear(piece)) == [(1, False, False)]


@pytest.fixture
def leader():
    """c1 as the leader of term 1 whose followers have been sent everything up to entry 4."""
    made = Follower()
    raft = made.member.raft
    for name in ("c2", "c3"):
        made.member.connected(name, rejoining=False)
    raft._SyncObj__raftElectionDeadline = 0
    raft.doTick(0)
    made.hear({"type": "response_vote", "term": 1})
    assert raft._isLeader()
    for number in (1, 2):
        made.member.submit(number)
    raft.doTick(0)
    assert next_index_of(raft)[LEADER] == 5
    yield made
    made.member.end()


def acknowledgement(index: int, term: int) -> dict:
    return {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True, "term": term}


def test_a_late_acknowledgement_does_not_move_the_pipeline_back(leader):
    """Rule 3."""
    leader.hear(acknowledgement(2, 1))
    assert next_index_of(leader.member.raft)[LEADER] == 5
    assert leader.member.raft._SyncObj__raftMatchIndex[LEADER] == 2


def test_an_acknowledgement_of_another_term_is_not_counted(leader):
    """Rule 5. The stock library's acknowledgements carry no term."""
    leader.hear(acknowledgement(4, 0))
    assert leader.member.raft._SyncObj__raftMatchIndex[LEADER] == 0
    leader.hear(acknowledgement(4, 1))
    assert leader.member.raft._SyncObj__raftMatchIndex[LEADER] == 4


def test_a_rejection_moves_the_pipeline_to_its_hint(leader):
    leader.hear({"type": "next_node_idx", "next_node_idx": 2, "reset": True, "success": False, "term": 1})
    assert next_index_of(leader.member.raft)[LEADER] == 2


@pytest.fixture
def rejoining():
    made = Follower(rejoin=True)
    made.member.connected("c2", rejoining=False)
    yield made
    made.member.end()


VOTE = {"type": "request_vote", "term": 9, "last_log_index": 99, "last_log_term": 9}


def test_a_coordinator_that_lost_its_folder_neither_votes_nor_stands_for_election(rejoining):
    """Rule 7."""
    assert rejoining.hear(VOTE) == []
    rejoining.member.raft._SyncObj__raftElectionDeadline = 0
    rejoining.member.raft.doTick(0)
    assert rejoining.member.raft.raftCurrentTerm == 0
    assert rejoining.answers == []


def test_it_votes_again_once_it_has_applied_what_a_leader_committed_in_its_own_term(rejoining):
    raft = rejoining.member.raft
    rejoining.append((1, 0), [(2, 1), (3, 1)], term=4, commit=3)
    raft.doTick(0)
    assert raft.journal.rejoining, "what is committed so far is of an earlier leader"
    rejoining.append((3, 1), [(4, 4), (5, 4)], term=4, commit=5)
    raft.doTick(0)
    assert not raft.journal.rejoining
    assert [each["type"] for each in rejoining.hear(VOTE)] == ["response_vote"]


def test_that_it_lost_its_folder_is_not_forgotten_by_a_restart(rejoining):
    rejoining.member.raft.journal.sync()
    rejoining.files.lose_power()
    again = GuardedMember("c1", NAMES, lambda *_: None, rejoining.files, lambda: 0.0, 10**9)
    assert again.raft.journal.rejoining
    again.end()


def test_rejoin_means_nothing_for_a_folder_that_is_there(follower):
    follower.member.raft.journal.sync()
    again = GuardedMember("c1", NAMES, lambda *_: None, follower.files, lambda: 0.0, 10**9, rejoin=True)
    assert not again.raft.journal.rejoining
    again.end()


def test_a_leader_forgets_what_a_coordinator_acknowledged_that_lost_its_folder(leader):
    leader.hear(acknowledgement(4, 1))
    leader.member.disconnected("c2")
    leader.member.connected("c2", rejoining=True)
    assert leader.member.raft._SyncObj__raftMatchIndex[LEADER] == 0
