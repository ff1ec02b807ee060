"""The two formats of saved values: msgpack by default, cloudpickle where an agent's class asks for it.

Loading a pickle runs code. So bytes from a store are unpickled only against a `PickleAllowed`, and only `allow_pickle`
makes one: from a manifest whose signature verifies under the cluster's secret, in a participant that was configured with
``allow_cloudpickle=True``. A digest is no substitute: whoever can write an object can also write its digest.

Opened read-only files pickle without complaint: cloudpickle saves their *content*. Rather not.

Sources: DEPENDENCIES.md section 4 (cloudpickle runs code, is not deterministic over processes); DESIGN.md section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from protocol.documents import decode_manifest, verify_signature
from protocol.errors import ConfigError, ObjectCorrupt

if TYPE_CHECKING:
    from protocol.ids import Epoch
    from protocol.keys import ClusterKeys

SERIALIZERS: Final = ("msgpack", "cloudpickle")
_SEAL: Final = object()


class PickleAllowed:
    """The right to unpickle what one verified manifest names; made by `allow_pickle`, and by `allow_own_pickle`.

    Attributes:
        epoch: Whose objects may be unpickled.
    """

    __slots__ = ("epoch",)

    def __init__(self, epoch: Epoch, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("PickleAllowed is made by allow_pickle, from a verified manifest")
        self.epoch = epoch


def allow_pickle(manifest: bytes, keys: ClusterKeys, *, allow_cloudpickle: bool) -> PickleAllowed:
    """The right to unpickle this epoch's objects.

    Args:
        manifest: Its stored bytes.
        keys: Of the cluster.
        allow_cloudpickle: The participant's setting.

    Raises:
        ConfigError: The setting is off.
        ObjectCorrupt: Not a manifest, or its signature does not verify.
    """
    if not allow_cloudpickle:
        raise ConfigError(
            "allow_cloudpickle",
            "state saved with cloudpickle is there, and loading it runs code; set it to True to allow",
        )
    decoded = decode_manifest(manifest)
    if not verify_signature(manifest, decoded, keys):
        raise ObjectCorrupt("get", "manifest", "its signature does not verify; nothing of it is unpickled")
    return PickleAllowed(cast("Epoch", decoded.epoch), _SEAL)


def allow_own_pickle() -> PickleAllowed:
    """The right to unpickle what this process wrote into its own memory; no store has seen it."""
    return PickleAllowed(cast("Epoch", 0), _SEAL)


def pickle_bytes(value: object) -> bytes:
    """Cloudpickle bytes; raises whatever the value's own reduction raises."""
    import cloudpickle

    return cast("bytes", cloudpickle.dumps(value))


def unpickle(data: bytes, allowed: PickleAllowed) -> Any:  # noqa: ANN401 - any value
    """A value from a store.

    Raises:
        ObjectCorrupt: It cannot be loaded: its module is gone, or it is no pickle.
    """
    if type(allowed) is not PickleAllowed:
        raise TypeError("unpickling needs a PickleAllowed")
    try:
        return unpickle_own(data)
    except Exception as error:  # noqa: BLE001 - a pickle may raise anything
        raise ObjectCorrupt("get", "state", f"cloudpickle cannot load it: {error}") from None


def unpickle_own(data: bytes) -> Any:  # noqa: ANN401 - any value
    """A value from bytes that this process made itself: a rollback, a working copy. Never for stored bytes."""
    import cloudpickle

    return cloudpickle.loads(data)
