"""An object store under virtual time, stricter than the real ones: create-only puts that fail, hang, or succeed unheard.

Two kinds. *Remote*: what is visible is durable. *Disk*: the product's own filesystem store over a `SimulatedDisk`, one store
object for each process, as they would share a folder: visible and durable part, calls fail in the middle, a process can die
between any two calls, and a power cut keeps what was synced.

A remote put that was begun goes on when its process dies. One that "timed out" may arrive seconds later.

Objects may be spoiled while they are written, while they lie there, and while they are read (`simulations.spoil`).
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from protocol.digests import EPOCHS_PREFIX, FORMAT_KEY, PACKS_PREFIX, SNAPSHOTS_PREFIX, manifest_key
from protocol.errors import ObjectConflict, ObjectMissing, StoreError
from protocol.ports import PutResult
from protocol.storage import ensure_format
from protocol.storage.filesystem import FilesystemStore
from protocol.storage.repair import put_content, put_manifest, take_manifest_key
from protocol.tombstones import tombstone
from simulations.disk import SimulatedDisk
from simulations.prng import stream
from simulations.spoil import HOWS, LostDeletes, RottenReader, Spoiled, StaleListing, damaged
from simulations.store_view import OpenMemory, StoreView
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coordinator.events import ForsakeManifest
    from protocol.ids import ClusterName
    from protocol.ports import ObjectStore
    from simulations.options import Options
    from simulations.probes import Probes
    from simulations.world import World

STRAGGLERS: Final = 16
"""One operation in so many takes up to 30 times as long as the others: objects become durable in any order."""
OPERATION_NS_MAX: Final = 5 * SECOND
"""Below the drivers' own patience: what they do about a store that hangs for a minute is for their tests."""
SLOW: Final = 40
"""Times as slow while a fault says so."""
logging.getLogger("protocol.storage.repair").addHandler(logging.NullHandler())  # what it tells people is a probe here
ANSWERS: Final = ("429 Too Many Requests", "503 Slow Down", "500 Internal Error")
"""How a remote store refuses."""
OLDER_MAX: Final = 8
"""Objects whose blocks may turn up in another one's place."""
_ROOT: Final = "/store"


class DiedInPut(BaseException):
    """The process was killed between two system calls."""


class SimulatedStore:
    """The store that all share.

    Attributes:
        put_seen: Called when an object becomes visible.
        crash: Called with who dies in the middle of a put.
    """

    def __init__(self, world: World, options: Options, cluster: ClusterName, probes: Probes) -> None:
        self._world = world
        self._options = options
        self.probes = self._probes = probes
        self._cluster = cluster
        self._random = stream(options.seed, "store")
        self._disk_random = stream(options.seed, "disk")
        self.put_seen: Callable[[str, bytes], None] | None = None
        self.crash: Callable[[str], None] | None = None
        self.fail = 0
        self.unheard = 0
        """Chances in 1,000 that a put fails for certain, or succeeds with an error."""
        self.busy = 0
        """Chances in 1,000 that an operation is refused for a while (429, 503, 500)."""
        self.hang = 0
        """Chances in 1,000 that a put gets no answer, and arrives later or never."""
        self.lose_delete = 0
        """Chances in 1,000 that to remove or replace an object is answered and not done."""
        self.rot_upload = self.rot_manifest = self.rot_read = 0
        """Chances in 1,000 that an object, or a manifest only, is spoiled while it is written; or any while it is read."""
        self.fsync_fails = 0
        self.die_in_put = 0
        """Chances in 1,000 of each system call (disk only)."""
        self.down: set[str] = set()
        """Who cannot reach it; "" for everybody. Asked, never iterated."""
        self.slow = 0
        self.puts = 0
        self._seen: dict[str, int] = {}
        """Keys that were visible once -> since when."""
        self.spoiled = Spoiled()
        self._rot_random = stream(options.seed, "rot")
        self._memory = OpenMemory(cluster)
        self._disk: SimulatedDisk | None = None
        self._stores: dict[str, FilesystemStore] = {}
        if options.disk:
            self._disk = SimulatedDisk()
            whole = FilesystemStore(_ROOT, cluster, system=self._disk)
            whole.check_openable(writable=True)
            ensure_format(whole, cluster)
        else:
            ensure_format(self._memory, cluster)

    def preload(self, objects: Mapping[str, bytes]) -> None:
        """Objects that are there from the start; of a store that is no disk."""
        for key, data in objects.items():
            if key != FORMAT_KEY:
                self._memory.put(key, data)
                self._seen[key] = 0

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def objects(self) -> ObjectStore:
        """All that is visible now, without faults."""
        if self._disk is None:
            return self._memory
        return FilesystemStore(_ROOT, self._cluster, system=self._disk.everything())

    def visible(self, key: str) -> bytes | None:
        """An object as everybody sees it now, the same bytes object as long as nobody has written it anew; None: none."""
        if self._disk is None:
            return self._memory.find(key)
        return self._disk.find(f"{self._cluster}/{key}")

    def keys(self) -> list[str]:
        """Of all that is visible now."""
        return list(self._keys(durable=False))

    def durable(self, key: str) -> bytes | None:
        """The same of what a power cut at this moment leaves for certain."""
        if self._disk is None:
            return self._memory.find(key)
        return self._disk.find_durable(f"{self._cluster}/{key}")

    @property
    def now(self) -> StoreView:
        """All that is visible, whenever it is looked at, as it is."""
        return StoreView(self.visible, lambda: self._keys(durable=False))

    @property
    def meant(self) -> StoreView:
        """All that is visible, whenever it is looked at, spoiled objects as they were written: what an epoch means."""
        return StoreView(self.visible, lambda: self._keys(durable=False), self.spoiled.meant)

    def image(self, also: Mapping[str, bytes] | None = None) -> StoreView:
        """What a power cut leaves for certain, whenever it is looked at; spoiled objects as they were written.

        Args:
            also: Objects that are to be there, too.
        """
        return StoreView(self.durable, lambda: self._keys(durable=True), self.spoiled.meant, also or {})

    def _keys(self, *, durable: bool) -> Iterable[str]:
        if self._disk is None:
            return self._memory.keys()
        prefix = f"{self._cluster}/"
        return [path.removeprefix(prefix) for path in self._disk.paths(durable=durable) if path.startswith(prefix)]

    def reader(self) -> RottenReader:
        """What a process that reads gets, with what goes wrong at reading."""
        return RottenReader(self, self.objects, self._rot_random)

    def stale(self, behind_ns: int) -> ObjectStore:
        """The store with listings as they were so long ago."""
        then = self._world.now - behind_ns
        return StaleListing(self.objects, frozenset(key for key, since in self._seen.items() if since <= then))

    def is_spoiled(self, key: str) -> bool:
        """Whether an object is not what was written."""
        return self.spoiled.is_spoiled(self.objects, key)

    def older_than(self, key: str) -> list[bytes]:
        """What some other objects of the same kind hold."""
        folder = key.partition("/")[0]
        others = [other for other in self._seen if other != key and other.partition("/")[0] == folder]
        objects = self.meant
        found = []
        for other in others[-OLDER_MAX:]:
            try:
                found.append(objects.get(other, size_max=1 << 40))
            except StoreError:
                continue
        return found

    def is_durable(self, key: str) -> bool:
        """Whether a power cut now leaves this object, whole."""
        data = self.durable(key)
        return data is not None and data == self.visible(key)

    # --- operations ---------------------------------------------------------------------------------------------------

    def delay(self) -> int:
        """How long the next operation takes."""
        base = self._options.store_ns
        took = base // 2 + self._random.below(base + 1)
        if self._random.chance(1, STRAGGLERS):
            took *= 1 + self._random.below(30)
        return min(took * SLOW if self.slow else took, OPERATION_NS_MAX)

    def unreachable(self, who: str) -> bool:
        """Whether `who` gets no answer."""
        return "" in self.down or who in self.down

    def trouble(self, who: str, operation: str, key: str) -> StoreError | None:
        """The error that an operation begun now meets before it does anything."""
        if self.unreachable(who):
            self._probes.hit("store.down")
            return StoreError(operation, key, "connection refused", errno_name="ECONNREFUSED")
        if self.fail and self._random.chance(self.fail, 1000):
            name = ("ENOSPC", "EIO", "EACCES")[self._random.below(3)]
            self._probes.hit(f"store.{name}")
            return StoreError(operation, key, "injected", errno_name=name)
        if self.busy and self._random.chance(self.busy, 1000):
            answer = ANSWERS[self._random.below(3)]
            self._probes.hit(f"store.{answer[:3]}")
            return StoreError(operation, key, answer)
        if self.hang and operation == "get" and self._random.chance(self.hang, 1000):
            self._probes.hit("store.read_timeout")
            return StoreError(operation, key, "no answer", errno_name="ETIMEDOUT", definite=False)
        return None

    def forsake(self, who: str, order: ForsakeManifest, done: Callable[[bool, StoreError | None], None]) -> None:
        """Begin to take the key of a sealed epoch's manifest; as `put`, and whether it is taken."""
        taken = [False]

        def take(store: ObjectStore, key: str, data: bytes) -> PutResult:
            taken[0] = take_manifest_key(
                store,
                order.epoch,
                cluster=order.request.cluster,
                sealed=order.digest,
                snapshots=dict(order.request.snapshots),
            )
            return PutResult.ALREADY_THERE

        stone = tombstone(order.request.cluster, order.epoch, order.digest)
        self.put(who, manifest_key(order.epoch), stone, lambda error: done(taken[0], error), take)

    def put(
        self,
        who: str,
        key: str,
        data: bytes,
        done: Callable[[StoreError | None], None],
        work: Callable[[ObjectStore, str, bytes], PutResult] | None = None,
    ) -> None:
        """Begin a put; `done` is called with the outcome. Whoever calls checks that it still lives.

        Args:
            who: Puts.
            key: Of the object.
            data: Its bytes.
            done: Called with what went wrong.
            work: What is done in the end; None: the product's put of such an object.
        """
        error = self.trouble(who, "put", key)
        if error is not None:
            self._world.after(self.delay(), self._random, done, error)
            return
        if self.hang and self._random.chance(self.hang, 1000):
            self._probes.hit("store.timeout")
            lost = StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
            self._world.after(SECOND + self._random.below(500 * MS), self._random, done, lost)
            if self._random.chance(1, 2):
                self._probes.hit("store.put_after_timeout")
                late = SECOND + self._random.below(4 * SECOND)
                self._world.after(late, self._random, self._do_put, who, key, data, False, _nobody, work)  # noqa: FBT003 - of the queue
            return
        unheard = self.unheard and self._random.chance(self.unheard, 1000)
        self._world.after(self.delay(), self._random, self._do_put, who, key, data, bool(unheard), done, work)

    def _do_put(
        self,
        who: str,
        key: str,
        data: bytes,
        unheard: bool,  # noqa: FBT001 - of the queue
        done: Callable[[StoreError | None], None],
        work: Callable[[ObjectStore, str, bytes], PutResult] | None,
    ) -> None:
        self.puts += 1
        error: StoreError | None = None
        created = False
        spoiled = key in self.spoiled.meant and self.is_spoiled(key)
        try:
            put = work or (put_manifest if key.startswith(EPOCHS_PREFIX) else put_content)
            created = put(self._deleting_store_of(who), key, data) is PutResult.CREATED
        except ObjectConflict as conflict:
            done(conflict)
            return
        except StoreError as failed:
            error = failed
        except DiedInPut:
            self._look(key, data)
            self._probes.hit("disk.died_in_put")
            if self.crash is not None:
                self.crash(who)
            return
        self._look(key, data)
        if spoiled and error is None:
            self._probes.hit("store.repaired")
        rot = max(self.rot_upload, self.rot_manifest if key.startswith(EPOCHS_PREFIX) else 0)
        if created and rot and self._rot_random.chance(rot, 1000):
            self.spoil(key)
            # Torn in the middle: nobody says that all is well.
            unheard = unheard or bool(self._rot_random.chance(1, 3))
        if error is None and unheard:
            self._probes.hit("store.timeout_after_success")
            lost = StoreError("put", key, "no answer", errno_name="ETIMEDOUT", definite=False)
            self._world.after(SECOND + self._random.below(500 * MS), self._random, done, lost)
        else:
            done(error)

    def put_plain(self, who: str, key: str, data: bytes) -> PutResult:
        """One put of the store's own, now: repair, delays and lost answers are the caller's.

        Raises:
            StoreError: As `ObjectStore.put`.
            DiedInPut: The process was killed in it.
        """
        self.puts += 1
        spoiled = key in self.spoiled.meant and self.is_spoiled(key)
        try:
            result = self._store_of(who).put(key, data)
        except ObjectConflict:
            raise
        except StoreError:
            self._look(key, data)
            raise
        except DiedInPut:
            self._look(key, data)
            self._probes.hit("disk.died_in_put")
            if self.crash is not None:
                self.crash(who)
            raise
        self._look(key, data)
        if spoiled:
            self._probes.hit("store.repaired")
        if result is PutResult.CREATED and self.rot_upload and self._rot_random.chance(self.rot_upload, 1000):
            self.spoil(key)
        return result

    def replace_plain(self, who: str, key: str, data: bytes) -> None:
        """As `put_plain`, of what takes a damaged object's place."""
        spoiled = key in self.spoiled.meant and self.is_spoiled(key)
        try:
            self._deleting_store_of(who).replace(key, data)
        except DiedInPut:
            self._probes.hit("disk.died_in_put")
            if self.crash is not None:
                self.crash(who)
            raise
        if spoiled and not self.is_spoiled(key):
            self._probes.hit("store.repaired")

    def delete_plain(self, who: str, key: str) -> None:
        """As `put_plain`, of a delete."""
        self._deleting_store_of(who).delete(key)

    def _deleting_store_of(self, who: str) -> ObjectStore:
        store = self._store_of(who)
        return LostDeletes(store, self._delete_lost) if self.lose_delete else store

    def _delete_lost(self) -> bool:
        lost = bool(self._random.chance(self.lose_delete, 1000))
        if lost:
            self._probes.hit("store.delete_lost")
        return lost

    def _look(self, key: str, data: bytes) -> None:
        """Tell of an object that has become visible, whatever became of its put."""
        if key in self._seen:
            return
        if self.visible(key) is None:
            return
        self._seen[key] = self._world.now
        if self.put_seen is not None:
            self.put_seen(key, data)

    def _store_of(self, who: str) -> ObjectStore:
        if self._disk is None:
            return self._memory
        store = self._stores.get(who)
        if store is None:
            store = self._stores[who] = FilesystemStore(_ROOT, self._cluster, system=self._disk)
        self._disk.trouble = self._system_trouble
        return store

    def _system_trouble(self, call: str) -> int:
        random = self._disk_random
        if self.die_in_put and random.chance(self.die_in_put, 1000):
            raise DiedInPut
        if self.fsync_fails and call.startswith("sync") and random.chance(self.fsync_fails, 1000):
            self._probes.hit(f"disk.{call}_EIO")
            return errno.EIO
        if self.fsync_fails and call == "write" and random.chance(self.fsync_fails, 1000):
            self._probes.hit("disk.ENOSPC_in_put")
            return errno.ENOSPC
        return 0

    # --- faults -------------------------------------------------------------------------------------------------------

    def rot(self) -> bool:
        """Spoil one of the objects that lie there."""
        there = list(self._seen)
        random = self._rot_random
        return bool(there) and self.spoil(there[random.below(len(there))])

    def spoil(self, key: str) -> bool:
        """Spoil this object, in whatever way is drawn; whether it is spoiled now."""
        assert key != FORMAT_KEY
        random = self._rot_random
        how = HOWS[random.below(len(HOWS))]
        try:
            data = self.objects.get(key, size_max=1 << 40)
        except ObjectMissing:
            return False  # a power cut took it, or an earlier fault
        self.spoiled.note(key, data)
        wrong = None if how == "gone" else damaged(random, how, data, self.older_than(key) if how == "old" else ())
        if self._disk is None:
            if wrong is None:
                self._memory.delete(key)
            else:
                self._memory.replace_for_test(key, wrong)
        else:
            self._disk.spoil(f"{self._cluster}/{key}", wrong)
        family = {EPOCHS_PREFIX: "manifest", SNAPSHOTS_PREFIX: "snapshot", PACKS_PREFIX: "pack"}
        self._probes.hit(f"store.rotten_{family[key[: key.index('/') + 1]]}")
        return True

    def died(self, who: str) -> None:
        """A process is gone, and with it what its store object remembered."""
        self._stores.pop(who, None)

    def power_cut(self) -> bool:
        """The disk loses what was not durable; whoever used it is dead already."""
        if self._disk is None:
            return False
        self._stores.clear()
        self._disk = self._disk.image(self._disk_random)
        self._probes.hit("disk.power_cut")
        return True

    def heal(self) -> None:
        """No faults any more."""
        self.fail = self.unheard = self.slow = self.fsync_fails = self.die_in_put = 0
        self.busy = self.hang = self.lose_delete = self.rot_upload = self.rot_manifest = self.rot_read = 0
        self.down.clear()


def _nobody(error: StoreError | None) -> None:
    """Whoever asked has had its answer."""
