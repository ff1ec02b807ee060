"""Who may send to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulations.prng import stream

if TYPE_CHECKING:
    from simulations.options import Options


def names_of(options: Options) -> list[str]:
    """Participant ids."""
    return [f"p{number + 1}" for number in range(options.nodes)]


def spares_of(options: Options) -> list[str]:
    """Participants that begin without agents, later."""
    return [f"p{options.nodes + number + 1}" for number in range(options.spares)]


def targets_of(options: Options) -> dict[str, tuple[str, ...]]:
    """Participant -> whom it may send to, sorted."""
    names = names_of(options)
    count = len(names)
    random = stream(options.seed, "topology")
    found: dict[str, tuple[str, ...]] = {}
    for index, name in enumerate(names):
        others = [other for other in names if other != name]
        match options.topology:
            case "mesh":
                chosen = others
            case "ring":
                chosen = [names[(index + 1) % count]]
            case "line":
                chosen = [names[other] for other in (index - 1, index + 1) if 0 <= other < count]
            case "star":
                chosen = others if index == 0 else [names[0]]
            case "one-way":
                # The first only sends, the last only receives.
                chosen = names[index + 1 :] if index < count - 1 else []
            case "random":
                chosen = [other for other in others if random.chance(1, 2)]
            case "isolated":
                # The last has no channel at all; its part of every cut is its state alone.
                chosen = [other for other in others if names[-1] not in {name, other}]
            case _:
                raise ValueError(f"there is no topology {options.topology!r}")
        found[name] = tuple(sorted(other for other in chosen if other != name))
    return found
