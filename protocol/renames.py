"""Agents that come back under other names: ``cleancut epoch restore N --map old/name=new/name``. Pure.

What a rename means: the agent that the epoch calls *old* is *new* from the incarnation on that begins. State, mailbox, timers,
held outputs and everything in flight go to *new*; in the messages that the epoch holds, *old* is *new*, as their target and as
their source, so that answers find it. What agents themselves have written down, and what their code says, stays as it is: who
sends to *old* afterwards sends to an agent that is not there.

Positions do not change: messages and effects of *new* are named as those of *old* would have been (`AgentSnapshot.was`), so work
that is done again repeats no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from protocol.manifest import Manifest
    from protocol.messages import Envelope
    from protocol.restore_plan import SavedAgent


def rename_problem(renames: Mapping[str, str], agents: Collection[str], hosted: Collection[str]) -> str:
    """Why an epoch's agents cannot be renamed so; "": they can.

    Args:
        renames: Old -> new.
        agents: Of the epoch.
        hosted: Agents that participants declare or have today.
    """
    targets: dict[str, str] = {}
    for old, new in sorted(renames.items()):
        if old == new:
            return f"{old} is to be mapped to itself"
        if old not in agents:
            return f"the epoch holds no agent {old} that could become {new}"
        if new in targets:
            return f"{targets[new]} and {old} are both to become {new}"
        targets[new] = old
        if new in agents and new not in renames:
            return f"{old} cannot become {new}: the epoch holds an agent of that name"
    for old, new in sorted(renames.items()):
        if old in hosted and old not in targets:
            return (
                f"{old} cannot become {new} while a participant declares {old}: it would begin anew; stop declaring it, or map "
                "another agent to its name"
            )
    return ""


def renamed_ids(agents: Iterable[str], renames: Mapping[str, str]) -> tuple[str, ...]:
    """Ids as they are afterwards, sorted."""
    return tuple(sorted(renames.get(agent, agent) for agent in agents))


def renamed_epoch(
    manifest: Manifest, saved: Iterable[SavedAgent], renames: Mapping[str, str]
) -> tuple[Manifest, list[SavedAgent]]:
    """What a plan is made of, with the names of afterwards."""
    members = tuple(
        msgspec.structs.replace(member, agents=renamed_ids(member.agents, renames)) for member in manifest.members
    )
    return (
        msgspec.structs.replace(manifest, members=members),
        [msgspec.structs.replace(agent, id=renames.get(agent.id, agent.id)) for agent in saved],
    )


def renamed_envelope(envelope: Envelope, renames: Mapping[str, str]) -> Envelope:
    """A message with the names of afterwards; the very same where it names none of them."""
    source, target = renames.get(envelope.source), renames.get(envelope.target)
    if source is None and target is None:
        return envelope
    return msgspec.structs.replace(envelope, source=source or envelope.source, target=target or envelope.target)
