"""`cleancut epoch fork`: on stores alone, the original byte for byte as it was."""

from pathlib import Path

import msgspec
import pytest

from coordinator.cli.exits import Exit
from protocol.digests import manifest_key, snapshot_key
from protocol.documents import decode_local_snapshot, decode_manifest
from protocol.errors import ObjectCorrupt
from protocol.forks import FORK_KEY, Fork, read_fork
from protocol.ids import cluster_name
from protocol.keys import ClusterKeys, read_secret
from protocol.storage import open_store
from tests.unit.cli.fake_api import Cli
from tests.unit.cli.store_maker import Made, make_store


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_store(tmp_path)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def options(made: Made, **changes: str) -> list[str]:
    """Of a fork beside the original."""
    given = {
        "--from-store": str(made.folder / "store"),
        "--from-cluster": "shop",
        "--secret-file": str(made.secret_file),
        "--cluster": "try",
        "--store": str(made.folder / "store"),
        "--fork-secret-file": str(made.folder / "try.secret"),
        **changes,
    }
    return [part for pair in given.items() for part in pair]


def test_a_fork_verifies_with_its_own_secret_and_leaves_the_original_byte_for_byte(made: Made, cli: Cli) -> None:
    before = bytes_of(made.folder / "store" / "shop")
    ended = cli("epoch", "fork", "3", *options(made), "--json")
    assert ended.code == Exit.DONE, ended.err
    document = ended.document
    assert (document["cluster"], document["epoch"], document["dry_run"]) == ("try", 3, True)
    assert document["origin"]["cluster"] == "shop"
    assert (made.folder / "try.secret").stat().st_mode & 0o777 == 0o600
    assert bytes_of(made.folder / "store" / "shop") == before

    own = ["--store", str(made.folder / "store"), "--cluster", "try"]
    checked = cli("epoch", "verify", "3", *own, "--secret-file", str(made.folder / "try.secret"))
    assert checked.code == Exit.DONE, checked.out + checked.err
    other = cli("epoch", "verify", "3", *own, "--secret-file", str(made.secret_file))
    assert other.code == Exit.INCONSISTENT, "the original's secret signed nothing here"

    store = open_store(str(made.folder / "store"), cluster_name("try"), writable=False)
    keys = ClusterKeys.from_secret(read_secret(made.folder / "try.secret"))
    fork = read_fork(store, keys)
    assert fork is not None
    assert (fork.cluster, fork.epoch, fork.session, fork.members, fork.dry_run) == ("try", 3, 2, 2, True)
    data = store.get(manifest_key(3), size_max=1 << 20)
    manifest = decode_manifest(data, expected=fork.manifest)
    assert manifest.cluster == "try"
    for member in manifest.members:
        found = store.get(snapshot_key(member.snapshot), size_max=1 << 20)
        assert decode_local_snapshot(found, expected=member.snapshot).cluster == "try"


def test_the_same_fork_again_writes_nothing(made: Made, cli: Cli) -> None:
    assert cli("epoch", "fork", "latest", *options(made)).code == Exit.DONE
    before = bytes_of(made.folder)
    again = cli("epoch", "fork", "3", *options(made), "--json")
    assert again.code == Exit.DONE, again.err
    document = again.document
    assert (document["objects_copied"], document["secret_made"]) == (0, False)
    assert bytes_of(made.folder) == before


def test_a_fork_that_was_interrupted_goes_on(made: Made, cli: Cli) -> None:
    assert cli("epoch", "fork", "3", *options(made)).code == Exit.DONE
    whole = bytes_of(made.folder / "store" / "try")
    for gone in (FORK_KEY, manifest_key(3)):
        (made.folder / "store" / "try" / gone).unlink()
    assert cli("epoch", "fork", "3", *options(made)).code == Exit.DONE
    assert bytes_of(made.folder / "store" / "try") == whole


def test_a_fork_needs_a_name_a_store_and_a_secret_of_its_own(made: Made, cli: Cli) -> None:
    own = cli("epoch", "fork", "3", *options(made, **{"--cluster": "shop"}))
    assert own.code == Exit.USAGE
    assert "the original's own name" in own.err
    secret = cli("epoch", "fork", "3", *options(made, **{"--fork-secret-file": str(made.secret_file)}))
    assert secret.code == Exit.USAGE
    assert "has one of its own" in secret.err
    nowhere = cli("epoch", "fork", "3", "--from-store", str(made.folder / "store"))
    assert nowhere.code == Exit.USAGE
    assert "--cluster NEW --store STORE" in nowhere.err
    assert not (made.folder / "store" / "try").exists()


def test_a_store_that_holds_something_else_is_no_place_for_a_fork(made: Made, cli: Cli, tmp_path: Path) -> None:
    assert cli("epoch", "fork", "3", *options(made)).code == Exit.DONE
    other = tmp_path / "other"
    other.mkdir()
    second = make_store(other, epoch=4)
    refused = cli("epoch", "fork", "4", *options(second, **{"--store": str(made.folder / "store")}))
    assert refused.code == Exit.USAGE
    assert "holds epoch 3 already" in refused.err
    store = open_store(str(made.folder / "store"), cluster_name("try"), writable=False)
    assert list(store.list("epochs/")) == [manifest_key(3)]


def test_an_epoch_that_is_not_there_or_is_damaged_is_not_forked(made: Made, cli: Cli) -> None:
    assert cli("epoch", "fork", "9", *options(made)).code == Exit.NOT_FOUND
    place = made.file(f"packs/{made.pack[3:5]}/{made.pack[3:]}")
    place.chmod(0o600)
    data = bytearray(place.read_bytes())
    data[10] ^= 1
    place.write_bytes(bytes(data))
    damaged = cli("epoch", "fork", "3", *options(made))
    assert damaged.code == Exit.INCONSISTENT
    assert "packs/" in damaged.err
    assert not (made.folder / "store" / "try" / FORK_KEY).exists(), "a fork is there when all of it is"


def test_an_epoch_signed_with_another_secret_is_not_forked(made: Made, cli: Cli, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.secret"
    stranger.write_text("ab" * 16 + "cd" * 16)
    stranger.chmod(0o600)
    refused = cli("epoch", "fork", "3", *options(made, **{"--secret-file": str(stranger)}))
    assert refused.code == Exit.INCONSISTENT
    assert "signature" in refused.err


def test_nobody_takes_a_changed_fork_document_for_none_or_for_one_that_does_effects(made: Made, cli: Cli) -> None:
    assert cli("epoch", "fork", "3", *options(made)).code == Exit.DONE
    place = made.folder / "store" / "try" / FORK_KEY
    store = open_store(str(made.folder / "store"), cluster_name("try"), writable=False)
    keys = ClusterKeys.from_secret(read_secret(made.folder / "try.secret"))
    place.chmod(0o600)
    live = msgspec.structs.replace(msgspec.json.decode(place.read_bytes(), type=Fork), dry_run=False)
    for data in (msgspec.json.encode(live), b"{}", b"\xff", b'{"format":2}'):
        place.write_bytes(data)
        with pytest.raises(ObjectCorrupt, match=r"fork\.json"):
            read_fork(store, keys)
