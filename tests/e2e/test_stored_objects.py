"""Objects of a committed epoch that are gone, torn, rotten, swapped or hostile: found offline, named, never half taken (A9, A13)."""

import itertools
import json
import pickle
import shutil
import struct
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from protocol.digests import digest, manifest_key, snapshot_key
from protocol.documents import decode_manifest, encode_manifest
from protocol.ids import cluster_name
from protocol.keys import ClusterKeys, read_secret
from protocol.storage import open_store
from protocol.verify import verify_epoch
from simulations.demo import summary
from tests.e2e.real_cluster import cleancut, real_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

CORRUPT = 4


class Stored:
    """Two committed epochs of a cluster that has ended, and those of another cluster."""

    def __init__(self, root: Path, secret: Path, epochs: list[int], manifest: object, other: Path) -> None:
        self.root = root
        self.secret = secret
        self.epochs = epochs
        self.manifest = manifest
        self.other = other


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stored(tmp_path_factory):
    """Made once; each test damages a copy."""
    folders = [tmp_path_factory.mktemp(name) for name in ("stored", "other")]
    numbers = []
    for folder in folders:
        async with real_cluster(folder, participants=2) as made:
            numbers.append([(await made.commit_one())["epoch"] for _ in range(2)])
            await made.judge()
    assert numbers[0] == numbers[1]
    manifest = summary.read_manifest(made.open_store(), numbers[0][-1])
    one, other = folders
    manifest = decode_manifest((one / "store" / "demo" / manifest_key(numbers[0][-1])).read_bytes())
    return Stored(one / "store", one / "cluster.secret", numbers[0], manifest, other / "store")


@pytest.fixture
def copy(stored, tmp_path):
    """A copy to damage."""
    root = tmp_path / "store"
    shutil.copytree(stored.root, root)
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return root


async def verify(root, stored, epoch="latest"):
    return await cleancut("epoch", "verify", str(epoch), "--store", str(root), "--secret-file", str(stored.secret))


def objects_of_newest(root, stored):
    """Kind → a file that the newest epoch needs and the one before does not."""
    manifest = stored.manifest
    before = decode_manifest((root / "demo" / manifest_key(stored.epochs[0])).read_bytes())
    [pack, *_] = sorted(set(manifest.packs) - set(before.packs))
    text = pack.removeprefix("b3:")
    return {
        "pack": root / "demo" / "packs" / text[:2] / text,
        "snapshot": root / "demo" / snapshot_key(manifest.members[0].snapshot),
        "manifest": root / "demo" / manifest_key(stored.epochs[1]),
    }


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def tear(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def grow(path):
    with path.open("ab") as file:
        file.write(b"\0")


DAMAGE = {"missing": Path.unlink, "torn": tear, "flipped": flip, "empty": empty, "longer": grow}


async def test_undamaged_epochs_are_good_in_a_copy_too(stored, copy):
    """Manifests are complete in themselves: a copied folder is as good, without any coordinator."""
    for epoch in stored.epochs:
        code, document, errors = await verify(copy, stored, epoch)
        assert (code, document["ok"], document["signature"]) == (0, True, "verified"), errors


@pytest.mark.parametrize("kind", ["pack", "snapshot", "manifest"])
async def test_damaged_object_is_named_and_the_epoch_before_it_stays_good(stored, copy, kind):
    """Missing, torn, flipped, empty, longer: exit code 4, the object's key and what is wrong; never a traceback."""
    path = objects_of_newest(copy, stored)[kind]
    good = path.read_bytes()
    for name, damage in DAMAGE.items():
        damage(path)
        code, document, errors = await verify(copy, stored, stored.epochs[1])
        if (kind, name) == ("manifest", "missing"):
            assert code == 3, "an epoch without manifest is not there"
        else:
            assert code == CORRUPT, (name, document, errors)
            named = json.dumps(document) + errors
            assert path.name in named or path.stem in named, (name, document, errors)
        assert "Traceback" not in errors
        code, document, errors = await verify(copy, stored, stored.epochs[0])
        assert code == 0, (name, document, errors)
        path.write_bytes(good)
    assert (await verify(copy, stored, stored.epochs[1]))[0] == 0


class Bomb:
    """Says that it was loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def hostile(mark):
    """Bytes that somebody who can write to the store might put there."""
    return {
        "pickle": pickle.dumps(Bomb(mark)),
        "class path": json.dumps(
            {"py/object": "os.system", "class": "subprocess.Popen", "args": ["touch", str(mark)]}
        ).encode(),
        "msgpack extension": b"\xc7\x08\x01" + b"os.system",
        "2 GB length prefix": b"\xc6" + struct.pack(">I", 2**31 - 1) + b"x",
        "deep nesting, msgpack": b"\x91" * 200_000,
        "deep nesting, JSON": b"[" * 200_000 + b"]" * 200_000,
        "zstd bomb": b"\x28\xb5\x2f\xfd\xa4" + struct.pack("<I", 2**31 - 1) + bytes(64),
        "path": json.dumps({"agents": [{"id": "../../etc/passwd"}], "participant": "../.."}).encode(),
    }


async def test_hostile_bytes_in_the_place_of_an_object_are_refused_before_they_are_decoded(stored, copy, tmp_path):
    """A13: whatever stands there, its digest is not the one that is named; nothing is imported, nothing runs."""
    mark = tmp_path / "executed"
    files = objects_of_newest(copy, stored)
    keys = ClusterKeys.from_secret(read_secret(stored.secret))
    store = open_store(str(copy), cluster_name("demo"))
    for (kind, path), (name, data) in itertools.product(files.items(), hostile(mark).items()):
        good = path.read_bytes()
        path.write_bytes(data)
        # The command once for each kind of object, the same check in this process for the rest.
        if name == "pickle":
            code, document, errors = await verify(copy, stored, stored.epochs[1])
            assert code == CORRUPT, (kind, name, document, errors)
            assert "Traceback" not in errors, (kind, name)
        modules = set(sys.modules)
        assert verify_epoch(store, stored.epochs[1], keys).findings, (kind, name)
        assert {each for each in set(sys.modules) - modules if not each.startswith("protocol.")} == set(), (kind, name)
        path.write_bytes(good)
    assert verify_epoch(store, stored.epochs[1], keys).ok
    assert not mark.exists()


async def test_hostile_object_with_its_right_digest_in_a_manifest_of_ones_own_is_refused_by_its_signature(
    stored, copy, tmp_path
):
    """A13: whoever may write the whole store can make digests fit, but not sign."""
    mark = tmp_path / "executed"
    path = objects_of_newest(copy, stored)["manifest"]
    for name, data in hostile(mark).items():
        (copy / "demo" / snapshot_key(digest(data))).write_bytes(data)
        [first, *rest] = stored.manifest.members
        forged = _replace(stored.manifest, members=(_replace(first, snapshot=digest(data)), *rest))
        path.write_bytes(encode_manifest(forged))
        code, document, errors = await verify(copy, stored, stored.epochs[1])
        assert code == CORRUPT, (name, document, errors)
        assert document.get("signature") != "verified", name
        assert "signature" in json.dumps(document) + errors, name
    assert not mark.exists()


def _replace(struct_, **changes):
    return type(struct_)(**{name: changes.get(name, getattr(struct_, name)) for name in struct_.__struct_fields__})


async def test_another_clusters_epoch_of_the_same_number_and_name_is_refused(stored, copy):
    """A13: whole and consistent, by another secret: its signature does not verify here."""
    shutil.copytree(stored.other, copy, dirs_exist_ok=True, copy_function=_over)
    code, document, errors = await verify(copy, stored, stored.epochs[1])
    assert code == CORRUPT, (document, errors)
    assert "signature" in json.dumps(document) + errors


def _over(source, target):
    shutil.copyfile(source, target)


@pytest.mark.parametrize(
    "agent", ["../../etc/passwd", "account/..", "account/\x1b[31m", "x" * 300, "", "/", "account/a1\n"]
)
async def test_hostile_names_on_the_command_line_are_refused_and_shown_harmless(stored, agent):
    code, _, errors = await cleancut("epoch", "state", "latest", agent, "--store", str(stored.root))
    assert code in {2, 3}, errors
    assert "\x1b" not in errors
    assert "Traceback" not in errors
