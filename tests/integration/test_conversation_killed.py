"""A15: a conversation with tool calls stays valid, wherever its process dies between a call and its result.

The state is a list of messages as model providers take it. The provider here is as strict as they are: a request in which a call
has no result, or two, or a result belongs to no call, is refused. It makes new ids for calls each time it is asked.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest

from participant import Agent, Context, DidNotHappen, StepFailed, handler, value
from participant.testing import Cluster

pytestmark = pytest.mark.slow

Message = dict[str, Any]


class Say(msgspec.Struct, frozen=True):
    text: str


class Use(msgspec.Struct, frozen=True):
    """A tool call that another agent carries out."""

    call: str
    argument: int


class Used(msgspec.Struct, frozen=True):
    call: str
    result: str


def problem_of(messages: list[Message]) -> str:
    """What a strict provider has against a request; "": nothing."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return f"{message['tool_call_id']} answers no open call"
            open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            return f"{message['role']} speaks while {open_calls} have no result"
        open_calls = [call["id"] for call in message.get("tool_calls", ())]
        if len(set(open_calls)) != len(open_calls):
            return "an id is used twice"
    if open_calls:
        return f"{open_calls} have no result"
    return "" if messages and messages[-1]["role"] in {"user", "tool"} else "nothing to answer"


class World:
    """Outside: a provider, a tool, and somebody who pulls the plug at the n-th await."""

    refused: ClassVar[list[str]] = []
    requests = 0
    ids = 0
    parallel = 1
    done: ClassVar[dict[str, tuple[str, str]]] = {}
    """Token -> call and its result."""
    passed = 0
    stop_at = 0
    stopped: ClassVar[list[str]] = []

    @classmethod
    def reset(cls, parallel: int, stop_at: int) -> None:
        cls.refused, cls.done, cls.stopped = [], {}, []
        cls.requests = cls.ids = cls.passed = 0
        cls.parallel, cls.stop_at = parallel, stop_at

    @classmethod
    async def point(cls, name: str) -> None:
        """One await: at the chosen one nothing goes on any more."""
        cls.passed += 1
        if cls.passed == cls.stop_at:
            cls.stopped.append(name)
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    @classmethod
    async def model(cls, messages: list[Message]) -> Message:
        await cls.point("before the model")
        cls.requests += 1
        problem = problem_of(messages)
        if problem:
            cls.refused.append(problem)
            raise StepFailed(problem)
        reply: Message = {"role": "assistant", "content": f"after {len(messages)}"}
        if messages[-1]["role"] == "user" and cls.parallel:
            calls = []
            for number in range(cls.parallel):
                cls.ids += 1
                calls.append({"id": f"call-{cls.ids}", "argument": number})
            reply["tool_calls"] = calls
        await cls.point("after the model")
        return reply

    @classmethod
    async def tool(cls, call: str, argument: int, *, token: str) -> str:
        await cls.point("before the tool")
        assert token not in cls.done, "done twice"
        cls.done[token] = (call, f"result {len(cls.done)} of {argument}")
        await cls.point("after the tool")
        return cls.done[token][1]

    @classmethod
    async def find(cls, token: str) -> str | DidNotHappen:
        return cls.done[token][1] if token in cls.done else DidNotHappen()


class Talker(Agent, kind="talker"):
    """Calls its tools within the turn."""

    messages = value(list[Message], default=[])

    @handler
    async def on_say(self, ctx: Context, say: Say) -> None:
        talk = [*self.messages, {"role": "user", "content": say.text}]
        while True:
            reply = await ctx.step(World.model, talk, idempotent=True)
            talk.append(reply)
            await World.point("between")
            if "tool_calls" not in reply:
                break
            calls = reply["tool_calls"]
            results = await asyncio.gather(
                *(ctx.step(World.tool, call["id"], call["argument"], resolve=World.find) for call in calls)
            )
            await World.point("behind")
            talk += [
                {"role": "tool", "tool_call_id": call["id"], "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
        self.messages = talk


class Hand(Agent, kind="hand"):
    """Uses the tool for others."""

    @handler
    async def on_use(self, ctx: Context, use: Use) -> None:
        result = await ctx.step(World.tool, use.call, use.argument, resolve=World.find)
        await World.point("behind")
        ctx.send(ctx.source, Used(use.call, result))


class Asker(Agent, kind="talker"):
    """Has others use the tools: between call and result lie turns, and calls without a result are part of its state."""

    messages = value(list[Message], default=[])
    results = value(dict[str, str], default={})

    @handler
    async def on_say(self, ctx: Context, say: Say) -> None:
        await self.go_on(ctx, [*self.messages, {"role": "user", "content": say.text}])

    @handler
    async def on_used(self, ctx: Context, used: Used) -> None:
        results = {**self.results, used.call: used.result}
        await World.point("between")
        calls = [call["id"] for call in self.messages[-1]["tool_calls"]]
        if len(results) < len(calls):
            self.results = results
            return
        self.results = {}
        answers = [{"role": "tool", "tool_call_id": call, "content": results[call]} for call in calls]
        await self.go_on(ctx, [*self.messages, *answers])

    async def go_on(self, ctx: Context, talk: list[Message]) -> None:
        reply = await ctx.step(World.model, talk, idempotent=True)
        await World.point("between")
        for number, call in enumerate(reply.get("tool_calls", ())):
            ctx.send(f"hand/h{number}", Use(call["id"], call["argument"]))
        self.messages = [*talk, reply]


def agents(where: str) -> list[Any]:
    return [Talker("t")] if where == "in one turn" else [Asker("t"), [Hand("h0"), Hand("h1"), Hand("h2")]]


def talk_of(cluster: Cluster) -> list[Message]:
    talker = cluster["talker/t"]
    assert isinstance(talker, Talker | Asker)
    return talker.messages


async def until_stopped() -> None:
    async with asyncio.timeout(20):
        while not World.stopped:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)


def where_it_stopped(where: str) -> str:
    (name,) = World.stopped
    return "p2" if where == "over many turns" and name in {"before the tool", "after the tool", "behind"} else "p1"


def judge(cluster: Cluster, parallel: int) -> None:
    talk = talk_of(cluster)
    assert World.refused == []
    assert [message["role"] for message in talk] == ["user", "assistant", *["tool"] * parallel, "assistant"]
    assert problem_of([*talk, {"role": "user", "content": "and then?"}]) == ""
    told = {message["tool_call_id"]: message["content"] for message in talk if message["role"] == "tool"}
    assert told == dict(World.done.values()), "exactly what the tool said, for exactly the calls that were made"
    assert len(World.done) == parallel


async def calm(where: str, parallel: int) -> int:
    """A run in which nothing dies: how many awaits there are."""
    World.reset(parallel, 0)
    async with Cluster(*agents(where)) as cluster:
        await cluster.send("talker/t", Say("hello"))
        await cluster.idle()
        judge(cluster, parallel)
    return World.passed


@pytest.mark.parametrize("where", ["in one turn", "over many turns"])
@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("cut", ["before", "there"])
async def test_killed_at_any_await_each_call_has_its_one_result_and_the_next_request_is_accepted(
    where: str, parallel: int, cut: str, tmp_path: Any
) -> None:
    """The epoch is of before it all, or of that very moment; then everybody dies, or the one."""
    awaits = await calm(where, parallel)
    assert awaits >= 6 + 2 * parallel
    names: set[str] = set()
    for stop_at in range(1, awaits + 1):
        World.reset(parallel, stop_at)
        async with Cluster(*agents(where), local=str(tmp_path / f"at {stop_at}")) as cluster:
            epoch = await cluster.epoch()
            await cluster.send("talker/t", Say("hello"), token="hello")
            await until_stopped()
            names.update(World.stopped)
            if cut == "there":
                epoch = await cluster.epoch()
            for name in sorted(cluster.participants):
                if stop_at % 2 or name == where_it_stopped(where):
                    await cluster.crash(name)
            await cluster.restore(epoch)
            await cluster.idle()
            judge(cluster, parallel)
            World.parallel = 0
            await cluster.send("talker/t", Say("thank you"))
            await cluster.idle()
            assert World.refused == []
            assert talk_of(cluster)[-1]["role"] == "assistant"
    expected = {"before the model", "after the model", "before the tool", "after the tool", "between", "behind"}
    assert names == expected, "somebody died at each of them"
