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

A failure is kept as a replay file, by default in ``.cleancut`` beside the test, and the message says the commands that run it
again, make it smaller and draw it. They start the test with variables that anybody may set:

==================  ==================================================================================================
``SIM_SEED=n``      only this seed; its trace is printed
``SIM_REPLAY=f``    only the run of this replay file; its trace is printed
``SIM_SHRINK=1``    a failure is made smaller before it is reported (or a number: runs at most); the smaller one is kept too
``SIM_EXPLAIN=f``   the failure (of one seed or file: the run) is drawn into this SVG file
``SIM_TRACE=f``     the trace of one seed or file goes there instead
``SIM_DIR=d``       replay files are kept there
==================  ==================================================================================================
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ConfigError
from simulations.faults import KINDS, POINTS
from simulations.replay_files import read
from simulations.user_report import Reported
from simulations.user_runs import draw
from simulations.user_test import CALLS, REPLAY, SEED, current_test, user_test
from simulations.user_workload import UserPlan
from simulations.world import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from participant.agent import Agent
    from simulations.options import Run
    from simulations.run import Outcome
    from simulations.user_workload import Cut

STEPS_MAX: Final = 300_000
PATIENCE: Final = 60.0


@dataclass(kw_only=True)
class Simulated:
    """What `simulate` gives when all is well."""

    outcomes: list[Outcome] = field(default_factory=list)
    """One for each seed."""
    cuts: int = 0
    """Cuts that were given to the invariant."""
    crash_points: dict[str, int] = field(default_factory=dict)
    """Point at which a process was to crash -> crashes there; 0: no run came past it in time."""

    def statistics(self) -> dict[str, int]:
        """Sums over all seeds."""
        return {
            "seeds": len(self.outcomes),
            "cuts": self.cuts,
            "epochs_committed": sum(outcome.commits for outcome in self.outcomes),
            "epochs_aborted": sum(outcome.aborts for outcome in self.outcomes),
            "messages_in_flight": sum(outcome.recorded for outcome in self.outcomes),
            "faults": sum(sum(outcome.fired.values()) for outcome in self.outcomes),
            "crash_points_tried": len(self.crash_points),
            "crash_points_fired": sum(1 for count in self.crash_points.values() if count),
        }

    def add(self, what: Run, outcome: Outcome, cuts: int) -> None:
        """Take one in."""
        self.outcomes.append(outcome)
        self.cuts += cuts
        for point in sorted({fault.point for fault in what.faults if fault.kind == "crash-at"}):
            fired = outcome.fired.get(f"crash-at {point}", 0)
            self.crash_points[point] = self.crash_points.get(point, 0) + fired


def simulate(
    make_agents: Callable[[], Sequence[Agent | Sequence[Agent]]],
    *,
    start: Iterable[tuple[str, object]] = (),
    invariant: Callable[[Cut], Any] | Sequence[Callable[[Cut], Any]] = (),
    seeds: Iterable[int] = range(20),
    faults: Iterable[str] | None = None,
    crash_points: Iterable[str] | None = None,
    steps: int = STEPS_MAX,
    participants: int | None = None,
    topology: str = "mesh",
    messages: Iterable[type] = (),
    after_loss: bool = False,
    patience: float = PATIENCE,
) -> Simulated:
    """Run agents under seeded failures.

    Args:
        make_agents: Gives fresh agents, the same ones each time; called for every life of a participant. Each agent gets a
            participant of its own, each list of agents shares one.
        start: (agent id, message) from outside; the agent finds them in its mailbox when its life begins.
        invariant: Given each cut that holds all agents: false, or an exception, is a violation; None is fine. Also several.
        seeds: Each is a world of its own.
        faults: Only these kinds (see `simulations.faults.KINDS`); none if empty. Default: the swarm draws.
        crash_points: Points of the protocol (see `simulations.faults.POINTS`; ``"all"``): at each of them, in at least one of
            the seeds, the process that comes past it first is killed, and starts again after a while. Most points are passed
            by a coordinator; those of ``local``, ``pack``, ``snapshot`` and ``report`` by a participant, whose agents then
            begin anew. `Simulated.crash_points` says which crashes happened: what nobody came past was not tested. Default:
            one point for each seed, in turn, where the swarm draws faults.
        steps: Events of a run after which it counts as stuck.
        participants: Spread the agents over so many participants instead.
        topology: Who may send to whom, one of `simulations.options.TOPOLOGIES`; ``any``: each seed draws one. By default everybody
            to everybody, as participants do that are given no ``targets``. A message for which there is no channel is put aside.
        messages: Types that no handler takes, but that agents send.
        after_loss: Also judge cuts in which some agents are in a second life.
        patience: Virtual seconds that a handler may take in the healed world, before it counts as one that waits for ever. One
            that sleeps for longer is left alone.

    Returns:
        Outcomes and numbers.

    Raises:
        AssertionError: A seed fails; the message says which, what is wrong, and how to run it again.
        ConfigError: The arguments make no cluster.
    """
    __tracebackhide__ = True  # pytest shows the user's own line
    plan = UserPlan(
        make_agents,
        start=tuple(start),
        invariants=tuple(invariant) if isinstance(invariant, list | tuple) else (invariant,),  # type: ignore[arg-type]
        participants=participants,
        topology=topology,
        messages=tuple(messages),
        after_loss=after_loss,
        patience_ns=_nanoseconds("patience", patience),
    )
    kinds = None if faults is None else _known("faults", "kind", faults, tuple(KINDS))
    points = None if crash_points is None else _points(crash_points)
    test = current_test()
    call = CALLS.next(test)
    given = list(seeds)
    stored = _stored(call, plan)
    if stored is not None and stored.user is not None and stored.user.call != call:
        return Simulated()  # another one of this test is meant
    only = _only_seed()
    chosen = given if only is None else [only]
    whose = user_test(test, call)

    def drawn(seed: int) -> Run:
        share = None if points is None else _share(points, given, seed)
        return draw(seed, plan, kinds=kinds, points=share, steps=steps, user=whose)

    runs = map(drawn, chosen) if stored is None else iter([stored])
    found = Simulated(crash_points=dict.fromkeys(points or (), 0))
    for what in runs:
        one = Reported(plan, what, test=test, alone=stored is not None or only is not None)
        one.carry_out()
        found.add(what, one.outcome, one.cuts)
    if plan.invariants and not found.cuts and chosen and only is None and stored is None:
        raise AssertionError(
            f"the invariant saw no cut in {len(chosen)} seeds: {found.statistics()['epochs_committed']} epochs committed, "
            f"none with all agents in their first life; take more seeds, fewer kinds of faults, or after_loss=True"
        )
    return found


# --- what is asked for ------------------------------------------------------------------------------------------------


def _only_seed() -> int | None:
    text = os.environ.get(SEED, "")
    if not text:
        return None
    try:
        seed = int(text)
    except ValueError:
        seed = 2**63
    if not -(2**63) <= seed < 2**63:
        raise ConfigError(SEED, f"{text[:80]!r} is no seed")
    return seed


def _stored(call: int, plan: UserPlan) -> Run | None:
    """The run of the replay file that is asked for."""
    name = os.environ.get(REPLAY, "")
    if not name:
        return None
    try:
        stored = read(Path(name))
    except (OSError, ValueError) as error:
        raise ConfigError(REPLAY, f"{name}: {error}") from None
    if stored.user is None:
        raise ConfigError(REPLAY, f"{name} is no run of users' agents: cleancut simulate replay {name}")
    if stored.user.call == call and stored.options.nodes > len(plan.groups):
        raise ConfigError(
            REPLAY,
            f"{name} has {stored.options.nodes} participants, and this test {len(plan.groups)}: the test has changed",
        )
    return stored


def _nanoseconds(name: str, seconds: float) -> int:
    if not 0 < seconds <= 1e9:
        raise ConfigError(name, f"{seconds} is no number of seconds from 0 to 1e9")
    return int(seconds * SECOND)


def _points(crash_points: Iterable[str]) -> list[str]:
    if isinstance(crash_points, str):
        crash_points = POINTS if crash_points == "all" else (crash_points,)
    chosen = set(_known("crash_points", "point", crash_points, POINTS))
    return [point for point in POINTS if point in chosen]


def _known(setting: str, what: str, given: Iterable[str], known: tuple[str, ...]) -> list[str]:
    names = sorted({given} if isinstance(given, str) else set(given))
    for name in names:
        if name not in known:
            raise ConfigError(setting, f"there is no {what} {name!r}; there are {', '.join(sorted(known))}")
    return names


def _share(points: list[str], seeds: list[int], seed: int) -> list[str]:
    """The points that are this seed's, so that each is one of some seed's."""
    if not points:
        return []
    count = max(1, len(seeds))
    place = seeds.index(seed) if seed in seeds else seed % count
    if count >= len(points):
        return [points[place % len(points)]]
    each = -(-len(points) // count)
    return points[place * each : (place + 1) * each]
