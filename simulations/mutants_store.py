"""Planted bugs of disks, stores and of those who read them; `simulations.mutants` has the rest, and all of them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.mutants import Patcher

# --- the disk ---------------------------------------------------------------------------------------------------------


def no_folder_sync(patcher: Patcher) -> None:
    """A name is never synced."""
    from protocol.storage.filesystem import FilesystemStore

    patcher.method(FilesystemStore, "_sync_name", lambda _: lambda self, key, folder: None)


def folder_believed(patcher: Patcher) -> None:
    """A failed fsync of a folder is forgotten."""
    from protocol.storage.filesystem import FilesystemStore

    patcher.method(FilesystemStore, "_change", lambda _: lambda self, folder: None)


def sync_of_files(make: Callable[[Any, Any, int], None]) -> Callable[[Patcher], None]:
    """The store's call of fsync on a file, done in another way."""

    def patch(patcher: Patcher) -> None:
        from simulations.disk import SimulatedDisk

        def wrap(sync: Any) -> Any:  # noqa: ANN401 - the patched method
            def otherwise(self: SimulatedDisk, descriptor: int) -> None:
                if self.is_folder(descriptor):
                    sync(self, descriptor)
                else:
                    make(self, sync, descriptor)

            return otherwise

        patcher.method(SimulatedDisk, "sync", wrap)

    return patch


def sync_twice(disk: Any, sync: Any, descriptor: int) -> None:  # noqa: ANN401 - as the method
    """A failed fsync is tried again."""
    try:
        sync(disk, descriptor)
    except OSError:
        sync(disk, descriptor)


# --- what was not what was written ------------------------------------------------------------------------------------


def digest_unchecked(patcher: Patcher) -> None:
    """Objects are taken whatever their digest is."""
    import protocol.documents as documents

    patcher.method(documents, "check_bytes", lambda _: lambda data, expected, name: None)


def chunk_unchecked(patcher: Patcher) -> None:
    """Chunks are taken whatever their digest is."""
    from protocol.pack import STORED, PackReader

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        def trusting(self: PackReader, name: str) -> bytes:
            entry = self._entries.get(name)  # type: ignore[call-overload]
            if entry is None:
                raise self._corrupt("no such chunk")
            payload = self._source.read(entry.offset, entry.stored)
            return payload if entry.method == STORED else self._decompress(entry, payload)

        return trusting

    patcher.method(PackReader, "chunk", make)


def packs_unread(patcher: Patcher) -> None:
    """Verification looks at manifest and local snapshots only."""
    from protocol.verify_contents import ContentVerifier

    patcher.method(ContentVerifier, "check", lambda _: lambda self, packs, snapshots, into: None)


def listing_believed(patcher: Patcher) -> None:
    """Verification wants to find an epoch in a listing."""
    from protocol.verify import _Run, committed_epochs

    def make(check: Any) -> Any:  # noqa: ANN401 - the patched method
        def believing(self: _Run) -> None:
            if self._epoch not in committed_epochs(self._store):
                self._into.add("missing", "no listing names this epoch", key=self._key)
            check(self)

        return believing

    patcher.method(_Run, "check", make)


def damage_stays(patcher: Patcher) -> None:
    """Puts are create-only, whatever lies there."""
    import simulations.store as store

    for name in ("put_content", "put_manifest"):
        patcher.method(store, name, lambda _: lambda there, key, data: there.put(key, data))


def mac_unchecked(patcher: Patcher) -> None:
    """Frames are taken whatever their MAC is."""
    from protocol.wire import HEADER_BYTES, MAC_BYTES, FrameCodec

    def make(_: Any) -> Any:  # noqa: ANN401 - the patched method
        def trusting(self: FrameCodec, frame: bytes) -> Any:  # noqa: ANN401 - as the method
            header = self.peek(frame)
            return header, frame[HEADER_BYTES + len(header.source) + len(header.target) : -MAC_BYTES]

        return trusting

    patcher.method(FrameCodec, "verify_and_open", make)


# --- what an aborted epoch leaves -------------------------------------------------------------------------------------


def aborted_forgets(patcher: Patcher) -> None:
    """An aborted cut counts as the newest that is stored."""
    from participant.capture import Capturer

    def make(dropped: Any) -> Any:  # noqa: ANN401 - the patched method
        def gathered(self: Capturer, epoch: int) -> None:
            frozen = self._frozen.get(epoch)
            dropped(self, epoch)
            if frozen is not None and self._saved:
                # What had changed before the aborted cut counts as stored, and was not.
                self._since = max(self._since, frozen.generation)
                self._mark()

        return gathered

    patcher.method(Capturer, "dropped", make)


def aborted_named(patcher: Patcher) -> None:
    """What an aborted epoch has written is named again."""
    from participant.capture import Capturer

    # Its chunks are named again by the next epoch, wherever its packs have got to.
    patcher.method(Capturer, "dropped", lambda _: Capturer.__dict__["committed"])


# --- sealed epochs ----------------------------------------------------------------------------------------------------


def forsaken_unasked(patcher: Patcher) -> None:
    """A leader gives up a sealed epoch by itself: the store is not asked."""
    import coordinator.runtime.driver as driver
    import simulations.store as store

    for module in (driver, store):
        patcher.method(module, "take_manifest_key", lambda _: lambda *_args, **_more: True)


def sealed_for_ever(patcher: Patcher) -> None:
    """Whatever became of the parts of a sealed epoch, its manifest is tried again and again."""
    import coordinator.progress as progress

    patcher.method(progress, "FORSAKE_AFTER_NS", lambda _: 10**18)
