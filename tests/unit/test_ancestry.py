"""What an incarnation comes from, and what of earlier ones is left."""

import pytest

from protocol.ancestry import Ancestry, Named

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


SWAP = (("w/a", "w/b"), ("w/b", "w/a"))
NAMED = Ancestry(
    incarnation=6,
    named=(
        Named(2, 1, SWAP),
        Named(3, 2, (("w/a", "w/z"),)),
        Named(4, 2),  # an operator has named an epoch, and given up the third
        Named(5, 0, (("w/b", "w/m"),)),  # from the start
        Named(6, 5, (("w/m", "w/n"),)),
    ),
)


@pytest.mark.parametrize(
    ("agent", "incarnation", "called"),
    [
        ("w/b", 1, "w/n"),
        ("w/a", 1, "w/a"),
        ("w/a", 2, "w/n"),  # it was b, before they exchanged their names
        ("w/b", 2, "w/a"),
        ("w/z", 3, "w/n"),
        ("w/a", 4, "w/n"),
        ("w/m", 5, "w/n"),
        ("w/b", 5, "w/b"),  # nobody, there
        ("w/n", 6, "w/n"),
        ("w/a", 9, "w/a"),  # not remembered
    ],
)
def test_a_name_means_an_agent_together_with_its_incarnation(agent, incarnation, called):
    assert NAMED.called(agent, incarnation) == called


def test_where_nobody_was_renamed_everybody_is_called_as_ever():
    assert LINE.called("w/a", 2) == "w/a"
    assert LINE.first_name("w/a") == "w/a"


def test_an_agent_s_work_is_told_by_its_first_name():
    assert NAMED.first_name("w/n") == "w/b"
    assert NAMED.first_name("w/a") == "w/a"


def test_of_what_is_not_remembered_any_more_the_rest_counts():
    forgotten = Ancestry(incarnation=6, named=NAMED.named[-1:])
    assert forgotten.first_name("w/n") == "w/m"
    assert forgotten.called("w/m", 5) == "w/n"
    assert forgotten.called("w/a", 2) == "w/a"
