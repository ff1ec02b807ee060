"""Questions: a turn that waits for somebody outside, through cuts, crashes and rollbacks."""

import asyncio
from typing import Any, ClassVar

import msgspec
import pytest

from participant import (
    Agent,
    AnswerResult,
    Context,
    DeadLetter,
    QuestionAsked,
    QuestionExpired,
    Retry,
    TakeRecorded,
    handler,
    value,
)
from participant.effects.backend import MemoryEffects
from participant.failure import Backoff
from participant.testing import Cluster
from protocol.errors import Refused, Unsavable

FAST = Backoff(first=0, maximum=0)


class Publish(msgspec.Struct, frozen=True):
    title: str


class Editor(Agent, kind="editor"):
    """Asks whether to publish; mails before each round."""

    published = value(list[str], default=[])
    mails: ClassVar[list[str]] = []
    timeout: float | None = 60.0
    failure = Retry(attempts=3, backoff=FAST)

    @handler
    async def on_publish(self, ctx: Context, message: Publish) -> None:
        for number in range(3):
            await ctx.step(self.mail, message.title, number)
            try:
                if await ctx.ask(f"Publish {message.title}?", answer=bool, timeout=self.timeout):
                    self.published = [*self.published, message.title]
                    return
            except QuestionExpired:
                self.published = [*self.published, f"{message.title} (nobody minded)"]
                return

    @staticmethod
    async def mail(title: str, number: int) -> None:
        Editor.mails.append(f"{title} {number}")


@pytest.fixture(autouse=True)
def no_mails() -> None:
    Editor.mails = []
    Editor.timeout = 60.0


async def asking(*agents: Agent) -> Cluster:
    cluster = Cluster(*(agents or (Editor("main"),)))
    await cluster.__aenter__()
    await cluster.send("editor/main", Publish("news"))
    await cluster.idle()
    return cluster


def published(cluster: Cluster) -> list[str]:
    agent = cluster["editor/main"]
    assert isinstance(agent, Editor)
    return agent.published


async def test_a_question_is_listed_answered_and_its_turn_goes_on():
    cluster = await asking()
    (question,) = cluster.questions()
    assert (question.agent, question.question, question.expires_in) == ("editor/main", "Publish news?", 60.0)
    assert await cluster.answer(question.token, True) is AnswerResult.TAKEN
    await cluster.idle()
    assert published(cluster) == ["news"]
    assert cluster.questions() == ()
    await cluster.__aexit__(None, None, None)


async def test_three_rounds_are_three_questions_and_one_mail_each():
    """A5."""
    cluster = await asking()
    tokens = []
    for word in (False, False, True):
        (question,) = cluster.questions()
        tokens.append(question.token)
        assert await cluster.answer(question.token, word) is AnswerResult.TAKEN
        assert await cluster.answer(question.token, not word) is AnswerResult.DUPLICATE
        await cluster.idle()
    assert len(set(tokens)) == 3
    assert Editor.mails == ["news 0", "news 1", "news 2"]
    assert published(cluster) == ["news"]
    for token in tokens:
        assert await cluster.answer(token, True) is AnswerResult.DUPLICATE
    await cluster.__aexit__(None, None, None)


async def test_an_answer_of_another_type_is_refused_and_the_question_stays_open():
    cluster = await asking()
    (question,) = cluster.questions()
    with pytest.raises(Unsavable, match="bool is wanted"):
        await cluster.answer(question.token, "yes")
    assert cluster.questions() != ()
    with pytest.raises(Refused, match="no question"):
        await cluster.answer("f" * 32, True)
    await cluster.__aexit__(None, None, None)


async def test_a_question_that_nobody_answers_expires_and_a_late_answer_is_told_so():
    cluster = await asking()
    (question,) = cluster.questions()
    await cluster.advance(59)
    assert cluster.questions()[0].expires_in == pytest.approx(1)
    assert cluster.questions()[0].asked_for == pytest.approx(59)
    await cluster.advance(1)
    assert cluster.questions() == ()
    assert published(cluster) == ["news (nobody minded)"]
    assert await cluster.answer(question.token, True) is AnswerResult.LATE
    await cluster.__aexit__(None, None, None)


async def test_a_question_without_timeout_waits_for_ever():
    Editor.timeout = None
    cluster = await asking()
    await cluster.advance(10_000_000)
    (question,) = cluster.questions()
    assert question.expires_in is None
    await cluster.answer(question.token, True)
    await cluster.idle()
    assert published(cluster) == ["news"]
    await cluster.__aexit__(None, None, None)


async def test_the_agent_waits_with_its_later_messages_and_others_go_on():
    cluster = await asking(Editor("main"), Editor("other"))
    await cluster.send("editor/main", Publish("more"))
    await cluster.send("editor/other", Publish("else"))
    await cluster.idle()
    assert [(question.agent, question.question) for question in cluster.questions()] == [
        ("editor/main", "Publish news?"),
        ("editor/other", "Publish else?"),
    ]
    await cluster.answer(cluster.questions()[0].token, True)
    await cluster.idle()
    assert cluster.questions()[0].question == "Publish more?"
    await cluster.__aexit__(None, None, None)


async def test_asking_is_an_event():
    cluster = Cluster(Editor("main"))
    async with cluster:
        events: list[Any] = []

        async def listen() -> None:
            async for event in cluster.events("editor/main"):
                events.append(event)  # noqa: PERF401 - they are looked at meanwhile

        task = asyncio.get_running_loop().create_task(listen())
        await asyncio.sleep(0)
        await cluster.send("editor/main", Publish("news"))
        await cluster.idle()
        (question,) = cluster.questions()
        assert [event for event in events if isinstance(event, QuestionAsked)] == [
            QuestionAsked(agent="editor/main", token=question.token, question="Publish news?", expires_in=60.0)
        ]
        task.cancel()


async def test_a_cut_holds_the_question_and_a_restore_goes_on_with_the_time_that_was_left():
    cluster = await asking()
    (before,) = cluster.questions()
    await cluster.advance(40)
    epoch = await cluster.epoch()
    assert epoch.questions("editor/main") == [(before.token, "Publish news?")]
    assert [(step.name, step.ordinal) for step in epoch.steps("editor/main")] == [("mail", 0)]
    assert epoch.messages() == [Publish("news")]
    await cluster.advance(10)
    await cluster.crash("p1")
    await cluster.restore(epoch)
    await cluster.idle()
    (after,) = cluster.questions()
    assert after.token == before.token
    assert after.expires_in == pytest.approx(20, abs=0.5)
    assert Editor.mails == ["news 0"], "the mail was sent before the cut: its step answers from the journal"
    await cluster.advance(21)
    assert published(cluster) == ["news (nobody minded)"]
    await cluster.__aexit__(None, None, None)


async def test_where_the_ledger_is_lost_with_its_disk_the_epoch_has_what_was_finished_and_asked():
    """The agent comes back elsewhere, with a ledger that knows nothing."""
    cluster = await asking()
    epoch = await cluster.epoch()
    (before,) = cluster.questions()
    await cluster.crash("p1")
    cluster.effects = MemoryEffects()
    await cluster.restore(epoch)
    await cluster.idle()
    assert Editor.mails == ["news 0"]
    (after,) = cluster.questions()
    assert after.token == before.token
    await cluster.answer(after.token, True)
    await cluster.idle()
    assert published(cluster) == ["news"]
    await cluster.__aexit__(None, None, None)


async def test_an_answer_that_was_given_stays_given_whatever_is_rolled_back():
    cluster = await asking()
    epoch = await cluster.epoch()
    (question,) = cluster.questions()
    await cluster.answer(question.token, False)
    await cluster.idle()
    (second,) = cluster.questions()
    assert second.token != question.token
    await cluster.restore(epoch)
    await cluster.idle()
    assert [asked.token for asked in cluster.questions()] == [second.token]
    assert Editor.mails == ["news 0", "news 1"]
    assert await cluster.answer(question.token, True) is AnswerResult.DUPLICATE
    await cluster.answer(second.token, True)
    await cluster.idle()
    assert published(cluster) == ["news"]
    await cluster.__aexit__(None, None, None)


async def test_an_answer_that_comes_between_the_crash_and_the_restart_is_found():
    """The participant that asked is gone; another one has the ledger."""
    cluster = await asking(Editor("main"), Editor("other"))
    epoch = await cluster.epoch()
    (question,) = cluster.questions()
    await cluster.crash("p1")
    assert await cluster.answer(question.token, True) is AnswerResult.TAKEN
    await cluster.restore(epoch)
    await cluster.idle()
    assert published(cluster) == ["news"]
    await cluster.__aexit__(None, None, None)


@pytest.mark.parametrize("moment", range(7))
async def test_a_crash_and_a_rollback_between_any_two_points_change_nothing(moment: int):
    """A5: epoch and kill between any two points; one mail per round, each question keeps its token."""
    cluster = await asking()
    epoch = await cluster.epoch()
    point = 0
    tokens: list[str] = []

    async def maybe() -> None:
        nonlocal point, epoch
        if point == moment:
            if moment % 2:
                epoch = await cluster.epoch()
            await cluster.crash("p1")
            await cluster.restore(epoch)
            await cluster.idle()
        point += 1

    for word in (False, False, True):
        await maybe()
        (question,) = cluster.questions()
        tokens.append(question.token)
        await cluster.answer(question.token, word)
        await maybe()
        await cluster.idle()
    await maybe()
    await cluster.idle()
    assert published(cluster) == ["news"]
    assert Editor.mails == ["news 0", "news 1", "news 2"]
    assert len(set(tokens)) == 3
    await cluster.__aexit__(None, None, None)


async def test_an_answer_that_another_participant_is_given_is_noticed():
    """They share the ledger, as with Redis."""
    cluster = Cluster(Editor("main"), Editor("other"))
    cluster.effects.shared = True
    await cluster.__aenter__()
    await cluster.send("editor/main", Publish("news"))
    await cluster.idle()
    (question,) = cluster.questions()
    assert await cluster.participants["p2"].answer(question.token, True) is AnswerResult.TAKEN
    await cluster.idle()
    assert published(cluster) == []
    await cluster.advance(2)
    assert published(cluster) == ["news"]
    await cluster.__aexit__(None, None, None)


async def test_questions_and_steps_side_by_side_keep_their_places():
    class Both(Agent, kind="both"):
        found = value(list[str])

        @handler
        async def on_publish(self, ctx: Context, message: Publish) -> None:
            self.found = list(
                await asyncio.gather(
                    ctx.ask("one?", answer=str),
                    ctx.step(self.work, "work", idempotent=True),
                    ctx.ask("two?", answer=str),
                )
            )

        @staticmethod
        async def work(text: str) -> str:
            return text

    agent = Both("main")
    async with Cluster(agent) as cluster:
        await cluster.send("both/main", Publish("x"))
        await cluster.idle()
        one, two = sorted(cluster.questions(), key=lambda asked: str(asked.question))
        await cluster.answer(two.token, "2")
        await cluster.idle()
        epoch = await cluster.epoch()
        await cluster.restore(epoch)
        await cluster.idle()
        assert [asked.token for asked in cluster.questions()] == [one.token]
        await cluster.answer(one.token, "1")
        await cluster.idle()
        again = cluster["both/main"]
        assert isinstance(again, Both)
        assert again.found == ["1", "work", "2"]


async def test_a_question_that_reads_otherwise_when_it_is_asked_again_is_put_anew_or_diverges():
    wordings: list[str] = []
    fails = [True]

    class Moody(Agent, kind="moody"):
        found = value(str, default="")
        failure = Retry(attempts=5, backoff=FAST)

        @handler
        async def on_publish(self, ctx: Context, message: Publish) -> None:
            self.found = await ctx.ask(wordings[-1], answer=str)
            if fails.pop():
                raise ValueError("again")

    wordings.append("Shall we?")
    fails[:] = [False, True]
    async with Cluster(Moody("main")) as cluster:
        epoch = await cluster.epoch()
        await cluster.send("moody/main", Publish("x"))
        await cluster.idle()
        (question,) = cluster.questions()
        wordings.append("May we?")
        await cluster.answer(question.token, "yes")
        await cluster.idle()
        (parked,) = cluster.participant_of("moody/main").parked
        assert parked.cause == "diverged"
        assert "Shall we?" in parked.reason
        assert "May we?" in parked.reason
        await cluster.settle(parked.token, TakeRecorded())
        await cluster.idle()
        assert cluster["moody/main"].found == "yes"  # type: ignore[attr-defined]
        assert epoch.number == 1


async def test_questions_that_make_no_sense_are_refused():
    class Bad(Agent, kind="bad"):
        failure = DeadLetter()

        @handler
        async def on_publish(self, ctx: Context, message: Publish) -> None:
            if message.title == "timeout":
                await ctx.ask("?", timeout=-1)
            elif message.title == "long":
                await ctx.ask("x" * 100_000)
            elif message.title == "object":
                await ctx.ask(object())
            else:
                await ctx.step(self.inside, ctx, intent=(), idempotent=True)

        @staticmethod
        async def inside(ctx: Context) -> None:
            await ctx.ask("?")

    async with Cluster(Bad("main")) as cluster:
        for title in ("timeout", "long", "object", "inside"):
            await cluster.send("bad/main", Publish(title))
        await cluster.idle()
        reasons = [letter.reason for letter in cluster.dead_letters]
        assert "timeout is -1" in reasons[0]
        assert "LimitExceeded" in reasons[1]
        assert "Unsavable" in reasons[2]
        assert "a question inside of step inside" in reasons[3]
