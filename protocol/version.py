"""The version of this build, without the cost of reading installed packages' metadata.

Hatchling reads it from here (`[tool.hatch.version]`). Formats and protocols carry versions of their own.
"""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
