"""What channels can carry, and what agents say: whether a marker comes through in time.

A marker waits behind what was said before it. So an epoch lasts as long as the longest queue of a channel, and one that outlasts
its deadline aborts and names that channel. Where a window holds one frame, each frame waits for the round trip of the one before
it: a world whose agents say more than that lets its queues grow for ever, and no epoch of agents at work commits there, whatever
the product does; the same where nothing that comes behind a gap is kept, once something was lost. All of this follows from the
options; from what is queued already follows how long it takes. The same holds of a mailbox that has grown while its agent was away:
where each message is a piece of its own, its capture can outlast the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.limits import CHANNEL_WINDOW_BYTES
from simulations.topologies import targets_of
from simulations.workloads import kind_of
from simulations.world import US

if TYPE_CHECKING:
    from simulations.options import Options

DRAWN_LOAD_MAX: Final = 0.5
"""Of worlds that are drawn: what was queued while somebody was away is gone after as long again."""
LOAD_MAX: Final = 0.75
"""Beyond this, queues are long by chance alone, and commits are demanded of agents at rest."""
SLICE_NS: Final = 300 * US
"""Between two slices of a capture that nobody keeps waiting."""
_LOOKS: Final = 6
"""Looks at the stopwatch, each of `Options.turn_ns`, between a frame that arrives and those that leave: a turn or two."""


def round_trip_ns(options: Options) -> int:
    """From a frame that leaves to the next one that its acknowledgement lets go."""
    return 2 * (options.latency_ns + options.jitter_ns + _LOOKS * options.turn_ns)


def frame_trip_ns(options: Options) -> float:
    """Time that a channel takes for each message of a long queue, at most."""
    if options.runtimes:
        window = CHANNEL_WINDOW_BYTES  # drivers keep production's
    else:
        # Behind a gap no more is kept than has room; the rest comes again, a frame for each round trip.
        window = min(options.window_bytes, max(options.reorder_bytes, options.frame_bytes))
    return round_trip_ns(options) / max(1, window // kind_of(options).item_bytes)


def load(options: Options) -> float:
    """Share of its time that the busiest channel takes to carry what agents at work say; from 1 on its queue grows for ever."""
    return kind_of(options).says(options, targets_of(options)) * frame_trip_ns(options) / options.tick_ns


def slow_down(options: Options) -> None:
    """Have agents say no more than channels carry with as much time to spare; by longer ticks, so that windows stay at their edge."""
    options.tick_ns = max(options.tick_ns, int(options.tick_ns * load(options) / DRAWN_LOAD_MAX))


def drained_ns(options: Options, queued: int) -> int:
    """How long the queue of one channel lasts while agents go on saying more, at most.

    Args:
        options: Of a world with a `load` of at most `LOAD_MAX`, or of one whose agents are at rest: they say nothing.
        queued: Messages.
    """
    busy = load(options)
    return int(queued * frame_trip_ns(options) / (1 - busy if busy <= LOAD_MAX else 1))


def captured_ns(options: Options, messages: int) -> int:
    """How long the capture of one mailbox takes while turns go on between its slices, at most.

    Args:
        options: Of a world whose pieces may be as small as a message; drivers keep production's, and its slices of time.
        messages: That wait.
    """
    pieces = 0 if options.runtimes else min(messages, messages * kind_of(options).item_bytes // options.piece_bytes)
    return pieces * (SLICE_NS + _LOOKS * options.turn_ns) // options.slice_steps
