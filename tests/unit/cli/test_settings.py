"""Where the cluster is: flags, environment and a demo's folder, and who wins."""

import json
from pathlib import Path

import pytest

from coordinator.cli.settings import Given, Session, parse_places, read_description, read_token
from protocol.errors import ConfigError
from protocol.keys import ClusterKeys
from tests.unit.cli.fake_api import Cli, FakeApi

SECRET = "11" * 16 + "22" * 16


def addresses(session: Session) -> list[str]:
    return [str(place) for place in session.places]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.secret").write_text(SECRET)
    (tmp_path / "cluster.secret").chmod(0o600)
    description = {"cluster": "shop", "coordinators": ["d1:1"], "secret_file": "cluster.secret", "store": "store"}
    (tmp_path / "cleancut.json").write_text(json.dumps(description))
    return tmp_path


def test_without_anything_the_coordinator_is_expected_on_this_machine() -> None:
    assert addresses(Session(given=Given(), env={})) == ["127.0.0.1:7400"]


def test_a_flag_beats_the_environment_and_coordinators_beat_a_folder(folder: Path) -> None:
    env = {"CLEANCUT_COORDINATORS": "e1:1", "CLEANCUT_DIR": str(folder)}
    assert addresses(Session(given=Given(coordinators="f1:1", folder=folder), env=env)) == ["f1:1"]
    assert addresses(Session(given=Given(folder=folder), env=env)) == ["d1:1"]
    assert addresses(Session(given=Given(), env=env)) == ["e1:1"]
    assert addresses(Session(given=Given(), env={"CLEANCUT_DIR": str(folder)})) == ["d1:1"]


def test_the_folders_secret_gives_the_token_and_reading_takes_the_lesser_one(folder: Path) -> None:
    session = Session(given=Given(folder=folder), env={"CLEANCUT_SECRET_FILE": "/another/cluster's"})
    keys = ClusterKeys.from_secret(bytes.fromhex(SECRET))
    assert session._token(False) == keys.token("viewer")
    assert session._token(True) == keys.token("operator")


def test_a_token_file_beats_the_secret(folder: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("cc1.viewer.ab\n")
    token.chmod(0o600)
    session = Session(given=Given(folder=folder, token_file=token), env={})
    assert session._token(True) == "cc1.viewer.ab"


def test_without_secret_and_token_no_token_is_sent() -> None:
    assert Session(given=Given(), env={})._token(True) is None


@pytest.mark.parametrize("content", ["", "two words", "line\r\nInjected: yes", "ümlaut", "x" * 5000])
def test_what_cannot_be_a_token_is_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="does not hold a token") as raised:
        read_token(path)
    assert not content or content not in str(raised.value)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("cc1.viewer.ab")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c1",
        "c1:",
        ":7400",
        "c1:0",
        "c1:65536",
        "c1:7400x",
        "::1:7400",
        "user@c1:7400",
        "c1/x:7400",
        "c1:7400,",
        "c 1:1",
    ],
)
def test_what_is_not_an_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        parse_places("--coordinators", text)


def test_an_address_with_escape_codes_is_shown_escaped() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_places("--coordinators", "\x1b[31mred:7400")
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"coordinators": []}', "must be a list of host:port"),
        ('{"coordinators": "c1:1"}', "must be a list of host:port"),
        ('{"store": 7}', "store must be a text"),
    ],
)
def test_a_damaged_description_is_named(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "cleancut.json").write_text(content)
    with pytest.raises(ConfigError, match=problem):
        read_description("--dir", tmp_path)


def test_a_folder_without_description_says_which_folder_is_meant(cli: Cli, tmp_path: Path) -> None:
    ended = cli("status", "--dir", tmp_path)
    assert ended.code == 2
    assert "cleancut.json" in ended.err
    assert "demo" in ended.err


def test_a_folder_that_the_environment_names_is_told_as_such(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEANCUT_DIR", str(tmp_path / "gone"))
    ended = cli("status")
    assert ended.code == 2
    assert "CLEANCUT_DIR: " in ended.err


def test_options_may_stand_before_or_after_the_command(cli: Cli, api: FakeApi) -> None:
    api.on("GET", "/v1/policy", {"kind": "manual"})
    for arguments in (
        ("--coordinators", api.address, "--json", "policy", "show"),
        ("policy", "show", "--coordinators", api.address, "--json"),
    ):
        assert cli(*arguments).document == {"kind": "manual"}


def test_the_secret_file_of_another_user_is_a_usage_error_that_names_it(cli: Cli, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(SECRET)
    (tmp_path / "s").chmod(0o644)
    ended = cli("status", "--coordinators", api.address, "--secret-file", tmp_path / "s")
    assert ended.code == 2
    assert "chmod 600" in ended.err
    assert SECRET not in ended.err
