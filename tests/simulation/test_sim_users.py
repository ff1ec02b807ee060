"""Users' own agents in seeded worlds: `simulations.simulate`."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from participant import Agent, Context, DeadLetter, handler, value
from protocol.errors import ConfigError
from simulations import simulate
from simulations.eventloop import SimulatedLoop
from simulations.prng import stream
from simulations.trace import Trace
from simulations.world import SECOND, Process, World
from tests.simulation.async_agents import START, accounts, carried, held
from tests.simulation.hash_seeds import run_under_two_hash_seeds

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Go:
    """Begin."""


class Starter(Agent, kind="starter"):
    """Calls what it was given, once for each Go."""

    calls = value(int, default=0)
    failure = DeadLetter()

    def __init__(self, name, work):
        super().__init__(name)
        self._work = work

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        self.calls += 1
        await self._work(ctx)


def conserved(cut):
    return cut.total(held, carried) == 3 * START


def run_one(work, **options):
    """One agent that runs `work` in a world without faults."""
    options = {"seeds": [1], "faults": [], **options}
    return simulate(lambda: [Starter("main", work)], start=[("starter/main", Go())], **options)


# --- whole clusters -------------------------------------------------------------------------------------------------------


def test_agents_that_await_keep_their_invariant_under_the_faults_of_each_seed():
    """Sleeps, timeouts, inner tasks, queues and retries; cuts come in the middle of turns and record the state before."""
    running = []

    def look(cut):
        running.append(sum(cut._reader.agent_snapshot(agent).running for agent in cut.agents()))
        return conserved(cut)

    found = simulate(accounts, invariant=look, seeds=range(6), after_loss=True)
    numbers = found.statistics()
    assert numbers["seeds"] == 6
    assert numbers["cuts"] == len(running) > 10
    assert numbers["messages_in_flight"] > 0
    assert numbers["faults"] > 100
    assert sum(running) > 2


def test_the_same_seed_is_the_same_run_here_and_in_processes_with_other_hash_seeds():
    """The agents walk through sets of tasks, whose order is that of addresses."""
    code = (
        "from simulations import simulate; from tests.simulation.async_agents import accounts\n"
        "print(*(one.digest for one in simulate(accounts, seeds=(2, 5)).outcomes))"
    )
    found = [each.stdout.split() for each in run_under_two_hash_seeds(code)]
    here = [one.digest for one in simulate(accounts, seeds=(2, 5)).outcomes]
    assert found[0] == found[1] == here
    assert len(set(here)) == 2


def test_what_is_lost_with_a_crash_is_accounted_for_and_judged_only_on_demand():
    """Fresh lives begin with their own money; what went to and came from dead lives is known."""
    losses = []

    def look(cut):
        losses.append(cut.losses)
        return conserved(cut)

    simulate(accounts, invariant=look, seeds=(1, 2), faults=["crash"], after_loss=True)
    assert max(losses) > 0
    judged = len(losses)
    losses.clear()
    simulate(accounts, invariant=look, seeds=(1, 2), faults=["crash"])
    assert 0 < len(losses) < judged
    assert max(losses) == 0


def test_all_agents_on_two_participants_keep_the_invariant_too():
    found = simulate(accounts, invariant=conserved, seeds=range(2), participants=2, faults=["cut", "slow"])
    assert found.cuts > 2


def test_the_example_passes():
    """As its first lines say how to run it."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "SIM_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "examples/test_bank_under_failure.py"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
    assert "`test_bank_under_failure.py`" in (ROOT / "examples" / "README.md").read_text()


# --- failures -------------------------------------------------------------------------------------------------------------

BUG = '''
import asyncio
from dataclasses import dataclass

from participant import Agent, Context, handler, value
from simulations import simulate


@dataclass(frozen=True)
class Go:
    pass


@dataclass(frozen=True)
class Pay:
    amount: int


class Bank(Agent, kind="bank"):
    balance = value(int, default=50)

    def __init__(self, name):
        super().__init__(name)
        self.outbox = []

    @handler
    async def on_go(self, ctx: Context, go: Go) -> None:
        """The bug: the list outlives a turn that has not happened."""
        self.outbox.append(Pay(1))
        if ctx.attempt == 1 and self.balance % 5 == 0:
            await asyncio.sleep(0.01)
            raise ConnectionError("try again")
        self.balance -= 1
        while self.outbox:
            ctx.send("bank/b" if ctx.self_id == "bank/a" else "bank/a", self.outbox.pop())
        ctx.after(0.1, Go())

    @handler
    async def on_pay(self, ctx: Context, pay: Pay) -> None:
        self.balance += pay.amount


def money_is_conserved(cut):
    return cut.total(lambda agent, state: state["balance"], lambda message: getattr(message, "amount", 0)) == 100


def test_money():
    simulate(lambda: [Bank("a"), Bank("b")], start=[("bank/a", Go())], invariant=money_is_conserved, seeds=range(20))
'''


def test_a_bug_of_a_users_agent_is_found_and_the_printed_command_runs_it_again(tmp_path):
    """A message that is sent outside of the context goes out although its turn was rolled back."""
    (tmp_path / "test_bank.py").write_text(BUG)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "SIM_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)

    def shell(command):
        return subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    first = shell("pytest -p no:cacheprovider test_bank.py")
    assert first.returncode == 1, first.stdout + first.stderr
    said = re.search(r"seed (\d+): money_is_conserved is broken \(safety\): (.*)", first.stdout)
    assert said is not None, first.stdout
    assert "options: seed=" in first.stdout
    assert "faults that fired: " in first.stdout
    assert "last events" in first.stdout
    assert "NOT REPRODUCIBLE" not in first.stdout
    command = re.search(r"(SIM_SEED=\d+ pytest \S+)$", first.stdout, re.MULTILINE)
    assert command is not None, first.stdout
    assert command[1] == f"SIM_SEED={said[1]} pytest test_bank.py::test_money"
    again = shell(command[1])
    assert again.returncode == 1
    assert said[0] in again.stdout
    assert "ConnectionError: try again" in again.stdout, "the whole trace is printed"
    assert len(again.stdout) > len(first.stdout)


def test_agents_that_no_seed_decides_are_told_so():
    class Restless(Agent, kind="restless"):
        runs = 0

        @handler
        async def on_go(self, ctx: Context, go: Go) -> None:
            Restless.runs += 1
            ctx.after(0.1 + Restless.runs / 1000, Go())

    with pytest.raises(AssertionError, match="NOT REPRODUCIBLE"):
        simulate(
            lambda: [Restless("main")],
            start=[("restless/main", Go())],
            invariant=lambda cut: cut.seconds < 1.5,
            seeds=[1],
            faults=[],
        )


def test_an_exception_of_an_invariant_is_its_violation():
    def nothing_is_known(cut):
        assert cut.state("starter/main") == {"calls": 7}, "seven calls"

    async def work(ctx):
        pass

    with pytest.raises(AssertionError, match=r"nothing_is_known is broken \(safety\): epoch \d+ at .* s: seven calls"):
        run_one(work, invariant=nothing_is_known)


def test_a_handler_that_spins_is_stuck_and_said_to_be():
    async def work(ctx):
        while True:  # noqa: ASYNC110 - the bug
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"L9 is broken \(liveness\): 20001 events"):
        run_one(work, steps=20_000)


def test_an_invariant_that_sees_no_cut_has_proved_nothing():
    """The first crash comes before the first commit in some seed."""

    def alone(seed):
        try:
            simulate(lambda: [Starter("main", None)], invariant=lambda cut: True, seeds=[seed], faults=["crash"])
        except AssertionError as error:
            return str(error)
        return ""

    said = next(filter(None, map(alone, range(60))))
    assert said.startswith("the invariant saw no cut in 1 seeds: ")
    assert "none with all agents in their first life" in said


def test_messages_that_were_put_aside_are_shown_to_the_invariant():
    seen = []

    async def work(ctx):
        raise ValueError("not this one")

    run_one(work, invariant=lambda cut: seen.append(cut.put_aside))
    assert "not this one" in seen[-1][0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": [("bank/x", Go())]}, "there is no agent 'bank/x'"),
        ({"faults": ["fire"]}, "there is no kind 'fire'"),
        ({"participants": 0}, "at least one"),
    ],
)
def test_arguments_that_make_no_cluster_are_refused(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        simulate(accounts, **options)


def test_agents_must_be_the_same_each_time():
    numbers = iter(range(100))
    with pytest.raises(AssertionError, match="ConfigError"):
        simulate(lambda: [Starter(f"n{next(numbers)}", None)], seeds=[1])
    with pytest.raises(ConfigError, match="same id"):
        simulate(lambda: [Starter("a", None), Starter("a", None)], seeds=[1])


# --- the real world -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (lambda ctx: asyncio.open_connection("127.0.0.1", 1), "create_connection"),
        (lambda ctx: asyncio.create_subprocess_exec("true"), "subprocess_exec"),
        (lambda ctx: asyncio.get_running_loop().getaddrinfo("localhost", 1), "getaddrinfo"),
    ],
)
def test_a_handler_that_wants_a_socket_or_process_ends_the_run_with_a_clear_error(work, what):
    """Its failure policy would hide it otherwise."""
    with pytest.raises(AssertionError, match=f"RealWorldError: p1: {what}: a simulated world has no sockets"):
        run_one(work)


def test_a_thread_that_calls_the_loop_ends_the_run_with_a_clear_error():
    async def work(ctx):
        loop = asyncio.get_running_loop()
        refused = []

        def touch():
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                refused.append(error)

        thread = threading.Thread(target=touch)
        thread.start()
        thread.join()
        assert len(refused) == 1

    with pytest.raises(AssertionError, match="RealWorldError: p1: a real thread called the event loop"):
        run_one(work)


# --- the event loop -------------------------------------------------------------------------------------------------------


class LoopWorld:
    """One process with a loop."""

    def __init__(self, seed=1):
        self.world = World(Trace(), steps_max=100_000)
        self.process = Process(self.world, stream(seed, "process"), "p1")
        self.loop = SimulatedLoop(self.process, stream(seed, "loop"), step_ns=1000)

    def run(self, work, seconds=1000):
        with self.loop.entered():
            task = self.loop.create_task(work)
        self.world.run(seconds * SECOND)
        return task


@pytest.fixture
def loop_world():
    made = LoopWorld()
    yield made
    made.loop.close()


def test_work_that_a_killed_task_still_wants_begun_is_nobody_s_and_no_warning(loop_world):
    """As a turn that a participant ends: its `finally` begins a task, and there is no loop any more."""

    async def more():
        raise AssertionError("the process is dead")

    def spawn(work):
        asyncio.get_running_loop().create_task(work)

    async def waits():
        try:
            await asyncio.Event().wait()
        finally:
            spawn(more())

    loop_world.run(waits())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop_world.loop.close()
    assert [str(each.message) for each in said] == []


def test_virtual_time_passes_at_once(loop_world):
    async def work():
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(500)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 100)
        return loop.time() - began

    assert loop_world.run(work()).result() == pytest.approx(600, abs=0.001)


def test_callbacks_keep_their_order_and_steps_of_tasks_come_in_any():
    async def work(found):
        loop = asyncio.get_running_loop()
        for number in range(4):
            loop.call_soon(found.append, number)

        async def one(number):
            await asyncio.sleep(0)
            found.append(number)

        await asyncio.gather(*(one(10 + number) for number in range(3)))

    orders = set()
    for seed in range(60):
        made = LoopWorld(seed)
        found = []
        made.run(work(found))
        made.loop.close()
        assert found[:4] == [0, 1, 2, 3]
        orders.add(tuple(found[4:]))
    assert len(orders) == 6


def test_what_needs_a_thread_runs_in_line(loop_world):
    async def work():
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(threading.get_ident)

    assert loop_world.run(work()).result() == threading.get_ident()


def test_a_process_that_is_killed_runs_nothing_any_more(loop_world):
    """Not even what stands in a `finally`, before the run is over."""
    ran = []

    async def work():
        try:
            await asyncio.sleep(10)
            ran.append("later")
        finally:
            ran.append("finally")

    with loop_world.loop.entered():
        loop_world.loop.create_task(work())
    loop_world.world.run(5 * SECOND)
    loop_world.process.die()
    loop_world.loop.drop()
    loop_world.world.run(50 * SECOND)
    assert ran == []
    loop_world.loop.close()
    assert ran == ["finally"]


def test_a_process_that_sleeps_goes_on_where_it_was(loop_world):
    async def work():
        await asyncio.sleep(2)
        return asyncio.get_running_loop().time()

    with loop_world.loop.entered():
        task = loop_world.loop.create_task(work())
    loop_world.world.run(SECOND)
    loop_world.process.suspend()
    loop_world.world.run(30 * SECOND)
    assert not task.done()
    loop_world.process.resume()
    loop_world.world.run(31 * SECOND)
    assert task.result() == pytest.approx(30, abs=0.001)


def test_async_generators_are_closed_and_the_loop_is_nobodys_to_run(loop_world):
    closed = []

    async def numbers():
        try:
            for number in range(10):
                await asyncio.sleep(1)
                yield number
        finally:
            closed.append(True)

    async def work():
        async for number in numbers():
            if number == 2:
                break
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="run_forever"):
            asyncio.get_running_loop().run_forever()
        loop_world.loop._problem = None

    loop_world.run(work()).result()
    assert closed == [True]
