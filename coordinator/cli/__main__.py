"""``python -m coordinator.cli``, for where the script ``cleancut`` is not on the PATH."""

from __future__ import annotations

from coordinator.cli.root import main

if __name__ == "__main__":
    main()
