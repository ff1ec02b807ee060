"""What a run is made of: everything that is not in the code. Options and faults together are a replay file.

A seed draws both (`simulations.faults`); whoever shrinks a failure changes them one by one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from simulations.world import MS, SECOND

FORMAT: Final = 1
TOPOLOGIES: Final = ("mesh", "ring", "line", "star", "random", "one-way")
"""``one-way``: not strongly connected, with a member that only sends."""
WORKLOADS: Final = ("bank", "ring", "pipeline")


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
    lease_ns: int = 3 * SECOND
    faults_ns: int = 20 * SECOND
    """Length of the phase with faults."""
    steps_max: int = 2_000_000
    disk: bool = False
    """The store is the product's filesystem store on a disk that may fail."""
    deep: bool = True
    """Every manifest is verified down to the chunks; False: only every fourth."""
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


class Run(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A replay file."""

    format: int = FORMAT
    options: Options
    faults: list[Fault]
    invariant: str = ""
    """What it broke when it was stored; "" for a run that has to pass."""
    note: str = ""
    """For people: what it caught."""


def encode_run(run: Run) -> bytes:
    """As it is stored."""
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def decode_run(data: bytes) -> Run:
    """From a file.

    Raises:
        ValueError: Not a replay file of this format.
    """
    try:
        run = msgspec.json.decode(data, type=Run)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a replay file: {error}") from None
    if run.format != FORMAT:
        raise ValueError(f"replay file of format {run.format}; this build reads {FORMAT}")
    return run
