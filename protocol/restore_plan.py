"""What a restore of an epoch would do with the code and the participants of today: a plan, before anything is touched. Pure.

Each agent of the epoch, and each that is here without being in it, gets one line:

============  ==========================================================================================================
``matched``   its state fits the code as it is
``migrated``  its state is of an older version, and migrations lead to today's
``missing``   it is here and not in the epoch: it begins anew
``unclaimed`` the epoch holds it, and nobody here takes it: refused, unless it is to be dropped on purpose
``refused``   somebody takes it, and its state cannot become his: a downgrade, a migration that is not there, a field
============  ==========================================================================================================

Messages that wait in the epoch and that no code here handles any more are named, too: they would become dead letters. And what
has reached the world since the epoch is listed: it stays, and work that is done again at the same positions does not repeat it.

Used by ``cleancut epoch restore N --check`` and by the API; the coordinators' side knows code only as `AgentCode`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from protocol.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from protocol.manifest import Manifest
    from protocol.reading import EpochReader

Fate: TypeAlias = Literal["matched", "migrated", "missing", "unclaimed", "refused"]

OWN_MESSAGES: Final = "cleancut."
"""Messages that hosts make themselves begin with this: every host handles them."""
LISTED_MAX: Final = 1_000
"""Outputs and effects that a plan lists one by one; the count goes on."""


class AgentCode(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan needs to know of an agent's class."""

    kind: str
    state_version: int = 1
    renamed_from: tuple[str, ...] = ()
    """Kinds that it had before, and takes as well."""
    migrations: tuple[int, ...] | None = ()
    """Versions that its migrations lead on from; None: not known here."""
    fields: tuple[tuple[str, str, str], ...] | None = None
    """Name, shape and serializer of each; None: not known here."""
    messages: tuple[tuple[str, int], ...] | None = None
    """Registered name and version of each that it handles; None: not known here."""


class SavedAgent(msgspec.Struct, frozen=True, kw_only=True):
    """What an epoch says of an agent, as far as a plan goes."""

    id: str
    participant: str
    """Where it was."""
    state_version: int = 1
    fields: tuple[tuple[str, str, str], ...] | None = None
    """As in `AgentCode`, of those that were set; None: not read."""
    messages: tuple[tuple[str, int, int], ...] = ()
    """Registered name, version and number of the messages that wait for it."""


class AgentFate(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a plan."""

    agent: str
    fate: Fate
    participant: str = ""
    """Where it was; for a missing one, where it is."""
    saved_version: int = 0
    """In the epoch, 0: it is not in it."""
    version: int = 0
    """Of the code here, 0: there is none."""
    steps: tuple[str, ...] = ()
    """Migrations, ``1 to 2``, in order."""
    reason: str = ""
    """Why it is refused, or unclaimed."""
    unhandled: tuple[str, ...] = ()
    """Messages that wait for it and that its code does not handle: ``3 of order version 1``."""


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """Something that reached the world after the epoch."""

    kind: Literal["output", "effect"]
    place: str
    """Name of the sink, or of the step."""
    agent: str
    token: str
    detail: str = ""


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan."""

    epoch: int
    agents: tuple[AgentFate, ...]
    """Sorted by id."""
    outside: tuple[Outside, ...] = ()
    """At most `LISTED_MAX` of each kind."""
    outputs_after: int | None = None
    """How many outputs reached their sinks after the epoch; None: nobody was asked."""
    effects_after: int | None = None
    notes: tuple[str, ...] = ()
    """What the plan could not know."""

    def of(self, fate: Fate) -> tuple[AgentFate, ...]:
        """The lines with this fate."""
        return tuple(line for line in self.agents if line.fate == fate)

    def problems(self, *, allow_unclaimed: bool = False) -> tuple[str, ...]:
        """Why this restore is refused, a sentence each; empty: it would go through."""
        found = [f"{line.agent}: {line.reason}" for line in self.of("refused")]
        if not allow_unclaimed:
            found += [f"{line.agent}: {line.reason}" for line in self.of("unclaimed")]
        return tuple(found)

    def demand(self, *, allow_unclaimed: bool = False) -> None:
        """Go on only if the restore would go through.

        Raises:
            RecoveryError: Names the agents that stand in the way.
        """
        problems = self.problems(allow_unclaimed=allow_unclaimed)
        if problems:
            more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise RecoveryError(f"epoch {self.epoch} cannot be restored: {'; '.join(problems[:5])}{more}")

    def document(self, *, allow_unclaimed: bool = False) -> dict[str, Any]:
        """As JSON has it."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        problems = list(self.problems(allow_unclaimed=allow_unclaimed))
        counts = {fate: len(self.of(fate)) for fate in ("matched", "migrated", "missing", "unclaimed", "refused")}
        return {**built, "counts": counts, "problems": problems, "ok": not problems}


def restore_plan(
    manifest: Manifest,
    saved: Iterable[SavedAgent],
    codes: Iterable[AgentCode],
    *,
    here: Mapping[str, str] | None = None,
    takes: Iterable[str] = (),
    outputs_after: Callable[[int], Sequence[Outside]] | None = None,
    effects_after: Callable[[int], Sequence[Outside]] | None = None,
    notes: Iterable[str] = (),
) -> RestorePlan:
    """Compare an epoch with the code and the participants of today.

    Args:
        manifest: Of the epoch.
        saved: Its agents; those that the manifest places and that are not among them are taken as version 1.
        codes: The classes that are known.
        here: Agent -> participant that declares it today; None: only classes are known, so nothing is missing, and whose
            kind is known is claimed.
        takes: Kinds that somebody takes from others.
        outputs_after: Epoch -> the outputs that reached their sinks and are no part of it.
        effects_after: Epoch -> the same for effects.
        notes: To be handed on.

    Returns:
        The plan; the same for the same arguments.
    """
    by_kind: dict[str, AgentCode] = {}
    for code in codes:
        for kind in (code.kind, *code.renamed_from):
            by_kind.setdefault(kind, code)
    known = {agent.id: agent for agent in saved}
    for member in manifest.members:
        for placed in member.agents:
            known.setdefault(placed, SavedAgent(id=placed, participant=member.participant))
    adopted = frozenset(takes)
    lines = []
    for agent in known.values():
        kind = agent.id.partition("/")[0]
        claimed = here is None or agent.id in here or kind in adopted
        lines.append(_fate(agent, by_kind.get(kind)) if claimed else _unclaimed(agent, kind))
    for name, participant in (here or {}).items():
        if name not in known:
            found = by_kind.get(name.partition("/")[0])
            version = found.state_version if found is not None else 0
            lines.append(AgentFate(agent=name, fate="missing", participant=participant, version=version))
    outputs = None if outputs_after is None else outputs_after(manifest.epoch)
    effects = None if effects_after is None else effects_after(manifest.epoch)
    return RestorePlan(
        epoch=manifest.epoch,
        agents=tuple(sorted(lines, key=lambda line: line.agent)),
        outside=(*(outputs or ())[:LISTED_MAX], *(effects or ())[:LISTED_MAX]),
        outputs_after=None if outputs is None else len(outputs),
        effects_after=None if effects is None else len(effects),
        notes=tuple(notes),
    )


def _fate(agent: SavedAgent, code: AgentCode | None) -> AgentFate:
    if code is None:
        return _unclaimed(agent, agent.id.partition("/")[0])
    steps: tuple[str, ...] = ()
    if code.migrations is None:
        reason = (
            "" if agent.state_version <= code.state_version else _downgrade(agent.state_version, code.state_version)
        )
    else:
        reason = version_problem(agent.state_version, code.state_version, code.migrations)
    fate: Fate = "refused" if reason else "matched"
    if not reason and agent.state_version < code.state_version:
        fate = "migrated"
        steps = tuple(f"{version} to {version + 1}" for version in range(agent.state_version, code.state_version))
    elif not reason:
        reason = _field_problem(agent, code)
        fate = "refused" if reason else "matched"
    return AgentFate(
        agent=agent.id,
        fate=fate,
        participant=agent.participant,
        saved_version=agent.state_version,
        version=code.state_version,
        steps=steps,
        reason=reason,
        unhandled=_unhandled(agent, code),
    )


def _unclaimed(agent: SavedAgent, kind: str) -> AgentFate:
    return AgentFate(
        agent=agent.id,
        fate="unclaimed",
        participant=agent.participant,
        saved_version=agent.state_version,
        reason=f"nobody here declares it or takes agents of kind {kind} (it was on {agent.participant})",
    )


def version_problem(saved: int, code: int, migrations: Iterable[int]) -> str:
    """Why state of one version cannot become state of another; "": it can."""
    if saved > code:
        return _downgrade(saved, code)
    known = frozenset(migrations)
    missing = [version for version in range(saved, code) if version not in known]
    if missing:
        shown = ", ".join(f"{version} to {version + 1}" for version in missing)
        return f"the epoch holds its state in version {saved}, its class is of version {code}, and there is no migration from {shown}"
    return ""


def _downgrade(saved: int, code: int) -> str:
    return (
        f"the epoch holds its state in version {saved}, its class is of version {code}: code cannot go back where state has gone "
        f"on; restore with the newer code"
    )


def _field_problem(agent: SavedAgent, code: AgentCode) -> str:
    """Fields that the same version of the state has and the class does not, or has otherwise."""
    if agent.fields is None or code.fields is None:
        return ""
    now = {name: (shape, serializer) for name, shape, serializer in code.fields}
    for name, shape, serializer in agent.fields:
        have = now.get(name)
        if have is None:
            return f"its class has no field {name} that the epoch holds; raise state_version, with a migration"
        if have != (shape, serializer):
            return (
                f"field {name} was saved as {shape} with {serializer}, its class says {have[0]} with {have[1]}; raise "
                f"state_version, with a migration"
            )
    return ""


def _unhandled(agent: SavedAgent, code: AgentCode) -> tuple[str, ...]:
    if code.messages is None:
        return ()
    handled = frozenset(code.messages)
    return tuple(
        f"{count} of {name} version {version}"
        for name, version, count in agent.messages
        if (name, version) not in handled and not name.startswith(OWN_MESSAGES)
    )


def saved_agents(reader: EpochReader, *, messages: bool = True) -> list[SavedAgent]:
    """What an epoch says of its agents, read from its store.

    Args:
        reader: Of the epoch.
        messages: Look into mailboxes, timers and channels, too; they may be large.

    Raises:
        StoreError: Of the reader.
    """
    waiting: dict[str, dict[tuple[str, int], int]] = {}
    if messages:
        for agent in reader.agents():
            for envelope in (*reader.mailbox(agent), *(late for _, late in reader.timers(agent))):
                _count(waiting, agent, envelope.type, envelope.version)
        for channel in reader.manifest.channels:
            if channel.messages:
                for envelope in reader.channel(channel.source, channel.target):
                    _count(waiting, envelope.target, envelope.type, envelope.version)
    found = []
    for agent in reader.agents():
        snapshot = reader.agent_snapshot(agent)
        found.append(
            SavedAgent(
                id=agent,
                participant=reader.host_of(agent),
                state_version=snapshot.state_version,
                fields=tuple((field.name, field.shape, field.serializer) for field in snapshot.fields),
                messages=tuple(
                    (name, version, count) for (name, version), count in sorted(waiting.get(agent, {}).items())
                ),
            )
        )
    return found


def _count(waiting: dict[str, dict[tuple[str, int], int]], agent: str, name: str, version: int) -> None:
    counts = waiting.setdefault(agent, {})
    counts[name, version] = counts.get((name, version), 0) + 1
