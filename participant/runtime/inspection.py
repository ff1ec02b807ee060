"""What a participant tells of itself before a restore: the code of its agents, and what reached the world after an epoch.

Nothing is changed by it, and nothing of an agent's state is looked at.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from participant.agent import Agent
from participant.effects.entries import Kind, State
from protocol.messages import Inspected
from protocol.restore_plan import LISTED_MAX, Outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from participant.effects.entries import Entry
    from participant.runtime.steps import StepRunner
    from participant.sinks.base import Sink
    from protocol.messages import Inspect

_DETAIL_CHARS_MAX: Final = 200


async def inspect(
    asked: Inspect,
    *,
    agents: Iterable[Agent],
    factories: Mapping[str, Callable[[str], Agent]],
    sinks: Sequence[Sink],
    steps: StepRunner | None,
) -> Inspected:
    """The answer.

    Args:
        asked: The question.
        agents: Hosted here.
        factories: Kind -> what makes agents of it here.
        sinks: Of this participant.
        steps: Its effect ledger, if it has one.
    """
    notes: list[str] = []
    classes: dict[type[Agent], None] = dict.fromkeys(type(agent) for agent in agents)
    known = {kind for cls in classes for kind in cls.__cleancut_kinds__}
    for kind, factory in factories.items():
        # A class, or what makes one of its agents under a kind that it had before.
        cls: object = factory.args[0] if isinstance(factory, partial) and factory.args else factory
        if isinstance(cls, type) and issubclass(cls, Agent):
            classes[cls] = None
        elif kind not in known:
            notes.append(f"agents of kind {kind} are made by a function; their class is not known before")
    outputs, outputs_count = await _outputs(asked.epoch, sinks, notes)
    effects, effects_count = await _effects(asked.epoch, steps, notes)
    return Inspected(
        session=asked.session,
        request=asked.request,
        codes=tuple(cls.__cleancut_code__() for cls in classes),
        outputs=tuple(outputs[:LISTED_MAX]),
        outputs_count=outputs_count,
        effects=tuple(effects[:LISTED_MAX]),
        effects_count=effects_count,
        notes=tuple(notes),
    )


async def _outputs(epoch: int, sinks: Sequence[Sink], notes: list[str]) -> tuple[list[Outside], int | None]:
    found: list[Outside] = []
    told = False
    for sink in sinks:
        outputs_after: Any = getattr(sink, "outputs_after", None)
        if outputs_after is None:
            notes.append(f"sink {sink.name} cannot tell what it took after an epoch")
            continue
        try:
            taken = await outputs_after(epoch)
        except Exception as error:  # noqa: BLE001 - a user's sink may raise anything
            notes.append(f"sink {sink.name} does not tell what it took: {str(error) or type(error).__name__}")
            continue
        told = True
        found += [
            Outside(kind="output", place=sink.name, agent=agent, token=token, detail=f"after epoch {after}")
            for token, agent, after in taken
        ]
    return found, len(found) if told else None


async def _effects(epoch: int, steps: StepRunner | None, notes: list[str]) -> tuple[list[Outside], int | None]:
    if steps is None:
        return [], None
    try:
        entries = await steps.entries(tuple(State))
    except Exception as error:  # noqa: BLE001 - a ledger that is away: the plan goes on without it
        notes.append(f"the effect ledger does not answer: {str(error) or type(error).__name__}")
        return [], None
    found = [
        Outside(kind="effect", place=entry.name, agent=entry.agent, token=entry.token, detail=_detail(entry))
        for entry in entries
        if entry.kind is Kind.STEP and entry.state is not State.RELEASED and _is_after(entry, epoch)
    ]
    return found, len(found)


def _is_after(entry: Entry, epoch: int) -> bool:
    """Whether no cut up to this epoch has the turn of it: it is not over, or was over only after them."""
    return entry.closed_after < 0 or entry.closed_after >= epoch


def _detail(entry: Entry) -> str:
    return f"{entry.state.value}: {entry.shown}"[:_DETAIL_CHARS_MAX]
