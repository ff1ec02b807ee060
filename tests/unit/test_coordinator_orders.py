"""Orders on the wire: members encoded once, the same bytes as without."""

from __future__ import annotations

import msgspec

from coordinator.runtime.orders import OrderEncoder
from protocol.ancestry import Ancestry
from protocol.messages import Left, Member, Restore, TopologyChanged, decode_to_participant, encode_control


def test_a_topology_for_every_session_has_the_bytes_of_the_plain_encoding():
    encoder = OrderEncoder()
    for count in (0, 1, 3):
        members = tuple(
            Member(id=f"p{i}", session=i + 1, address="ws://h:1", agents=("a/b",), targets=("p0",) if i else None)
            for i in range(count)
        )
        for session in (1, 2**40):
            message = TopologyChanged(term=7, session=session, incarnation=1, version=4, members=members)
            assert encoder.encode(message) == encode_control(message)
            assert decode_to_participant(encoder.encode(message)) == message


def test_a_restore_has_the_bytes_of_the_plain_encoding():
    message = Restore(
        term=7,
        session=3,
        incarnation=2,
        epoch=5,
        manifest="b3:0",
        newest_epoch=9,
        elapsed_ns=1,
        version=4,
        members=(Member(id="p", session=3),),
        renames=(("a/b", "a/c"),),
        ancestry=Ancestry(incarnation=2, through=((1, 5),)),
        elsewhere={"q": ("a/c",)},
        returns=True,
    )
    for field in msgspec.structs.fields(Restore):
        assert getattr(message, field.name) != field.default, f"{field.name} is not looked at"
    encoder = OrderEncoder()
    assert encoder.encode(message) == encode_control(message)
    assert decode_to_participant(encoder.encode(message)) == message


def test_other_orders_are_encoded_as_they_are():
    assert OrderEncoder().encode(Left(term=1, session=2)) == encode_control(Left(term=1, session=2))
