"""What a newcomer meets first: the lock file, the Makefile, the CI script and the folders' READMEs."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", LOCK, re.MULTILINE))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_lock_file_satisfies_every_requirement_of_the_project() -> None:
    """Whoever adds a dependency runs `make lock`; else a fresh clone installs without it."""
    requirements = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    versions = locked()
    for text in requirements:
        requirement = Requirement(text)
        name = canonical(requirement.name)
        assert name in versions, f"{text} is not in requirements.lock: run `make lock`"
        assert requirement.specifier.contains(versions[name]), f"{text} against {versions[name]}: run `make lock`"


def test_lock_file_holds_build_backend_because_the_project_installs_without_isolation() -> None:
    assert {"hatchling", "editables"} <= set(locked())


def test_lock_file_names_no_place_and_hashes_every_package() -> None:
    """It must work with whatever index the reader's pip is set up for."""
    assert "://" not in LOCK
    assert "--index-url" not in LOCK
    assert "--find-links" not in LOCK
    entries = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked())
    for entry in entries:
        assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "bench-full", "lock", "format"])
def test_makefile_target_brings_up_the_virtual_environment_first(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = re.search(rf"^{target}: (.*?)( ##.*)$", makefile, re.MULTILINE)
    assert rule is not None, f"no documented target {target}"
    assert "$(STAMP)" in rule.group(1)


def test_make_alone_lists_the_targets() -> None:
    listing = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=50, check=True).stdout
    for target in ("demo", "test", "check", "bench", "lock"):
        assert re.search(rf"make {target} ", listing), listing


def test_ci_runs_check_and_test_and_nothing_hides_their_failure() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in lines
    assert [line.split()[-1] for line in lines if line.startswith("make ")] == ["check", "test"]


@pytest.mark.parametrize("folder", ["protocol", "participant", "coordinator", "simulations", "tests", "examples"])
def test_every_top_level_folder_says_what_belongs_there(folder: str) -> None:
    assert (ROOT / folder / "README.md").read_text(encoding="utf-8").startswith(f"# {folder}\n")
