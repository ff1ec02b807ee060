"""protocol.keys: derivation, tokens, signatures, the secret file."""

import base64
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.ids import ChannelId
from protocol.keys import ROLES, ClusterKeys, decode_secret, read_secret

ROOT = Path(__file__).parents[2]
SECRET = bytes(range(32))
AB = ChannelId("a", "b")


@pytest.fixture
def keys():
    return ClusterKeys.from_secret(SECRET)


def write(path, data, mode=0o600):
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_keys_of_one_secret_are_the_same_everywhere_and_forever(keys):
    """Golden values: a change here locks clusters out of their own epochs."""
    assert keys.frame_key(AB).hex() == "49dee10d9b04dc415e27f18eb0ad211e4036e8159b148cdd349c3c840509f97a"
    assert keys.token("viewer") == "cc1.viewer.9e0dfb8dc9ea971ae569d1bb867228b9f9d03aabab70099c1cecd77e5d00af4d"
    assert keys.sign_manifest(b"manifest") == "b3k:00b4d2cf2a4311bc3e2c99168a35e3c19d1d53832aac8d8f5656d02536339cd9"


def test_each_channel_and_direction_has_a_key_of_its_own(keys):
    channels = [ChannelId("a", "b"), ChannelId("b", "a"), ChannelId("a", "bc"), ChannelId("ab", "c")]
    assert len({keys.frame_key(channel) for channel in channels}) == 4


def test_another_secret_gives_other_keys(keys):
    other = ClusterKeys.from_secret(bytes(range(1, 33)))
    assert other.frame_key(AB) != keys.frame_key(AB)
    assert other.role_of(keys.token("operator")) is None
    assert not other.verify_manifest(b"x", keys.sign_manifest(b"x"))


def test_a_signature_verifies_only_its_own_bytes(keys):
    signature = keys.sign_manifest(b"manifest")
    assert keys.verify_manifest(b"manifest", signature)
    assert not keys.verify_manifest(b"manifesT", signature)
    assert not keys.verify_manifest(b"manifest", "")
    assert not keys.verify_manifest(b"manifest", "\udcff" * 68)


@pytest.mark.parametrize("role", ROLES)
def test_a_token_proves_its_role_and_no_other(keys, role):
    token = keys.token(role)
    assert token.startswith(f"cc1.{role}.")
    assert keys.role_of(token) == role


@pytest.mark.parametrize("token", ["", "cc1.operator.", "cc1.operator." + "0" * 64, "é", "\ud800", "x" * 10_000])
def test_a_guessed_token_proves_nothing(keys, token):
    assert keys.role_of(token) is None


def test_a_token_with_another_role_written_into_it_proves_nothing(keys):
    assert keys.role_of(keys.token("viewer").replace("viewer", "operator")) is None


def test_a_participants_own_token_proves_that_participant_and_no_other(keys):
    token = keys.participant_token("buyer-1.eu")
    assert token.startswith("cc1.participant.buyer-1.eu.")
    assert (keys.role_of(token), keys.participant_of(token)) == ("participant", "buyer-1.eu")
    for wrong in (
        token.replace("buyer-1", "buyer-2"),
        token.replace("participant", "operator"),
        token[:-1],
        f"cc1.participant..{token.rpartition('.')[2]}",
        f"cc1.participant.Buyer.{'0' * 64}",
        "cc1.participant." + "x" * 10_000,
    ):
        assert (keys.role_of(wrong), keys.participant_of(wrong)) == (None, "")
    assert keys.participant_of(keys.token("participant")) == ""
    assert ClusterKeys.from_secret(bytes(range(2, 34))).participant_of(token) == ""


def test_nothing_secret_is_printed_or_pickled(keys):
    for text in (repr(keys), str(keys), f"{keys}"):
        assert text == "ClusterKeys(redacted)"
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(keys)


@pytest.mark.parametrize(
    "text",
    [
        SECRET.hex().encode(),
        SECRET.hex().upper().encode() + b"\n",
        base64.b64encode(SECRET) + b"\n",
        base64.urlsafe_b64encode(SECRET),
        SECRET,
    ],
)
def test_a_secret_file_may_hold_hex_base64_or_raw_bytes(tmp_path, text):
    assert read_secret(write(tmp_path / "s", text)) == SECRET


def test_text_that_is_neither_hex_nor_base64_is_taken_as_it_is():
    assert decode_secret(b"correct horse battery staple, with room to spare") == (
        b"correct horse battery staple, with room to spare"
    )
    assert decode_secret(b"ab=c=abc") == b"ab=c=abc"
    assert decode_secret(b"A===") == b"A==="


def test_hex_that_decodes_to_too_few_bytes_is_refused_though_the_text_is_long(tmp_path):
    path = write(tmp_path / "short", b"ab" * 20)
    with pytest.raises(ConfigError, match=r"short' has 20 bytes; at least 32 are needed: make one with"):
        read_secret(path)


def test_an_empty_secret_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has 0 bytes"):
        read_secret(write(tmp_path / "empty", b""))


def test_a_secret_of_one_repeated_byte_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one byte repeated"):
        read_secret(write(tmp_path / "zeros", b"00" * 32))
    with pytest.raises(ConfigError, match="one byte repeated"):
        ClusterKeys.from_secret(bytes(32))


def test_a_missing_secret_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing' cannot be read: no such file; make one with: \(umask 077"):
        read_secret(tmp_path / "nothing")


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o620, 0o602])
def test_a_secret_file_open_to_others_is_refused_with_the_command_that_closes_it(tmp_path, mode):
    path = write(tmp_path / "open", SECRET, mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.*run: chmod 600 .*open"):
        read_secret(path)


def test_a_secret_readable_by_its_group_is_taken(tmp_path):
    """Container platforms mount secrets so."""
    assert read_secret(write(tmp_path / "group", SECRET, 0o440)) == SECRET


def test_a_huge_file_a_folder_and_a_fifo_are_refused_without_hanging(tmp_path):
    with pytest.raises(ConfigError, match="larger than 4096 bytes; is it the right file"):
        read_secret(write(tmp_path / "huge", b"x" * 5000))
    with pytest.raises(ConfigError, match="not a regular file"):
        read_secret(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_secret(tmp_path / "fifo")


def test_a_path_that_cannot_exist_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="null"):
        read_secret("a\0b")
    with pytest.raises(ConfigError, match="ENOTDIR"):
        read_secret(write(tmp_path / "file", b"") / "below")


def test_an_error_never_shows_the_secret(tmp_path):
    path = write(tmp_path / "s", b"hunter2hunter2hunter2", 0o600)
    with pytest.raises(ConfigError) as caught:
        read_secret(path)
    assert "hunter2" not in str(caught.value)
    assert caught.value.setting == "secret_file"


def test_a_file_that_cannot_be_read_names_the_errno():
    """A file of the process file system that opens and whose first byte cannot be read."""
    with pytest.raises(ConfigError, match="mem' cannot be read: EIO"):
        read_secret("/proc/self/mem")


def test_a_file_of_somebody_else_is_refused_with_what_to_do():
    """As root, a child gives up its rights first: root may read everything."""
    script = (
        "import os, sys\n"
        "from protocol.errors import ConfigError\n"
        "from protocol.keys import read_secret\n"
        "if os.geteuid() == 0:\n"
        "    os.setuid(65534)\n"
        "try:\n"
        "    read_secret(sys.argv[1])\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    # Not tmp_path, which nobody but its user may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        path = write(Path(folder) / "s", SECRET, 0o000)
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
        )
    assert "cannot be read: permission denied; make it readable for this user" in done.stdout, done.stderr
