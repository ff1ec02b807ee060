"""protocol.ids: what a legal name is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import IllegalName
from protocol.ids import (
    ChannelId,
    ParticipantId,
    agent_id,
    channel_id,
    check_name,
    cluster_name,
    coordinator_id,
    participant_id,
)

LEGAL = ["a", "0", "buyer-1", "a.b_c-d", "x" * 63]
HOSTILE = [
    "",
    ".",
    "..",
    "../etc/passwd",
    "a/b",
    "a\\b",
    "a\x00b",
    "a\n",
    "\x1b[31mred",
    "<img src=x onerror=alert(1)>",
    "A",
    "é",
    "a b",
    "-a",
    "_a",
    ".hidden",
    "x" * 64,
    "x" * 300,
    "\u202eabc",
    "a\ud800",
    "#",
    "+",
]


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_come_back_unchanged(name: str):
    for make in (cluster_name, participant_id, coordinator_id):
        assert make(name) == name
    assert agent_id(f"{name}/{name}") == f"{name}/{name}"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_by_each_kind_of_id(name: str):
    for make in (cluster_name, participant_id, coordinator_id):
        with pytest.raises(IllegalName):
            make(name)
    for text in (f"{name}/a", f"a/{name}", f"{name}/{name}"):
        with pytest.raises(IllegalName):
            agent_id(text)


@pytest.mark.parametrize("value", [None, 7, b"a", ["a"]])
def test_what_is_not_text_is_no_name(value: object):
    with pytest.raises(IllegalName):
        check_name("participant", value)
    with pytest.raises(IllegalName):
        agent_id(value)


@pytest.mark.parametrize("text", ["a", "a/b/c", "/", "a/", "/a"])
def test_an_agent_id_is_two_names_with_one_slash(text: str):
    with pytest.raises(IllegalName):
        agent_id(text)


@given(st.text())
def test_the_refusal_of_any_text_is_short_and_safe_to_print(text: str):
    refusal = str(IllegalName("participant", text))
    assert refusal.isascii()
    assert refusal.isprintable()
    assert len(refusal) < 250


def test_a_channel_joins_two_different_participants():
    p, q = ParticipantId("p"), ParticipantId("q")
    assert channel_id(p, q) == ChannelId(p, q)
    assert str(channel_id(p, q)) == "p->q"
    with pytest.raises(IllegalName):
        channel_id(p, p)
