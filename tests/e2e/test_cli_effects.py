"""The command line of an operator against real coordinators, participants and disks: doubt, questions, histories."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli_cluster import ENVIRONMENT, ROOT
from tests.integration.coordinators import until
from tests.operator_world import Ask, Buyer, Order, Shop, log_turns, shop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Ended:
    """How a command ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)


async def cleancut(world: Shop, *arguments: str) -> Ended:
    """The command in a process of its own; the participants live in this one."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "coordinator.cli",
        "--coordinators",
        ",".join(each.http for each in world.made.coordinators),
        "--secret-file",
        str(world.made.secret_file),
        *arguments,
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode is not None
    assert b"Traceback" not in err, err.decode()
    return Ended(child.returncode, out.decode(), err.decode())


async def test_an_operator_finds_what_waits_decides_it_and_is_told_when_somebody_was_faster(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        assert (await cleancut(world, "effects", "list", "--in-doubt")).out == "nothing is in doubt\n"
        await one.ingest("buyer/a", Order("o1"))
        (row,) = await world.in_doubt()
        token = row["token"]

        async def status() -> Any:
            found = await cleancut(world, "status")
            return "1 agent for a decision: buyer/a (in-doubt)" in found.out

        await until(status, "the status says who waits")
        assert "buyer/a (in-doubt)" in (await cleancut(world, "participants")).out
        assert f"in-doubt: charge ({token})" in (await cleancut(world, "agent", "list")).out
        listed = await cleancut(world, "effects", "list", "--in-doubt", "--json")
        assert [each["token"] for each in listed.document["effects"]] == [token]
        offline = await cleancut(world, "effects", "list", "--in-doubt", "--local", str(world.local), "--json")
        assert [each["token"] for each in offline.document["effects"]] == [token]

        for arguments, code, said in [
            (("effects", "settle", "f" * 32, "--did-not-happen"), 3, "there is no effect"),
            (("effects", "settle", token, "--result", '"paid"'), 2, "Receipt is wanted"),
            (("effects", "settle", token, "--take-recorded"), 6, "no result"),
            (("questions", "answer", token, "true"), 3, "there is no question"),
        ]:
            ended = await cleancut(world, *arguments)
            assert (ended.code, said in ended.err) == (code, True), (arguments, ended.err)
        viewer = tmp_path / "viewer.token"
        viewer.touch(mode=0o600)
        viewer.write_text(world.made.keys.token("viewer"))
        with_viewer = ("--token", str(viewer))
        assert (await cleancut(world, "effects", "list", *with_viewer)).code == 0
        ended = await cleancut(world, "effects", "settle", token, "--did-not-happen", *with_viewer)
        assert ended.code == 6

        ended = await cleancut(world, "effects", "settle", token, "--result", '{"number": 7}')
        assert (ended.code, ended.out) == (0, "charge of buyer/a: done (settled)\n")
        await until(lambda: buyer.receipts == [7], "the agent went on")
        ended = await cleancut(world, "effects", "settle", token, "--result", '{"number": 7}')
        assert (ended.code, ended.out) == (0, "charge of buyer/a: done (settled) already\n")
        ended = await cleancut(world, "effects", "settle", token, "--did-not-happen")
        assert ended.code == 6
        assert "settled it, and that counts" in ended.err
        assert buyer.calls == ["o1"]


async def test_a_question_is_answered_once_from_the_command_line(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        buyer = Buyer("a")
        one = await world.join("p1", buyer)
        await one.ingest("buyer/a", Ask("Ship it?"))
        (row,) = await world.open_questions()
        assert "Ship it?" in (await cleancut(world, "questions", "list")).out
        offline = await cleancut(world, "questions", "list", "--local", str(world.local / "p1"))
        assert row["token"] in offline.out
        assert (await cleancut(world, "questions", "answer", row["token"], '"yes"')).code == 2
        ended = await cleancut(world, "questions", "answer", row["token"], "true")
        assert (ended.code, ended.out) == (0, "buyer/a has its answer: Ship it?\n")
        await until(lambda: buyer.answers == [True], "it went on")
        assert (await cleancut(world, "questions", "answer", row["token"], "false")).code == 6
        assert (await cleancut(world, "questions", "list")).out == "no question is open\n"


async def test_what_an_agent_did_is_read_over_the_api_and_from_the_disk_of_one_that_is_gone(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await world.join("p1", Buyer("a"))
        ended = await cleancut(world, "agent", "history", "buyer/a")
        assert ended.code == 6
        assert "keeps no log of turns" in ended.err
        log_turns(world.local / "p1", "buyer/a", 4)
        live = await cleancut(world, "agent", "history", "buyer/a", "--json")
        assert [turn["outcome"] for turn in live.document["turns"]] == ["committed"] * 4 + ["dead-letter"]
        assert (await cleancut(world, "agent", "history", "buyer/nobody")).code == 3
        await world.crash("p1")

        async def lost() -> bool:
            return (await cleancut(world, "agent", "history", "buyer/a", "--timeout", "0.5")).code == 5

        await until(lost, "p1 is lost")
        offline = await cleancut(world, "agent", "history", "buyer/a", "--local", str(world.local), "--json")
        assert offline.document["turns"] == live.document["turns"]

        async def said() -> bool:
            found = await cleancut(world, "effects", "list", "--in-doubt")
            return "p1 is not in this list: it is lost" in found.err

        await until(said, "the list says whose part is missing")


async def test_without_a_quorum_nobody_says_that_nothing_is_in_doubt(tmp_path: Path) -> None:
    async with shop(tmp_path, 3) as world:
        leader = await world.made.leader()
        assert (await cleancut(world, "effects", "list")).code == 0
        await leader.end(signal.SIGKILL)
        others = [each for each in world.made.coordinators if each.running]
        await others[0].end(signal.SIGKILL)
        ended = await cleancut(world, "effects", "list", "--in-doubt", "--timeout", "4")
        assert ended.code == 5
        assert ended.out == ""


class Victim:
    """A participant in a process of its own, which is killed and started again."""

    def __init__(self, world: Shop, folder: Path, name: str, *agents: str) -> None:
        self.world = world
        self.bank = folder / "bank"
        self.bank.mkdir(exist_ok=True)
        made = world.made
        self._arguments = [
            name,
            ",".join(agents),
            ",".join(each.http for each in made.coordinators),
            made.store_url,
            str(made.secret_file),
            str(world.local),
            str(self.bank),
        ]
        self._child: asyncio.subprocess.Process | None = None

    def charges(self) -> list[str]:
        return [path.read_text() for path in sorted(self.bank.glob("charge-*"))]

    async def start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.e2e.operator_process",
            *self._arguments,
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert self._child.stdout is not None
        assert await asyncio.wait_for(self._child.stdout.readline(), 40) == b"member\n"

    async def kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


async def test_what_a_killed_participant_left_in_doubt_is_found_and_settled_after_its_return(tmp_path: Path) -> None:
    """The charge was made, and the process died before it knew: nothing is done again until somebody has said what became of it."""
    async with shop(tmp_path, recovery="auto") as world:
        victim = Victim(world, tmp_path, "p1", "a", "b")
        try:
            hangs = victim.bank / "hangs"
            hangs.touch()
            await victim.start()
            order = {"type": "Order", "body": {"id": "o1", "how": "works"}, "token": "order-1"}
            assert (await world.call("POST", "/v1/agents/buyer/a/messages", order))[0] == 201
            ask = {"type": "Ask", "body": {"text": "Ship it?"}, "token": "ask-1"}
            assert (await world.call("POST", "/v1/agents/buyer/b/messages", ask))[0] == 201
            (question,) = await world.open_questions()
            await until(victim.charges, "it was charged")
            (row,) = (await cleancut(world, "effects", "list", "--json")).document["effects"]
            assert row["standing"] == "under-way"
            await victim.kill()

            offline = await cleancut(world, "effects", "list", "--in-doubt", "--local", str(world.local), "--json")
            assert [each["token"] for each in offline.document["effects"]] == [row["token"]]

            async def named() -> bool:
                return "p1 is not in this list" in (await cleancut(world, "effects", "list", "--in-doubt")).err

            await until(named, "whoever looks now is told whose part is missing")
            hangs.unlink()
            await victim.start()
            (doubtful,) = await world.in_doubt()
            assert doubtful["token"] == row["token"]
            (again,) = await world.open_questions()
            assert again["token"] == question["token"]
            assert len(victim.charges()) == 1, "nothing is done again in silence"
            assert victim.charges()[0].split()[0] == row["token"], "what the other side is asked by"
            ended = await cleancut(world, "effects", "settle", row["token"], "--result", '{"number": 1}')
            assert (ended.code, ended.out) == (0, "charge of buyer/a: done (settled)\n")
            ended = await cleancut(world, "questions", "answer", question["token"], "true")
            assert ended.code == 0

            async def saved() -> bool:
                status, epoch = await world.call("POST", "/v1/epochs", {"reason": "look", "wait": True})
                if status != 201 or epoch["state"] != "committed":
                    return False
                path = f"/v1/epochs/{epoch['epoch']}/state?agent="
                _, a = await world.call("GET", f"{path}buyer/a")
                _, b = await world.call("GET", f"{path}buyer/b")
                return (a["fields"].get("receipts"), b["fields"].get("answers")) == ([1], [True])

            await until(saved, "both agents went on with what they were told")
            assert len(victim.charges()) == 1
            assert (await cleancut(world, "effects", "list", "--in-doubt")).out == "nothing is in doubt\n"
        finally:
            await victim.kill()
