"""How the ghost log takes down an agent's state, in a form in which what a store gives back can be compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from participant.host import AgentHost

_encode = msgspec.msgpack.encode


class StateForms:
    """For workloads whose turns are over at once and whose states are plain."""

    def at_cut(self, host: AgentHost) -> bytes:
        """The state of an agent now; empty: it cannot be told."""
        return _encode(agent_fields(host.agent))

    def stored(self, fields: dict[str, Any]) -> bytes:
        """The same of what a store gave."""
        return _encode(
            {
                name: sorted(value.items()) if isinstance(value, dict) else value
                for name, value in sorted(fields.items())
            }
        )


def agent_fields(agent: Any) -> dict[str, Any]:  # noqa: ANN401 - any agent
    """The saved fields of an agent in plain Python, as they are between two turns."""
    found: dict[str, Any] = {}
    for name in sorted(agent.__cleancut_fields__):
        value = getattr(agent, name)
        if hasattr(value, "items") and not isinstance(value, dict):
            value = sorted(value.items())
        found[name] = value
    return found
