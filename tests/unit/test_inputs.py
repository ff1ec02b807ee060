"""Identity of outside input, and what an input log's records say of tokens and epochs."""

from __future__ import annotations

import msgspec
import pytest

from participant.inputs import (
    CUTS_KEPT,
    MARKS_KEPT,
    OUTSIDE,
    TOKEN_BLOCKS_MAX,
    TOKENS_PER_BLOCK,
    HadInputs,
    InputIndex,
    InputRecord,
    JoinRecord,
    MarkRecord,
    TokensRecord,
    came_with_token,
    check_token,
    decode_records,
    encode_record,
    input_digest,
    inputs_of,
    position_message_id,
    token_hash,
    token_message_id,
    volatile_message_id,
)
from protocol.ancestry import Ancestry
from protocol.contents import decode_tokens
from protocol.errors import LimitExceeded, ObjectCorrupt, Refused
from protocol.ids import AgentId
from protocol.messages import Envelope


def taken(token: str, *, body: bytes = b"body") -> InputRecord:
    hashed = token_hash("shop", token) if token else b""
    return InputRecord(hashed, input_digest("a/b", "order", 1, body), b"envelope")


def index_of(*records, **settings) -> InputIndex:
    index = InputIndex(**settings)
    for position, record in enumerate(records, 1):
        index.apply(position, record)
    return index


def looked_up(index: InputIndex, token: str, *, body: bytes = b"body"):
    return index.look_up(token_hash("shop", token), input_digest("a/b", "order", 1, body))


def test_records_come_back_as_they_were():
    records = [taken("t"), MarkRecord(3, 9), JoinRecord(2, 4), TokensRecord(((b"t" * 16, b"d" * 16, 5),))]
    body = b"\x94" + b"".join(encode_record(record) for record in records)
    assert decode_records(body, "here") == records
    assert [number for number, _ in inputs_of(7, records)] == [7]


@pytest.mark.parametrize("body", [b"", b"\x91\x01", b"\x91\x91\xa5other", b"\xc1"])
def test_other_bytes_are_not_an_input_log_s(body):
    with pytest.raises(ObjectCorrupt, match="here"):
        decode_records(body, "here")


def test_a_token_is_known_with_its_position_and_only_for_what_it_came_with():
    index = index_of(taken("one"), taken("two"))
    assert looked_up(index, "two").position == 2
    assert looked_up(index, "three") is None
    with pytest.raises(Refused, match="came before with another") as error:
        looked_up(index, "one", body=b"another")
    assert error.value.code == "token-conflict"


def test_digests_and_ids_depend_on_all_that_was_asked_for():
    digests = {
        input_digest(target, name, version, body)
        for target in ("a/b", "a/c")
        for name in ("order", "orde")
        for version in (1, 2)
        for body in (b"x", b"y")
    }
    assert len(digests) == 16
    ids = {token_message_id(token_hash(cluster, token)) for cluster in "ab" for token in "tu"}
    assert all(came_with_token(OUTSIDE, each) for each in ids)
    assert not any(came_with_token("till/a", each) for each in ids)
    without = {
        position_message_id(cluster, member, position) for cluster in "ab" for member in "pq" for position in (1, 2)
    }
    without |= {volatile_message_id(boot, number) for boot in ("ff" * 16, "0e" * 16) for number in (1, 2)}
    assert not any(came_with_token(OUTSIDE, each) for each in without)
    assert (len(ids), len(without)) == (4, 12)
    assert token_hash("a", "t") != token_hash("b", "t")


@pytest.mark.parametrize("token", ["", "x" * 257, "line\nbreak", "\0"])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(LimitExceeded, match="a token is 1 to 256"):
        check_token(token)


def test_with_room_the_last_epochs_can_all_be_replayed_and_without_it_fewer_of_the_newest():
    index = index_of(*[MarkRecord(epoch, 10 * epoch) for epoch in range(1, MARKS_KEPT)])
    assert index.deletable() == 0
    assert index.deletable(keep=1) == 10 * (MARKS_KEPT - 1) + 1
    assert index.deletable(keep=3) == 10 * (MARKS_KEPT - 3) + 1
    index.apply(1_000, MarkRecord(MARKS_KEPT, 10 * MARKS_KEPT))
    assert index.deletable() == 11
    index.apply(1_001, MarkRecord(MARKS_KEPT + 1, 10 * (MARKS_KEPT + 1)))
    assert index.deletable() == 21
    assert index.newest_mark == MarkRecord(MARKS_KEPT + 1, 10 * (MARKS_KEPT + 1))
    assert InputIndex().deletable(keep=1) == 0


def test_what_comes_behind_a_savepoint_is_kept_as_long_as_none_of_it_is_missing():
    index = index_of(*[MarkRecord(epoch, 10 * epoch) for epoch in range(1, 4 * MARKS_KEPT)])
    newest = 10 * (3 * MARKS_KEPT) + 1
    assert index.deletable(first=1) == newest, "nobody has said yet which epochs are savepoints"
    index.keep([7, 9, 1_000])
    assert index.deletable(first=1) == index.deletable(first=71) == 71
    assert index.deletable(first=72) == 91
    assert index.deletable(first=92) == index.deletable() == newest
    assert index.deletable(keep=3, first=1) == 71
    for epoch in range(4 * MARKS_KEPT, 6 * MARKS_KEPT):
        index.apply(epoch, MarkRecord(epoch, 10 * epoch))
    assert index.deletable(first=1) == 71
    index.keep([9])
    assert index.deletable(first=1) == 91
    index.keep([])
    assert index.deletable(first=1) == index.deletable() == 10 * (5 * MARKS_KEPT) + 1


def test_a_log_that_is_read_again_knows_the_marks_of_savepoints_before_it_hears_which_they_are():
    index = index_of(*[MarkRecord(epoch, 10 * epoch) for epoch in range(1, 4 * MARKS_KEPT)])
    index.apply(1_000, MarkRecord(4 * MARKS_KEPT, 10 * 4 * MARKS_KEPT))
    index.keep([7])
    assert index.deletable(first=1) == 71


def test_an_epoch_that_was_cut_while_input_came_again_keeps_what_comes_behind_it():
    index = index_of(MarkRecord(1, 50), MarkRecord(2, 90), MarkRecord(3, 60))
    assert index.deletable(keep=2) == 61
    assert index.deletable(keep=1) == 61


def test_tokens_of_what_is_deleted_are_carried_on_up_to_a_bound_the_newest_of_them():
    index = index_of(*[taken(f"t{number}") for number in range(10)], tokens_kept=3)
    carried = index.carried(9)
    assert [position for _, _, position in carried.tokens] == [6, 7, 8]
    assert index.tokens == 5
    again = InputIndex()
    again.apply(20, carried)
    assert looked_up(again, "t7").position == 8
    assert looked_up(again, "t9") is None


def test_inputs_that_are_lost_can_come_again_under_their_tokens():
    index = index_of(taken("a"), taken("b"), taken("c"))
    index.forget(2, 3)
    assert looked_up(index, "a") is not None
    assert looked_up(index, "b") is None
    assert looked_up(index, "c") is not None


def test_a_restore_to_an_epoch_before_a_membership_replays_from_where_it_began():
    index = index_of(JoinRecord(0, 0), taken("a"), JoinRecord(5, 2), taken("b"), JoinRecord(9, 4))
    assert index.position_at(0, 99) == 0
    assert index.position_at(5, 99) == 2
    assert index.position_at(6, 99) == 4
    assert index.position_at(10, 99) == 99


def test_records_are_append_only_for_older_readers():
    longer = msgspec.msgpack.encode(["mark", 3, 9, "later"])
    assert decode_records(b"\x91" + longer, "here") == [MarkRecord(3, 9)]
    assert decode_records(b"\x91" + msgspec.msgpack.encode(["join", 2, 4]), "here") == [JoinRecord(2, 4, 0)]


AGAIN = Ancestry(incarnation=4, through=((3, 8), (1, 5)))
"""Incarnation 2 has not happened, of the first the epochs up to 5, of the third those up to 8."""


@pytest.mark.parametrize(
    ("joins", "position"),
    [
        ((), 99),
        (((1, 0, 0),), 99),
        (((1, 5, 10),), 10),
        (((1, 0, 0), (1, 6, 10)), 10),
        (((1, 0, 0), (2, 6, 10), (2, 7, 20)), 10),
        (((2, 6, 10), (3, 7, 20)), 99),
        (((2, 6, 10), (3, 7, 20), (3, 8, 30)), 30),
        (((2, 6, 10), (4, 9, 30)), 99),
        (((0, 6, 10), (2, 6, 20)), 20),
        (((0, 0, 10),), 99),
    ],
    ids=[
        "never a member",
        "it left before the cut",
        "it came after the cut",
        "it left and came again after the cut",
        "twice in what has not happened",
        "what had not happened came again later, and counts",
        "what came again counts, and the membership after it does not",
        "it was in this incarnation before",
        "an older build did not say in which",
        "an older build alone",
    ],
)
def test_a_member_that_begins_anew_replays_what_rollbacks_have_undone_and_nothing_else(joins, position):
    index = index_of(*[JoinRecord(epoch, at, incarnation) for incarnation, epoch, at in joins])
    assert index.position_since(AGAIN, 99) == position


@pytest.mark.parametrize(
    ("cuts", "joins", "position"),
    [
        ({8: 40}, ((1, 0, 0),), 40),
        ({8: 40, 9: 50}, ((3, 6, 30),), 40),
        ({5: 40}, ((1, 0, 0), (2, 6, 50), (2, 7, 60)), 40),
        ({5: 40}, ((1, 0, 0), (3, 6, 50)), 99),
        ({5: 40}, ((1, 0, 0), (3, 8, 50)), 40),
        ({5: 40}, ((1, 0, 0), (4, 8, 50)), 99),
        ({7: 40}, ((3, 6, 30),), 99),
        ({8: 40}, (), 40),
    ],
    ids=[
        "the epoch that all went back to holds it",
        "and so does one that was given up, or never committed",
        "an older one does, and later memberships have not happened",
        "an older one does, and a later membership counts",
        "an older one does, and a later membership came after the cut",
        "it was in this incarnation since",
        "it left after an epoch and before the cut",
        "how it came has been deleted",
    ],
)
def test_who_has_no_agents_knows_by_itself_where_an_epoch_was_cut(cuts, joins, position):
    records = [JoinRecord(epoch, at, incarnation) for incarnation, epoch, at in joins]
    index = index_of(*records, *[TokensRecord((), cut) for cut in cuts.items()])
    assert index.position_since(AGAIN, 99) == position


def test_cuts_are_remembered_up_to_a_bound_the_newest_of_them():
    index = index_of(JoinRecord(0, 0, 1), *[TokensRecord((), (epoch, epoch)) for epoch in range(1, CUTS_KEPT + 2)])
    newest = CUTS_KEPT + 1
    assert index.position_since(Ancestry(incarnation=2, through=((1, newest),)), 9_999) == newest
    assert index.position_since(Ancestry(incarnation=2, through=((1, 2),)), 9_999) == 2
    assert index.position_since(Ancestry(incarnation=2, through=((1, 1),)), 9_999) == 9_999


def test_a_membership_is_noted_for_each_incarnation():
    index = index_of(JoinRecord(0, 3, 1))
    assert index.joined_from(3, 1)
    assert not index.joined_from(4, 1)
    assert not index.joined_from(3, 2)
    assert index_of(JoinRecord(0, 3)).joined_from(3, 2), "an older build's may be of any"


def said(number: int, *, body: bytes = b"x") -> Envelope:
    """An input that came with a token."""
    return Envelope(token_message_id(number.to_bytes(16, "big")), OUTSIDE, AgentId("x/y"), "order", 1, body)


def test_had_inputs_come_in_blocks_whose_bytes_stay_once_they_are_full():
    had = HadInputs((number.to_bytes(16, "big"), b"d" * 16) for number in range(TOKENS_PER_BLOCK + 3))
    first = had.blocks()
    assert [len(msgspec.msgpack.decode(block)) for block in first] == [TOKENS_PER_BLOCK, 3]
    assert had.add(said(9_999))
    second = had.blocks()
    assert second[0] is first[0]
    assert second[1] != first[1]
    assert HadInputs().blocks() == ()


def test_had_inputs_are_known_again_from_what_an_epoch_holds_of_them():
    had = HadInputs()
    assert had.add(said(1))
    assert had.add(said(2))
    assert not had.add(said(1)), "also where it comes from another participant"
    assert not had.add(said(1, body=b"other"))
    again = HadInputs(decode_tokens(had.blocks()[0], "tokens"))
    assert again.digest(said(1).id) == input_digest("x/y", "order", 1, b"x")
    assert again.digest(said(2).id) is not None
    assert again.digest(said(3).id) is None
    assert again.blocks() == had.blocks()


def test_had_inputs_are_known_from_an_older_build_s_epoch_which_has_hashes_of_tokens():
    hashed = b"\x01" * 16
    had = HadInputs([(hashed, b"d" * 16)])
    assert had.digest(token_message_id(hashed)) == b"d" * 16


def test_the_oldest_had_inputs_are_forgotten_and_no_more_is_held_than_an_epoch_holds():
    had = HadInputs()
    kept = TOKENS_PER_BLOCK * TOKEN_BLOCKS_MAX
    for number in range(kept + TOKENS_PER_BLOCK):
        assert had.add(said(number))
    assert len(had) == kept
    assert len(had.blocks()) == TOKEN_BLOCKS_MAX
    assert had.digest(said(TOKENS_PER_BLOCK - 1).id) is None
    assert had.digest(said(TOKENS_PER_BLOCK).id) is not None
    assert had.add(said(0)), "forgotten: it is a first one"
    assert had.add(said(999_999))
    assert len(HadInputs(pair for block in had.blocks() for pair in decode_tokens(block, "tokens"))) == len(had)
