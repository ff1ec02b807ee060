"""Where agents have run since an epoch, as far as the epoch itself does not tell."""

from itertools import pairwise

from protocol.stays import elsewhere, note_stays


def through(*incarnations, renames=()):
    """Hosts of agents, incarnation after incarnation; only the last rollback renames."""
    stays = {}
    for number, (before, after) in enumerate(pairwise(incarnations), 1):
        last = number == len(incarnations) - 1
        note_stays(stays, before, after, renames if last else (), number)
    return stays


def test_agents_that_stay_where_they_are_are_not_remembered():
    assert through({"w/a": "a", "w/b": "b"}, {"w/a": "a", "w/b": "b"}, {"w/a": "a"}) == {}


def test_an_agent_that_comes_back_has_been_elsewhere_since_an_epoch_from_before():
    stays = through({"w/a": "a", "w/b": "b"}, {"w/a": "b", "w/b": "b"}, {"w/a": "a", "w/b": "b"})
    assert stays == {"w/a": {"a": 1, "b": 2}}
    assert elsewhere(stays, ("w/a",), "a", 1) == {"b": ("w/a",)}
    assert elsewhere(stays, ("w/a",), "a", 0) == {"b": ("w/a",)}
    assert elsewhere(stays, ("w/a",), "a", 2) == {}, "the epoch is of that stay, or of a later one"
    assert elsewhere(stays, ("w/a",), "b", 0) == {"a": ("w/a",)}
    assert elsewhere(stays, ("w/b",), "b", 0) == {}


def test_whoever_has_moved_once_is_followed_also_where_it_stays():
    at_a, at_b = {"w/a": "a"}, {"w/a": "b"}
    stays = through(at_a, at_b, at_b, at_b, at_a, at_a)
    assert stays == {"w/a": {"a": 5, "b": 4}}
    assert elsewhere(stays, ("w/a",), "a", 3) == {"b": ("w/a",)}
    assert elsewhere(stays, ("w/a",), "a", 4) == {}


def test_hosts_and_agents_are_named_in_order():
    stays = through(dict.fromkeys(("w/b", "w/a"), "y") | {"w/c": "x"}, dict.fromkeys(("w/b", "w/a", "w/c"), "z"))
    assert elsewhere(stays, ("w/c", "w/b", "w/a"), "z", 0) == {"x": ("w/c",), "y": ("w/a", "w/b")}
    assert list(elsewhere(stays, ("w/a", "w/c"), "z", 0)) == ["x", "y"]


def test_an_agent_under_another_name_has_been_where_it_was_under_the_old_one():
    renames = (("w/old", "w/new"),)
    stays = through({"w/old": "a"}, {"w/old": "b"}, {"w/new": "a"}, renames=renames)
    assert elsewhere(stays, ("w/new",), "a", 1) == {"b": ("w/new",)}
    # The next rollback names it by the epoch's name again; the incarnation before has the new one.
    note_stays(stays, {"w/new": "a"}, {"w/new": "c"}, renames, 3)
    assert elsewhere(stays, ("w/new",), "c", 1) == {"a": ("w/new",), "b": ("w/new",)}
    assert elsewhere(through({"w/old": "a"}, {"w/new": "a"}, renames=renames), ("w/new",), "a", 0) == {}


def test_two_that_take_each_others_names_have_been_where_either_was():
    swap = (("w/x", "w/y"), ("w/y", "w/x"))
    stays = through({"w/x": "a", "w/y": "b"}, {"w/x": "b", "w/y": "b"}, {"w/x": "b", "w/y": "a"}, renames=swap)
    assert elsewhere(stays, ("w/y",), "a", 1) == {"b": ("w/y",)}
    assert elsewhere(stays, ("w/x",), "b", 0) == {"a": ("w/x",)}
