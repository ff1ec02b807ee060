"""Which effect ledgers hold what an agent has done, and which of them the one at hand stands for."""

import pytest

from participant.effects.reach import (
    MANY,
    NONE,
    SHARED,
    Reach,
    added,
    covered_by_none,
    covered_by_shared,
    shown,
    unnamed,
)
from participant.runtime.effects_local import LATE_FILE, LOG_NAME, NAME_FILE, LocalEffects
from participant.runtime.log_files import Life, LocalFolder
from participant.runtime.turn_base import TurnBase, read_base, write_base
from protocol.errors import StoreError
from protocol.limits import LEDGERS_CARRIED_MAX
from protocol.outputs import FencingToken

OURS, THEIRS = "p1/aaaa", "p2/bbbb"


def reach(**changes: bool) -> Reach:
    return Reach(OURS, "p1", **({"adopted": False, "late": False} | changes))


def test_a_ledger_covers_itself_and_no_other_one():
    for each in (reach(), reach(adopted=True), reach(late=True)):
        assert each.covers(OURS)
        assert each.covers(NONE), "no step was made"
        assert not any(each.covers(name) for name in (THEIRS, "p1/bbbb", SHARED, MANY))
        assert not any(each.covers(unnamed(other, 0)) for other in ("p2", "", "p11"))


def test_what_nobody_has_named_is_in_a_folder_that_was_there_before_names_were():
    assert reach(adopted=True).covers(unnamed("p1", 7))
    assert reach(adopted=True).covers(unnamed("p1", 0))
    assert not reach().covers(unnamed("p1", 7))


def test_what_was_done_since_the_start_is_in_the_first_folder():
    assert reach().covers(unnamed("p1", 0))
    assert not reach(late=True).covers(unnamed("p1", 0))


def test_a_shared_ledger_covers_all_that_is_in_no_folder():
    assert all(map(covered_by_shared, (SHARED, NONE, unnamed("p1", 3), unnamed("", 0))))
    assert not any(map(covered_by_shared, (OURS, MANY)))


def test_who_makes_no_steps_remembers_the_ledgers_of_those_who_did():
    assert all(map(covered_by_none, (NONE, unnamed("p1", 3))))
    assert not any(map(covered_by_none, (OURS, SHARED, MANY)))


def test_more_ledgers_than_are_carried_are_one_that_nobody_covers():
    names = [f"p{number}/{number}" for number in range(LEDGERS_CARRIED_MAX)]
    known = added({}, names)
    assert list(known) == names
    assert added(known, names[:3]) is known
    assert list(added(known, [OURS])) == [MANY]
    assert list(added({MANY: None}, [])) == [MANY]


def test_people_are_told_hosts_and_names():
    assert shown([THEIRS, OURS, "p1@4"]) == "p1, p2, whose effect ledger is not known here (p1/aaaa, p1@4, p2/bbbb)"
    assert shown([unnamed("", 0)]).startswith("another participant, whose")


# --- in a folder -----------------------------------------------------------------------------------------------------


def effects(folder) -> LocalEffects:
    made = LocalEffects(LocalFolder(folder, "p1"), cluster="shop", participant="p1")
    made.prepare()
    return made


def test_a_ledger_has_one_name_as_long_as_its_folder_is_there(tmp_path):
    name = effects(tmp_path / "a").ledger_name
    assert name.startswith("p1/")
    assert effects(tmp_path / "a").ledger_name == name
    assert effects(tmp_path / "b").ledger_name != name
    (tmp_path / "a" / "p1" / LOG_NAME / NAME_FILE).unlink()
    assert effects(tmp_path / "a").ledger_name != name


def test_twins_give_a_ledger_one_name(tmp_path, monkeypatch):
    first, second = (LocalEffects(LocalFolder(tmp_path, "p1"), cluster="shop", participant="p1") for _ in range(2))
    files = first._folder.files(LOG_NAME)
    monkeypatch.setattr(first._folder, "files", lambda _: files)
    names = files.names

    def overtaken() -> list[str]:
        found = names()
        second.prepare()
        return found

    monkeypatch.setattr(files, "names", overtaken)
    first.prepare()
    assert first.ledger_name == second.ledger_name


@pytest.mark.parametrize("what", ["folder", "segments"])
async def test_a_ledger_that_an_older_build_left_knows_all_that_its_participant_has_done(tmp_path, what):
    older = LocalEffects(LocalFolder(tmp_path, "p1"), cluster="shop", participant="p1")
    await older.open(FencingToken("p1", 1, 4))
    await older.aclose()
    if what == "segments":
        (tmp_path / "p1" / "owner.json").unlink()
    for _ in range(2):
        assert effects(tmp_path).covers(unnamed("p1", 3))
        assert effects(tmp_path).covers(unnamed("p1", 0))
    assert not effects(tmp_path / "lost").covers(unnamed("p1", 3))


def test_whoever_comes_late_to_a_new_folder_says_so_for_all_that_follow(tmp_path):
    first = effects(tmp_path)
    assert first.covers(unnamed("p1", 0))
    first.came_late()
    first.came_late()
    assert not first.covers(unnamed("p1", 0))
    assert not effects(tmp_path).covers(unnamed("p1", 0))
    assert (tmp_path / "p1" / LOG_NAME / LATE_FILE).is_file()


def test_whoever_comes_back_to_a_folder_that_lives_have_had_is_not_late(tmp_path):
    effects(tmp_path)
    LocalFolder(tmp_path, "p1").take_over(Life(1, 1))
    again = effects(tmp_path)
    again.came_late()
    assert again.covers(unnamed("p1", 0))


def test_who_died_before_it_had_the_folder_is_no_life_that_began_there(tmp_path):
    effects(tmp_path)
    again = effects(tmp_path)
    again.came_late()
    assert not again.covers(unnamed("p1", 0))


def test_a_name_that_cannot_be_read_is_an_error_that_says_where_it_is(tmp_path):
    effects(tmp_path)
    (tmp_path / "p1" / LOG_NAME / NAME_FILE).write_bytes(b"{")
    with pytest.raises(StoreError, match=NAME_FILE):
        effects(tmp_path)


def test_a_base_of_a_log_of_turns_without_ledgers_is_read(tmp_path):
    """Of an older build."""
    folder = LocalFolder(tmp_path, "p1")
    base = TurnBase(
        cluster="shop", participant="p1", incarnation=1, session=2, line=2, position=0, at=1, agents=("shop/main",)
    )
    write_base(folder, base)
    assert b"ledgers" not in (folder.path / "turns.json").read_bytes()
    assert read_base(folder) == base
