"""How the command starts and ends as a process: start-up cost, pipes, other packages' commands, the coordinator's settings."""

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.plugins import plugin_commands
from coordinator.cli.root import COMMANDS, root
from protocol.version import __version__
from tests.unit.cli.fake_api import Cli

ROOT = Path(__file__).parents[3]
HEAVY = (
    "aiohttp",
    "aiomqtt",
    "asyncio",
    "blake3",
    "cryptography",
    "msgspec",
    "networkx",
    "pysyncobj",
    "rich",
    "http.client",
    "ssl",
)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CLEANCUT_", "COV_"))}


def cleancut(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    settings = {"capture_output": True, "text": True, "timeout": 50, "cwd": ROOT, "env": ENVIRONMENT, **options}
    return subprocess.run([sys.executable, "-m", "coordinator.cli", *arguments], check=False, **settings)


def cpu_seconds(arguments: list[str]) -> float:
    """CPU of a child process, the least of three: what other processes do only adds to it."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, timeout=50, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(3))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["epoch", "--help"], ["epoch", "trigger", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom coordinator.cli.root import run\n"
        f"code = run({arguments!r})\n"
        f"print('HEAVY', *sorted(set({HEAVY!r}) & set(sys.modules)))\nsys.exit(code)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=50, check=True
    )
    assert ended.stdout.splitlines()[-1] == "HEAVY"


def test_help_costs_little_more_than_the_interpreter() -> None:
    """The bar is 0.3 s of CPU where an empty program takes 0.02 s; as a ratio it holds on slower machines too."""
    empty = cpu_seconds(["-c", "import typing, re, json"])
    full = cpu_seconds(["-m", "coordinator.cli", "--help"])
    assert full < 10 * empty, f"{full:.3f} s against {empty:.3f} s"


def test_help_lists_every_command_with_a_line() -> None:
    listing = cleancut("--help").stdout
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary.split()[0])}", listing, re.MULTILINE), name


def test_every_command_can_be_loaded_and_says_what_it_does(cli: Cli) -> None:
    for name in COMMANDS:
        ended = cli(name, "--help")
        assert ended.code == 0, ended.err
        assert ended.out.startswith(f"Usage: cleancut {name}")


def test_version_is_the_builds() -> None:
    assert cleancut("--version").stdout == f"cleancut {__version__}\n"


def test_a_process_ends_with_the_code_and_without_a_traceback() -> None:
    ended = cleancut("status", "--coordinators", "127.0.0.1:1")
    assert (ended.returncode, ended.stdout) == (5, "")
    assert "Traceback" not in ended.stderr


def test_an_interrupt_while_nobody_answers_ends_at_once_without_a_traceback() -> None:
    """Pressed again where the first came in the instant before the process began to wait: Python then sees it only afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, "-m", "coordinator.cli", "status", "--coordinators"]
        child = subprocess.Popen(
            [*command, f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "60"],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            peer, _ = silent.accept()
            with peer:
                peer.recv(1)
                for seconds in (5, 5, 5, 25):
                    child.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        out, err = child.communicate(timeout=seconds)
                        break
        finally:
            child.kill()
    assert (child.returncode, out) == (130, "")
    assert err.strip() == "cleancut: interrupted"


def test_a_reader_that_goes_away_is_not_an_error_message() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ended = cleancut("--help", capture_output=False, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_a_full_disk_behind_the_output_is_told() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = cleancut("--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_terminal_that_knows_only_ascii_gets_escapes(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    ended = cleancut("status", "--dir", str(tmp_path / "grüße"), env=environment)
    assert ended.returncode == 2
    assert "gr" in ended.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(cli: Cli, shell: str) -> None:
    assert "_CLEANCUT_COMPLETE" in cli("completion", shell).out


def test_completion_knows_commands_and_options() -> None:
    for words, expected in (
        ("cleancut epoch ", "trigger"),
        ("cleancut pol", "policy"),
        ("cleancut epoch show --js", "--json"),
    ):
        environment = {
            **ENVIRONMENT,
            "_CLEANCUT_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        assert expected in cleancut(env=environment).stdout, words


# --- commands of other packages -------------------------------------------------------------------------------------


def install(folder: Path, entry_points: str, code: str) -> str:
    """A distribution on a path of its own."""
    information = folder / "extra-1.dist-info"
    information.mkdir()
    (information / "entry_points.txt").write_text(entry_points)
    (folder / "extra_commands.py").write_text(code)
    return str(folder)


def test_commands_of_other_packages_are_found_listed_and_run(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[console_scripts]\nx = y:z\n[cleancut.commands]\n# a comment\nextra = extra_commands:hello\n"
    code = "import click\n@click.command()\ndef hello():\n    click.echo('hello from elsewhere')\n"
    monkeypatch.syspath_prepend(install(tmp_path, text, code))
    assert plugin_commands()["extra"] == "extra_commands:hello"
    assert "extra" in cli("--help").out
    assert cli("extra").out == "hello from elsewhere\n"


@pytest.mark.parametrize(
    ("target", "code", "problem"),
    [
        ("no_such_module:hello", "", "no_such_module"),
        ("extra_commands:nothing", "", "nothing"),
        ("extra_commands:hello", "hello = 7\n", "not a click command"),
    ],
)
def test_a_broken_command_of_another_package_breaks_nothing_else(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, code: str, problem: str
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, f"[cleancut.commands]\nbroken = {target}\n", code))
    monkeypatch.delitem(sys.modules, "extra_commands", raising=False)
    assert cli("--help").code == 0
    ended = cli("broken")
    assert ended.code == 1
    assert problem in ended.err
    monkeypatch.delitem(sys.modules, "extra_commands", raising=False)


def test_damaged_distributions_are_passed_over(tmp_path: Path) -> None:
    install(tmp_path, "[cleancut.commands", "")
    (tmp_path / "bad-1.dist-info").mkdir()
    (tmp_path / "bad-1.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[cleancut.commands]\n")
    assert plugin_commands([str(tmp_path), "/no/such/folder", ""]) == {}


def test_an_own_command_is_never_replaced_by_another_packages(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path, "[cleancut.commands]\nstatus = extra_commands:hello\n", ""))
    assert "at a glance" in cli("status", "--help").out


def test_the_demo_is_one_of_the_commands() -> None:
    assert "demo" in root.list_commands(root.make_context("cleancut", ["status"], resilient_parsing=True))


# --- settings of the coordinator ------------------------------------------------------------------------------------


def test_a_typo_in_a_settings_file_is_exit_2_with_the_nearest_setting(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:7500:7400")
    path = tmp_path / "k" / "c1.toml"
    path.write_text(path.read_text().replace("data_dir", "datadir"))
    ended = cli("coordinator", "--config", path, "--check")
    assert ended.code == 2
    assert "did you mean 'data_dir'" in ended.err
    assert str(path) in ended.err


def test_flags_beat_the_file_and_check_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "init", tmp_path / "k", "--coordinators", "c1=127.0.0.1:7500:7400")
    path = tmp_path / "k" / "c1.toml"
    assert cli("coordinator", "--config", path, "--check").code == 0
    assert cli("coordinator", "--config", path, "--http", "nonsense", "--check").code == 2
    assert not (tmp_path / "k" / "data-c1").exists()
    assert cli("coordinator", "--check").code == 2
