"""The command line in this process, and a coordinator's API to ask."""

from collections.abc import Iterator

import pytest

from coordinator.cli.root import run
from tests.unit.cli.fake_api import Cli, Ended, FakeApi, running_api


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running_api() as fake:
        yield fake


@pytest.fixture
def second_api() -> Iterator[FakeApi]:
    with running_api() as fake:
        yield fake


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``cleancut`` with arguments."""

    def call(*arguments: object) -> Ended:
        code = run([str(each) for each in arguments])
        printed = capsys.readouterr()
        return Ended(code, printed.out, printed.err)

    return call


@pytest.fixture
def ask(cli: Cli, api: FakeApi) -> Cli:
    """Runs ``cleancut`` against the API."""

    def call(*arguments: object) -> Ended:
        return cli("--coordinators", api.address, *arguments)

    return call
