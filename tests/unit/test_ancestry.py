"""What an incarnation comes from, and what of earlier ones is left."""

import pytest

from protocol.ancestry import Ancestry

LINE = Ancestry(incarnation=7, through=((5, 12), (2, 4)), known_from=2)
"""The seventh began from epoch 12 of the fifth, which began from epoch 4 of the second; more is not remembered."""


@pytest.mark.parametrize(
    ("incarnation", "epoch", "undone"),
    [
        (5, 11, False),
        (5, 12, True),  # begun behind the cut of epoch 12
        (2, 3, False),
        (2, 4, True),
        (6, 0, True),  # on no line
        (3, 0, True),
        (1, 9, False),  # not remembered
        (7, 99, False),  # this one
        (8, 0, False),
    ],
)
def test_a_membership_is_left_where_an_epoch_of_the_line_has_it(incarnation, epoch, undone):
    assert LINE.undone(incarnation, epoch) == undone


def test_back_at_the_start_nothing_is_left():
    assert Ancestry(incarnation=3).undone(1, 0)
    assert Ancestry(incarnation=3).undone(2, 0)
