"""One run of users' agents: drawn from a seed, carried out, drawn as a picture, made smaller."""

from __future__ import annotations

import random as global_random
from typing import TYPE_CHECKING, Final

import msgspec

from protocol.limits import CHANNEL_WINDOW_BYTES
from simulations.faults import POINTS
from simulations.options import TOPOLOGIES, Fault, Run
from simulations.prng import log_uniform, stream
from simulations.run import Outcome, run
from simulations.shrink import NODES_MIN, Shrinker, with_options
from simulations.swarm import draw_faults, draw_options
from simulations.user_workload import ANY
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from simulations.options import UserTest
    from simulations.recorder import Recorder
    from simulations.user_workload import UserPlan

LOSING: Final = ("crash", "takeover", "leave", "power-cut", "disk-died")
"""Kinds of faults that end lives of participants; ``crash-at`` does at participants' points."""
_BACK_NS: Final = 4 * SECOND
_PARTICIPANTS_POINTS: Final = ("local.", "pack.", "snapshot.", "report.")


def draw(
    seed: int, plan: UserPlan, *, kinds: list[str] | None, points: Sequence[str] | None, steps: int, user: UserTest
) -> Run:
    """The world of a seed: as the swarm draws it, but for what the agents decide, and shorter.

    Args:
        seed: Draws.
        plan: Whose agents.
        kinds: Only these kinds of faults; None: by the swarm's rule.
        points: A crash at each of these; None: at one that the seed chooses, if the swarm draws any fault.
        steps: Events at most.
        user: How the test is found again.
    """
    options = draw_options(seed)
    random = stream(seed, "user")
    options.workload, options.topology = "user", plan.topology
    if plan.topology == ANY:
        options.topology = stream(seed, "user topology").pick(TOPOLOGIES)
    options.window_bytes = CHANNEL_WINDOW_BYTES  # nobody knows how much they say
    options.nodes = len(plan.groups)
    options.steps_max = steps
    options.faults_ns = log_uniform(random, 4 * SECOND, 8 * SECOND)
    options.interval_ns = min(options.interval_ns, options.faults_ns // 8)
    options.deep = random.chance(1, 8)
    options.disk = options.disk and bool(random.chance(1, 4))
    chosen = draw_faults(options, kinds, force=False)
    if points is None and kinds is None and chosen:
        # So many seeds in a row as there are points: a crash at each of them.
        points = (POINTS[seed % len(POINTS)],)
    # One crash must not keep the next point from being passed: who died is a member again after a lease and a little.
    apart = options.lease_ns + _BACK_NS
    options.faults_ns = max(options.faults_ns, apart * len(points or ()))
    for place, name in enumerate(points or ()):
        point = Fault(kind="crash-at", point=name)
        # Early: what was armed and is not passed before all is healed has tested nothing.
        point.at_ns, point.for_ns = (
            place * apart + random.between(SECOND // 4, SECOND),
            log_uniform(random, 20 * MS, 2 * SECOND),
        )
        if random.chance(2, 3) and not _loses(point):
            chosen = [fault for fault in chosen if not _loses(fault)]
        chosen.append(point)
        if name.startswith("abort"):
            # Where nothing else makes an epoch abort, an operator does.
            chosen += [Fault(kind="abort", at_ns=point.at_ns, point="order.sent", nth=nth) for nth in (1, 4, 9)]
    return Run(options=options, faults=sorted(chosen, key=lambda fault: (fault.at_ns, fault.kind)), user=user)


def _loses(fault: Fault) -> bool:
    return fault.kind in LOSING or fault.point.startswith(_PARTICIPANTS_POINTS)


def run_plan(
    plan: UserPlan, what: Run, *, trace_file: TextIO | None = None, recorder: Recorder | None = None
) -> tuple[Outcome, int]:
    """One run of users' agents.

    Returns:
        What came of it, and how many cuts the invariants saw.
    """
    # The one source of chance that handlers may well use without thinking of it.
    before = global_random.getstate()
    global_random.seed(what.options.seed)
    plan.begin_run(what)
    try:
        outcome = run(what, trace_file=trace_file, recorder=recorder, make_workload=plan.workload)
    finally:
        plan.end_run()
        global_random.setstate(before)
    return outcome, plan.cuts


def picture(
    plan: UserPlan, what: Run, *, epoch: int | None = None, begin: int | None = None, end: int | None = None
) -> tuple[str, list[str]]:
    """A run as a space-time diagram.

    Args:
        plan: Whose agents.
        what: The run.
        epoch: As for `simulations.scene.scene_of`.
        begin: The same.
        end: The same.

    Returns:
        The SVG, and what is to be said of it.

    Raises:
        NothingToShow: There is no such epoch or window.
    """
    from simulations.diagram import draw as drawn
    from simulations.explain import sentences
    from simulations.recorder import Recorder
    from simulations.scene import scene_of

    recorder = Recorder()
    outcome, _ = run_plan(plan, what, recorder=recorder)
    scene = scene_of(recorder, outcome, epoch=epoch, begin=begin, end=end)
    return drawn(scene), sentences(scene)


class UserShrinker(Shrinker):
    """A failing run of users' agents on its way to a small one."""

    def __init__(
        self,
        plan: UserPlan,
        what: Run,
        outcome: Outcome,
        *,
        tell: Callable[[str], None],
        trials_max: int,
        smaller: Callable[[Run], None],
    ) -> None:
        super().__init__(
            what,
            outcome,
            tell=tell,
            trials_max=trials_max,
            carry_out=lambda trial: run_plan(plan, trial)[0],
            smaller=smaller,
        )
        self._plan = plan

    def smaller_worlds(self) -> Iterator[Run]:
        """Agents stay, and so does what they do: fewer participants share them, and fewer messages come from outside."""
        yield from self.shorter_runs()
        yield from self._without_messages()
        while self.what.options.nodes > NODES_MIN:
            before = self.what
            yield _merged(before, before.options.nodes - 1)
            if self.what is before:
                break
        yield from self.plainer_worlds()

    def _without_messages(self) -> Iterator[Run]:
        """Without one `start` message after the other.

        An invariant may rest on one of them. Then it is broken without it whatever else happens, and that is another failure:
        such a message stays.
        """
        for number in range(self._plan.messages_from_outside):
            user = self.what.user
            assert user is not None, "users' runs say whose they are"
            if number in user.left_out or not self.what.faults:
                continue
            less = msgspec.structs.replace(user, left_out=sorted([*user.left_out, number]))
            trial = msgspec.structs.replace(self.what, user=less)
            calm = self.attempt(msgspec.structs.replace(trial, faults=[]))
            if calm is not None and calm.ok:
                yield trial


def _merged(what: Run, nodes: int) -> Run:
    """The agents on so many participants, the last of which has the rest; faults follow them."""

    def moved(name: str) -> str:
        if not (name.startswith("p") and name[1:].isdecimal()):
            return name
        return f"p{min(int(name[1:]), nodes)}"

    faults = [
        msgspec.structs.replace(fault, who=moved(fault.who), other=moved(fault.other))
        for fault in what.faults
        if not fault.other or moved(fault.who) != moved(fault.other)
    ]
    return msgspec.structs.replace(with_options(what, nodes=nodes), faults=faults)
