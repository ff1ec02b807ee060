"""Package names that are imported when they are first used (PEP 562), so that importing a package costs nothing.

``cleancut --help`` imports `coordinator`, and with it whatever `coordinator/__init__.py` imports: networkx and aiohttp
alone are most of a second. So the packages' ``__init__`` files import nothing. Each holds the same names three times,
and ``tests/unit/test_exports.py`` compares them: under ``TYPE_CHECKING`` for type checkers and editors, in ``__all__``
for people and ``import *``, and in the table given to `lazy_exports`.

A name that is also a submodule's (``protocol.cut``) cannot be exported: the import system sets the submodule as an
attribute of its package, and which of the two a user saw would depend on what had been imported before.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, table: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: The package's ``__name__``.
        table: Submodule, relative to the package, to the public names that it defines.
    """
    module_of = {name: f"{package}.{module}" for module, names in table.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: ANN401, N807 - PEP 562 fixes name and type
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # What an import makes stays: the collector would look through all of it some hundred times, a twentieth of the work.
        collects = gc.isenabled()
        gc.disable()
        try:
            value = getattr(importlib.import_module(module), name)
        finally:
            if collects:
                gc.enable()
        # Kept, so that the next use is an ordinary attribute and two uses are one object.
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - PEP 562
        return sorted({*vars(sys.modules[package]), *module_of})

    return __getattr__, __dir__
