"""I6, as a receiver sees it: of each source every number once, in order, with its header and bytes.

A receiver counts in its own state what it finds wrong, so that nothing but its turns has to work for it to be told. Here
these counts are read, at each cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import MutableMapping

WRONG: Final = {
    "lost": "never came",
    "late": "came after one that was sent later",
    "twice": "came twice",
    "spoiled": "came with a wrong header or other bytes",
}
GAP_MAX: Final = 1_000


def arrived(next_of: MutableMapping[int, int], gaps: MutableMapping[str, int], source: int, number: int) -> str:
    """Take down that a number of a source has come.

    Args:
        next_of: Source -> the number that comes next; part of the receiver's state.
        gaps: ``source:number`` of what was jumped over; part of the receiver's state.
        source: Of a source that was at work before, a receiver takes any number as the first.
        number: What has come.

    Returns:
        What is wrong with it: ``late``, ``twice``, or "". What is lost stands in `gaps`.
    """
    expected = next_of.get(source, number)
    if number < expected:
        return "late" if gaps.pop(f"{source}:{number}", 0) else "twice"
    for missing in range(expected, min(number, expected + GAP_MAX)):
        gaps[f"{source}:{missing}"] = 1
    next_of[source] = number + 1
    return ""


def check_arrival(where: str, fields: dict[str, Any]) -> None:
    """Judge a receiver's recorded state.

    Args:
        where: For the text.
        fields: With ``gaps``, and counts ``late``, ``twice``, ``spoiled``.

    Raises:
        Violation: I6.
    """
    counts = {**fields, "lost": len(fields.get("gaps", ()))}
    for what, words in WRONG.items():
        if counts.get(what):
            raise Violation("I6", f"{where}: {counts[what]} {words}")
