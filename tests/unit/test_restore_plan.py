"""The plan of a restore: what fits, what is migrated, what is missing, and what stands in the way."""

from __future__ import annotations

import msgspec
import pytest

from protocol.errors import RecoveryError
from protocol.reading import EpochReader
from protocol.restore_plan import (
    LISTED_MAX,
    AgentCode,
    Outside,
    RestorePlan,
    SavedAgent,
    restore_plan,
    saved_agents,
    version_problem,
)
from protocol.storage import MemoryStore
from tests.epochs import made_epoch


@pytest.fixture
def manifest():
    return made_epoch(MemoryStore("demo")).write().manifest


def plan_of(manifest, saved=(), codes=(), **options) -> RestorePlan:
    return restore_plan(manifest, saved, codes, **options)


def fates(plan: RestorePlan) -> dict[str, str]:
    return {line.agent: line.fate for line in plan.agents}


def placed(manifest) -> list[str]:
    return sorted(agent for member in manifest.members for agent in member.agents)


def test_agents_whose_kind_nobody_knows_are_unclaimed_and_refuse_the_restore(manifest):
    plan = plan_of(manifest)
    assert set(fates(plan)) == set(placed(manifest))
    assert set(fates(plan).values()) == {"unclaimed"}
    with pytest.raises(RecoveryError, match="bank/main: nobody here declares it or takes agents of kind bank"):
        plan.demand()
    plan.demand(allow_unclaimed=True)
    assert plan.document()["ok"] is False
    assert plan.document(allow_unclaimed=True)["ok"] is True


def test_every_agent_of_the_manifest_has_a_line_and_lines_are_sorted(manifest):
    codes = [AgentCode(kind=kind) for kind in sorted({agent.partition("/")[0] for agent in placed(manifest)})]
    plan = plan_of(manifest, codes=codes)
    assert [line.agent for line in plan.agents] == placed(manifest)
    assert set(fates(plan).values()) == {"matched"}
    plan.demand()


def one(saved: SavedAgent, code: AgentCode, manifest):
    plan = plan_of(manifest, [saved], [code], here={saved.id: "p1"})
    return next(line for line in plan.agents if line.agent == saved.id)


def test_an_older_state_is_migrated_when_the_chain_is_whole(manifest):
    line = one(
        SavedAgent(id="x/1", participant="p9"), AgentCode(kind="x", state_version=3, migrations=(1, 2)), manifest
    )
    assert (line.fate, line.steps, line.saved_version, line.version) == ("migrated", ("1 to 2", "2 to 3"), 1, 3)


def test_a_gap_in_the_chain_and_a_downgrade_are_refused_and_named(manifest):
    gap = one(SavedAgent(id="x/1", participant="p9"), AgentCode(kind="x", state_version=4, migrations=(2,)), manifest)
    assert gap.fate == "refused"
    assert "no migration from 1 to 2, 3 to 4" in gap.reason
    down = one(SavedAgent(id="x/1", participant="p9", state_version=5), AgentCode(kind="x", state_version=4), manifest)
    assert down.fate == "refused"
    assert "code cannot go back" in down.reason
    unknown = one(
        SavedAgent(id="x/1", participant="p9"), AgentCode(kind="x", state_version=4, migrations=None), manifest
    )
    assert unknown.fate == "migrated"


def test_fields_of_the_same_version_must_be_there_in_the_same_shape(manifest):
    saved = SavedAgent(id="x/1", participant="p", fields=(("a", "value", "msgpack"), ("b", "keyed", "msgpack")))
    good = AgentCode(kind="x", fields=(("a", "value", "msgpack"), ("b", "keyed", "msgpack"), ("c", "value", "msgpack")))
    assert one(saved, good, manifest).fate == "matched"
    gone = one(saved, AgentCode(kind="x", fields=(("a", "value", "msgpack"),)), manifest)
    assert "no field b that the epoch holds" in gone.reason
    other = one(saved, AgentCode(kind="x", fields=(("a", "value", "cloudpickle"), ("b", "keyed", "msgpack"))), manifest)
    assert "field a was saved as value with msgpack, its class says value with cloudpickle" in other.reason


def test_messages_that_wait_and_that_nobody_handles_any_more_are_named(manifest):
    saved = SavedAgent(
        id="x/1", participant="p", messages=(("cleancut.start", 1, 1), ("order", 1, 3), ("order", 2, 1), ("pay", 1, 2))
    )
    line = one(saved, AgentCode(kind="x", messages=(("order", 2), ("pay", 1))), manifest)
    assert line.unhandled == ("3 of order version 1",)
    assert line.fate == "matched"
    assert one(saved, AgentCode(kind="x", messages=None), manifest).unhandled == ()


def test_a_class_takes_agents_of_the_kinds_that_it_had_before(manifest):
    plan = plan_of(
        manifest,
        [SavedAgent(id="old/1", participant="p")],
        [AgentCode(kind="new", renamed_from=("old",))],
        here={"old/1": "p1"},
    )
    assert fates(plan)["old/1"] == "matched"


def test_who_is_here_decides_and_kinds_that_are_taken_from_others(manifest):
    saved = [SavedAgent(id="x/1", participant="p"), SavedAgent(id="x/2", participant="p")]
    code = [AgentCode(kind="x")]
    here = {"x/1": "p1", "x/9": "p1"}
    found = fates(plan_of(manifest, saved, code, here=here))
    assert (found["x/1"], found["x/2"], found["x/9"]) == ("matched", "unclaimed", "missing")
    found = fates(plan_of(manifest, saved, code, here=here, takes=["x"]))
    assert (found["x/1"], found["x/2"]) == ("matched", "matched")


def test_what_reached_the_world_after_the_epoch_is_counted_and_listed_within_a_bound(manifest):
    many = [Outside(kind="output", place="s", agent="x/1", token=str(number)) for number in range(LISTED_MAX + 5)]
    asked = []

    def outputs(epoch: int) -> list[Outside]:
        asked.append(epoch)
        return many

    plan = plan_of(manifest, outputs_after=outputs, effects_after=lambda _: [])
    assert asked == [manifest.epoch]
    assert (plan.outputs_after, plan.effects_after, len(plan.outside)) == (LISTED_MAX + 5, 0, LISTED_MAX)
    assert plan_of(manifest).outputs_after is None


def test_many_problems_are_said_in_one_sentence(manifest):
    saved = [SavedAgent(id=f"x/{number}", participant="p", state_version=9) for number in range(9)]
    plan = plan_of(manifest, saved, [AgentCode(kind="x")], takes=["x"])
    assert len(plan.problems(allow_unclaimed=True)) == 9
    with pytest.raises(RecoveryError, match="and 4 more"):
        plan.demand(allow_unclaimed=True)


def test_a_plan_is_a_json_document(manifest):
    document = plan_of(manifest, notes=["a note"]).document()
    assert document["counts"]["unclaimed"] == len(placed(manifest))
    assert list(document["notes"]) == ["a note"]
    assert msgspec.json.decode(msgspec.json.encode(document))["epoch"] == manifest.epoch


def test_the_epoch_s_agents_are_read_with_what_waits_for_them():
    store = MemoryStore("demo")
    made = made_epoch(store).write()
    reader = EpochReader(store, made.manifest)
    found = {agent.id: agent for agent in saved_agents(reader)}
    assert sorted(found) == list(reader.agents())
    waiting = sum(count for agent in found.values() for _, _, count in agent.messages)
    expected = sum(len(reader.mailbox(agent)) + len(reader.timers(agent)) for agent in reader.agents())
    expected += sum(len(reader.channel(each.source, each.target)) for each in made.manifest.channels)
    assert waiting == expected > 0
    assert all(agent.messages == () for agent in saved_agents(reader, messages=False))
    assert found["bank/main"].fields


@pytest.mark.parametrize(("saved", "code", "steps", "problem"), [(1, 1, (), ""), (1, 2, (1,), ""), (3, 3, (1,), "")])
def test_versions_that_fit(saved, code, steps, problem):
    assert version_problem(saved, code, steps) == problem
