"""How many connections the API takes."""

from __future__ import annotations

import resource

import pytest

from coordinator.runtime.listener import CONNECTIONS_MAX, FILES_KEPT, connections_max, raise_open_files


@pytest.fixture
def limits():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_leave_files_for_the_journal_whatever_the_system_allows(limits):
    for soft in (600, 1024, 4096):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
        assert connections_max() == max(1, soft - FILES_KEPT)
    assert connections_max() < CONNECTIONS_MAX


def test_a_low_soft_limit_is_raised_as_far_as_it_may_be_and_a_high_one_is_left(limits):
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    raise_open_files()
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raised == min(limits[1], CONNECTIONS_MAX + FILES_KEPT)
    raise_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, limits[1])
