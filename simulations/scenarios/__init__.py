"""Named scenarios: what went wrong in systems like this one, as runs that must pass, with what has to be seen in each.

A scenario is a list of runs (`simulations.options.Run`) and a check of the cluster when such a run is over. All oracles look
on as ever; the check asks for what is special about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulations.cluster import SimulatedCluster
from simulations.faults import POINTS, Injector
from simulations.options import Fault, Options, Run
from simulations.oracles.liveness import demand_all_members, demand_commits, demand_ends, demand_quiet
from simulations.trace import Trace
from simulations.violations import Violation
from simulations.world import MS, SECOND, US

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.ledger import EpochRecord


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario."""

    what: str
    """What happens, and what is right."""
    runs: tuple[Run, ...]
    check: Callable[[SimulatedCluster, Injector], None]
    """Raises `Violation`."""


def play(scenario: Scenario) -> None:
    """Carry out all runs of a scenario.

    Raises:
        Violation: What an oracle or the check finds.
    """
    for each in scenario.runs:
        cluster = SimulatedCluster(each.options, Trace())
        injector = Injector(cluster)
        cluster.boot()
        injector.inject(each.faults)
        cluster.world.run(each.options.faults_ns)
        scenario.check(cluster, injector)
        cluster.heal()
        demand_all_members(cluster)
        demand_ends(cluster)
        demand_commits(cluster, 2)
        cluster.workload.switch.on = False
        demand_quiet(cluster)


# --- looking ----------------------------------------------------------------------------------------------------------


def records(cluster: SimulatedCluster) -> list[EpochRecord]:
    """All epochs, as the most advanced replica has them."""
    lives = [life for life in cluster.log.lives.values() if life.alive]
    ledger = max(lives, key=lambda life: life.applied).ledger
    return [record for _, record in sorted(ledger.state.epochs.items())]


def demand(holds: bool, text: str) -> None:  # noqa: FBT001 - an assertion's shape
    """Raise a violation unless it holds."""
    if not holds:
        raise Violation("scenario", text)


def _options(seed: int, **changes: object) -> Options:
    options = Options(seed=seed, nodes=4, faults_ns=10 * SECOND, tick_ns=100 * MS)
    for name, value in changes.items():
        setattr(options, name, value)
    return options


# --- the checks -------------------------------------------------------------------------------------------------------


def _silent(cluster: SimulatedCluster, injector: Injector) -> None:
    demand(injector.fired.get("pause", 0) == 1, "the pause did not happen")
    aborted = [record for record in records(cluster) if record.state == "aborted"]
    demand(bool(aborted), "no epoch was aborted although a participant was silent")
    for record in aborted:
        assert record.abort is not None
        demand("p3" in (record.abort.participant, record.abort.cause), f"blames {record.abort}")
        demand(2 * SECOND <= record.took_ns <= 2500 * MS, f"epoch {record.epoch} took {record.took_ns / 1e9:.2f} s")
        demand(record.epoch not in cluster.oracles.history.manifests, "an aborted epoch has a manifest")
    last = aborted[-1].epoch
    demand(
        any(record.epoch > last and record.state == "committed" for record in records(cluster)),
        "no epoch commits later",
    )


def _slow_consumer(cluster: SimulatedCluster, injector: Injector) -> None:
    waiting = max(len(host.mailbox) for life in cluster.lives.values() for host in life.hosts)
    demand(waiting > 50, f"the mailboxes hold {waiting} messages only: nobody is slow")
    took = [record.took_ns for record in records(cluster) if record.state == "committed"]
    demand(len(took) >= 4, f"{len(took)} epochs commit beside a slow consumer")
    demand(max(took) < SECOND, f"an epoch took {max(took) / 1e9:.2f} s: it waits for the consumer")


def _sleeping_leader(cluster: SimulatedCluster, injector: Injector) -> None:
    demand(injector.fired.get("pause-coordinator", 0) >= 1, "no leader slept")
    demand(cluster.log.term >= 2, "nobody took over")
    open_long = [r.epoch for r in records(cluster) if r.state == "sealed" and r.took_ns > 5 * SECOND]
    demand(not open_long, f"epochs {open_long} stay sealed")


def _leader_dies(cluster: SimulatedCluster, injector: Injector) -> None:
    crashes = [kind for kind in injector.fired if kind.startswith("crash-at ")]
    demand(len(crashes) == 1, f"{crashes} fired; one point was armed")
    history = cluster.oracles.history
    ended = [record for record in records(cluster) if record.state in ("committed", "aborted")]
    bound = cluster.options.deadline_ns + 3 * SECOND
    demand(all(record.took_ns <= bound for record in ended), "an epoch outlived its deadline and a change of leader")
    demand(len(history.states) == len(records(cluster)), "history of earlier epochs is lost")


def _comings_and_goings(cluster: SimulatedCluster, injector: Injector) -> None:
    for kind in ("leave", "crash"):
        demand(injector.fired.get(kind, 0) >= 1, f"{kind} did not happen")
    sessions = {life.session for life in cluster.ghost.lives.values()}
    demand(len(sessions) >= 6, f"sessions {sorted(sessions)}: nobody came back")
    demand(cluster.oracles.history.commits >= 3, "too few epochs commit")


def _clock_jumps(cluster: SimulatedCluster, injector: Injector) -> None:
    demand(injector.fired.get("clock", 0) == 2, "the clocks did not jump")
    found = records(cluster)
    demand([record.epoch for record in found] == sorted(record.epoch for record in found), "epochs are out of order")
    demand(all(record.took_ns >= 0 and record.elapsed_ns >= 0 for record in found), "a duration is negative")
    demand(not any(record.state == "aborted" for record in found), "a clock that jumps aborts an epoch")
    starts = [record.started_at for record in found]
    demand(starts != sorted(starts), "no wall clock went back: nothing was tested")


SCENARIOS: Final[dict[str, Scenario]] = {
    "D1": Scenario(
        what="A participant falls silent: the epoch aborts at its deadline and names it; the next ones commit.",
        runs=(
            Run(
                options=_options(1, nodes=8, deadline_ns=2 * SECOND, lease_ns=8 * SECOND, interval_ns=500 * MS),
                faults=[Fault(kind="pause", at_ns=3 * SECOND, for_ns=3 * SECOND, who="p3")],
            ),
        ),
        check=_silent,
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
        check=_slow_consumer,
    ),
    "D6": Scenario(
        what="The leader sleeps with a cut in its hands, another one finishes, the first one wakes: one manifest each.",
        runs=tuple(
            Run(
                options=_options(seed, faults_ns=14 * SECOND, store_ns=60 * MS),
                faults=[Fault(kind="pause-coordinator", at_ns=3 * SECOND + offset * 30 * MS, for_ns=5 * SECOND)],
            )
            for seed, offset in enumerate(range(6), start=60)
        ),
        check=_sleeping_leader,
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
                faults=[Fault(kind="crash-at", at_ns=2 * SECOND, for_ns=SECOND, point=point, nth=2)],
            )
            for index, point in enumerate(POINTS)
        ),
        check=_leader_dies,
    ),
    "D14": Scenario(
        what="One leaves, one joins, one comes back under its name: each epoch has the members of its start, none waits.",
        runs=(
            Run(
                options=_options(14, interval_ns=300 * MS, lease_ns=1500 * MS),
                faults=[
                    Fault(kind="leave", at_ns=2 * SECOND, who="p2"),
                    Fault(kind="crash", at_ns=2100 * MS, for_ns=200 * MS, who="p3"),
                    Fault(kind="leave", at_ns=5 * SECOND, who="p1"),
                ],
            ),
        ),
        check=_comings_and_goings,
    ),
    "D15": Scenario(
        what="Wall clocks jump an hour back and forth in the middle of epochs: numbers grow, durations stay right.",
        runs=(
            Run(
                options=_options(15, coordinators=1, interval_ns=200 * MS, store_ns=30 * MS, turn_ns=20 * US),
                faults=[
                    Fault(kind="clock", at_ns=3 * SECOND, for_ns=3600 * SECOND, rate=1, who="c1"),
                    Fault(kind="clock", at_ns=6 * SECOND, for_ns=3600 * SECOND, who="c1"),
                ],
            ),
        ),
        check=_clock_jumps,
    ),
}
"""By the names of the scenarios' page."""
