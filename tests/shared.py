"""Where the vectors are that others wrote: the folder ``shared`` beside the repository.

They are read from there and never copied: some state no licence, so they stay out of what is released.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def shared_path(relative: str) -> Path:
    """A file or folder of ``../shared``.

    Raises:
        FileNotFoundError: It is not there. Never a skip: a build that cannot run the vectors has not passed.
    """
    path = ROOT.parent / "shared" / relative
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: the tests need the folder 'shared' beside {ROOT}")
    return path
