"""Kinds of arguments: epochs, savepoints, agents and durations, checked before anything is asked."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from protocol.errors import IllegalName
from protocol.ids import AgentId, agent_id, savepoint_name

EPOCH_MAX: Final = (1 << 63) - 1
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}


class EpochKind(click.ParamType[int | str]):
    """A number from 1 on, ``latest``: the newest committed one, or what may be the name of a savepoint."""

    name = "epoch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ANN401 - click's signature
        """The number, ``latest``, or the name."""
        if value == "latest":
            return "latest"
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= 19 and 0 < int(text) <= EPOCH_MAX:
            return int(text)
        try:
            return savepoint_name(text)
        except IllegalName:
            wanted = "give a number from 1 on, 'latest', or the name of a savepoint"
            return self.fail(f"{text[:60]!a} is not an epoch: {wanted}", param, ctx)


class EpochOrStartKind(EpochKind):
    """An epoch, or ``start``: before the first one."""

    name = "epoch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:  # noqa: ANN401 - click's signature
        """The number, ``latest``, ``start``, or the name."""
        return "start" if value == "start" else super().convert(value, param, ctx)


class SavepointKind(click.ParamType[str]):
    """A name that a savepoint may have."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401
        """The checked name."""
        try:
            return savepoint_name(value)
        except IllegalName as error:
            return self.fail(error.problem, param, ctx)


class AgentKind(click.ParamType[AgentId]):
    """``kind/name``."""

    name = "agent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AgentId:  # noqa: ANN401
        """The checked id."""
        try:
            return agent_id(value)
        except IllegalName as error:
            return self.fail(error.problem, param, ctx)


class RenameKind(click.ParamType[tuple[str, str]]):
    """``old/name=new/name``."""

    name = "rename"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:  # noqa: ANN401
        """Both checked ids."""
        if isinstance(value, tuple):
            return value
        old, equals, new = str(value).partition("=")
        if not equals:
            self.fail(f"{str(value)[:120]!a} is not OLD=NEW, each kind/name", param, ctx)
        try:
            return agent_id(old), agent_id(new)
        except IllegalName as error:
            return self.fail(error.problem, param, ctx)


class DurationKind(click.ParamType[int]):
    """``500ms``, ``10s``, ``1.5m``, ``2h``; milliseconds as a whole number. A bare number is refused: of what?"""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Milliseconds."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(ms|s|min|m|h)", str(value), re.ASCII)
        if found is None:
            self.fail(f"{str(value)[:60]!a} is not a duration: give 500ms, 10s, 2m or 1h", param, ctx)
        return round(float(found.group(1)) * _UNITS_MS[found.group(2)])


EPOCH: Final = EpochKind()
EPOCH_OR_START: Final = EpochOrStartKind()
SAVEPOINT: Final = SavepointKind()
AGENT: Final = AgentKind()
DURATION: Final = DurationKind()
RENAME: Final = RenameKind()
