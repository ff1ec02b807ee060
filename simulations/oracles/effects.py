"""I29: an effect is done once, and what an agent remembers of it is what was done.

The log of the outside world itself refuses a position that was done before. Here the two accounts are compared at each cut:
what the recorded state counts is exactly what was done outside in the name of that state, but for the turn that was running
at the cut, which has not happened. As nothing rolls back, an agent's count starts with its life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulations.oracles.channel_states import cuts_of
from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster
    from simulations.effects import Effect, Effects


def check_effects(
    cluster: SimulatedCluster, effects: Effects, reader: EpochReader, agent: str, fields: dict[str, Any]
) -> None:
    """Judge one agent of one manifest.

    Args:
        cluster: For the cuts.
        effects: What was done outside.
        reader: Of the epoch.
        agent: Whose.
        fields: Its recorded state, with ``calls`` and ``receipts``.

    Raises:
        Violation: I29.
    """
    cut = cuts_of(cluster.ghost, reader.manifest)[reader.host_of(agent)]
    life = cluster.ghost.lives[cut.session]
    done = effects.by_agent.get((effects.origin(life.boot_id), agent), [])
    running = [bytes(envelope.id) for envelope in reader.mailbox(agent)[:1]]
    check_recorded(f"epoch {reader.manifest.epoch}, {agent}", done, fields, at=cut.at, running=running)


def check_recorded(
    where: str, done: Sequence[Effect], fields: dict[str, Any], *, at: int, running: Sequence[bytes]
) -> None:
    """Compare a recorded state with what was done in its name.

    Args:
        where: For the text.
        done: Outside, so far.
        fields: With ``calls`` and ``receipts``.
        at: Instant of the cut.
        running: The message of the turn that may have been running then.

    Raises:
        Violation: I29.
    """
    happened = [effect for effect in done if effect.at <= at and effect.position.message not in running]
    calls = int(fields.get("calls", 0))
    if calls != len(happened):
        raise Violation("I29", f"{where}: its state counts {calls} effects, {len(happened)} were done")
    results = {effect.position.token: effect.result for effect in happened}
    for token, result in fields.get("receipts", {}).items():
        if results.get(token) != result:
            raise Violation("I29", f"{where}: it remembers {result} for token {token}, which gave {results.get(token)}")
