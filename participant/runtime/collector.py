"""The garbage collector, off for a while: what makes many objects that stay has it look through all of them again and again.

Decoding 500 MB takes twice as long with it on. It is the process's own, so it is off for as long as anybody wants it off, and
comes back on only if it was on before.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Wanted:
    """How many want it off, and whether it was on before the first of them."""

    count = 0
    was_on = False


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection inside; may overlap with others, on the same thread."""
    if not _Wanted.count:
        _Wanted.was_on = gc.isenabled()
        gc.disable()
    _Wanted.count += 1
    try:
        yield
    finally:
        _Wanted.count -= 1
        if not _Wanted.count and _Wanted.was_on:
            gc.enable()
