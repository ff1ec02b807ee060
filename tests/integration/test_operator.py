"""Operators and their coordinators: effects in doubt, questions, the turns of an agent, and who waits."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest

from tests.integration.coordinators import Scripted, until
from tests.operator_world import Ask, Buyer, Order, log_turns, shop
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

UNKNOWN = "f" * 32


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_what_nobody_can_do_is_refused_with_a_reason(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        settle, answer = f"/v1/effects/{row['token']}/settle", f"/v1/questions/{UNKNOWN}/answer"
        for method, path, body, status, code in [
            ("POST", f"/v1/effects/{UNKNOWN}/settle", {"result": 1}, 404, "no-effect"),
            ("POST", "/v1/effects/a b/settle", {"result": 1}, 400, "bad-value"),
            ("POST", f"/v1/effects/{'a' * 65}/settle", {"result": 1}, 400, "bad-value"),
            ("POST", settle, {}, 400, "bad-value"),
            ("POST", settle, {"result": 1, "did_not_happen": True}, 400, "bad-value"),
            ("POST", settle, {"did_not_happen": False}, 400, "bad-value"),
            ("POST", settle, {"did_not_happen": "yes"}, 400, "bad-value"),
            ("POST", settle, {"happened": 1}, 400, "unknown-key"),
            ("POST", settle, [1], 400, "bad-json"),
            # A receipt is wanted.
            ("POST", settle, {"result": "paid"}, 400, "bad-value"),
            ("POST", settle, {"result": {"number": "one"}}, 400, "bad-value"),
            # In doubt: there is nothing recorded.
            ("POST", settle, {"take_recorded": True}, 409, "no-result"),
            ("POST", answer, {"answer": True}, 404, "no-question"),
            ("POST", answer, {}, 400, "bad-value"),
            ("POST", f"/v1/questions/{row['token']}/answer", {"answer": True}, 404, "no-question"),
            ("GET", "/v1/effects?before=yesterday", None, 400, "bad-value"),
            ("GET", "/v1/effects?agent=nobody", None, 400, "bad-agent"),
            ("GET", "/v1/effects?limit=many", None, 400, "bad-value"),
            ("GET", "/v1/agents/buyer/b/history", None, 404, "no-agent"),
            ("GET", "/v1/agents/buyer/history", None, 400, "bad-agent"),
            ("GET", "/v1/agents/buyer/a/history", None, 409, "no-turn-log"),
        ]:
            found = await world.refused(method, path, body)
            assert found[:2] == (status, code), (path, body, found)
        too_long = json.dumps({"result": "x" * (3 << 20)})
        status, code, _ = await world.refused("POST", settle, {"result": too_long})
        assert (status, code) == (413, "too-large")
        assert [each["token"] for each in await world.in_doubt()] == [row["token"]], "nothing was settled by any of it"
        assert (buyer.calls, buyer.receipts) == (["o1"], [])


async def test_viewers_look_operators_decide_and_nobody_else_does_either(tmp_path) -> None:
    async with shop(tmp_path) as world:
        one = await world.join("p1", Buyer("a"))
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        reads = ["/v1/effects", "/v1/questions", "/v1/agents", "/v1/agents/buyer/a/history"]
        writes = [f"/v1/effects/{row['token']}/settle", f"/v1/questions/{row['token']}/answer"]
        for path in reads:
            assert (await world.call("GET", path, role="viewer"))[0] in {200, 409}, path
            assert (await world.refused("GET", path, role="participant"))[:2] == (403, "wrong-role")
            assert (await world.refused("GET", path, role=None))[:2] == (401, "no-token")
        for path in writes:
            for role, status in (("viewer", 403), ("participant", 403), (None, 401)):
                assert (await world.refused("POST", path, {"result": {"number": 1}}, role=role))[0] == status, path
        assert await world.in_doubt()


async def test_a_step_in_doubt_is_seen_settled_once_and_its_agent_goes_on(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await world.join("p2", Buyer("b"))
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        assert (row["agent"], row["name"], row["standing"], row["host"]) == ("buyer/a", "charge", "in-doubt", "p1")
        assert "o1" in row["arguments"]
        assert "no resolve" in row["why"]

        async def waiting() -> Any:
            _, found = await world.call("GET", "/v1/status")
            return found["waiting"] if found["waiting"]["count"] else None

        told = await until(waiting, "the status says so")
        assert (told["count"], told["questions"]) == (1, 0)
        named = {"agent": "buyer/a", "step": "charge", "token": row["token"], "cause": "in-doubt"}
        assert told["agents"] == [{"participant": "p1", **named}]
        _, metrics = await world.call("GET", "/metrics")
        assert "cleancut_agents_waiting 1" in metrics
        _, found = await world.call("GET", "/v1/doctor")
        (check,) = [each for each in found["checks"] if each["name"] == "decisions"]
        assert (check["ok"], check["detail"]) == (False, "waiting for one: buyer/a (in-doubt)")
        _, found = await world.call("GET", "/v1/participants")
        assert [(each["id"], each["waiting"]) for each in found["participants"]] == [("p1", [named]), ("p2", [])]
        _, found = await world.call("GET", "/v1/agents")
        assert [(each["agent"], each["participant"], bool(each["waiting"])) for each in found["agents"]] == [
            ("buyer/a", "p1", True),
            ("buyer/b", "p2", False),
        ]

        path = f"/v1/effects/{row['token']}/settle"
        status, done = await world.call("POST", path, {"result": {"number": 7}})
        assert (status, done["participant"], done["duplicate"]) == (200, "p1", False)
        assert (done["effect"]["state"], done["effect"]["settled"]) == ("done", True)
        assert done["effect"]["result"] == {"number": 7}
        await until(lambda: buyer.receipts == [7], "the agent went on")
        assert buyer.calls == ["o1"]
        status, again = await world.call("POST", path, {"result": {"number": 7}})
        assert (status, again["duplicate"]) == (200, True)
        for other in ({"result": {"number": 8}}, {"did_not_happen": True}):
            status, code, message = await world.refused("POST", path, other)
            assert (status, code) == (409, "settled-before")
            assert "an operator settled it" in message
        assert buyer.receipts == [7]
        _, listed = await world.call("GET", "/v1/effects?agent=buyer/a")
        assert [(each["token"], each["standing"]) for each in listed["effects"]] == [(row["token"], "")]
        assert (await world.call("GET", "/v1/effects?agent=buyer/b"))[1]["effects"] == []

        async def nobody() -> bool:
            return not (await world.call("GET", "/v1/status"))[1]["waiting"]["count"]

        await until(nobody, "nobody waits any more")
        assert world.made.session is not None
        headers = {"Authorization": f"Bearer {world.made.keys.token('viewer')}"}
        kinds = []
        async with world.made.session.get(f"{world.made.c1.url}/v1/events?since=0", headers=headers) as stream:
            async for line in stream.content:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if event["kind"].startswith("agent-"):
                        kinds.append((event["kind"], event["participant"], event["agent"], event["cause"]))
                if len(kinds) == 2:
                    break
        assert kinds == [
            ("agent-waits", "p1", "buyer/a", "in-doubt"),
            ("agent-goes-on", "p1", "buyer/a", "in-doubt"),
        ]


async def test_a_step_that_did_not_happen_is_done(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        path = f"/v1/effects/{row['token']}/settle"
        status, done = await world.call("POST", path, {"did_not_happen": True})
        assert (status, done["effect"]["state"]) == (200, "released")
        await until(lambda: buyer.receipts == [2], "it was done")
        assert buyer.calls == ["o1", "o1"]
        status, code, message = await world.refused("POST", path, {"did_not_happen": True})
        assert (status, code) == (409, "settled-before")
        assert "ended by itself" in message


async def test_a_step_that_is_being_done_is_listed_as_that_and_cannot_be_settled(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Order("o1", "slow"))
        await until(lambda: buyer.calls, "it is being done")
        _, listed = await world.call("GET", "/v1/effects")
        (row,) = listed["effects"]
        assert row["standing"] == "under-way"
        assert (await world.call("GET", "/v1/effects?in_doubt=1"))[1]["effects"] == []
        for word in ({"result": {"number": 1}}, {"did_not_happen": True}):
            found = await world.refused("POST", f"/v1/effects/{row['token']}/settle", word)
            assert found[:2] == (409, "under-way")
        buyer.slow.set()
        await until(lambda: buyer.receipts == [1], "it was done")


async def test_a_step_that_has_diverged_is_in_the_list_with_both_and_its_recorded_result_can_be_taken(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Order("o1", "diverge"))
        (row,) = await world.in_doubt()
        assert (row["standing"], row["state"], row["result"]) == ("diverged", "done", {"number": 1, "note": ""})
        recorded, wanted = (f"(Order(id='o1', how='diverge'), {cents})" for cents in (1, 2))
        assert row["arguments"] == recorded
        assert recorded in row["why"]
        assert wanted in row["why"]
        path = f"/v1/effects/{row['token']}/settle"
        found = await world.refused("POST", path, {"result": {"number": 9}})
        assert found[:2] == (409, "settled-before")
        assert buyer.turns == 2, "a word that is refused does not have it try again"
        status, done = await world.call("POST", path, {"take_recorded": True})
        assert (status, done["duplicate"]) == (200, False)
        await until(lambda: buyer.receipts == [1], "its turn took what was recorded")
        assert buyer.calls == ["o1"]
        found = await world.refused("POST", path, {"take_recorded": True})
        assert found[:2] == (409, "not-parked")


async def test_questions_are_listed_and_their_first_answer_counts(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Ask("Ship it?", 3600))
        (row,) = await world.open_questions()
        assert (row["agent"], row["question"], row["standing"]) == ("buyer/a", "Ship it?", "open")
        assert 3_500_000 < row["expires_in_ms"] <= 3_600_000
        assert (await world.call("GET", "/v1/questions?agent=buyer/b"))[1]["questions"] == []
        path = f"/v1/questions/{row['token']}/answer"
        status, code, message = await world.refused("POST", path, {"answer": "yes"})
        assert (status, code) == (400, "bad-value")
        assert "bool is wanted" in message
        status, done = await world.call("POST", path, {"answer": True})
        assert (status, done["duplicate"], done["question"]["answer"]) == (200, False, True)
        await until(lambda: buyer.answers == [True], "it has its answer")
        status, again = await world.call("POST", path, {"answer": True})
        assert (status, again["duplicate"]) == (200, True)
        assert (await world.refused("POST", path, {"answer": False}))[:2] == (409, "answered-before")
        assert buyer.answers == [True]
        await one.ingest("buyer/a", Ask("Now?", 0.05))
        await until(lambda: one.dead_letters, "nobody answered")
        _, found = await world.call("GET", "/v1/questions")
        assert found["questions"] == []


async def test_a_question_that_has_expired_takes_no_answer(tmp_path) -> None:
    async with shop(tmp_path) as world:
        one = await world.join("p1", Buyer("a"))
        events = one.events()
        asking = anext_of(events, "QuestionAsked")
        await one.ingest("buyer/a", Ask("Now?", 0.05))
        token = (await asking).token
        await until(lambda: one.dead_letters, "nobody answered")
        found = await world.refused("POST", f"/v1/questions/{token}/answer", {"answer": True})
        assert found[:2] == (409, "expired")


def anext_of(events: Any, name: str) -> Any:
    async def first() -> Any:
        async for event in events:
            if type(event).__name__ == name:
                return event
        raise AssertionError("it has ended")

    return asyncio.ensure_future(first())


async def test_who_does_not_answer_is_named_and_what_it_may_know_is_not_said_to_be_unknown(tmp_path) -> None:
    async with shop(tmp_path) as world, Scripted(world.made, "old", ("buyer/old",)):
        one = await world.join("p1", Buyer("a"))
        await world.join("p2", Buyer("b"))
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        _, found = await world.call("GET", "/v1/effects")
        assert found["asked"] == ["old", "p1", "p2"]
        assert [each["participant"] for each in found["unanswered"]] == ["old"]
        assert "older build" in found["unanswered"][0]["why"]
        await world.crash("p1")

        async def lost() -> bool:
            _, document = await world.call("GET", "/v1/participants")
            return {each["id"]: each["state"] for each in document["participants"]}["p1"] == "lost"

        await until(lost, "p1 is lost")
        _, found = await world.call("GET", "/v1/effects?in_doubt=1")
        assert found["effects"] == []
        why = {each["participant"]: each["why"] for each in found["unanswered"]}
        assert "lost" in why["p1"]
        status, code, message = await world.refused(
            "POST", f"/v1/effects/{row['token']}/settle", {"did_not_happen": True}
        )
        assert (status, code) == (503, "not-found-yet")
        assert "p1" in message
        _, listed = await world.call("GET", "/v1/agents")
        assert {each["agent"]: each["participant_state"] for each in listed["agents"]}["buyer/a"] == "lost"
        found = await world.refused("GET", "/v1/agents/buyer/a/history")
        assert found[:2] == (503, "not-connected")
        assert "p1" in found[2]


async def test_any_coordinator_is_asked_and_without_a_leader_nobody_pretends(tmp_path) -> None:
    async with shop(tmp_path, 3) as world:
        leader = await world.made.leader()
        others = [each for each in world.made.coordinators if each is not leader]
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Order("o1"))

        async def row_at(at: Any) -> Any:
            status, document = await world.call("GET", "/v1/effects?in_doubt=1", at=at)
            return document["effects"] if status == 200 else None

        (row,) = await until(lambda: row_at(others[0]), "it is in doubt")
        status, done = await world.call(
            "POST", f"/v1/effects/{row['token']}/settle", {"result": {"number": 3}}, at=others[1]
        )
        assert (status, done["participant"]) == (200, "p1")
        await until(lambda: buyer.receipts == [3], "the agent went on")
        await leader.end(signal.SIGKILL)
        await others[0].end(signal.SIGKILL)

        async def nobody_leads() -> Any:
            status, document = await world.call("GET", "/v1/effects", at=others[1])
            return (status, document["error"]["code"]) if status != 200 else None

        status, code = await until(nobody_leads, "no leader")
        assert (status, code in {"no-leader", "leader-unreachable"}) == (503, True)


async def test_pages_hold_every_effect_once_newest_first_over_all_participants(tmp_path) -> None:
    async with shop(tmp_path) as world:
        buyers = [Buyer("a"), Buyer("b")]
        participants = [await world.join(f"p{n}", buyer) for n, buyer in enumerate(buyers)]
        for number in range(6):
            for participant, buyer in zip(participants, buyers, strict=True):
                await participant.ingest(buyer.id, Order(f"o{number}", "works"))
        await until(lambda: all(len(buyer.receipts) == 6 for buyer in buyers), "all were done")
        found: list[dict[str, Any]] = []
        before = ""
        for _ in range(10):
            _, page = await world.call("GET", f"/v1/effects?limit=5&before={before}")
            found += page["effects"]
            if not page["more"]:
                break
            before = page["before"]
        assert len(found) == len({row["token"] for row in found}) == 12
        assert [row["claimed_at_ms"] for row in found] == sorted((row["claimed_at_ms"] for row in found), reverse=True)


async def test_the_turns_of_an_agent_come_out_of_its_participants_log(tmp_path) -> None:
    async with shop(tmp_path) as world:
        await world.join("p1", Buyer("a"))
        log_turns(world.local / "p1", "buyer/a", 30, segment_bytes=2_000)
        _, found = await world.call("GET", "/v1/agents/buyer/a/history?limit=11")
        assert (found["agent"], found["participant"], found["more"]) == ("buyer/a", "p1", True)
        *turns, last = found["turns"]
        assert (last["outcome"], last["reason"]) == ("dead-letter", "ValueError: no")
        assert [turn["sends"][0]["body"] for turn in turns] == list(range(20, 30))
        assert [turn["steps"][0]["result"] for turn in turns] == list(range(20, 30))
        assert [turn["outputs"][0]["payload"] for turn in turns] == list(range(20, 30))
        older = found["turns"][0]["number"]
        _, found = await world.call("GET", f"/v1/agents/buyer%2Fa/history?limit=100&before={older}")
        assert [turn["sends"][0]["body"] for turn in found["turns"]] == list(range(20))
        assert found["more"] is False


async def test_a_participant_that_only_answers_keeps_its_lease(tmp_path) -> None:
    """Its heartbeats had waited for a silence that never came."""
    async with shop(tmp_path, extra="lease_ms = 1000") as world:
        one = await world.join("p1", Buyer("a"))
        session = one.session
        end = asyncio.get_running_loop().time() + 3.5
        while asyncio.get_running_loop().time() < end:
            _, found = await world.call("GET", "/v1/effects")
            assert found["unanswered"] == []
            await asyncio.sleep(0.03)  # far below what a lease and a heartbeat are
        assert (one.session, one.incarnation > 0) == (session, True)
        _, found = await world.call("GET", "/v1/participants")
        (row,) = found["participants"]
        assert (row["state"], row["session"]) == ("member", session)


async def test_somebody_who_looks_without_end_is_slowed_down_and_the_participant_keeps_its_connection(tmp_path) -> None:
    """Its answers had been too many for its connection, which was closed."""
    async with shop(tmp_path) as world:
        one = await world.join("p1", Buyer("a"))
        connections = one.statistics()["control_connections"]
        for _ in range(8):
            many = await asyncio.gather(*(world.call("GET", "/v1/effects") for _ in range(200)))
            assert {status for status, _ in many} == {200}
        assert any("times a second" in each["why"] for _, found in many for each in found["unanswered"])
        assert one.statistics()["control_connections"] == connections
        assert (await world.call("POST", "/v1/epochs", {"reason": "test", "wait": True}))[1]["state"] == "committed"


async def test_a_ledger_that_several_share_is_one_list_and_a_word_goes_to_whoever_waits_for_it(tmp_path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    try:
        async with shop(tmp_path) as world:
            buyers = [Buyer(name) for name in "abc"]
            for number, buyer in enumerate(buyers):
                await world.join(f"p{number}", buyer, effects=server.url)
            await world.participants["p1"].ingest("buyer/b", Order("o1"))
            await world.participants["p2"].ingest("buyer/c", Order("o2", "slow"))
            await until(lambda: buyers[2].calls, "the other one is at it")
            (row,) = await world.in_doubt()
            assert (row["host"], row["standing"], row["agent"]) == ("p1", "in-doubt", "buyer/b")
            _, listed = await world.call("GET", "/v1/effects")
            assert [(each["agent"], each["standing"], each["host"]) for each in listed["effects"]] == [
                ("buyer/c", "under-way", "p2"),
                ("buyer/b", "in-doubt", "p1"),
            ]
            busy = listed["effects"][0]["token"]
            found = await world.refused("POST", f"/v1/effects/{busy}/settle", {"did_not_happen": True})
            assert found[:2] == (409, "under-way"), "though two of three participants could not tell"
            path = f"/v1/effects/{row['token']}/settle"
            status, done = await world.call("POST", path, {"result": {"number": 4}})
            assert (status, done["participant"]) == (200, "p1")
            await until(lambda: buyers[1].receipts == [4], "it went on at once")
            buyers[2].slow.set()
            await until(lambda: buyers[2].receipts == [1], "the other one was left alone")

            await world.participants["p0"].ingest("buyer/a", Order("o3"))
            (row,) = await world.in_doubt()
            await world.crash("p0")

            async def doubtful() -> Any:
                _, document = await world.call("GET", "/v1/effects?in_doubt=1")
                return [each for each in document["effects"] if each["claimed_by"] == "p0"]

            (left,) = await until(doubtful, "what a lost participant claimed is in doubt, and others know of it")
            assert (left["token"], left["waits"]) == (row["token"], False)
            status, done = await world.call("POST", f"/v1/effects/{row['token']}/settle", {"result": {"number": 5}})
            assert (status, done["effect"]["state"]) == (200, "done")
    finally:
        server.stop()


async def test_a_ledger_that_does_not_answer_is_said_to_be_that(tmp_path) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    try:
        async with shop(tmp_path) as world:
            one = await world.join("p1", Buyer("a"), effects=server.url)
            await one.ingest("buyer/a", Order("o1"))
            (row,) = await world.in_doubt()
            server.kill()
            _, found = await world.call("GET", "/v1/effects?in_doubt=1")
            assert found["effects"] == []
            assert [each["participant"] for each in found["unanswered"]] == ["p1"]
            found = await world.refused("POST", f"/v1/effects/{row['token']}/settle", {"did_not_happen": True})
            assert found[:2] == (503, "not-found-yet")
            server.start()
            assert [each["token"] for each in await world.in_doubt()] == [row["token"]]
    finally:
        server.stop()
