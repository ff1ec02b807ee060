"""I7: members, sessions, placement and channels of a manifest are those that the entry that started the epoch fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulations.violations import Violation

if TYPE_CHECKING:
    from protocol.manifest import Manifest


class StartedWith(NamedTuple):
    """What the start entry fixed, taken down when the first replica applied it."""

    topology: int
    incarnation: int
    sessions: dict[str, int]
    agents: dict[str, tuple[str, ...]]
    channels: tuple[tuple[str, str], ...]


def check_membership(started: StartedWith, manifest: Manifest) -> None:
    """Judge one manifest.

    Raises:
        Violation: I7.
    """
    epoch = manifest.epoch
    sessions = {member.participant: member.session for member in manifest.members}
    if sessions != started.sessions:
        raise Violation("I7", f"epoch {epoch} started with sessions {started.sessions}, its manifest names {sessions}")
    agents = {member.participant: tuple(member.agents) for member in manifest.members}
    if agents != started.agents:
        raise Violation("I7", f"epoch {epoch} started with agents {started.agents}, its manifest names {agents}")
    channels = tuple((channel.source, channel.target) for channel in manifest.channels)
    if channels != started.channels:
        raise Violation("I7", f"epoch {epoch} started with channels {started.channels}, its manifest names {channels}")
    if (manifest.topology, manifest.incarnation) != (started.topology, started.incarnation):
        raise Violation("I7", f"epoch {epoch}: topology or incarnation is not the one of its start")
