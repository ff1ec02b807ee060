"""Epochs looked at without any coordinator, from a store that may be damaged."""

import shutil
from pathlib import Path

import pytest

from protocol.digests import manifest_key, pack_key
from protocol.ids import Epoch
from tests.unit.cli.fake_api import Cli, FakeApi
from tests.unit.cli.store_maker import Made, make_store

VERIFY = ("epoch", "verify")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_store(tmp_path)


def test_an_epoch_that_the_store_does_not_have_is_exit_3_and_says_what_it_has(cli: Cli, made: Made) -> None:
    for command in (("epoch", "verify", "7"), ("epoch", "state", "7"), ("epoch", "state", "7", "buyer/main")):
        ended = cli(*command, "--store", made.folder / "store")
        assert ended.code == 3
        assert "epoch 7 is not in" in ended.err
        assert "from 3 to 3" in ended.err


def test_a_cut_that_is_not_consistent_is_exit_4_and_names_the_channel(cli: Cli, tmp_path: Path) -> None:
    """p1 says that it had sent nothing before its cut; p2 recorded a message: an orphan."""
    made = make_store(tmp_path, claim_sent=0)
    ended = cli(*VERIFY, "3", "--store", made.folder / "store", "--secret-file", made.secret_file)
    assert ended.code == 4
    assert "p1->p2" in ended.err
    assert "WRONG" in ended.out
    as_json = cli(*VERIFY, "3", "--store", made.folder / "store", "--json")
    assert as_json.code == 4
    assert as_json.document["ok"] is False
    assert {finding["channel"] for finding in as_json.document["findings"]} == {"p1->p2"}


def test_a_flipped_bit_in_a_pack_is_exit_4(cli: Cli, made: Made) -> None:
    path = made.file(pack_key(made.pack))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert cli(*VERIFY, "3", "--store", made.folder / "store").code == 4
    assert cli(*VERIFY, "3", "--store", made.folder / "store", "--shallow").code == 0, "only deep checks read packs"


def test_a_pack_that_is_missing_is_exit_4(cli: Cli, made: Made) -> None:
    made.file(pack_key(made.pack)).unlink()
    ended = cli(*VERIFY, "latest", "--store", made.folder / "store")
    assert ended.code == 4
    assert made.pack[3:20] in ended.out


def test_a_manifest_signed_with_another_secret_is_exit_4_and_state_is_not_shown(cli: Cli, made: Made) -> None:
    made.secret_file.write_text("ab" * 16 + "cd" * 16)
    options = ("--store", made.folder / "store", "--secret-file", made.secret_file)
    assert cli(*VERIFY, "3", *options).code == 4
    ended = cli("epoch", "state", "3", "buyer/main", *options)
    assert (ended.code, ended.out) == (4, "")
    assert "signature" in ended.err


def test_a_damaged_manifest_is_exit_4_not_a_crash(cli: Cli, made: Made) -> None:
    path = made.file(manifest_key(Epoch(3)))
    path.chmod(0o600)
    path.write_bytes(b"{")
    for command in (("epoch", "verify", "3"), ("epoch", "state", "3"), ("epoch", "state", "3", "buyer/main")):
        ended = cli(*command, "--store", made.folder / "store")
        assert ended.code == 4, ended.err
        assert "bug" not in ended.err


def test_a_sound_epoch_says_so_and_that_its_signature_was_not_checked(cli: Cli, made: Made) -> None:
    ended = cli(*VERIFY, "3", "--store", made.folder / "store")
    assert ended.code == 0, ended.out
    assert "epoch 3 is sound" in ended.out
    assert "not checked" in ended.out
    signed = cli(*VERIFY, "latest", "--store", made.folder / "store", "--secret-file", made.secret_file)
    assert signed.code == 0
    assert "verified" in signed.out
    document = cli(*VERIFY, "3", "--store", made.folder / "store", "--json").document
    assert (document["ok"], document["signature"], document["epoch"]) == (True, "not checked", 3)


def test_nothing_is_written_and_no_coordinator_is_asked(
    cli: Cli, made: Made, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEANCUT_COORDINATORS", api.address)
    before = sorted((path, path.stat().st_mtime_ns) for path in made.folder.rglob("*"))
    assert cli(*VERIFY, "3", "--store", made.folder / "store").code == 0
    assert cli("epoch", "state", "3", "--store", made.folder / "store").code == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in made.folder.rglob("*")) == before
    assert api.asked == []


def test_state_is_shown_without_running_anything_of_it(cli: Cli, made: Made) -> None:
    options = ("--store", made.folder / "store", "--secret-file", made.secret_file)
    ended = cli("epoch", "state", "latest", "buyer/main", *options)
    assert ended.code == 0, ended.err
    assert not any(each in ended.out for each in "\x1b\u202e")
    assert '"cents": 5' in ended.out
    assert "cloudpickle" in ended.out
    assert "mailbox: 1" in ended.out
    document = cli("epoch", "state", "3", "buyer/main", "--json", *options).document
    assert document["fields"]["orders"] == {"o1": {"cents": 5, "raw": {"hex": "0001"}}}
    assert document["mailbox"][0]["type"] == "Paid"


def test_without_the_secret_state_says_that_the_signature_was_not_checked(cli: Cli, made: Made) -> None:
    ended = cli("epoch", "state", "3", "ledger/main", "--store", made.folder / "store")
    assert ended.code == 0
    assert "signature not checked" in ended.err


def test_an_agent_that_is_not_in_the_epoch_is_exit_3_with_where_to_look(cli: Cli, made: Made) -> None:
    ended = cli("epoch", "state", "3", "buyer/nobody", "--store", made.folder / "store")
    assert ended.code == 3
    assert "buyer/nobody" in ended.err


def test_agents_of_an_epoch_with_their_places(cli: Cli, made: Made) -> None:
    lines = cli("epoch", "state", "3", "--store", made.folder / "store").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["buyer/main", "p1"], ["ledger/main", "p2"]]


def test_the_only_cluster_of_a_store_need_not_be_named_but_one_of_several_must(cli: Cli, made: Made) -> None:
    shutil.copytree(made.file(""), made.folder / "store" / "other")
    ended = cli(*VERIFY, "3", "--store", made.folder / "store")
    assert ended.code == 2
    assert "other, shop" in ended.err
    assert cli(*VERIFY, "3", "--store", made.folder / "store", "--cluster", "shop").code == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--store", "/no/such/folder"), "not a folder"),
        (("--store", "{empty}"), "holds no cluster"),
        (("--store", "{store}", "--cluster", "../x"), "not allowed"),
        (("--store", "{store}", "--cluster", "nobody"), "nobody"),
        (("--store", "gopher://x", "--cluster", "shop"), "gopher"),
        (("--offline",), "no store is named"),
    ],
)
def test_a_store_that_cannot_be_meant_is_exit_2(cli: Cli, made: Made, options: tuple[str, ...], problem: str) -> None:
    (made.folder / "empty").mkdir()
    filled = [each.format(store=made.folder / "store", empty=made.folder / "empty") for each in options]
    ended = cli(*VERIFY, "3", *filled)
    assert ended.code == 2, ended.err
    assert problem in ended.err


def test_offline_takes_the_store_of_a_demos_folder(cli: Cli, made: Made) -> None:
    (made.folder / "cleancut.json").write_text('{"cluster": "shop", "store": "store", "secret_file": "secret"}')
    ended = cli(*VERIFY, "3", "--offline", "--dir", made.folder)
    assert ended.code == 0, ended.err
    assert "verified" in ended.out


def test_another_clusters_secret_in_the_environment_does_not_make_a_store_look_forged(
    cli: Cli, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "secret").write_text("ab" * 16 + "cd" * 16)
    (demo / "secret").chmod(0o600)
    (demo / "cleancut.json").write_text('{"cluster": "demo", "store": "store", "secret_file": "secret"}')
    monkeypatch.setenv("CLEANCUT_DIR", str(demo))
    ended = cli(*VERIFY, "3", "--store", made.folder / "store")
    assert ended.code == 0, ended.err
    assert "not checked" in ended.out
    assert cli(*VERIFY, "3", "--store", made.folder / "store", "--dir", demo).code == 4, "now it is said to be its"
    (made.folder / "cleancut.json").write_text('{"cluster": "shop", "store": "store", "secret_file": "secret"}')
    monkeypatch.setenv("CLEANCUT_DIR", str(made.folder))
    assert "verified" in cli(*VERIFY, "3", "--store", made.folder / "store").out


def test_a_report_that_says_nothing_does_not_pass_for_sound(cli: Cli, api: FakeApi) -> None:
    api.on("POST", "/v1/epochs/3/verify", {}, {"epoch": 3, "ok": True, "findings": [], "counts": {"chunks": 9}})
    assert cli("--coordinators", api.address, *VERIFY, "3").code == 4
    ended = cli("--coordinators", api.address, *VERIFY, "3", "--shallow")
    assert (ended.code, api.asked[-1].body) == (0, {"deep": False})
    assert "chunks" in ended.out


def test_online_findings_are_exit_4_in_the_apis_words(cli: Cli, api: FakeApi) -> None:
    finding = {"kind": "lost", "channel": "a->b", "detail": "message 7 is missing", "expected": "9", "found": "8"}
    api.on("POST", "/v1/epochs/3/verify", {"epoch": 3, "ok": False, "findings": [finding, finding]})
    ended = cli("--coordinators", api.address, *VERIFY, "3")
    assert ended.code == 4
    assert "lost at a->b: message 7 is missing (expected 9, found 8) and 1 more" in ended.err
