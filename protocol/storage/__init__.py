"""Object stores: the one place in `protocol` that does I/O.

A store holds the objects of one cluster (layout in `protocol.manifest`). Both sides open it with `open_store`, by what the
user wrote: a folder (``/path`` or ``file:/path``) or ``memory:name`` (one process only). One decode path for all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from protocol.digests import FORMAT_KEY
from protocol.documents import canonical_json
from protocol.errors import ConfigError, ObjectConflict, ObjectCorrupt, ObjectMissing
from protocol.limits import KIB
from protocol.manifest import FORMAT_VERSION
from protocol.storage.filesystem import FilesystemStore
from protocol.storage.memory import MemoryStore, named_store

if TYPE_CHECKING:
    from protocol.ids import ClusterName
    from protocol.ports import ObjectStore

__all__ = ["FilesystemStore", "MemoryStore", "ensure_format", "open_store"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class _Format(msgspec.Struct, frozen=True):
    """``format.json``."""

    format: int
    cluster: str


def open_store(url: str, cluster: ClusterName, *, writable: bool = True) -> ObjectStore:
    """Open a cluster's object store.

    Args:
        url: ``/path``, ``relative/path``, ``file:/path``, ``file:///path`` or ``memory:name``.
        cluster: Whose objects.
        writable: Also make it ready for writing: the cluster's folder and ``format.json``. False touches nothing, so that
            a store on a read-only disk can be inspected.

    Raises:
        ConfigError: Unknown scheme; folder missing, not readable, not writable; of another layout or cluster. Says what
            to do.
        StoreError: The store failed.
    """
    store = _open(url, cluster, writable=writable)
    ensure_format(store, cluster, create=writable)
    return store


def ensure_format(store: ObjectStore, cluster: ClusterName, *, create: bool = True) -> None:
    """Check that a store's layout is one that this build reads, and of this cluster; write ``format.json`` if there is none.

    Args:
        store: Any store.
        cluster: Whose it must be.
        create: False: a store without ``format.json`` is an error.

    Raises:
        ConfigError: Another layout version or cluster, or nothing there.
        StoreError: The store failed.
    """
    wanted = canonical_json({"cluster": cluster, "format": FORMAT_VERSION})
    try:
        found = store.get(FORMAT_KEY, size_max=4 * KIB)
    except ObjectMissing:
        if not create:
            raise ConfigError(
                "store", f"{store.url} has no {FORMAT_KEY} for cluster {cluster!r}: no epoch was ever written there"
            ) from None
        try:
            store.put(FORMAT_KEY, wanted)
        except ObjectConflict:
            found = store.get(FORMAT_KEY, size_max=4 * KIB)
        else:
            return
    _check_format(store, cluster, found)


def _check_format(store: ObjectStore, cluster: ClusterName, found: bytes) -> None:
    try:
        document = msgspec.json.decode(found, type=_Format)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        raise ObjectCorrupt(
            "open", FORMAT_KEY, f"{found[:60]!r} is not a format document; restore it from a backup"
        ) from None
    if document.format != FORMAT_VERSION:
        raise ConfigError(
            "store",
            f"{store.url} has layout version {document.format}, this build reads version {FORMAT_VERSION}: use a build "
            "that fits it, or another folder",
        )
    if document.cluster != cluster:
        raise ConfigError(
            "store",
            f"{store.url} belongs to cluster {ascii(document.cluster)[:80]}, not to {cluster!r}: check the cluster's name, "
            "or use another folder",
        )


def _open(url: str, cluster: ClusterName, *, writable: bool) -> ObjectStore:
    if url.startswith("memory:"):
        return named_store(url.removeprefix("memory:"), cluster)
    if url.startswith("file:"):
        path = url.removeprefix("file:")
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host not in {"", "localhost"}:
                raise ConfigError("store", f"{url}: a file URL names no host; write file:/path")
            path = slash + rest
    elif _SCHEME.match(url):
        scheme = url.partition(":")[0]
        raise ConfigError("store", f"{url}: unknown scheme {scheme!r}; use a folder, file:/path or memory:name")
    else:
        path = url
    if not path or "\0" in path:
        raise ConfigError("store", f"{url!a} names no folder")
    store = FilesystemStore(path, cluster)
    store.check_openable(writable=writable)
    return store
