"""What a participant takes over from an epoch."""

from __future__ import annotations

import pytest

from participant.restoring import goes_on_here
from protocol.ids import AgentId, MessageId
from protocol.messages import Envelope


def held(*senders: str):
    """Messages that a participant held for an agent that nobody hosted."""
    return [
        (Envelope(MessageId(bytes([number] * 16)), AgentId(sender), AgentId("w/late"), "T", 1, b""), bytes([number]))
        for number, sender in enumerate(senders)
    ]


@pytest.mark.parametrize(
    ("me", "heir", "expected"),
    [
        ("p1", True, ["w/gone", "outside/ingest"]),  # the heir of what is nobody else's
        ("p2", False, ["w/a", "w/a"]),  # the sender is here now: what it sends next comes behind
        ("p3", False, []),
    ],
)
def test_a_message_that_waits_for_an_agent_goes_on_from_where_its_sender_is(me, heir, expected):
    messages = held("w/a", "w/gone", "outside/ingest", "w/a")
    found = goes_on_here(messages, me, {"w/a": "p2", "w/gone": ""}, heir=heir)
    assert [envelope.source for envelope, _ in found] == expected
    assert found == [message for message in messages if message in found], "in their order"
