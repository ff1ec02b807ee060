"""The input log on real files: acknowledged is durable, a token is taken once, a rollback brings back what came after it."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
from typing import Self

import msgspec
import pytest

from participant.inputs import InputsMissing
from participant.runtime.intake import Intake
from participant.runtime.log_files import Life, LocalFolder
from protocol.ancestry import Ancestry
from protocol.errors import FencedError, Overloaded, RecoveryError, Refused, StoreError
from protocol.ids import AgentId
from protocol.limits import KIB

AGENT = AgentId("shop/main")


class Desk:
    """An intake, and the machine that it gives messages to."""

    def __init__(self, root, **settings) -> None:
        self.entered: list[bytes] = []
        self.ids: list[bytes] = []
        self.taken_in: list[int] = []
        self.failures: list[Exception] = []
        self.had: dict[bytes, bytes] = {}
        self.intake = Intake(
            LocalFolder(root, "p1"),
            cluster="shop",
            participant="p1",
            enters=self._enter,
            had=self.had.get,
            failed=self.failures.append,
            **settings,
        )

    def _enter(self, delivery, taken_in) -> None:
        self.entered.append(msgspec.msgpack.decode(delivery[0].body))
        self.ids.append(delivery[0].id)
        self.taken_in.append(taken_in)

    async def __aenter__(self) -> Self:
        await self.intake.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.intake.close()
        self.intake._folder.close()

    async def restore(self, life: Life, *, epoch: int, position: int | None) -> int:
        return await self.intake.restore(life, self.intake.hold(epoch=epoch, position=position))

    async def add(self, value: object, token: str = "", **options):
        return await self.intake.add(AGENT, "order", 1, msgspec.msgpack.encode(value), token=token, **options)


async def joined(root, *, session: int = 1, newest_epoch: int = 0, **settings) -> Desk:
    desk = Desk(root, **settings)
    await desk.intake.open()
    await desk.intake.restore(Life(1, session), desk.intake.hold(epoch=None), newest_epoch=newest_epoch)
    return desk


async def closed(desk: Desk) -> None:
    await desk.__aexit__()


async def test_inputs_enter_in_the_order_of_their_positions_and_are_durable_when_acknowledged(tmp_path):
    desk = await joined(tmp_path)
    taken = await asyncio.gather(*(desk.add(number) for number in range(50)))
    assert [each.position for each in taken] == list(range(2, 52)), "record 1 says who joined"
    assert desk.entered == list(range(50))
    assert desk.intake.position == 51
    assert desk.intake.statistics()["inputs_syncs"] < 10, "group commit"
    image = tmp_path / "image"
    shutil.copytree(tmp_path / "p1", image / "p1")
    async with Desk(image) as again:
        assert await again.restore(Life(2, 9), epoch=0, position=1) == 50
        assert again.entered == list(range(50))
        assert again.ids == desk.ids
    await closed(desk)


async def test_a_crash_at_every_byte_of_the_log_loses_nothing_that_was_acknowledged(tmp_path):
    desk = await joined(tmp_path)
    (name,) = os.listdir(tmp_path / "p1" / "input")
    path = tmp_path / "p1" / "input" / name
    sizes: list[tuple[int, int]] = [(path.stat().st_size, 0)]
    for number in range(3):
        await desk.add(number, token=f"t{number}")
        sizes.append((path.stat().st_size, number + 1))
    await closed(desk)
    for length in range(sizes[0][0], sizes[-1][0] + 1):
        there = tmp_path / "there"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(tmp_path / "p1", there / "p1")
        os.truncate(there / "p1" / "input" / name, length)
        whole = max(count for size, count in sizes if size <= length)
        async with Desk(there) as again:
            assert await again.restore(Life(2, 9), epoch=0, position=1) == whole
            assert again.entered == list(range(whole))
            for number in range(3):
                taken = await again.add(number, token=f"t{number}")
                assert taken.duplicate == (number < whole)
            assert again.entered == [0, 1, 2]


async def test_a_token_is_taken_once_also_by_two_at_the_same_time(tmp_path):
    desk = await joined(tmp_path)
    first, second = await asyncio.gather(desk.add(1, token="t"), desk.add(1, token="t"))
    third = await desk.add(1, token="t")
    assert (first.duplicate, second.duplicate, third.duplicate) == (False, True, True)
    assert first.id == second.id == third.id
    assert first.position == third.position
    assert desk.entered == [1]
    assert desk.intake.statistics()["inputs_duplicates"] == 2
    await closed(desk)


async def test_the_same_token_with_something_else_is_an_error_and_enters_nothing(tmp_path):
    desk = await joined(tmp_path)
    await desk.add(1, token="t")
    with pytest.raises(Refused, match="came before with another") as error:
        await desk.add(2, token="t")
    assert error.value.code == "token-conflict"
    with pytest.raises(Refused):
        await desk.intake.add(AgentId("shop/other"), "order", 1, msgspec.msgpack.encode(1), token="t")
    assert desk.entered == [1]
    await closed(desk)


async def test_tokens_are_known_after_a_restart_and_after_a_rollback(tmp_path):
    desk = await joined(tmp_path)
    taken = await desk.add(1, token="t")
    await closed(desk)
    async with Desk(tmp_path) as again:
        await again.restore(Life(2, 3), epoch=0, position=0)
        assert again.entered == [1]
        repeated = await again.add(1, token="t")
        assert (repeated.duplicate, repeated.id) == (True, taken.id)
        assert again.entered == [1]


async def test_a_rollback_in_the_same_process_brings_back_what_came_after_the_cut(tmp_path):
    desk = await joined(tmp_path)
    await desk.add("before")
    position = desk.intake.cut(1)
    await desk.add("after")
    desk.intake.committed(1)
    desk.entered.clear()
    assert await desk.restore(Life(2, 1), epoch=1, position=position) == 1
    assert desk.entered == ["after"]
    await desk.add("later")
    assert desk.entered == ["after", "later"]
    # And once more, from the same epoch: the order is the same.
    desk.entered.clear()
    await desk.restore(Life(3, 1), epoch=1, position=position)
    assert desk.entered == ["after", "later"]
    await closed(desk)


async def test_what_comes_while_a_restore_runs_waits_and_enters_behind_what_comes_again(tmp_path):
    desk = await joined(tmp_path)
    for number in range(3):
        await desk.add(number)
    restoring = asyncio.ensure_future(desk.restore(Life(2, 1), epoch=0, position=1))
    await asyncio.sleep(0)
    adding = [asyncio.ensure_future(desk.add(f"new {number}")) for number in range(3)]
    desk.entered.clear()
    await asyncio.gather(restoring, *adding)
    assert desk.entered == [0, 1, 2, "new 0", "new 1", "new 2"]
    await closed(desk)


async def test_a_cut_in_the_middle_of_what_comes_again_has_exactly_what_has_entered(tmp_path):
    desk = await joined(tmp_path)
    await asyncio.gather(*(desk.add(number) for number in range(900)))
    cuts = []

    def cut() -> None:
        cuts.append((desk.intake.cut(1), list(desk.entered)))

    desk.entered.clear()
    restoring = asyncio.ensure_future(desk.restore(Life(2, 1), epoch=0, position=1))
    while not restoring.done():
        asyncio.get_running_loop().call_soon(cut)
        await asyncio.sleep(0)
    in_the_middle = [(position, seen) for position, seen in cuts if 0 < len(seen) < 900]
    assert in_the_middle
    for session, (position, seen) in enumerate(in_the_middle[-2:], 3):
        desk.entered.clear()
        await desk.restore(Life(session, 1), epoch=1, position=position)
        assert [*seen, *desk.entered] == list(range(900))
    await closed(desk)


async def test_an_input_that_waits_for_the_disk_when_a_rollback_begins_enters_once(tmp_path):
    desk = await joined(tmp_path)
    adding = [asyncio.ensure_future(desk.add(number)) for number in range(20)]
    await asyncio.sleep(0)
    await desk.restore(Life(2, 1), epoch=0, position=1)
    await asyncio.gather(*adding)
    assert desk.entered[-20:] == list(range(20))
    assert desk.intake.position == 21
    await closed(desk)


async def test_a_newer_restore_supersedes_an_older_one(tmp_path):
    desk = await joined(tmp_path)
    await desk.add(1)
    older = asyncio.ensure_future(desk.restore(Life(2, 1), epoch=0, position=1))
    await asyncio.sleep(0)
    newer = asyncio.ensure_future(desk.restore(Life(3, 1), epoch=0, position=1))
    with pytest.raises(RecoveryError, match="another incarnation has begun meanwhile"):
        await older
    await newer
    assert desk.entered == [1, 1]
    await closed(desk)


async def test_a_cut_right_behind_the_step_that_enters_an_incarnation_has_the_epoch_s_position(tmp_path):
    """Else its epoch would claim inputs that have not entered again yet."""
    desk = await joined(tmp_path)
    position = desk.intake.cut(1)
    await desk.add("after")
    ticket = desk.intake.hold(epoch=1, position=position)
    assert desk.intake.cut(2) == position
    await desk.intake.restore(Life(2, 1), ticket)
    assert desk.intake.cut(3) > position
    await closed(desk)


async def test_a_member_with_fresh_agents_replays_nothing_and_a_rollback_before_it_nothing_of_earlier_memberships(
    tmp_path,
):
    desk = await joined(tmp_path)
    await desk.add("first membership")
    await closed(desk)
    second = await joined(tmp_path, session=2, newest_epoch=5)
    assert second.entered == []
    await second.add("second membership")
    second.entered.clear()
    await second.restore(Life(2, 2), epoch=4, position=None)
    assert second.entered == ["second membership"]
    second.entered.clear()
    await second.restore(Life(3, 2), epoch=0, position=None)
    assert second.entered == ["first membership", "second membership"]
    second.entered.clear()
    await second.restore(Life(4, 2), epoch=6, position=None)
    assert second.entered == []
    await closed(second)


async def test_a_member_that_came_in_with_a_rollback_gets_its_input_back_by_the_next_one(tmp_path):
    """It was never a joiner: no cut of the epoch names it, and its own log has to tell where it began."""
    async with Desk(tmp_path) as first:
        assert await first.restore(Life(2, 1), epoch=0, position=None) == 0
        await first.add("a", token="ta")
        assert await first.restore(Life(3, 1), epoch=0, position=None) == 1
        await first.add("b", token="tb")
    async with Desk(tmp_path) as second:
        assert await second.restore(Life(4, 2), epoch=0, position=None) == 2
        assert second.entered == ["a", "b"]
        assert (await second.add("a", token="ta")).duplicate


async def test_a_process_that_started_beside_the_one_before_finds_what_that_acknowledged_meanwhile(tmp_path):
    before = await joined(tmp_path)
    async with Desk(tmp_path) as after:
        await before.add("late", token="t")
        life = Life(2, 2)
        after.intake._folder.take_over(life)
        await after.intake.taken_over()
        assert await after.restore(life, epoch=0, position=1) == 1
        assert after.entered == ["late"]
        assert (await after.add("late", token="t")).duplicate
    with pytest.raises(FencedError):
        await before.add("too late")
    await closed(before)


async def test_a_lost_disk_never_gives_the_same_position_twice(tmp_path):
    desk = Desk(tmp_path)
    await desk.intake.open()
    assert await desk.restore(Life(2, 7), epoch=3, position=500) == 0
    taken = await desk.add("new")
    assert taken.position > 500
    await closed(desk)
    async with Desk(tmp_path) as again:
        await again.restore(Life(3, 7), epoch=3, position=500)
        assert again.entered == ["new"]


async def test_a_process_that_was_replaced_acknowledges_nothing_any_more(tmp_path):
    zombie = await joined(tmp_path)
    await zombie.add(1)
    successor = Desk(tmp_path)
    await successor.intake.open()
    await successor.restore(Life(2, 2), epoch=0, position=1)
    with pytest.raises(FencedError):
        await zombie.add(2)
    assert zombie.entered == [1]
    assert isinstance(zombie.failures[0], FencedError)
    await successor.add(3)
    assert successor.entered == [1, 3]
    with pytest.raises(FencedError):
        await zombie.restore(Life(1, 1), epoch=0, position=1)
    await closed(zombie)
    await closed(successor)


async def test_a_failed_sync_is_told_to_the_client_and_ends_the_log(tmp_path, monkeypatch):
    desk = await joined(tmp_path)
    real = os.fdatasync

    def failing(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StoreError, match="EIO"):
        await desk.add(1)
    with pytest.raises(StoreError):
        await desk.add(2)
    assert desk.entered == []
    assert len(desk.failures) == 1
    await closed(desk)


async def test_a_full_log_refuses_input_until_epochs_commit(tmp_path):
    desk = await joined(tmp_path, bytes_max=1024 * KIB)
    blob = b"x" * (40 * KIB)
    added = itertools.count()

    async def add_for_ever() -> None:
        while True:
            await desk.add(blob, token=f"t{next(added)}")

    with pytest.raises(Overloaded, match="no committed epoch has"):
        await add_for_ever()
    added = next(added) - 1
    assert 20 <= added <= 26
    assert not desk.failures
    desk.intake.cut(1)
    desk.intake.committed(1)
    await _until_deleted(desk)
    await desk.add(blob)
    assert desk.intake.statistics()["inputs_log_bytes"] < 512 * KIB
    # What left is still known by its token.
    assert (await desk.add(blob, token="t0")).duplicate
    await closed(desk)
    async with Desk(tmp_path, bytes_max=1024 * KIB) as again:
        await again.restore(Life(2, 2), epoch=1, position=added + 1)
        assert (await again.add(blob, token="t1")).duplicate
        assert len(again.entered) == 1


async def _until_deleted(desk: Desk) -> None:
    await desk.intake._group.wait_idle()
    while desk.intake._truncating is not None:
        await asyncio.wait({desk.intake._truncating})


async def test_a_log_stays_bounded_over_a_thousand_epochs(tmp_path):
    desk = await joined(tmp_path, bytes_max=1024 * KIB)
    blob = b"x" * (16 * KIB)
    most = 0
    for epoch in range(1, 301):
        await desk.add(blob, token=f"t{epoch}")
        desk.intake.cut(epoch)
        desk.intake.committed(epoch)
        await _until_deleted(desk)
        most = max(most, desk.intake.statistics()["inputs_log_bytes"])
    assert most < 700 * KIB
    files = os.listdir(tmp_path / "p1" / "input")
    assert sum((tmp_path / "p1" / "input" / name).stat().st_size for name in files) < 700 * KIB
    await closed(desk)


async def test_going_back_beyond_what_was_deleted_is_refused_by_name_and_can_be_allowed(tmp_path):
    desk = await joined(tmp_path, bytes_max=1024 * KIB)
    blob = b"x" * (40 * KIB)
    first = desk.intake.cut(1)
    for number in range(18):
        await desk.add(blob, token=f"t{number}")
    for epoch in (2, 3, 4):
        desk.intake.cut(epoch)
        desk.intake.committed(epoch)
        await _until_deleted(desk)
    await desk.add("newest")
    desk.entered.clear()
    with pytest.raises(InputsMissing, match="what they hold has been deleted") as error:
        await desk.intake.check(epoch=1, position=first, ancestry=None)
    assert error.value.wanted == first + 1
    desk.intake._allow_lost = True
    await desk.intake.check(epoch=1, position=first, ancestry=None)
    await desk.intake.check(epoch=2, position=desk.intake.position, ancestry=None)
    count = await desk.restore(Life(3, 1), epoch=1, position=first)
    assert count >= 1
    assert desk.entered[-1] == "newest"
    # A client that never heard, or hears of the loss, sends it again: it is taken.
    assert not (await desk.add(blob, token="t0")).duplicate
    await closed(desk)


async def test_a_savepoint_can_be_gone_back_to_after_any_number_of_epochs_and_input_is_never_refused_for_it(tmp_path):
    desk = await joined(tmp_path, bytes_max=1024 * KIB)
    blob = b"x" * (3 * KIB)
    cut = {}
    for epoch in range(1, 120):
        cut[epoch] = desk.intake.cut(epoch)
        await desk.add([epoch, blob], token=f"t{epoch}")
        desk.intake.keeps([3])
        desk.intake.committed(epoch)
        await _until_deleted(desk)
    await desk.intake.check(epoch=3, position=cut[3], ancestry=None)
    assert await desk.intake.missing(3) == ""
    await closed(desk)

    again = Desk(tmp_path, bytes_max=1024 * KIB)
    await again.intake.open()
    assert await again.restore(Life(2, 2), epoch=3, position=cut[3]) == 117
    assert [value[0] for value in again.entered] == list(range(3, 120))
    blob = b"x" * (40 * KIB)
    for epoch in range(120, 150):
        again.intake.cut(epoch)
        await again.add([epoch, blob])
        again.intake.keeps([3])
        again.intake.committed(epoch)
        await _until_deleted(again)
    with pytest.raises(InputsMissing):
        await again.intake.check(epoch=3, position=cut[3], ancestry=None)
    assert "input that was acknowledged behind epoch 3 is not in the log any more" in await again.intake.missing(3)
    assert "refuse to go back there" in await again.intake.missing(3)
    assert await again.intake.missing(149) == ""
    assert again.intake.statistics()["inputs_log_bytes"] < 700 * KIB
    await closed(again)


async def test_a_life_that_goes_on_notes_where_its_membership_began_if_the_one_before_had_not(tmp_path):
    """It died before it could; a rollback to an epoch without it brings back all that came from there on, entered or not."""
    desk = await joined(tmp_path)
    for number in range(7):
        await desk.add(number)
    await closed(desk)
    async with Desk(tmp_path) as later:
        ticket = later.intake.hold(epoch=0, position=8, began=5)
        assert await later.intake.restore(Life(1, 2), ticket, newest_epoch=4) == 0
        await later.add(7)
    async with Desk(tmp_path) as again:
        assert await again.restore(Life(2, 3), epoch=4, position=None) == 4
        assert again.entered == [4, 5, 6, 7]
    async with Desk(tmp_path) as once_more:  # noted already: not noted again
        end = once_more.intake._log.next
        await once_more.intake.restore(Life(2, 4), once_more.intake.hold(epoch=4, position=8, began=5))
        assert once_more.intake._log.next == end


async def test_who_was_away_while_all_went_back_to_an_epoch_without_it_brings_its_input_back_and_once(tmp_path):
    """It begins anew: what it had acknowledged has not happened. What enters from then on is of this membership."""
    async with await joined(tmp_path, newest_epoch=3) as desk:
        await desk.add("a", token="a")
        await desk.add("b", token="b")
    back = Ancestry(incarnation=2, through=((1, 3),))
    async with Desk(tmp_path) as later:
        ticket = later.intake.hold(epoch=None, ancestry=back)
        assert later.intake.cut(4) == 0, "a cut may come before any of it has entered"
        assert await later.intake.restore(Life(2, 2), ticket, newest_epoch=3) == 2
        await later.add("c")
        assert (await later.add("b", token="b")).duplicate
        assert later.entered == ["a", "b", "c"]
    async with Desk(tmp_path) as left:  # it had left in order, and comes again
        assert await left.intake.restore(Life(2, 3), left.intake.hold(epoch=None, ancestry=back), newest_epoch=4) == 0
        await left.add("d")
        assert left.entered == ["d"]
    for incarnation, ancestry, expected in (
        (3, Ancestry(incarnation=3, through=((2, 4), (1, 3))), ["d"]),
        (4, Ancestry(incarnation=4, through=((1, 3),)), ["a", "b", "c", "d"]),
        (5, Ancestry(incarnation=5, through=((4, 9), (1, 3))), []),
    ):
        async with Desk(tmp_path) as again:
            ticket = again.intake.hold(epoch=None, ancestry=ancestry)
            await again.intake.restore(Life(incarnation, 2 + incarnation), ticket, newest_epoch=5)
            assert again.entered == expected


@pytest.mark.parametrize("ancestry", [None, Ancestry(incarnation=2, through=((1, 5),))], ids=["unknown", "left before"])
async def test_who_begins_anew_replays_nothing_of_a_membership_that_counts(tmp_path, ancestry):
    async with await joined(tmp_path, newest_epoch=3) as desk:
        await desk.add("a")
    async with Desk(tmp_path) as later:
        ticket = later.intake.hold(epoch=None, ancestry=ancestry)
        assert await later.intake.restore(Life(2, 2), ticket, newest_epoch=5) == 0
        assert later.entered == []


async def test_the_cut_of_an_epoch_is_noted_while_input_still_comes_again(tmp_path):
    """Else nothing commits for as long as it takes: there may be a million of it."""
    async with await joined(tmp_path) as desk:
        await desk.add("a")
    async with Desk(tmp_path) as again:
        comes, replay = asyncio.Event(), again.intake._replay

        async def held(ticket: int) -> int:
            await comes.wait()
            return await replay(ticket)

        again.intake._replay = held
        ticket = again.intake.hold(epoch=0, position=0)
        restoring = asyncio.ensure_future(again.intake.restore(Life(2, 2), ticket))
        again.intake.cut(1)
        await asyncio.wait_for(again.intake.noted(1), 20)
        assert again.entered == []
        comes.set()
        assert await restoring == 1
    async with Desk(tmp_path) as later:
        ticket = later.intake.hold(epoch=None, ancestry=Ancestry(incarnation=3, through=((2, 1),)))
        assert await later.intake.restore(Life(3, 3), ticket, newest_epoch=1) == 1
        assert later.entered == ["a"], "behind that cut"


async def test_the_cut_of_an_epoch_is_noted_only_as_long_as_it_is_open(tmp_path):
    async with await joined(tmp_path) as desk:
        await desk.add("a")
        desk.intake.cut(1)
        desk.intake.cut(2)
        await desk.intake.noted(1)
        desk.intake.dropped(2)
        with pytest.raises(RecoveryError, match="epoch 2 is over"):
            await desk.intake.noted(2)
        await desk.add("b")
    async with Desk(tmp_path) as again:
        ticket = again.intake.hold(epoch=None, ancestry=Ancestry(incarnation=2, through=((1, 1),)))
        again.intake.cut(3)
        noting = asyncio.ensure_future(again.intake.noted(3))
        await asyncio.sleep(0)
        assert not noting.done(), "whose log it is is not known yet"
        assert await again.intake.restore(Life(2, 2), ticket, newest_epoch=2) == 1
        await noting
        assert again.entered == ["b"]
    with pytest.raises(RecoveryError):
        await again.intake.noted(3)


async def test_who_missed_one_rollback_and_comes_in_with_the_next_brings_its_input_back(tmp_path):
    """The next one goes to an epoch that is newer than its membership, and in which it never was."""
    async with await joined(tmp_path, newest_epoch=3) as desk:
        await desk.add("a")
    ancestry = Ancestry(incarnation=3, through=((2, 6), (1, 3)))
    async with Desk(tmp_path) as later:
        await later.intake.check(epoch=6, position=None, ancestry=ancestry)
        ticket = later.intake.hold(epoch=6, position=None, ancestry=ancestry)
        assert await later.intake.restore(Life(3, 2), ticket, newest_epoch=7) == 1
        assert later.entered == ["a"]


async def test_input_waits_for_membership_and_ends_with_the_participant(tmp_path):
    desk = Desk(tmp_path)
    await desk.intake.open()
    adding = asyncio.ensure_future(desk.add(1))
    await asyncio.sleep(0.01)
    assert not adding.done()
    await desk.intake.restore(Life(1, 1), desk.intake.hold(epoch=None), newest_epoch=0)
    await adding
    await closed(desk)
    late = Desk(tmp_path)
    await late.intake.open()
    adding = asyncio.ensure_future(late.add(2))
    await asyncio.sleep(0)
    await closed(late)
    with pytest.raises(Refused, match="has ended"):
        await adding


async def test_another_cluster_s_log_is_refused(tmp_path):
    desk = await joined(tmp_path)
    await desk.add(1)
    await closed(desk)
    other = Intake(
        LocalFolder(tmp_path, "p1"),
        cluster="another",
        participant="p1",
        enters=lambda *_: None,
        had=lambda _: None,
        failed=lambda _: None,
    )
    with pytest.raises(StoreError, match="participant p1 in cluster shop"):
        await other.open()
    await other.close()
