"""Draws options and faults from a seed: swarm testing.

5 % of the seeds have no fault, 15 % exactly one kind; in all others each kind is on with one chance in two, three, six or
twelve, and a process dies at a point of the protocol that the seed's number says (`forced`), so that some hundred seeds in a
row have crashed one at each. Intensities are log-uniform. Knobs that have an edge are now and then at it. The stream of each
kind is its own: leaving one out draws the others as before.

Source: RELIABILITY.md section 4.2 (swarm testing, ISSTA 2012; buggified knobs, FoundationDB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from participant.packing import PIECE_BYTES
from protocol.limits import KIB, PACK_TARGET_BYTES, SEGMENT_TARGET_BYTES
from simulations.carrying import slow_down
from simulations.faults import (
    DRIVERS_ONLY,
    KINDS,
    OUTSIDE_POINTS,
    POINTS,
    RECOVERY_POINTS,
    SEALED_POINTS,
    STUCK_AT,
    TURN_POINTS,
    TURNS_ONLY,
)
from simulations.options import PATIENT_NS, TOPOLOGIES, WORKLOADS, Fault, Options, Run
from simulations.prng import Prng, log_uniform, stream
from simulations.topologies import names_of
from simulations.wishes import ELSEWHERE_ONLY, TAKING_ONLY
from simulations.world import MS, SECOND, US

if TYPE_CHECKING:
    from collections.abc import Sequence

PER_KIND_MAX: Final = 12
SHORT_NS: Final = 8 * SECOND
"""Length of the phase with faults in small worlds, at most."""
HEAVY: Final = (
    "crash-together",
    "local-lost",
    "local-rot",
    "restore",
    "crash-coordinators",
    "split-leader",
    "crash-leader",
    "power-cut",
    "pause-coordinator",
    "leave",
    "crash",
    "takeover",
    "partition",
    "partition-ring",
    "partition-bridge",
    "partition-halves",
    "swizzle",
    "store-rot-sealed",
    "log-install",
    "stop",
    "stop-coordinator",
    "epoch-spoilt",
    "twin",
    "gone",
    "give-up",
    "rename",
)
"""Kinds after which little works for seconds: a world that is always down tests nothing."""
HEAVY_MAX: Final = 3
UNASKED_NS: Final = 10 * SECOND
"""Phases with faults that are as long see a leader give up a sealed epoch by itself."""
LIKELIHOODS: Final = (
    "disk-fsync",
    "duplicate",
    "log-late",
    "log-lose",
    "log-refuse",
    "log-silent",
    "log-twice",
    "lose",
    "queued-orders",
    "reorder",
    "log-stale",
    "store-busy",
    "store-fail",
    "store-hang",
    "store-lose-delete",
    "store-unheard",
    "zombies",
)
BROKER_ONLY: Final = ("duplicate", "reorder", "lose")
STREAM_ONLY: Final = ("half-open",)
GROUP_ONLY: Final = ("depose", "split-leader", "log-install", "log-stale")
FOUR_ONLY: Final = ("partition-ring",)
"""In a ring of three everybody is a neighbour."""
DISK_ONLY: Final = ("disk-fsync", "disk-died", "power-cut")
RECOVERABLE: Final = ("bank", "bank", "ring", "pipeline")
"""Workloads that know of nothing outside their agents which a rollback does not take back."""
OUTSIDE_ONE_OF: Final = 8
"""One recovering world in so many has an outside world: they take several times as long."""
TURNS_ONE_OF: Final = 8
"""One recovering world in so many logs turns."""
RECOVERING_ONLY: Final = ("epoch-spoilt", "queued-orders", "twin")
"""Kinds that are of rollbacks."""
SPOILING: Final = (
    "store-rot",
    "store-rot-manifest",
    "store-rot-read",
    "store-rot-upload",
)
"""Kinds that may leave no epoch to go back to."""
FORK_ONE_OF: Final = 8
"""One in so many worlds that recover, if agents do not go elsewhere there."""
ELSEWHERE_WORKLOADS: Final = ("bank", "ring", "pipeline", "orders")
"""Whose agents others can take."""
ELSEWHERE_ONE_OF: Final = 3
"""One in so many worlds that recover."""
_CLOCK_NS_MAX: Final = 3600 * SECOND
_ABORT_AT: Final = (
    "",
    "order.sent",
    "reports.before_propose",
    "cut.before_assemble",
    "cut.assembled",
    "seal.before_propose",
    "seal.before_propose",
    "seal.before_propose",
    "seal.applied",
    "manifest.after_put",
)
"""Where an operator's abort is most awkward; "": at an instant. Points that the leader passes."""


def draw_options(seed: int, workload: str | None = None) -> Options:
    """A world; with this workload instead of the one that the seed draws."""
    random = stream(seed, "options")
    options = Options(
        seed=seed,
        nodes=random.pick((2, 3, 3, 4, 4, 5, 6)),
        coordinators=random.pick((1, 3, 3, 3, 3, 5)),
        workload=random.pick(WORKLOADS),
        topology=random.pick(TOPOLOGIES),
        broker=random.chance(1, 3),
        latency_ns=log_uniform(random, 50 * US, 20 * MS),
        jitter_ns=log_uniform(random, 10 * US, 40 * MS),
        store_ns=log_uniform(random, MS, 100 * MS),
        turn_ns=log_uniform(random, US, 2 * MS),
        slice_steps=random.pick((1, 2, 8, 64)),
        tick_ns=log_uniform(random, 50 * MS, 1600 * MS),
        burst=random.pick((1, 2, 3, 8)),
        interval_ns=log_uniform(random, 300 * MS, 3 * SECOND),
        pause_ns=random.pick((0, 0, 100 * MS)),
        deadline_ns=log_uniform(random, SECOND, 8 * SECOND),
        max_concurrent=random.pick((1, 1, 1, 2, 3)),
        lease_ns=random.pick((1500 * MS, 3 * SECOND, 3 * SECOND)),
        faults_ns=log_uniform(random, 4 * SECOND, 20 * SECOND),
        deep=random.chance(1, 2),
        disk=random.chance(1, 3),
    )
    if options.max_concurrent > 1:
        # Epochs that overlap, not only may.
        options.interval_ns = log_uniform(random, 50 * MS, 400 * MS)
    if random.chance(1, 12):
        options.recording_bytes_max = random.pick((64, 1024))
    _draw_knobs(options, stream(seed, "knobs"))
    _draw_size(options, stream(seed, "size"))
    options.workload = workload or options.workload
    fit_workload(options)
    slow_down(options)
    return options


def for_recovery(options: Options, *, elsewhere: bool | None = None) -> None:
    """The same world, in which a lost participant comes back with a rollback; and agents go elsewhere, or not, or as the seed says."""
    options.recovery = True
    options.by_hand = bool(stream(options.seed, "by hand").chance(1, 6))
    options.listens = not options.broker and bool(stream(options.seed, "listens").chance(1, 2))
    random = stream(options.seed, "recovery")
    workload = options.workload if options.workload in RECOVERABLE else random.pick(RECOVERABLE)
    if options.runtimes and random.chance(1, 2):
        workload = "orders"
    if workload != options.workload:
        options.workload = workload
        fit_workload(options)
    _draw_elsewhere(options, stream(options.seed, "elsewhere"), elsewhere)
    if random.chance(3, 4):
        # Something to come back to before most faults, and much of it on its way.
        options.interval_ns = min(options.interval_ns, SECOND)
        options.tick_ns = min(options.tick_ns, 300 * MS)
        options.burst = max(options.burst, 3)


def for_turns(options: Options) -> None:
    """The same world, recovering and in the second mode, in which who crashes goes on from its log of turns."""
    options.turns, options.by_hand, options.settled = True, False, False
    # A log takes a write of the disk for each turn of the loop: no more than it can keep up with.
    options.nodes, options.burst = min(options.nodes, 4), min(options.burst, 3)
    options.tick_ns, options.store_ns = max(options.tick_ns, 200 * MS), min(options.store_ns, 20 * MS)


def _draw_elsewhere(options: Options, random: Prng, wanted: bool | None) -> None:  # noqa: FBT001 - private
    """In some of these worlds agents go elsewhere, come back under other names, or not at all; in some nobody goes further back alone."""
    options.refuse = bool(random.chance(1, 8))
    drawn = bool(random.chance(1, ELSEWHERE_ONE_OF))
    if options.workload not in ELSEWHERE_WORKLOADS or not (drawn if wanted is None else wanted):
        return
    options.elsewhere = True
    options.topology = "mesh"  # wherever agents go, they reach the others
    # A channel has to carry what agents say that were on several hosts.
    options.window_bytes = max(options.window_bytes, 5000)
    options.faults_ns = max(options.faults_ns, 9 * SECOND)
    if random.chance(2, 3):
        options.takeover_ns = log_uniform(random, 300 * MS, 5 * SECOND)
        options.spares = random.pick((0, 0, 1, 2, options.nodes))
        if stream(options.seed, "patient").chance(1, 4):
            options.takeover_ns = PATIENT_NS


def fit_workload(options: Options) -> None:
    """What a workload needs in order to reach what it is there for."""
    random = stream(options.seed, f"fit:{options.workload}")
    if options.workload == "growth":
        # Several chunks and packs of each part, but never so many that their puts take longer than an epoch may.
        options.segment_bytes = random.pick((512, 1024, 4096, SEGMENT_TARGET_BYTES))
        options.piece_bytes = random.pick((1024, 4096, PIECE_BYTES))
        options.pack_bytes = random.pick((16 * KIB, 16 * KIB, PACK_TARGET_BYTES))
        options.interval_ns = max(options.interval_ns, 400 * MS)
        options.deadline_ns = max(options.deadline_ns, 4 * SECOND)
        if random.chance(1, 3):
            # Little changes between many epochs: overlays come together before the field is written anew.
            options.burst, options.tick_ns, options.interval_ns = 1, 700 * MS, 400 * MS
            options.faults_ns = max(options.faults_ns, 14 * SECOND)
    elif options.workload == "orders":
        # Much happens to each of them: few.
        options.nodes, options.coordinators = min(options.nodes, 3), min(options.coordinators, 3)
        options.tick_ns = max(options.tick_ns, 300 * MS)
        options.interval_ns = max(options.interval_ns, 300 * MS)
        options.faults_ns = min(options.faults_ns, 8 * SECOND)
        options.settled = bool(stream(options.seed, "settled").chance(1, 2))
    elif options.workload == "hot-spot":
        options.topology = random.pick(("star", "star", options.topology))


def _draw_knobs(options: Options, random: Prng) -> None:
    """Sizes and times of the product at their edges, each now and then."""
    often = random.pick((0, 0, 1, 3))  # of six: in half of the worlds everything is as in production
    if random.chance(often, 6):
        options.frame_bytes = random.pick((1, 1, 64, 700))
    if random.chance(often, 6):
        options.reorder_bytes = random.pick((1, 500))
    if random.chance(often, 6):
        options.parked_bytes = random.pick((1, 500))
    if random.chance(often, 6):
        options.resend_ns = log_uniform(random, 5 * MS, 100 * MS)
        options.resend_ns_max = log_uniform(random, options.resend_ns, SECOND)
    if random.chance(often, 6):
        options.segment_bytes = random.pick((1, 30, 300))
    if random.chance(often, 6):
        options.piece_bytes = random.pick((1, 7, 64))
    if random.chance(often, 6):
        options.pack_bytes = random.pick((1, 200, 2000))
        # One of many puts is always a straggler: an epoch has to outlast the slowest.
        options.deadline_ns = max(options.deadline_ns, SECOND + 50 * options.store_ns)
    if random.chance(often, 6) and options.latency_ns + options.jitter_ns < 10 * MS and options.burst <= 3:
        # One frame at a time: only where a round trip is short enough. Agents say less there, if need be (`slow_down`).
        options.window_bytes = random.pick((1, 300, 5000))


def _draw_size(options: Options, random: Prng) -> None:
    """Half of the worlds are small, with a short phase of faults that is the denser for it: most bugs need no more."""
    if random.chance(1, 2):
        options.nodes = min(options.nodes, random.pick((2, 3, 3)))
        options.coordinators = min(options.coordinators, 3)
        options.faults_ns = log_uniform(random, 3 * SECOND, SHORT_NS)


def for_drivers(options: Options) -> None:
    """The same world in the second mode, which is slower: no more epochs than tell something."""
    options.runtimes = True
    options.interval_ns = max(options.interval_ns, 150 * MS)


def draw_faults(options: Options, kinds: Sequence[str] | None = None, *, force: bool = True) -> list[Fault]:
    """Faults for this world.

    Args:
        options: Of the run; their seed draws.
        kinds: Only these kinds, each of them on; None: by the swarm's rule.
        force: With the crash at the seed's own point, where the rule has any mixture of faults.
    """
    chooser = stream(options.seed, "swarm")
    draw = chooser.below(100)
    special = (*DRIVERS_ONLY, *ELSEWHERE_ONLY, *TURNS_ONLY, "fork")
    every = [kind for kind in sorted(KINDS) if kind not in special and _exists(kind, options)]
    if kinds is not None:
        on = list(kinds)
    elif draw < 5:
        on = []
    elif draw < 20:
        on = [chooser.pick(every)]
    else:
        density = chooser.pick((2, 3, 6, 12))
        on = [kind for kind in every if chooser.chance(1, density)]
        if options.runtimes:
            on += [kind for kind in DRIVERS_ONLY if chooser.chance(1, 3)]
    points = points_of(options)
    found: list[Fault] = (
        forced(options, points[options.seed % len(points)]) if force and kinds is None and draw >= 20 else []
    )
    if options.recovery and kinds is None and draw >= 20:
        random = stream(options.seed, "deaths")
        at = random.between(options.faults_ns // 3, options.faults_ns)
        found.append(
            Fault(
                kind="crash", at_ns=at, for_ns=log_uniform(random, 20 * MS, SECOND), who=random.pick(names_of(options))
            )
        )
        if random.chance(1, 2):
            found.append(Fault(kind="queued-orders", at_ns=SECOND // 2, for_ns=options.faults_ns, rate=1000))
    if options.turns and kinds is None and draw >= 5:
        random = stream(options.seed, "turns")
        on += [kind for kind in TURNS_ONLY if random.chance(1, 3)]
        for _ in range(random.between(1, 4)):
            at, back = random.between(SECOND, options.faults_ns), log_uniform(random, 20 * MS, 2 * SECOND)
            found.append(Fault(kind="crash", at_ns=at, for_ns=back, who=random.pick(names_of(options))))
            point = random.pick((*OUTSIDE_POINTS[:5], *TURN_POINTS))
            nth = 1 if point == "turns.before_replay" else log_uniform(random, 1, 60)
            found.append(Fault(kind="crash-at", at_ns=SECOND // 2, for_ns=back, point=point, nth=nth))
    if options.recovery and not (options.elsewhere or options.turns) and kinds is None:
        random = stream(options.seed, "fork")
        if random.chance(1, 2 if options.workload == "orders" else FORK_ONE_OF):
            found.append(Fault(kind="fork", at_ns=random.between(options.faults_ns // 2, options.faults_ns - 1)))
    if options.elsewhere and kinds is None and draw >= 20:
        on += _operators_kinds(options)
    for kind in on:
        if not _exists(kind, options):
            continue
        random = stream(options.seed, f"faults:{kind}")
        found += [
            _draw(kind, options, random)
            for _ in range(log_uniform(random, 1, HEAVY_MAX if kind in HEAVY else PER_KIND_MAX))
        ]
    return sorted(found, key=lambda fault: (fault.at_ns, fault.kind))


def _operators_kinds(options: Options) -> list[str]:
    """What the operator does: at least one thing."""
    random = stream(options.seed, "operator's kinds")
    every = [kind for kind in ELSEWHERE_ONLY if _exists(kind, options)]
    if options.takeover_ns:
        every.remove("give-up")  # whoever can be taken is not given up
    if options.workload == "orders":
        every.remove("swap")  # whom a customer means that says a name meanwhile, nobody can tell
    chosen = random.pick(every)
    return [kind for kind in every if kind == chosen or random.chance(1, 3)]


def points_of(options: Options) -> tuple[str, ...]:
    """Points at which processes of this world can be made to crash."""
    if not options.recovery:
        return (*POINTS, *SEALED_POINTS)
    if options.turns:
        logs = (*TURN_POINTS, *OUTSIDE_POINTS[:5])
        return (*POINTS, *SEALED_POINTS, *RECOVERY_POINTS, *logs, *logs)
    outside = OUTSIDE_POINTS if options.workload == "orders" and options.runtimes else ()
    return (*POINTS, *SEALED_POINTS, *RECOVERY_POINTS, *RECOVERY_POINTS, *outside, *outside)


def _exists(kind: str, options: Options) -> bool:
    """Whether this world has what such a fault hits."""
    return not (
        (options.recovery and kind in SPOILING)
        or (not options.recovery and kind in RECOVERING_ONLY)
        or (not options.turns and kind in TURNS_ONLY)
        or (options.workload == "orders" and kind == "leave")
        or (kind in ELSEWHERE_ONLY and not options.elsewhere)
        or (kind in TAKING_ONLY and not options.takeover_ns)
        or (kind == "gone" and options.takeover_ns >= PATIENT_NS)
        or (options.broker and kind in STREAM_ONLY)
        or (not options.broker and kind in BROKER_ONLY)
        or (not options.disk and kind in DISK_ONLY)
        or (options.coordinators == 1 and kind in GROUP_ONLY)
        or (options.nodes < 4 and kind in FOUR_ONLY)
    )


def forced(options: Options, point: str) -> list[Fault]:
    """A crash at this point of the protocol, early, so that it is surely passed.

    ``abort.*`` is passed in epochs that abort: an operator sees to it. A sealed epoch is forsaken when it is not to be saved.
    """
    random = stream(options.seed, "forced")
    at = random.between(SECOND // 4, max(SECOND // 2, options.faults_ns // 6))
    crash = Fault(kind="crash-at", at_ns=at, for_ns=log_uniform(random, 20 * MS, 4 * SECOND), point=point)
    if point.startswith("abort"):
        asked = [Fault(kind="abort", at_ns=at, point="order.sent", nth=nth) for nth in (1, 7, 19)]
        return [crash, *asked, *(Fault(kind="abort", at_ns=at, point="seal.before_propose", nth=nth) for nth in (1, 2))]
    if point in SEALED_POINTS:
        operator = "operator" if options.faults_ns < UNASKED_NS or random.chance(1, 2) else ""
        return [
            crash,
            Fault(kind="store-rot-sealed", at_ns=at, for_ns=log_uniform(random, 20 * MS, SECOND), other=operator),
        ]
    if not point.startswith(("journal.", "file.", "rollback.", "fence.", "restored.applied")):
        crash.nth = log_uniform(random, 1, 4)
    return [crash]


def draw_run(
    seed: int,
    *,
    runtimes: bool = False,
    recovery: bool | None = None,
    workload: str | None = None,
    turns: bool | None = None,
    elsewhere: bool | None = None,
) -> Run:
    """A world with its faults.

    Args:
        seed: Draws all of it.
        workload: In place of the one that the seed draws.
        runtimes: In the second mode.
        turns: Whether turns are logged, by participants that recover, in the second mode; None: the seed says, where nothing else
            is asked for.
        recovery: Whether participants come back with rollbacks; None: the seed says. Some of its worlds that do are of the
            second mode then, with an outside world of their own: only the drivers have one.
        elsewhere: Whether agents go elsewhere in a world that recovers; None: the seed says.
    """
    options = draw_options(seed)
    recovers = recovery or (recovery is None and stream(seed, "recovers").chance(1, 3))
    if recovery is None and recovers and workload is None and stream(seed, "outside").chance(1, OUTSIDE_ONE_OF):
        runtimes, workload = True, "orders"
    if turns is None and recovery is None and recovers and workload is None and not runtimes:
        turns = bool(stream(seed, "logs turns").chance(1, TURNS_ONE_OF))
    if turns:
        runtimes = recovers = True
    if runtimes:
        for_drivers(options)
    if recovers:
        for_recovery(options, elsewhere=elsewhere)
    if workload is not None:
        options.workload = workload
        fit_workload(options)
        if workload not in ELSEWHERE_WORKLOADS:
            options.elsewhere, options.takeover_ns, options.spares = False, 0, 0
        elif recovers and elsewhere and not options.elsewhere:
            _draw_elsewhere(options, stream(seed, "elsewhere"), elsewhere)
    if turns:
        for_turns(options)
    slow_down(options)  # what was drawn anew since may say more
    return Run(options=options, faults=draw_faults(options))


def _draw_wish(fault: Fault, options: Options, random: Prng, who: str) -> None:
    fault.rate = random.below(1000)
    fault.at_ns = random.between(options.faults_ns // 5, options.faults_ns)
    if fault.kind in {"gone", "rename", "give-up"}:
        fault.who = who
        fault.for_ns = log_uniform(random, 100 * MS, 2 * SECOND)
        if fault.kind == "give-up":
            fault.for_ns += 2 * options.lease_ns + random.below(6 * SECOND)
        if fault.kind == "gone" and random.chance(1, 4):
            fault.who = ""
    elif fault.kind != "grow" and random.chance(1, 3):
        # Just when a rollback is under way.
        fault.point = random.pick(RECOVERY_POINTS)
        fault.nth = log_uniform(random, 1, 8)


def _draw(kind: str, options: Options, random: Prng) -> Fault:
    names = names_of(options)
    coordinators = [f"c{number + 1}" for number in range(options.coordinators)]
    who = random.pick(names)
    other = random.pick([name for name in names if name != who])
    fault = Fault(kind=kind, at_ns=random.between(SECOND // 2, options.faults_ns))
    fault.for_ns = log_uniform(random, 20 * MS, 8 * SECOND)
    fault.rate = log_uniform(random, 5, 500)
    if kind == "takeover":
        # Early, and soon back: what comes of it comes when all are members again.
        fault.who = who
        fault.at_ns = random.between(SECOND // 2, max(SECOND, options.faults_ns // 3))
        fault.for_ns = log_uniform(random, 20 * MS, SECOND)
    elif kind in {"store-rot-upload", "store-rot-manifest", "store-rot-read"}:
        fault.for_ns = log_uniform(random, 500 * MS, 10 * SECOND)
        fault.rate = log_uniform(random, 10, 400)
    elif kind == "store-stale-list":
        fault.rate = random.below(2)
    elif kind == "partition-halves":
        fault.other = random.pick(("", "out"))
    elif kind == "abort":
        fault.point = random.pick(_ABORT_AT)
        fault.nth = log_uniform(random, 1, 6)
        fault.at_ns = random.between(SECOND // 2, max(SECOND, options.faults_ns // 2))
    elif kind == "queued-orders":
        fault.for_ns = log_uniform(random, SECOND, 20 * SECOND)
        fault.rate = random.pick((300, 1000))
    elif kind in LIKELIHOODS:
        fault.for_ns = log_uniform(random, 500 * MS, 10 * SECOND)
        fault.rate = log_uniform(random, 20, 600)
    elif kind == "store-rot-sealed":
        fault.other, fault.nth = random.pick(("", "operator", "asleep")), log_uniform(random, 1, 6)
        fault.for_ns = log_uniform(
            random, *((SECOND, 12 * SECOND) if fault.other == "asleep" else (20 * MS, 2 * SECOND))
        )
    elif kind == "epoch-spoilt":
        fault.who = who
        fault.at_ns = random.between(options.faults_ns // 2, options.faults_ns)
    elif kind == "twin":
        # Long enough for its successor, most often, to have begun.
        fault.who = who
        fault.for_ns = options.lease_ns + random.below(6 * SECOND)
    elif kind in {"crash", "pause", "leave", "cut-control"}:
        fault.who = who
    elif kind in ELSEWHERE_ONLY:
        _draw_wish(fault, options, random, who)
    elif kind in {"cut", "half-open", "block", "replay", "forge"}:
        fault.who, fault.other = who, other
    elif kind == "slow":
        fault.who, fault.other = who, other
        fault.rate = log_uniform(random, 10, 2000)
    elif kind == "partition":
        fault.who, fault.other = who, random.pick(("", "out"))
    elif kind == "block-control":
        fault.who, fault.other = who, random.pick(("", *coordinators))
    elif kind in {"crash-coordinator", "isolate-coordinator", "log-install"}:
        fault.who = random.pick(coordinators)
    elif kind == "pause-coordinator":
        fault.who = random.pick(("", *coordinators))
    elif kind == "crash-at":
        fault.point = random.pick(points_of(options))
        fault.nth = log_uniform(random, 1, 20)
    elif kind == "split-leader":
        fault.for_ns = log_uniform(random, SECOND, 8 * SECOND)
    elif kind in {"local-lost", "local-rot", "local-fails"}:
        fault.who, fault.rate = who, random.below(4)
        fault.for_ns = log_uniform(random, 20 * MS, 2 * SECOND)
    elif kind == "crash-together":
        fault.for_ns = log_uniform(random, 20 * MS, SECOND)
    elif kind in {"stop", "half-open-control", "stranger"}:
        fault.who = who
    elif kind == "stop-coordinator":
        fault.who = random.pick(("", *coordinators))
    elif kind == "store-stuck":
        fault.who = random.pick(("", *names, *coordinators))
        fault.for_ns = log_uniform(random, 500 * MS, 10 * SECOND)
        if random.chance(1, 2):
            fault.who, fault.point, fault.nth = "", random.pick(STUCK_AT), log_uniform(random, 1, 8)
    elif kind == "disk-died":
        fault.rate = log_uniform(random, 5, 80)
    elif kind == "log-lag":
        fault.rate = log_uniform(random, 10, 3000)
    elif kind == "store-down":
        fault.who = random.pick(("", *names, *coordinators))
    elif kind == "clock":
        fault.who = random.pick(coordinators)
        fault.rate = random.below(2)
        fault.for_ns = log_uniform(random, MS, _CLOCK_NS_MAX)
    return fault
