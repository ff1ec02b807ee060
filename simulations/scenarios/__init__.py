"""Named scenarios: what went wrong in systems like this one, as runs that must pass, with what has to be seen in each.

A scenario is a list of runs (`simulations.options.Run`) and a check of the cluster when such a run is over
(`simulations.scenarios.checks`). All oracles look on as ever; the check asks for what is special about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulations.cluster import SimulatedCluster
from simulations.faults import POINTS, SEALED_POINTS, Injector
from simulations.options import Fault, Options, Run
from simulations.oracles.liveness import demand_all_members, demand_commits, demand_ends, demand_quiet
from simulations.oracles.rot import check_rot
from simulations.scenarios import checks
from simulations.scenarios.long_call import long_call_plan
from simulations.trace import Trace
from simulations.workloads import workload_of
from simulations.world import MS, SECOND, US

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.user_workload import UserPlan


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario."""

    what: str
    """What happens, and what is right."""
    runs: tuple[Run, ...]
    check: Callable[[SimulatedCluster, Injector], None]
    """Raises `Violation`."""
    plan: Callable[[], UserPlan] | None = None
    """Agents of its own; None: the workload that the options name."""


def play(scenario: Scenario) -> None:
    """Carry out all runs of a scenario.

    Raises:
        Violation: What an oracle or the check finds.
    """
    for each in scenario.runs:
        plan = scenario.plan() if scenario.plan is not None else None
        if plan is not None:
            plan.begin_run(each)
        cluster = SimulatedCluster(each.options, Trace(), workload_of if plan is None else plan.workload)
        injector = Injector(cluster)
        try:
            _play(scenario, each, cluster, injector)
        finally:
            cluster.workload.close()
            if plan is not None:
                plan.end_run()


def _play(scenario: Scenario, each: Run, cluster: SimulatedCluster, injector: Injector) -> None:
    cluster.boot()
    injector.inject(each.faults)
    cluster.world.run(each.options.faults_ns)
    scenario.check(cluster, injector)
    cluster.heal()
    demand_all_members(cluster)
    demand_ends(cluster)
    if scenario.check is not checks.recording_limit:
        demand_commits(cluster, 2)
    cluster.workload.switch.on = False
    if cluster.workload.comes_to_rest:
        demand_quiet(cluster)
        demand_commits(cluster, 1)
    check_rot(cluster)
    cluster.workload.judge_end(cluster)


def _options(seed: int, **changes: object) -> Options:
    options = Options(seed=seed, nodes=4, faults_ns=10 * SECOND, tick_ns=100 * MS)
    for name, value in changes.items():
        setattr(options, name, value)
    return options


SCENARIOS: Final[dict[str, Scenario]] = {
    "D1": Scenario(
        what="A participant falls silent: the epoch aborts at its deadline and names it; the next ones commit.",
        runs=(
            Run(
                options=_options(1, nodes=8, deadline_ns=2 * SECOND, lease_ns=8 * SECOND, interval_ns=500 * MS),
                faults=[Fault(kind="pause", at_ns=3 * SECOND, for_ns=3 * SECOND, who="p3")],
            ),
        ),
        check=checks.silent,
    ),
    "D2": Scenario(
        what="A handler awaits a call of ten minutes: epochs commit as if it did not, and hold its message as being handled.",
        runs=(
            Run(
                options=_options(
                    2, nodes=3, workload="user", deadline_ns=5 * SECOND, interval_ns=SECOND, faults_ns=15 * SECOND
                ),
                faults=[],
            ),
        ),
        check=checks.long_call,
        plan=long_call_plan,
    ),
    "D3": Scenario(
        what="Consumers are slower than what is sent to them: an epoch finishes in less than a second all the same.",
        runs=(
            Run(
                options=_options(
                    3, workload="pipeline", turn_ns=2 * MS, burst=40, tick_ns=100 * MS, faults_ns=8 * SECOND
                ),
                faults=[],
            ),
        ),
        check=checks.slow_consumer,
    ),
    "D3-limit": Scenario(
        what="The same flood on slow links with a small limit of recording: epochs abort by that name, memory stays flat.",
        runs=(
            Run(
                options=_options(
                    31,
                    workload="pipeline",
                    burst=40,
                    tick_ns=100 * MS,
                    latency_ns=300 * MS,
                    jitter_ns=200 * MS,
                    faults_ns=8 * SECOND,
                    recording_bytes_max=2000,
                ),
                faults=[],
            ),
        ),
        check=checks.recording_limit,
    ),
    "D6": Scenario(
        what="The leader falls asleep with a cut in its hands, another one goes on, the first one wakes: one manifest each.",
        runs=tuple(
            Run(
                options=_options(60 + index, faults_ns=24 * SECOND, store_ns=60 * MS),
                faults=[Fault(kind="pause-coordinator", at_ns=3 * SECOND, for_ns=14 * SECOND, point=point, nth=1)],
            )
            for index, point in enumerate(
                (
                    "cut.before_assemble",
                    "cut.assembled",
                    "seal.before_propose",
                    "seal.applied",
                    "manifest.before_put",
                    "manifest.after_put",
                    "commit.before_propose",
                )
            )
        ),
        check=checks.sleeping_leader,
    ),
    "D7": Scenario(
        what="A process dies at each point of the protocol in turn: every epoch ends, and none is half there.",
        runs=tuple(
            Run(
                options=_options(
                    70 + index,
                    deadline_ns=2 * SECOND,
                    interval_ns=400 * MS,
                    # An abort needs a reason.
                    recording_bytes_max=64 if point.startswith("abort") else 1 << 20,
                    latency_ns=5 * MS if point.startswith("abort") else MS,
                    disk=index % 2 == 0,
                ),
                faults=[
                    Fault(kind="crash-at", at_ns=2 * SECOND, for_ns=SECOND, point=point, nth=2),
                    # Votes are given in elections.
                    *([Fault(kind="depose", at_ns=4 * SECOND)] if "vote" in point else []),
                ],
            )
            for index, point in enumerate(POINTS)
        ),
        check=checks.leader_dies,
    ),
    "D14": Scenario(
        what="One leaves, one joins, one comes back under its name: each epoch has the members of its start, none waits.",
        runs=(
            Run(
                options=_options(14, interval_ns=300 * MS, lease_ns=1500 * MS, store_ns=40 * MS, faults_ns=14 * SECOND),
                faults=[
                    Fault(kind="leave", at_ns=2 * SECOND, who="p2", point="order.sent"),
                    Fault(kind="crash", at_ns=5 * SECOND, for_ns=200 * MS, who="p3", point="order.sent"),
                    Fault(kind="leave", at_ns=8 * SECOND, who="p1"),
                ],
            ),
        ),
        check=checks.comings_and_goings,
    ),
    "D15": Scenario(
        what="Wall clocks jump an hour back and forth in the middle of epochs: numbers grow, durations stay right.",
        runs=(
            Run(
                options=_options(15, coordinators=1, interval_ns=700 * MS, store_ns=30 * MS, turn_ns=20 * US),
                faults=[
                    Fault(kind="clock", at_ns=3 * SECOND, for_ns=3600 * SECOND, rate=1, who="c1"),
                    Fault(kind="clock", at_ns=6 * SECOND, for_ns=3600 * SECOND, who="c1"),
                    *(Fault(kind="trigger", at_ns=at * SECOND + at * 37 * MS) for at in range(2, 9)),
                ],
            ),
        ),
        check=checks.clock_jumps,
    ),
    "rot": Scenario(
        what="What is uploaded rots before anybody has read it: those epochs abort in time, and no later one is held up.",
        runs=(
            Run(
                options=_options(90, interval_ns=400 * MS),
                faults=[Fault(kind="store-rot-upload", at_ns=3 * SECOND, for_ns=3 * SECOND, rate=500)],
            ),
            Run(
                options=_options(91, interval_ns=400 * MS, disk=True),
                faults=[Fault(kind="store-rot-upload", at_ns=3 * SECOND, for_ns=3 * SECOND, rate=500)],
            ),
        ),
        check=checks.rotten_uploads,
    ),
    "sealed": Scenario(
        what="A leader dies between seal and manifest, and a part of that epoch rots: it is given up, whoever waits goes on.",
        runs=tuple(
            Run(
                options=_options(95 + index, interval_ns=400 * MS, disk=disk, faults_ns=14 * SECOND),
                faults=[
                    Fault(kind="store-rot-sealed", at_ns=3 * SECOND, for_ns=SECOND, other=operator),
                    *([Fault(kind="crash-at", at_ns=3 * SECOND, for_ns=SECOND, point=point)] if point else []),
                ],
            )
            for index, (operator, disk, point) in enumerate(
                (
                    ("", False, ""),
                    ("operator", True, ""),
                    *(("operator", False, point) for point in SEALED_POINTS),
                )
            )
        ),
        check=checks.forsaken,
    ),
    "sealed-asleep": Scenario(
        what="The same, but the leader only sleeps: when it wakes it has the right bytes, and the store takes them no more.",
        runs=tuple(
            Run(
                options=_options(105 + index, interval_ns=400 * MS, disk=disk, faults_ns=24 * SECOND),
                faults=[Fault(kind="store-rot-sealed", at_ns=3 * SECOND, for_ns=14 * SECOND, other="asleep")],
            )
            for index, disk in enumerate((False, True))
        ),
        check=checks.forsaken_behind_a_sleeper,
    ),
    "sealed-awake": Scenario(
        what="The leader that sleeps is back in time: its put comes before the next one has decided, and the epoch commits.",
        runs=(
            Run(
                options=_options(107, interval_ns=400 * MS, faults_ns=16 * SECOND),
                faults=[Fault(kind="store-rot-sealed", at_ns=3 * SECOND, for_ns=4500 * MS, other="asleep")],
            ),
        ),
        check=checks.found_stored,
    ),
}
"""By the names of the scenarios' page."""
