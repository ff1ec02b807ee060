"""`simulate`: users' own agents, unmodified, in seeded worlds that fail; for their own tests.

::

    def test_money_is_conserved():
        simulate(
            lambda: [Account("a"), Account("b"), Teller("main")],
            start=[("teller/main", Go())],
            invariant=lambda cut: cut.total(lambda agent, state: state.get("balance", 0), amount_of) == 100,
            seeds=range(50),
        )

Each seed draws a world (latencies, intervals, coordinators, a store) and its faults. Agents are real, and so are the machines of
participants and coordinators; all built-in oracles judge every epoch, then the invariant does. Handlers that await run on an
event loop with virtual time. See `simulations.eventloop` for what there is none of.

What a crash means: a participant that is killed, fenced or has left begins again with fresh agents, and gets its `start`
messages again. A state that is the result of a loss like this is judged only if ``after_loss`` is set; `Cut.total` accounts for
messages to and from lives that are gone. Of the seeds, every second or so loses no participant's memory on purpose.

A failure says the command that runs its seed again: ``SIM_SEED=n`` in the environment makes `simulate` run only that seed, and
print its trace.
"""

from __future__ import annotations

import os
import random as global_random
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ConfigError
from simulations.faults import KINDS, POINTS
from simulations.options import Fault, Run
from simulations.prng import log_uniform, stream
from simulations.run import Outcome, run
from simulations.swarm import draw_faults, draw_options
from simulations.user_workload import UserPlan
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TextIO

    from participant.agent import Agent
    from simulations.user_workload import Cut

SEED_VARIABLE: Final = "SIM_SEED"
STEPS_MAX: Final = 300_000
LOSING: Final = ("crash", "leave", "power-cut", "disk-died")
"""Kinds of faults that end lives of participants; ``crash-at`` does at participants' points."""
_PARTICIPANTS_POINTS: Final = ("local.", "pack.", "snapshot.", "report.")


@dataclass(kw_only=True)
class Simulated:
    """What `simulate` gives when all is well."""

    outcomes: list[Outcome] = field(default_factory=list)
    """One for each seed."""
    cuts: int = 0
    """Cuts that were given to the invariant."""

    def statistics(self) -> dict[str, int]:
        """Sums over all seeds."""
        return {
            "seeds": len(self.outcomes),
            "cuts": self.cuts,
            "epochs_committed": sum(outcome.commits for outcome in self.outcomes),
            "epochs_aborted": sum(outcome.aborts for outcome in self.outcomes),
            "messages_in_flight": sum(outcome.recorded for outcome in self.outcomes),
            "faults": sum(sum(outcome.fired.values()) for outcome in self.outcomes),
        }


def simulate(
    make_agents: Callable[[], Sequence[Agent | Sequence[Agent]]],
    *,
    start: Iterable[tuple[str, object]] = (),
    invariant: Callable[[Cut], Any] | Sequence[Callable[[Cut], Any]] = (),
    seeds: Iterable[int] = range(20),
    faults: Iterable[str] | None = None,
    steps: int = STEPS_MAX,
    participants: int | None = None,
    messages: Iterable[type] = (),
    after_loss: bool = False,
) -> Simulated:
    """Run agents under seeded failures.

    Args:
        make_agents: Gives fresh agents, the same ones each time; called for every life of a participant. Each agent gets a
            participant of its own, each list of agents shares one.
        start: (agent id, message) from outside; the agent finds them in its mailbox when its life begins.
        invariant: Given each cut that holds all agents: false, or an exception, is a violation; None is fine. Also several.
        seeds: Each is a world of its own.
        faults: Only these kinds (see `simulations.faults.KINDS`); none if empty. Default: the swarm draws.
        steps: Events of a run after which it counts as stuck.
        participants: Spread the agents over so many participants instead.
        messages: Types that no handler takes, but that agents send.
        after_loss: Also judge cuts in which some agents are in a second life.

    Returns:
        Outcomes and numbers.

    Raises:
        AssertionError: A seed fails; the message says which, what is wrong, and how to run it again.
        ConfigError: The arguments make no cluster.
    """
    plan = UserPlan(
        make_agents,
        start=tuple(start),
        invariants=tuple(invariant) if isinstance(invariant, list | tuple) else (invariant,),  # type: ignore[arg-type]
        participants=participants,
        messages=tuple(messages),
        after_loss=after_loss,
    )
    kinds = None if faults is None else _checked(faults)
    only = os.environ.get(SEED_VARIABLE, "")
    if only:
        try:
            chosen = [int(only)]
        except ValueError:
            raise ConfigError(SEED_VARIABLE, f"{only!r} is no seed") from None
    else:
        chosen = list(seeds)
    found = Simulated()
    for seed in chosen:
        what = _draw(seed, plan, kinds, steps)
        if only:
            print(_described(what))  # noqa: T201 - what SIM_SEED is for
        outcome, cuts = run_plan(plan, what, trace_file=sys.stdout if only else None)
        if not outcome.ok:
            raise AssertionError(_failure(plan, what, outcome))
        found.outcomes.append(outcome)
        found.cuts += cuts
    if plan.invariants and not found.cuts and not only and chosen:
        raise AssertionError(
            f"the invariant saw no cut in {len(chosen)} seeds: {found.statistics()['epochs_committed']} epochs committed, "
            f"none with all agents in their first life; take more seeds, or fewer kinds of faults"
        )
    return found


def run_plan(plan: UserPlan, what: Run, *, trace_file: TextIO | None = None) -> tuple[Outcome, int]:
    """One run of users' agents.

    Returns:
        What came of it, and how many cuts the invariants saw.
    """
    # The one source of chance that handlers may well use without thinking of it.
    before = global_random.getstate()
    global_random.seed(what.options.seed)
    plan.begin_run()
    try:
        outcome = run(what, trace_file=trace_file, make_workload=plan.workload)
    finally:
        plan.end_run()
        global_random.setstate(before)
    return outcome, plan.cuts


def _checked(faults: Iterable[str]) -> list[str]:
    kinds = sorted(set(faults))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError("faults", f"there is no kind {kind!r}; there are {', '.join(sorted(KINDS))}")
    return kinds


def _draw(seed: int, plan: UserPlan, kinds: list[str] | None, steps: int) -> Run:
    """The world of a seed: as the swarm draws it, but for what the agents decide, and shorter."""
    options = draw_options(seed)
    random = stream(seed, "user")
    options.workload, options.topology = "user", "mesh"
    options.nodes = len(plan.groups)
    options.steps_max = steps
    options.faults_ns = log_uniform(random, 4 * SECOND, 8 * SECOND)
    options.interval_ns = min(options.interval_ns, options.faults_ns // 8)
    options.deep = random.chance(1, 8)
    options.disk = options.disk and bool(random.chance(1, 4))
    chosen = draw_faults(options, kinds)
    if kinds is None and chosen:
        # So many seeds in a row as there are points: a crash at each of them.
        point = Fault(kind="crash-at", point=POINTS[seed % len(POINTS)])
        # Early: what was armed and is not passed before all is healed has tested nothing.
        point.at_ns, point.for_ns = random.between(SECOND // 4, SECOND), log_uniform(random, 20 * MS, 2 * SECOND)
        if random.chance(2, 3) and not _loses(point):
            chosen = [fault for fault in chosen if not _loses(fault)]
        chosen = sorted([*chosen, point], key=lambda fault: (fault.at_ns, fault.kind))
    return Run(options=options, faults=chosen)


def _loses(fault: Fault) -> bool:
    return fault.kind in LOSING or fault.point.startswith(_PARTICIPANTS_POINTS)


def _described(what: Run) -> str:
    from simulations.command import describe_fault, describe_options

    faults = "".join(f"\n  {describe_fault(fault)}" for fault in what.faults)
    return f"{describe_options(what.options)}\nfaults: {len(what.faults)}{faults}"


def _failure(plan: UserPlan, what: Run, outcome: Outcome) -> str:
    again, _ = run_plan(plan, what)
    lines = [
        f"seed {what.options.seed}: {outcome.invariant} is broken ({outcome.kind}): {outcome.text}",
        _described(what).partition("\n")[0],
        f"faults that fired: {', '.join(f'{kind} {count}' for kind, count in outcome.fired.items()) or 'none'}",
        "last events (virtual ms, who, what, details):",
        *(line[:200] for line in outcome.last),
    ]
    if again.digest != outcome.digest:
        lines.append(
            "NOT REPRODUCIBLE: the same seed ran differently a second time. The agents depend on something that no seed "
            "decides: the time of day, uuid4, os.urandom, the order of a set, a global that an earlier run changed."
        )
    lines.append(f"again, with its trace: {replay_command(what.options.seed)}")
    return "\n".join(lines)


def replay_command(seed: int) -> str:
    """What runs this seed again, in a shell."""
    current = os.environ.get("PYTEST_CURRENT_TEST", "")
    if current:
        test = current.rsplit(" (", 1)[0]
        return f"{SEED_VARIABLE}={seed} pytest {shlex.quote(test)}"
    return f"{SEED_VARIABLE}={seed} {shlex.join([sys.executable.rsplit('/', 1)[-1], *sys.argv])}"
