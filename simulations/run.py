"""One run: boot, faults, heal, demand liveness, quiesce, last judgement.

Phases, in virtual time:
    1. Faults, for `Options.faults_ns`. Every manifest is judged when it becomes visible; liveness is not asked for.
    2. Healed: nothing is broken any more. All become members, each open epoch ends (L1), new ones commit (L2, L3).
    3. Quiet: agents begin nothing new; all that is on its way arrives; one more epoch is judged.
"""

from __future__ import annotations

import gc
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

import msgspec

from simulations.cluster import SimulatedCluster
from simulations.faults import Injector
from simulations.forking import options_of_fork, run_fork
from simulations.mutants import planted
from simulations.oracles.liveness import (
    commits_at_work,
    demand_all_members,
    demand_commits,
    demand_ends,
    demand_quiet,
)
from simulations.oracles.rot import check_rot
from simulations.trace import Trace
from simulations.violations import Violation
from simulations.workloads import workload_of
from simulations.world import StepsExhausted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulations.forking import Forked
    from simulations.options import Run
    from simulations.recorder import Recorder
    from simulations.workloads import MakeWorkload

SAFETY: Final = "safety"
LIVENESS: Final = "liveness"
CRASH: Final = "crash"
COLLECT_EVERY: Final = 1_000_000
"""Containers that a run makes and keeps before garbage is looked for: some hundred megabytes. Most runs keep fewer."""


@dataclass(kw_only=True)
class Outcome:
    """What came of a run."""

    seed: int
    kind: str = ""
    """``safety``, ``liveness``, ``crash`` (an exception of the product or of the simulator); "" if all is well."""
    invariant: str = ""
    text: str = ""
    digest: str = ""
    """Over all events."""
    events: int = 0
    """Events of the protocol: messages sent, messages delivered, and everything else that was traced."""
    virtual_ns: int = 0
    commits: int = 0
    aborts: int = 0
    recorded: int = 0
    """In-flight messages in the judged manifests."""
    probes: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)
    """The last events in words, of a failed run."""

    @property
    def ok(self) -> bool:
        """Nothing was broken."""
        return not self.kind


def run(
    what: Run,
    *,
    trace_file: TextIO | None = None,
    recorder: Recorder | None = None,
    make_workload: MakeWorkload = workload_of,
) -> Outcome:
    """Carry out a run; never raises for what it finds.

    Args:
        what: Options and faults.
        trace_file: Every event in words goes here.
        recorder: Takes down the instants for a picture; in place of `trace_file`.
        make_workload: What the agents do, from options and targets; default: what the options name.
    """
    with _calm_collector():
        return _run(what, Trace(trace_file) if recorder is None else recorder, recorder, make_workload)


def _run(what: Run, trace: Trace, recorder: Recorder | None, make_workload: MakeWorkload) -> Outcome:
    outcome = Outcome(seed=what.options.seed)
    cluster: SimulatedCluster | None = None
    injector: Injector | None = None
    try:
        with planted(what.options.mutant), ExitStack() as stack:
            cluster = _cluster(what, trace, make_workload)
            stack.enter_context(cluster.surroundings())
            stack.callback(cluster.unwind)
            if recorder is not None:
                recorder.attach(cluster)
            injector = Injector(cluster)
            _phases(cluster, injector, what)
        with planted(what.options.mutant):
            for forked in cluster.forks:
                _run_fork(what, forked, cluster, trace, make_workload)
    except Violation as violation:
        outcome.kind, outcome.invariant, outcome.text = violation.kind, violation.invariant, violation.text
    except StepsExhausted as error:
        outcome.kind, outcome.invariant, outcome.text = LIVENESS, "L9", str(error)
    except Exception as error:  # noqa: BLE001 - whatever the product raises is a finding
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(
            f"{frame.filename.rsplit('/', 2)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
        )
        outcome.kind, outcome.invariant = CRASH, type(error).__name__
        outcome.text = f"{type(error).__name__}: {error} at {where}"
    if cluster is not None and injector is not None:
        _fill(outcome, cluster, injector)
    outcome.digest = trace.digest()
    if not outcome.ok:
        outcome.last = list(trace.last())
    if cluster is not None:
        cluster.workload.close()  # last: what is unwound now did not happen in the run
    return outcome


def _run_fork(what: Run, forked: Forked, original: SimulatedCluster, trace: Trace, make_workload: MakeWorkload) -> None:
    options = options_of_fork(what.options)
    trace.note(original.world.now, "fork", "Begins", options, b"%d" % forked.fork.epoch)
    cluster = _cluster(msgspec.structs.replace(what, options=options), trace, make_workload, forked)
    cluster.workload.names = original.workload.names
    try:
        with ExitStack() as stack:
            stack.enter_context(cluster.surroundings())
            stack.callback(cluster.unwind)
            run_fork(cluster)
    finally:
        for name, count in cluster.probes.hits.items():
            if name.startswith("fork."):
                original.probes.hits[name] = original.probes.hits.get(name, 0) + count
        cluster.workload.close()


def _cluster(what: Run, trace: Trace, make_workload: MakeWorkload, forked: Forked | None = None) -> SimulatedCluster:
    if not what.options.runtimes:
        return SimulatedCluster(what.options, trace, make_workload, forked)
    from simulations.runtimes.cluster import RuntimeCluster

    return RuntimeCluster(what.options, trace, make_workload, forked)


@contextmanager
def _calm_collector() -> Iterator[None]:
    """Look for garbage once, when the run is over: it keeps nearly all that it makes, in one world full of cycles.

    Only a run that makes very much is walked over in between. Afterwards only what is younger than the run is looked at: not
    the modules.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, 20, 100)
    try:
        yield
    finally:
        gc.collect(1)
        gc.set_threshold(*thresholds)


def _phases(cluster: SimulatedCluster, injector: Injector, what: Run) -> None:
    cluster.boot()
    injector.inject(what.faults)
    cluster.world.run(what.options.faults_ns)
    cluster.heal()
    demand_all_members(cluster)
    demand_ends(cluster)
    if commits_at_work(cluster):
        # Where agents come to rest, one more is demanded of them then.
        demand_commits(cluster, 1 if cluster.workload.comes_to_rest else 2)
    cluster.workload.demand(cluster)
    cluster.workload.switch.on = False
    if cluster.workload.comes_to_rest:
        # Somebody may have been found lost only after the faults were over: what waits for its agents is on its way, too.
        demand_all_members(cluster)
        demand_quiet(cluster)
        demand_commits(cluster, 1)
    cluster.demand_drivers()
    check_rot(cluster)
    cluster.oracles.history.check_replicas()
    cluster.oracles.history.check_forsaken()
    cluster.workload.judge_end(cluster)


def _fill(outcome: Outcome, cluster: SimulatedCluster, injector: Injector) -> None:
    ghost, history = cluster.ghost, cluster.oracles.history
    outcome.events = ghost.sends + ghost.deliveries + cluster.trace.count
    outcome.virtual_ns = cluster.world.now
    outcome.commits, outcome.aborts = history.commits, history.aborts
    outcome.recorded = cluster.oracles.recorded_messages
    if outcome.recorded:
        cluster.probes.hit("cut.message_in_flight")
    outcome.probes = dict(sorted(cluster.probes.hits.items()))
    outcome.fired = dict(sorted(injector.fired.items()))
