"""The public names of the packages: a change to them is always on purpose, and each of them works."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("protocol", "participant", "coordinator", "simulations")
ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("public_names.txt")
HEAVY = (
    "aiohttp",
    "aiomqtt",
    "asyncio",
    "blake3",
    "cloudpickle",
    "cryptography",
    "msgspec",
    "networkx",
    "pysyncobj",
    "rich",
)


def listed(package: str) -> list[str]:
    """The package's names in public_names.txt."""
    names = [
        line.strip() for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    ]
    return [name.partition(".")[2] for name in names if name.startswith(f"{package}.")]


def parsed(package: str) -> ast.Module:
    return ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))


def names_for_type_checkers(package: str) -> dict[str, str]:
    """Name -> module, from the imports under ``if TYPE_CHECKING:``."""
    return {
        alias.name: str(node.module)
        for block in parsed(package).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def names_at_run_time(package: str) -> dict[str, str]:
    """Name -> module, from the table given to lazy_exports."""
    calls = [
        node
        for node in ast.walk(parsed(package))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy_exports"
    ]
    assert len(calls) == 1
    table = ast.literal_eval(calls[0].args[1])
    return {name: f"{package}.{module}" for module, names in table.items() for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_those_of_the_list(package: str) -> None:
    """A name that appears, goes or is renamed is a change for users: it is also made in public_names.txt, and in the changelog."""
    exported = importlib.import_module(package).__all__
    assert list(exported) == sorted(set(exported)), f"{package}.__all__ is not sorted"
    missing = sorted(set(listed(package)) - set(exported))
    added = sorted(set(exported) - set(listed(package)))
    assert (missing, added) == ([], []), f"{package}: gone {missing}, new {added}; if that is meant, edit {LIST.name}"


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_and_the_interpreter_see_the_same_names(package: str) -> None:
    assert names_for_type_checkers(package) == names_at_run_time(package)
    assert sorted(names_at_run_time(package)) == list(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_resolves_and_stays_one_object(package: str) -> None:
    module = importlib.import_module(package)
    for name, home in names_at_run_time(package).items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name), name
        assert getattr(module, name) is getattr(module, name), name
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_is_a_submodule_too(package: str) -> None:
    """Which of the two a user saw would depend on what had been imported before."""
    submodules = {found.name for found in pkgutil.iter_modules(importlib.import_module(package).__path__)}
    assert submodules.isdisjoint(names_at_run_time(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(package).no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    """In a process of its own: this one has imported everything already."""
    code = f"import sys, {package}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    assert answer.stdout.split() == []


def test_the_list_names_no_other_package_and_no_name_twice() -> None:
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines == sorted(set(lines), key=lambda line: (PACKAGES.index(line.partition(".")[0]), line))
