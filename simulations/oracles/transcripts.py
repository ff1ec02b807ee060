"""I5, for conversations: at each cut both sides' transcripts fit together, with what is on its way between them.

A talk is known to its two sides by name. Its utterances are numbered from 0, and each side has a transcript: how many it
knows, and the texts of the last ones. With turn-taking there is one floor, which is somewhere: in one utterance on its way,
or with a side that has not answered yet. So of the two transcripts one is a prefix of the other, and what is missing is on
its way: the utterances ``behind .. ahead - 1`` are in the recorded channel or mailbox, once, in order and with these texts.

Nothing here counts sequence numbers or looks at markers: it is what a reader of the two transcripts would notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simulations.violations import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence


class Side(NamedTuple):
    """One side of a talk at a cut."""

    who: str
    known: int
    """Utterances that it knows."""
    last: Sequence[str]
    """Texts of the last of them."""
    floor: bool = False
    """It is its turn to speak, and it has not."""


class OnItsWay(NamedTuple):
    """An utterance that was said and not heard yet."""

    to: str
    number: int
    text: str


def check_talk(epoch: int, name: str, one: Side, other: Side, on_its_way: Sequence[OnItsWay], *, turns: bool) -> None:
    """Judge one talk at one cut.

    Args:
        epoch: For the text.
        name: Of the talk.
        one: A side; of a lecture, the speaker.
        other: The other side.
        on_its_way: Utterances between them, in the order in which they will be heard.
        turns: The sides take turns; False: the first one lectures.

    Raises:
        Violation: I5.
    """
    ahead, behind = (one, other) if one.known >= other.known else (other, one)
    if not turns and ahead is not one:
        raise _violation(epoch, name, f"{other.who} has heard {other.known} of {one.known} utterances")
    if turns and len(on_its_way) + one.floor + other.floor != 1:
        floors = [side.who for side in (one, other) if side.floor]
        raise _violation(epoch, name, f"the floor is with {floors or 'nobody'}, and {len(on_its_way)} are on their way")
    numbers = [said.number for said in on_its_way]
    # A listener in a new life begins with what was said to it, not with what was said to the one before.
    first = behind.known if turns or behind.known else ahead.known - len(numbers)
    if numbers != list(range(first, ahead.known)):
        raise _violation(
            epoch,
            name,
            f"{ahead.who} knows {ahead.known} utterances and {behind.who} {behind.known}; on their way are {numbers}",
        )
    for said in on_its_way:
        if said.to != behind.who:
            raise _violation(epoch, name, f"utterance {said.number} is on its way to {said.to}, which has said it")
    for number, text in [*_numbered(behind), *((said.number, said.text) for said in on_its_way)]:
        its = dict(_numbered(ahead)).get(number, text)
        if its != text:
            raise _violation(
                epoch, name, f"utterance {number} is {text!r} for {behind.who} and {its!r} for {ahead.who}"
            )


def _numbered(side: Side) -> list[tuple[int, str]]:
    first = side.known - len(side.last)
    return [(first + index, text) for index, text in enumerate(side.last)]


def _violation(epoch: int, name: str, text: str) -> Violation:
    return Violation("I5", f"epoch {epoch}, talk {name}: {text}")
