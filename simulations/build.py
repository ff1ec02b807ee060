"""Which code this is: a digest over the sources, for replay files and for clusters of machines.

The same seed is the same run only for the same code. A version number would not tell two working trees apart.
"""

from __future__ import annotations

import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

PACKAGES: Final = ("coordinator", "participant", "protocol", "simulations")
_APART: Final = ("bench", "demo")
"""Of `simulations`: what no run depends on."""


@cache
def build_digest() -> str:
    """Of all that a run is made of, file by file; "" where the sources cannot be read."""
    top = Path(__file__).parents[1]
    hasher = blake2b(digest_size=8)
    try:
        for package in PACKAGES:
            for file in sorted((top / package).rglob("*.py")):
                name = file.relative_to(top)
                if package == "simulations" and name.parts[1] in _APART:
                    continue
                data = file.read_bytes()
                hasher.update(b"%s %d\n" % (name.as_posix().encode(), len(data)))
                hasher.update(data)
    except OSError:
        return ""
    return hasher.hexdigest()


def python_version() -> str:
    """Major and minor: what may decide how the interpreter runs a program."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
