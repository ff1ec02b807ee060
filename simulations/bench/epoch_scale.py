"""Epoch duration against the number of agents, of participants and of channels; against a bare epoch.

Measured: from the start of an epoch to its commit, everything durable on disk: participants in this process on the memory
transport, with the coordinator in memory that checks each cut and writes the manifest. First 8 participants with more and
more agents of 1 KB; then more and more participants, full mesh of channels. Between two epochs one agent of each
participant changes, so each writes a pack.

Reference: a bare epoch (`bare_epoch`) with the same participants, channels and bytes. The second one puts all parts of an epoch into *one* file with one fsync: what one process could do, and a cluster
could not.

All participants share one core here; in a cluster each has its own, and only its own channels to serve. Notes give the CPU
time of the whole epoch for each channel.

Bound: per participant a pack and a local snapshot side by side, each a file, fsync, link and fsync of the folder: two waits
for the disk where the bare epoch has one. Per channel two markers' framing and MACs (8 us a side), a
digest at both ends (2 us) and the check (3 us): some 25 us, against 0.4 us for a queue.
"""

from __future__ import annotations

import time

from participant import Agent, Context, handler, value
from protocol.storage import open_store
from simulations.bench.bare_epoch import BareEpoch
from simulations.bench.local import CLUSTER, LocalParticipants
from simulations.bench.measure import Row, Settings, median, row_of, scratch_folder
from simulations.bench.turn_path import Ball

NAME = "epoch-scale"
AGENT_BYTES = 1000
FLINK_MS_AT_4096_CHANNELS = 460.0
"""Measured elsewhere; the bar is a twentieth of it."""


class Small(Agent, kind="small"):
    """1 KB of state."""

    seen = value(int, default=0)
    text = value(str, default="x" * AGENT_BYTES)

    @handler
    async def on_ball(self, ctx: Context, ball: Ball) -> None:
        """Change something."""
        self.seen += 1


async def run(settings: Settings) -> list[Row]:
    """Both scales."""
    rows: list[Row] = []
    cycles = settings.pick(1, 7, 25)
    for agents in settings.pick([8], [8, 64, 256, 1000], [8, 64, 256, 1000]):
        rows += await _case(f"{agents} agents on 8 participants", 8, agents, cycles)
    for participants in settings.pick([4], [8, 64, 256], [8, 64, 256, 1000]):
        few = cycles if participants < 64 else max(1, cycles // (3 if participants == 64 else 9))
        rows += await _case(f"{participants} participants", participants, participants, few)
    return rows


async def _case(case: str, participants: int, agents: int, cycles: int) -> list[Row]:
    channels = participants * (participants - 1)
    own: list[tuple[float, float]] = []
    one: list[tuple[float, float]] = []
    cpu: list[float] = []
    with scratch_folder() as folder:
        groups: list[list[Small]] = [[] for _ in range(participants)]
        for number in range(agents):
            groups[number % participants].append(Small(f"a{number}"))
        async with LocalParticipants(groups, store=open_store(str(folder), CLUSTER)) as cluster:
            for participant in cluster.participants:
                await participant.wait_idle()
            bare = BareEpoch(folder, participants)
            await bare.start()
            try:
                for cycle in range(cycles + 1):
                    for participant, group in zip(cluster.participants, groups, strict=True):
                        participant.ingest_nowait(group[0].id, Ball(cycle, ""))
                        await participant.wait_idle()
                    began, worked = time.perf_counter(), time.process_time()
                    await cluster.conductor.epoch()
                    took, work = time.perf_counter() - began, time.process_time() - worked
                    # As many bytes as a part with its snapshot has.
                    apart = await bare.epoch(1500, together=False)
                    together = await bare.epoch(1500, together=True)
                    if cycle:
                        own.append((took, apart))
                        one.append((took, together))
                        cpu.append(work)
            finally:
                await bare.stop()
    ours = [taken for taken, _ in own]
    notes = (
        f"{1000 * median(ours):.1f} ms, bare {1000 * median([apart for _, apart in own]):.1f}, "
        f"bare with one file {1000 * median([together for _, together in one]):.1f}; "
        f"{channels} channels, {1e6 * median(cpu) / channels:.0f} us of CPU for each"
    )
    rows = [
        row_of(NAME, case, "epoch / bare epoch, a file for each participant", own, bar=2.0, unit="s", notes=notes),
        row_of(NAME, case, "epoch / bare epoch, one file in all", one, unit="s"),
    ]
    if channels == 4032:
        rows.append(
            row_of(
                NAME,
                case,
                "epoch / Flink's at 4,096 channels (460 ms elsewhere)",
                [(1000 * taken, FLINK_MS_AT_4096_CHANNELS) for taken in ours],
                bar=0.05,
                unit="ms",
            )
        )
    return rows
