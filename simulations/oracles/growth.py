"""L6, for states: what an epoch adds to the store is bounded by what changed, not by how much there is.

For each agent of a manifest, against the epoch on which its part builds (the newest that its participant kept before the
cut)::

    bytes of chunks named now and not then  <=  bytes of chunks named then and not now  +  bytes written since  +  overhead

so whatever is written beyond what changed takes the place of something; and a keyed field may give up chunks only

* to merge its overlays, when there are `OVERLAYS` of them; the base then stays as it is; or
* to be written anew, when at least half as many entries as it had were touched since it was last written anew.

Over time this is: an epoch writes what changed, and once per half a state the whole state. What an agent counts as written
and touched comes from its own state; chunks, sizes and names from the local snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from simulations.oracles.channel_states import cuts_of
from simulations.oracles.chunks import state_refs
from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.manifest import AgentSnapshot
    from protocol.reading import EpochReader
    from simulations.cluster import SimulatedCluster

OVERLAYS: Final = 12
PER_FIELD: Final = 64
PER_CHUNK: Final = 16
"""Bytes of headers."""


Chunks = dict[tuple[str, str], int]
"""(pack, chunk) -> bytes: a chunk that is written a second time costs its bytes again."""


class Part(NamedTuple):
    """What one epoch holds of an agent."""

    chunks: Chunks
    """Of all fields."""
    entries: Chunks
    """Of the keyed field."""
    written: int
    touched: int
    keys: int
    base: Chunks
    """Chunks of the keyed field when it was last written anew."""
    base_keys: int = 0
    base_touched: int = 0
    overlays: int = 0


class GrowthLedger:
    """What the epochs of a run hold of each agent."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, str, int], Part] = {}
        """(session, agent, epoch) -> part."""

    def judge(self, cluster: SimulatedCluster, reader: EpochReader, agent: str) -> None:
        """Judge one agent of one manifest.

        Raises:
            Violation: L6.
        """
        epoch = int(reader.manifest.epoch)
        cut = cuts_of(cluster.ghost, reader.manifest)[reader.host_of(agent)]
        before = self._parts.get((cut.session, agent, cut.since))
        part, what = judge_growth(
            f"epoch {epoch}, {agent}", before, reader.agent_snapshot(agent), reader.state(agent).fields
        )
        self._parts[cut.session, agent, epoch] = part
        if what:
            cluster.probes.hit(f"state.{what}")


def judge_growth(where: str, before: Part | None, agent: AgentSnapshot, fields: dict[str, Any]) -> tuple[Part, str]:
    """Judge one step.

    Args:
        where: For the text.
        before: Of the epoch that this one builds on; None: on none.
        agent: What the epoch names of the agent.
        fields: Its recorded state.

    Returns:
        What to judge the next one by; and ``merged``, ``rewritten``, ``extended`` or "".

    Raises:
        Violation: L6.
    """
    chunks = {(ref.pack, ref.digest): ref.bytes for ref in state_refs(agent)}
    entries = {
        (ref.pack, ref.digest): ref.bytes
        for field in agent.fields
        if field.name == "entries"
        for segment in field.segments
        for ref in segment
    }
    part = Part(
        chunks,
        entries,
        int(fields.get("written", 0)),
        int(fields.get("touched", 0)),
        len(fields.get("entries", ())),
        base=entries,
        base_keys=len(fields.get("entries", ())),
        base_touched=int(fields.get("touched", 0)),
    )
    if before is None:
        return part, ""
    new = [size for name, size in chunks.items() if name not in before.chunks]
    gone = sum(size for name, size in before.chunks.items() if name not in chunks)
    written = part.written - before.written
    bound = gone + written + PER_FIELD * len(agent.fields) + PER_CHUNK * len(new)
    if sum(new) > bound:
        raise Violation(
            "L6", f"{where}: {sum(new)} new bytes; {written} were written since the epoch before, and {gone} gave way"
        )
    kept = part._replace(base=before.base, base_keys=before.base_keys, base_touched=before.base_touched)
    if all(name in entries for name in before.entries):
        grew = len(entries) > len(before.entries)
        return kept._replace(overlays=before.overlays + grew), "extended" if grew else ""
    touched = part.touched - before.base_touched
    may_be_rewritten = 2 * touched >= before.base_keys
    if all(name in entries for name in before.base) and (before.overlays >= OVERLAYS or not may_be_rewritten):
        if before.overlays < OVERLAYS:
            raise Violation("L6", f"{where}: {before.overlays} overlays are merged; that waits for {OVERLAYS}")
        return kept._replace(overlays=1), "merged"
    if not may_be_rewritten:
        raise Violation(
            "L6",
            f"{where}: its {before.base_keys} entries are written anew, and {touched} were touched since the last time",
        )
    # Also where all that it began with is there: nobody has touched that, so its segments are the same ones.
    return part, "rewritten"
