"""What the README shows is run as it stands there."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCRIPT = str(Path(sys.executable).with_name("cleancut"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def console_lines(containing: str) -> list[str]:
    """The commands of the block that has this text."""
    [block] = [block for block in blocks("console") if containing in block]
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def run(line: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line.replace("/tmp/look", str(folder / "look")))
    assert words[0] == ".venv/bin/cleancut", line
    return subprocess.run(
        [SCRIPT, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_there_is_a_program_for_agents_and_one_for_the_world_outside():
    assert ["ctx.step" in program for program in blocks("python")] == [False, True]


@pytest.mark.parametrize("program", blocks("python"), ids=["agents", "outside"])
def test_the_programs_run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_tour_of_a_kept_demo_works_line_by_line(tmp_path):
    first, *rest = console_lines("--keep")
    words = shlex.split(first.replace("/tmp/look", str(tmp_path / "look")))
    child = subprocess.Popen(
        [SCRIPT, *words[1:], "--seconds", "4"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert child.stdout is not None
        said = []
        for line in child.stdout:
            said.append(line)
            if "Ctrl-C ends it" in line:
                break
        assert "Ctrl-C ends it" in said[-1], said
        environment = dict(os.environ)
        for line in rest:
            if line.startswith("export "):
                name, _, text = line.removeprefix("export ").partition("=")
                environment[name] = text.replace("/tmp/look", str(tmp_path / "look"))
                continue
            done = run(line, tmp_path, environment)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            assert done.stdout.strip(), line
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60)


def test_a_cluster_of_ones_own_is_made_and_its_configuration_passes(tmp_path):
    init, start = console_lines("keys init")
    done = run(init, tmp_path, dict(os.environ))
    assert done.returncode == 0, done.stderr
    done = run(start + " --check", tmp_path, dict(os.environ))
    assert done.returncode == 0, done.stderr
    again = run(init, tmp_path, dict(os.environ))
    assert again.returncode != 0


def test_the_seeded_worlds_it_shows_run(tmp_path):
    for line in console_lines("simulate run"):
        done = run(line, tmp_path, dict(os.environ))
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr)
    assert (tmp_path / "run.svg").read_text().startswith("<")


def test_folders_that_it_names_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
