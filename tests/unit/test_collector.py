"""The garbage collector, off for a while."""

import gc

import pytest

from participant.runtime.collector import collector_off


@pytest.fixture(autouse=True)
def _as_it_was():
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


def test_the_collector_is_off_until_the_last_who_wanted_it_off_is_done():
    gc.enable()
    first, second = collector_off(), collector_off()
    first.__enter__()
    second.__enter__()
    assert not gc.isenabled()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_was_off_before_stays_off():
    gc.disable()
    with collector_off():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_it_is_on_again_after_an_error():
    gc.enable()
    with pytest.raises(KeyError), collector_off():
        raise KeyError
    assert gc.isenabled()
