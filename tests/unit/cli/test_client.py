"""Which coordinator is asked, what is asked again, and what is said when nobody answers."""

import socket
import threading
import time

import pytest

from coordinator.cli import client as client_module
from coordinator.cli.client import Client, Place
from coordinator.cli.exits import Exit, Failure
from coordinator.cli.settings import parse_places
from tests.unit.cli.fake_api import Answer, FakeApi, error


def closed_port() -> int:
    """A port of loopback at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def client(*addresses: str, token: str | None = None, timeout: float = 5.0) -> Client:
    return Client(parse_places("test", ",".join(addresses)), lambda _writes: token, timeout=timeout)


def test_nobody_answers_names_every_coordinator_and_the_reason() -> None:
    first, second = closed_port(), closed_port()
    with pytest.raises(Failure) as raised:
        client(f"127.0.0.1:{first}", f"127.0.0.1:{second}").get("status")
    assert raised.value.exit is Exit.UNREACHABLE
    assert f"127.0.0.1:{first}: connection refused" in raised.value.message
    assert f"127.0.0.1:{second}: connection refused" in raised.value.message
    assert "--coordinators" in raised.value.hint


def test_a_host_name_that_does_not_exist_is_unreachable_not_a_crash() -> None:
    with pytest.raises(Failure) as raised:
        client("no-such-host.invalid:7400").get("status")
    assert raised.value.exit is Exit.UNREACHABLE


def test_the_next_coordinator_is_asked_when_one_does_not_answer(api: FakeApi) -> None:
    api.on("GET", "/v1/status", {"cluster": "shop"})
    assert client(f"127.0.0.1:{closed_port()}", api.address).get("status") == {"cluster": "shop"}


def test_who_answered_last_is_asked_first_from_then_on(api: FakeApi) -> None:
    api.on("GET", "/v1/status", {})
    asking = client(f"127.0.0.1:{closed_port()}", api.address)
    asking.get("status")
    assert str(asking.places[0]) == api.address


def test_an_election_is_waited_for(api: FakeApi, second_api: FakeApi) -> None:
    """Both say "not now" at first; the answer of a later round counts."""
    api.refuse("GET", "/v1/status", 503, "no-leader", "no coordinator leads")
    second_api.on("GET", "/v1/status", error(503, "no-leader", "no coordinator leads"), {"leader": "c2"})
    assert client(api.address, second_api.address).get("status") == {"leader": "c2"}


def test_an_election_that_does_not_end_is_unreachable_in_the_apis_words(api: FakeApi) -> None:
    api.refuse("GET", "/v1/status", 503, "no-leader", "no coordinator leads at the moment")
    with pytest.raises(Failure) as raised:
        client(api.address, timeout=0.5).get("status")
    assert (raised.value.exit, raised.value.code) == (Exit.UNREACHABLE, "no-leader")
    assert raised.value.message == "no coordinator leads at the moment"


def test_a_write_that_must_not_be_repeated_is_not_asked_again_after_it_left(api: FakeApi, second_api: FakeApi) -> None:
    """The first may have started an epoch before it died; a second one must not be started by us."""
    api.on("POST", "/v1/epochs", Answer(cut=True))
    second_api.on("POST", "/v1/epochs", {"epoch": 2})
    with pytest.raises(Failure) as raised:
        client(api.address, second_api.address).call("POST", "epochs", body={}, repeatable=False)
    assert (raised.value.exit, raised.value.code) == (Exit.UNREACHABLE, "unknown-outcome")
    assert "epoch list" in raised.value.hint
    assert second_api.asked == []


def test_a_write_that_must_not_be_repeated_goes_on_where_nothing_was_done(api: FakeApi, second_api: FakeApi) -> None:
    api.refuse("POST", "/v1/epochs", 503, "no-leader", "no coordinator leads")
    second_api.on("POST", "/v1/epochs", {"epoch": 2})
    addresses = (f"127.0.0.1:{closed_port()}", api.address, second_api.address)
    assert client(*addresses).call("POST", "epochs", body={}, repeatable=False) == {"epoch": 2}


def test_a_write_of_unknown_outcome_is_told_as_such(api: FakeApi, second_api: FakeApi) -> None:
    api.refuse("POST", "/v1/epochs", 503, "unknown-outcome", "it may have happened")
    with pytest.raises(Failure) as raised:
        client(api.address, second_api.address).call("POST", "epochs", body={}, repeatable=False)
    assert raised.value.code == "unknown-outcome"
    assert second_api.asked == []


def test_a_write_that_may_be_repeated_goes_to_the_next(api: FakeApi, second_api: FakeApi) -> None:
    api.on("PUT", "/v1/policy", Answer(cut=True))
    second_api.on("PUT", "/v1/policy", {"kind": "manual"})
    assert client(api.address, second_api.address).call("PUT", "policy", body={}) == {"kind": "manual"}


def test_an_answer_that_dribbles_ends_with_the_timeout(api: FakeApi) -> None:
    """Each single read makes progress; only the whole is too slow."""
    never = threading.Event()
    api.on("GET", "/v1/status", Answer(document={"much": "x" * 1000}, dribble=never))
    begun = time.monotonic()
    try:
        with pytest.raises(Failure) as raised:
            client(api.address, timeout=0.4).get("status")
    finally:
        never.set()
    assert raised.value.exit is Exit.UNREACHABLE
    assert time.monotonic() - begun < 5


def test_something_that_is_not_http_is_said_to_be_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"SSH-2.0-whatever\r\n\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(Failure, match="does not speak HTTP") as raised:
            client(f"127.0.0.1:{server.getsockname()[1]}").get("status")
        thread.join()
    assert raised.value.exit is Exit.UNREACHABLE


def test_an_answer_that_is_not_json_is_not_a_coordinators(api: FakeApi) -> None:
    api.on("GET", "/v1/status", Answer(raw=b"<html>hello"))
    with pytest.raises(Failure, match="not as a coordinator") as raised:
        client(api.address).get("status")
    assert raised.value.exit is Exit.FAILED


def test_an_error_page_of_something_else_is_told_by_its_status(api: FakeApi) -> None:
    api.on("GET", "/v1/status", Answer(status=404, raw=b"<html>nginx"))
    with pytest.raises(Failure, match="HTTP status 404") as raised:
        client(api.address).get("status")
    assert raised.value.exit is Exit.NOT_FOUND


def test_an_answer_nested_too_deeply_is_not_a_crash(api: FakeApi) -> None:
    api.on("GET", "/v1/status", Answer(raw=b"[" * 100_000))
    with pytest.raises(Failure, match="not as a coordinator"):
        client(api.address).get("status")


def test_an_answer_without_end_is_refused(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MANIFEST_BYTES_MAX", 1000)
    api.on("GET", "/v1/status", Answer(raw=b"[" + b" " * 2000 + b"]"))
    with pytest.raises(Failure, match="larger than any answer") as raised:
        client(api.address).get("status")
    assert raised.value.exit is Exit.UNREACHABLE


def test_the_token_is_sent_as_a_header_and_never_in_the_address(api: FakeApi) -> None:
    api.on("GET", "/v1/status", {})
    client(api.address, token="cc1.viewer.00").get("status")
    assert api.asked[0].headers["Authorization"] == "Bearer cc1.viewer.00"
    assert api.asked[0].query == {}


def test_segments_of_the_path_are_quoted(api: FakeApi) -> None:
    with pytest.raises(Failure):
        client(api.address).get("epochs", "../x y?z")
    assert api.asked[0].path == "/v1/epochs/..%2Fx%20y%3Fz"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("c1:7400", (Place(host="c1", port=7400),)),
        ("http://c1:7400/, https://c2:443", (Place(host="c1", port=7400), Place(host="c2", port=443, tls=True))),
        ("[::1]:7400", (Place(host="::1", port=7400),)),
        ("c1:7400,c1:7400", (Place(host="c1", port=7400),)),
    ],
)
def test_addresses_as_people_write_them(text: str, places: tuple[Place, ...]) -> None:
    assert parse_places("--coordinators", text) == places


def test_a_read_asks_for_a_fresh_answer_and_says_nothing_where_it_gets_one(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.on("GET", "/v1/status", {"leader": "c1"})
    assert client(api.address).read("status") == {"leader": "c1"}
    assert api.asked[0].query == {"fresh": "1"}
    assert capsys.readouterr().err == ""


def test_without_a_quorum_a_read_shows_an_old_answer_and_says_so(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "FRESH_SECONDS", 0.3)
    refusals = [error(503, "no-quorum", "no quorum of coordinators answered")] * 2
    api.on("GET", "/v1/status", *refusals, {"leader": None})
    assert client(f"127.0.0.1:{closed_port()}", api.address).read("status") == {"leader": None}
    assert api.asked[-1].query == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert f"this is what {api.address} saw last" in line


def test_a_strict_read_fails_without_a_quorum(api: FakeApi) -> None:
    api.refuse("GET", "/v1/status", 503, "no-quorum", "no quorum of coordinators answered")
    with pytest.raises(Failure) as raised:
        client(api.address, timeout=0.3).read("status", strict=True)
    assert (raised.value.exit, raised.value.code) == (Exit.UNREACHABLE, "no-quorum")


def test_a_coordinator_that_is_not_ready_is_passed_over(api: FakeApi, second_api: FakeApi) -> None:
    for path in ("/v1/epochs", "/v1/events"):
        api.refuse("GET", path, 503, "not-ready", "this coordinator has just started")
    second_api.on("GET", "/v1/epochs", {"epochs": []})
    second_api.on("GET", "/v1/events", Answer(raw=b"data: {}\n\n"))
    assert client(api.address, second_api.address).read("epochs") == {"epochs": []}
    with client(api.address, second_api.address).stream("events") as (place, _):
        assert str(place) == second_api.address


def test_one_that_hangs_does_not_use_up_the_time_of_the_next(api: FakeApi, second_api: FakeApi) -> None:
    release = threading.Event()
    api.on("GET", "/v1/status", Answer(document={}, dribble=release))
    second_api.on("GET", "/v1/status", {"leader": "c2"})
    asking = client(api.address, second_api.address, timeout=1.0)
    try:
        assert asking.get("status") == {"leader": "c2"}
        assert [str(place) for place in asking.places] == [second_api.address, api.address]
    finally:
        release.set()
