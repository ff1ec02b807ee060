from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_"))


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_examples_of_the_public_api_type_check_and_their_mistakes_do_not(tmp_path):
    from mypy import api

    root = Path(__file__).parents[2]
    arguments = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    report, errors, status = api.run([*arguments, *map(str, EXAMPLES)])
    assert status == 0, report + errors
