"""What may stand in the log."""

import contextlib
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.runtime.raft import pinned
from coordinator.runtime.raft.commands import NO_OP, check_entry, check_text, restricted_loads
from protocol.errors import LimitExceeded, MalformedFrame
from protocol.limits import COMMAND_BYTES_MAX


class Payload:
    """Unpickled by a plain unpickler, this runs a command."""

    def __reduce__(self):
        return os.mkdir, (os.environ["PAYLOAD_MARK"],)


def call(*arguments: object) -> bytes:
    return b"\0" + pickle.dumps(arguments, 2)


def test_a_payload_in_a_log_entry_is_not_executed(tmp_path, monkeypatch):
    """The stock library executed it as root, from one unauthenticated frame."""
    mark = tmp_path / "executed"
    monkeypatch.setenv("PAYLOAD_MARK", str(mark))
    for data in (pickle.dumps(Payload(), 2), pickle.dumps((0, (Payload(),)), 4)):
        with pytest.raises(MalformedFrame, match="refused"):
            check_entry(b"\0" + data)
        with pytest.raises(MalformedFrame):
            pinned.pysyncobj.pickle.loads(data)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(), 2))
    assert mark.exists(), "the payload is a real one"


def test_a_ledger_command_and_a_no_op_pass():
    check_entry(call(0, ("a" * COMMAND_BYTES_MAX,)))
    check_entry(NO_OP)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x01\x00",
        b"\x02" + pickle.dumps(["add", "127.0.0.1:39699", None], 2),
        b"\x03" + pickle.dumps(1, 2),
        b"\x09",
        call(1, ("x",)),
        call(0, ("x", "y")),
        call(0, (b"x",)),
        call(0, ("ü",)),
        call(0, ("x",), {"callback": 1}),
        call(0, ("a" * (COMMAND_BYTES_MAX + 1),)),
        b"\0" + pickle.dumps(0, 2),
        b"\0not a pickle",
    ],
)
def test_any_other_entry_is_refused_phantom_members_and_version_changes_included(entry):
    with pytest.raises(MalformedFrame):
        check_entry(entry)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_malformed_frame(data):
    with contextlib.suppress(MalformedFrame):
        restricted_loads(data)


def test_only_short_ascii_text_can_be_submitted():
    check_text("x" * COMMAND_BYTES_MAX)
    with pytest.raises(LimitExceeded):
        check_text("x" * (COMMAND_BYTES_MAX + 1))
    for text in ("", "ü"):
        with pytest.raises(ValueError, match="ASCII"):
            check_text(text)
