"""A participant's local folder, read by somebody else: damaged, in use, or as it should be. Nothing in it ever changes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from participant.effects.entries import Entry, Kind, State
from participant.logs.recovery import LogIdentity
from participant.logs.segment import segment_name
from participant.runtime import local_reading
from participant.runtime.durable_log import DurableLog
from participant.runtime.effects_local import LocalEffects
from participant.runtime.log_files import FolderFiles, Life, LocalFolder
from protocol.errors import ObjectCorrupt, StoreError
from protocol.outputs import FencingToken
from tests.operator_world import log_turns, turn_record

if TYPE_CHECKING:
    from pathlib import Path

FENCE = FencingToken("p1", 1, 1)


def entry(number: int, **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "token": f"{number:032x}",
        "kind": Kind.STEP,
        "agent": f"buyer/{number % 2}",
        "message_id": bytes(16),
        "name": "charge",
        "ordinal": number,
        "intent": b"i",
        "shown": f"({number},)",
        "payload": b"",
        "participant": "p1",
        "incarnation": 1,
        "session": 1,
        "claim_id": b"%d" % number,
        "claimed_at": 1_000_000_000 * (number + 1),
    }
    return Entry(**{**fields, **changes})


async def effects_of(root: Path, count: int, participant: str = "p1") -> LocalEffects:
    """Every third is in doubt, the others are done."""
    effects = LocalEffects(LocalFolder(root, participant), cluster="shop", participant=participant)
    fence = FencingToken(participant, 1, 1)
    await effects.open(fence)
    for number in range(count):
        made = entry(number, participant=participant)
        await effects.claim(made, fence)
        if number % 3:
            await effects.end(made.token, fence, made.claim_id, State.DONE, result=b"\x07")
    return effects


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_folder_that_is_none_or_holds_nothing_is_an_error_and_stays_as_it_is(tmp_path: Path):
    for read in (local_reading.effects_page, local_reading.questions_page, local_reading.logged_agents):
        with pytest.raises(StoreError, match="ENOENT"):
            read(tmp_path / "nowhere")
        with pytest.raises(StoreError, match="no participant's"):
            read(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_effects_are_read_while_their_participant_writes_and_nothing_is_touched(tmp_path: Path):
    effects = await effects_of(tmp_path, 9)
    before = contents(tmp_path)
    found = local_reading.effects_page(tmp_path)
    assert found["participants"] == ["p1"]
    assert [each["ordinal"] for each in found["effects"]] == list(range(8, -1, -1))
    assert [each["result"] for each in found["effects"] if each["state"] == "done"] == [7] * 6
    doubtful = local_reading.effects_page(tmp_path / "p1", in_doubt=True)
    assert [(each["ordinal"], each["standing"]) for each in doubtful["effects"]] == [(n, "in-doubt") for n in (6, 3, 0)]
    assert [each["ordinal"] for each in local_reading.effects_page(tmp_path, agent="buyer/1")["effects"]] == [
        7,
        5,
        3,
        1,
    ]
    assert contents(tmp_path) == before
    await effects.claim(entry(9), FENCE)
    assert len(local_reading.effects_page(tmp_path)["effects"]) == 10
    await effects.aclose()


async def test_pages_of_several_participants_go_on_where_they_ended(tmp_path: Path):
    for name in ("p1", "p2"):
        await (await effects_of(tmp_path, 5, name)).aclose()
    page = local_reading.effects_page(tmp_path, limit=3)
    assert (page["participants"], page["more"], len(page["effects"])) == (["p1", "p2"], True, 3)
    page = local_reading.effects_page(tmp_path, limit=30, before=page["effects"][-1]["cursor"])
    assert page["more"] is False
    assert 1 <= len(page["effects"]) <= 7


async def test_open_questions_are_read_and_those_of_turns_that_are_over_are_not(tmp_path: Path):
    effects = await effects_of(tmp_path, 0)
    for number in range(4):
        await effects.claim(entry(number, kind=Kind.QUESTION, name="", payload=b"\xa3Ok?"), FENCE)
    await effects.end(f"{1:032x}", FENCE, b"", State.DONE, result=b"\xc3")
    await effects.close_turn([f"{2:032x}"], 0, FENCE)
    await effects.aclose()
    found = local_reading.questions_page(tmp_path)
    assert [(each["token"][-1], each["question"]) for each in found["questions"]] == [("3", "Ok?"), ("0", "Ok?")]
    assert local_reading.effects_page(tmp_path)["effects"] == []


async def test_a_torn_tail_is_passed_over_and_damage_is_said(tmp_path: Path):
    await (await effects_of(tmp_path, 6)).aclose()
    path = tmp_path / "p1" / "effects" / segment_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert len(local_reading.effects_page(tmp_path)["effects"]) == 6, "the last change was an end"
    path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    with pytest.raises(ObjectCorrupt, match="damaged at byte"):
        local_reading.effects_page(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ObjectCorrupt, match="too short"):
        local_reading.effects_page(tmp_path)


def test_history_is_read_from_the_newest_segment_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log_turns(tmp_path / "p1", "buyer/a", 40, segment_bytes=1_500)
    read: list[str] = []
    real = local_reading.FilesToRead.read

    def noted(self: local_reading.FilesToRead, name: str) -> bytes:
        read.append(name)
        return real(self, name)

    monkeypatch.setattr(local_reading.FilesToRead, "read", noted)
    page = local_reading.history_page(tmp_path / "p1", "buyer/a", limit=3)
    assert page.more
    assert [turn["outcome"] for turn in page.rows] == ["committed", "committed", "dead-letter"]
    assert len(read) <= 2 < len(list((tmp_path / "p1" / "turns").iterdir()))
    seen = [turn["number"] for turn in page.rows]
    while page.more:
        page = local_reading.history_page(tmp_path / "p1", "buyer/a", limit=7, before=seen[0])
        seen = [turn["number"] for turn in page.rows] + seen
    assert seen == sorted(set(seen))
    assert len(seen) == 41
    assert local_reading.history_page(tmp_path / "p1", "buyer/b").rows == []


def test_a_log_that_is_written_and_cut_off_at_its_beginning_meanwhile_is_read_whole(tmp_path: Path):
    """What is read is always an unbroken run of turns up to a newest one that only grows."""
    folder = tmp_path / "p1" / "turns"
    log = DurableLog(FolderFiles(folder), LogIdentity("turns", "shop", "p1"), segment_bytes=4_000)
    assert list(log.recover()) == []
    log.begin(Life(1, 1))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for _ in range(3):
                log.append(turn_record("buyer/a", log.next))
            job = log.take()
            assert job is not None
            log.write(job)
            if job.last % 30 == 0:
                log.truncate(job.last - 40)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        newest = reads = 0
        while newest < 1_500:
            page = local_reading.history_page(tmp_path / "p1", "buyer/a", limit=60)
            numbers = [turn["number"] for turn in page.rows]
            if not numbers:
                continue  # the first segment has no name yet
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[-1] >= newest
            newest = numbers[-1]
            reads += 1
        assert reads > 5
    finally:
        stop.set()
        writer.join()
        log.close()


def test_segments_that_an_epoch_covered_may_be_gone(tmp_path: Path):
    log_turns(tmp_path / "p1", "buyer/a", 40, segment_bytes=1_500)
    folder = tmp_path / "p1" / "turns"
    for name in sorted(each.name for each in folder.iterdir())[:3]:
        (folder / name).unlink()
    page = local_reading.history_page(tmp_path / "p1", "buyer/a", limit=1_000)
    assert page.more is False
    assert 1 < len(page.rows) < 41
    (agent,) = local_reading.logged_agents(tmp_path)
    assert (agent["agent"], agent["participant"], agent["turns"]) == ("buyer/a", "p1", len(page.rows) - 1)
    second = sorted(each.name for each in folder.iterdir())[1]
    (folder / second).unlink()
    with pytest.raises(ObjectCorrupt, match="is gone"):
        local_reading.history_page(tmp_path / "p1", "buyer/a", limit=1_000)


def test_turns_with_huge_outputs_fit_into_a_page_all_the_same(tmp_path: Path):
    log_turns(tmp_path / "p1", "buyer/a", 3, payload=3 << 20)
    page = local_reading.history_page(tmp_path / "p1", "buyer/a", limit=10)
    assert [turn["outcome"] for turn in page.rows] == ["committed"] * 3 + ["dead-letter"]
    assert page.rows[0]["outputs"]["left_out_bytes"] > 3 << 20
    assert page.rows[0]["steps"][0]["result"] == 0


def test_the_participant_that_has_the_turns_is_found_among_several(tmp_path: Path):
    log_turns(tmp_path / "p1", "buyer/a", 2)
    log_turns(tmp_path / "p2", "buyer/b", 2)
    found = local_reading.history_document(tmp_path, "buyer/b")
    assert found is not None
    assert (found["participant"], len(found["turns"])) == ("p2", 3)
    assert local_reading.history_document(tmp_path, "buyer/c") is None
