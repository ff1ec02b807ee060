"""What a run is made of: everything that is not in the code. Options and faults together are a replay file.

A seed draws both (`simulations.faults`); whoever shrinks a failure changes them one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from participant.packing import PIECE_BYTES
from protocol.limits import (
    CHANNEL_REORDER_BYTES,
    CHANNEL_RESEND_NS,
    CHANNEL_RESEND_NS_MAX,
    CHANNEL_WINDOW_BYTES,
    FRAME_TARGET_BYTES,
    PACK_TARGET_BYTES,
    PARKED_FRAMES_BYTES_MAX,
    SEGMENT_TARGET_BYTES,
)
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1
TOPOLOGIES: Final = ("mesh", "ring", "line", "star", "random", "one-way", "isolated")
"""``one-way``: not strongly connected, with a member that only sends and one that only receives; ``isolated``: a mesh, and a
member without any channel."""
WORKLOADS: Final = ("bank", "ring", "pipeline", "conversation", "growth", "hot-spot")
RECOVERING_WORKLOADS: Final = (*WORKLOADS, "orders")
"""With those that need worlds that recover."""


KNOBS: Final = (
    "frame_bytes",
    "window_bytes",
    "reorder_bytes",
    "parked_bytes",
    "resend_ns",
    "resend_ns_max",
    "segment_bytes",
    "piece_bytes",
    "pack_bytes",
    "recording_bytes_max",
)
"""Sizes and times of the product that the swarm takes to their edges."""
PATIENT_NS: Final = 3600 * SECOND
"""A takeover that no world lives to see."""
LENGTH_MAX_NS: Final = 24 * 3600 * SECOND
BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "seed": (-(2**63), 2**63 - 1),
    "nodes": (2, 1_000),
    "coordinators": (1, 9),
    "latency_ns": (1, LENGTH_MAX_NS),
    "jitter_ns": (1, LENGTH_MAX_NS),
    "store_ns": (1, LENGTH_MAX_NS),
    "turn_ns": (1, SECOND),
    "slice_steps": (1, 1_000_000),
    "tick_ns": (1, LENGTH_MAX_NS),
    "burst": (0, 100_000),
    "interval_ns": (MS, LENGTH_MAX_NS),
    "pause_ns": (0, LENGTH_MAX_NS),
    "deadline_ns": (MS, LENGTH_MAX_NS),
    "max_concurrent": (1, 64),
    "recording_bytes_max": (1, 1 << 40),
    "frame_bytes": (1, 1 << 20),
    "window_bytes": (1, 1 << 40),
    "reorder_bytes": (1, 1 << 40),
    "parked_bytes": (1, 1 << 40),
    "resend_ns": (MS, LENGTH_MAX_NS),
    "resend_ns_max": (MS, LENGTH_MAX_NS),
    "segment_bytes": (1, 1 << 20),
    "piece_bytes": (1, 1 << 20),
    "pack_bytes": (1, PACK_TARGET_BYTES),
    "lease_ns": (MS, LENGTH_MAX_NS),
    "takeover_ns": (0, LENGTH_MAX_NS),
    "spares": (0, 100),
    "faults_ns": (1, LENGTH_MAX_NS),
    "steps_max": (1, 10**12),
}
"""Least and greatest value of each number, in files and from the command line: beyond them there is no world to run."""


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One world. Durations in nanoseconds."""

    seed: int
    nodes: int = 4
    """Participants."""
    coordinators: int = 3
    workload: str = "bank"
    topology: str = "mesh"
    broker: bool = False
    """Frames cross a broker (may repeat and overtake) instead of streams."""
    latency_ns: int = MS
    """Least time of a frame on its way."""
    jitter_ns: int = 3 * MS
    store_ns: int = 5 * MS
    """Typical time of one operation of the object store."""
    turn_ns: int = 20_000
    """Virtual time that a look at the clock takes while turns run: what a turn costs."""
    slice_steps: int = 4
    """Small steps of encoding in a row: more turns fall between the slices of a cut the lower it is."""
    tick_ns: int = 60 * MS
    """Between two moves of an agent."""
    burst: int = 3
    """Messages of one move."""
    interval_ns: int = SECOND
    """Between epochs."""
    pause_ns: int = 0
    deadline_ns: int = 4 * SECOND
    max_concurrent: int = 1
    recording_bytes_max: int = 1 << 20
    frame_bytes: int = FRAME_TARGET_BYTES
    window_bytes: int = CHANNEL_WINDOW_BYTES
    reorder_bytes: int = CHANNEL_REORDER_BYTES
    parked_bytes: int = PARKED_FRAMES_BYTES_MAX
    resend_ns: int = CHANNEL_RESEND_NS
    resend_ns_max: int = CHANNEL_RESEND_NS_MAX
    segment_bytes: int = SEGMENT_TARGET_BYTES
    piece_bytes: int = PIECE_BYTES
    pack_bytes: int = PACK_TARGET_BYTES
    """Of channels, and of what is written: production's, or at an edge. Smaller packs are finished as soon as they have this
    size, whatever else there is to write."""
    lease_ns: int = 3 * SECOND
    faults_ns: int = 20 * SECOND
    """Length of the phase with faults."""
    steps_max: int = 2_000_000
    disk: bool = False
    """The store is the product's filesystem store on a disk that may fail."""
    deep: bool = True
    """Every fourth manifest is also judged by the product's own `verify`: down to the chunks; False: without them."""
    recovery: bool = False
    """A participant that is lost comes back with a rollback; else with fresh agents, and the others go on without it."""
    by_hand: bool = False
    """With `recovery`: the policy is manual, and an operator who looks now and then asks for each rollback."""
    turns: bool = False
    """With `recovery`, in the second mode: turns are logged, and who crashes goes on from the log, alone."""
    listens: bool = False
    """Participants have addresses that coordinators can ask whether their process is still there."""
    runtimes: bool = False
    """The second mode: the asyncio drivers of participants and coordinators run, too."""
    elsewhere: bool = False
    """With `recovery`: an operator moves, renames and gives up agents, and participants come and go for good (`simulations.operator`)."""
    takeover_ns: int = 0
    """With `elsewhere`: participants take agents of one that stays away for so long; 0: nobody takes what it does not declare. From
    `PATIENT_NS` on nobody that stays away is given up: agents move on an operator's word only, and a host has to come back."""
    spares: int = 0
    """With `elsewhere`: participants that begin without agents, once an operator wants more hosts."""
    settled: bool = False
    """With `orders`: what became of a step cannot always be found out, and an operator decides."""
    refuse: bool = False
    """With `recovery`: the policy refuses to go further back than the newest epoch by itself; an operator has to name one."""
    mutant: str = ""
    """A planted bug (`simulations.mutants`), for judging the harness."""


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fault: what, when, for how long, whom it hits."""

    kind: str
    at_ns: int = 0
    for_ns: int = 0
    who: str = ""
    """A participant or coordinator; "" for what hits everybody."""
    other: str = ""
    """The other end of a channel."""
    rate: int = 0
    """Chances in 1,000, where the fault is a likelihood."""
    point: str = ""
    """For faults at a point of the protocol: its name."""
    nth: int = 1
    """At which passing of the point."""


class UserTest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where the agents of a run are that `simulate` was given."""

    test: str
    """``file::test`` as pytest names it, from the folder above the one that holds the replay file; "" if it was no test."""
    command: str = ""
    """What was run instead of pytest, in a shell."""
    call: int = 1
    """Which `simulate` of the test, from 1."""
    left_out: list[int] = msgspec.field(default_factory=list)
    """`start` messages that are not given to the agents, by number from 0."""
    code: str = ""
    """Digest of the test's file."""


class Run(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A replay file."""

    format: int = FORMAT
    options: Options
    faults: list[Fault]
    invariant: str = ""
    """What it broke when it was stored; "" for a run that has to pass."""
    note: str = ""
    """For people: what it caught."""
    build: str = ""
    """Of the code that stored it (`simulations.build`); "" if it does not matter."""
    digest: str = ""
    """Over the events of the run when it was stored; "" if it does not matter."""
    user: UserTest | None = None
    """Whose agents; None: those of the workload."""


class _Head(msgspec.Struct):
    format: int


def encode_run(run: Run) -> bytes:
    """As it is stored."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def decode_run(data: bytes) -> Run:
    """From a file.

    Raises:
        ValueError: Not a replay file of this format, or of a world that there is not.
    """
    try:
        # First of all, so that a later format is called by its name instead of by its first strange field.
        found = msgspec.json.decode(data, type=_Head).format
        if found != FORMAT:
            raise ValueError(f"replay file of format {found}; this build reads {FORMAT}")
        run = msgspec.json.decode(data, type=Run)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a replay file: {error}") from None
    check_run(run)
    return run


def check_run(run: Run) -> None:
    """Whether there is such a world.

    Raises:
        ValueError: A value is out of its bounds, or names nothing.
    """
    from simulations.faults import KINDS, OUTSIDE_POINTS, POINTS, RECOVERY_POINTS, SEALED_POINTS, TURN_POINTS
    from simulations.mutants import MUTANTS

    options = run.options
    workloads = (*RECOVERING_WORKLOADS, "user") if run.user is not None else RECOVERING_WORKLOADS
    _known("workload", options.workload, workloads)
    _known("topology", options.topology, TOPOLOGIES)
    _known("mutant", options.mutant, ("", *MUTANTS))
    for name, (low, high) in BOUNDS.items():
        _between(name, getattr(options, name), low, high)
    for index, fault in enumerate(run.faults):
        what = f"fault {index + 1}"
        _known(f"kind of {what}", fault.kind, tuple(KINDS))
        if fault.point or fault.kind == "crash-at":
            points = (*POINTS, *SEALED_POINTS, *RECOVERY_POINTS, *OUTSIDE_POINTS, *TURN_POINTS)
            _known(f"point of {what}", fault.point, points)
        for name in ("at_ns", "for_ns"):
            _between(f"{name} of {what}", getattr(fault, name), 0, LENGTH_MAX_NS)
        _between(f"rate of {what}", fault.rate, 0, 1_000_000)
        _between(f"nth of {what}", fault.nth, 1, 1_000_000_000)
        for who in (fault.who, fault.other):
            number = who[1:]
            if who[:1] in {"p", "c"} and number.isdecimal():
                most = options.nodes + options.spares if who[0] == "p" else options.coordinators
                if not 1 <= int(number[:9]) <= most:
                    raise ValueError(f"{what} hits {who}, which this world does not have")


def _known(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ValueError(f"{what}: there is no {given[:80]!r}; there are {', '.join(filter(None, known))}")


def _between(what: str, given: int, low: int, high: int) -> None:
    if not low <= given <= high:
        raise ValueError(f"{what} is {given if abs(given) < 10**30 else 'a huge number'}; it has to be {low} to {high}")
