"""What a legal object key is, the same for every store.

A key is one or more segments of ``a-z 0-9 . _ -`` with a slash between them; a segment begins with a letter or a digit.
So there is no ``..``, no absolute path, no hidden file, nothing that a file system folds or a shell expands, and names of
temporary files (which begin with a dot) can never be keys (RELIABILITY.md T7).
"""

from __future__ import annotations

import re
from typing import Final

from protocol.errors import StoreError

KEY_BYTES_MAX: Final = 512
"""Well below every file system's and object store's limit."""
SEGMENT: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_KEY: Final = re.compile(rf"{SEGMENT.pattern}(?:/{SEGMENT.pattern})*")
_PREFIX: Final = re.compile(rf"(?:{SEGMENT.pattern}/)*(?:{SEGMENT.pattern})?")


def check_key(operation: str, key: object) -> str:
    """Return `key` if it is one.

    Raises:
        StoreError: It is not; nothing was touched.
    """
    if not isinstance(key, str) or len(key) > KEY_BYTES_MAX or _KEY.fullmatch(key) is None:
        raise StoreError(operation, _shown(key), "not a legal key: segments of a-z 0-9 . _ - with / between them")
    return key


def check_prefix(prefix: object) -> str:
    """Return `prefix` if keys can begin so; "" is every key's.

    Raises:
        StoreError: No key can.
    """
    if not isinstance(prefix, str) or len(prefix) > KEY_BYTES_MAX or _PREFIX.fullmatch(prefix) is None:
        raise StoreError("list", _shown(prefix), "no legal key begins so")
    return prefix


def _shown(key: object) -> str:
    return ascii(key)[:100]
