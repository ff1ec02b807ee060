"""What people get wrong when they start a participant: each ends with a sentence, none disturbs those that are there."""

import asyncio
import json
import re
import secrets
import socket
from pathlib import Path

import pytest
import pytest_asyncio

from protocol.failpoints import PERMISSION, VARIABLE
from tests.e2e.process import EXIT_ENDED
from tests.e2e.real_cluster import real_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """Two participants at work, for all of this file."""
    async with real_cluster(tmp_path_factory.mktemp("wrong"), participants=2) as made:
        yield made


def secret_of(cluster):
    return Path(cluster.secret_file).read_text().strip()


def changed(cluster, /, **changes):
    """The second participant's settings with something else in them; no agents, so that none is there twice."""
    spec = cluster.specs["bank-2"]
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return type(spec)(**{**fields, "agents": (), "odd": (), "id": "newcomer", **changes})


async def refused(cluster, /, **changes):
    """Start it; what it says at its end. The others must not notice."""
    said = await ended(cluster, **changes)
    record = await cluster.commit_one()
    assert sorted(record["members"]) == ["bank-1", "bank-2"]
    return said


async def ended(cluster, /, **changes):
    """Start it; what it says at its end."""
    child = await cluster.start_alone(changed(cluster, **changes))
    await cluster.has_ended_with(child, EXIT_ENDED)
    said = await child.read_line()
    log = child.log.read_text()
    assert "Traceback" not in log, log
    for hidden in (secret_of(cluster), cluster.keys.token("participant")):
        assert hidden not in log + said
    return json.loads(said)["ended"]


async def test_wrong_secret_is_told_as_such_and_shown_to_nobody(cluster, tmp_path):
    wrong = tmp_path / "other.secret"
    wrong.touch(mode=0o600)
    text = secrets.token_hex(32)
    wrong.write_text(text)
    said = await refused(cluster, secret_file=str(wrong))
    assert "wrong-token" in said or "secret" in said
    assert text not in said


async def test_secret_that_is_missing_or_short_or_readable_by_all_is_told_with_its_file(cluster, tmp_path):
    short = tmp_path / "short.secret"
    short.touch(mode=0o600)
    short.write_text("too short")
    for path in (tmp_path / "nowhere.secret", short):
        said = await refused(cluster, secret_file=str(path))
        assert said.startswith("ConfigError")
        assert str(path) in said


async def test_id_that_is_taken_is_refused_and_the_first_one_stays(cluster):
    """Long enough to be sure that it is no predecessor whose lease still runs."""
    before = (await cluster.commit_one())["members"]["bank-2"]["session"]
    said = await refused(cluster, id="bank-2")
    assert "id-taken" in said or "taken" in said or "bank-2" in said
    assert (await cluster.commit_one())["members"]["bank-2"]["session"] == before


async def test_agent_that_lives_elsewhere_is_refused_by_name(cluster):
    [(kind, name), *_] = cluster.specs["bank-2"].agents
    said = await refused(cluster, agents=((kind, name),))
    assert f"{kind}/{name}" in said


async def test_wrong_cluster_is_refused_by_name(cluster, tmp_path):
    (tmp_path / "store").mkdir()
    said = await refused(cluster, cluster="shop", store=str(tmp_path / "store"))
    assert "shop" in said
    assert "demo" in said or "cluster" in said


async def test_hostile_names_are_refused_before_anything_is_connected(cluster):
    """Paths, NUL, 300 characters, escape codes, markup, nothing, other letters: each by a sentence that is safe to print."""
    names = [
        "../../etc/passwd",
        "a\0b",
        "x" * 300,
        "\x1b[31mred",
        "<img src=x onerror=alert(1)>",
        "",
        "Großkunde",
        "a b",
    ]
    for name, said in zip(names, await asyncio.gather(*(ended(cluster, id=name) for name in names)), strict=True):
        assert said.startswith("IllegalName"), (name, said)
        assert said.isprintable(), (name, said)
        assert len(said) < 400, (name, said)
    await cluster.commit_one()


async def test_port_in_use_is_named(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = await refused(cluster, listen=f"127.0.0.1:{port}")
    assert "EADDRINUSE" in said
    assert str(port) in said


async def test_store_that_is_no_folder_is_named(cluster, tmp_path):
    said = await refused(cluster, store=str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in said
    assert re.search(r"create|mkdir", said)


@pytest.mark.parametrize(
    ("variables", "listen", "expected"),
    [
        ({VARIABLE: "local.frozen=exit"}, "127.0.0.1:0", PERMISSION),
        ({VARIABLE: "local.frozen=exit", PERMISSION: "1"}, "0.0.0.0:0", "loopback"),
        ({VARIABLE: "local.frozn=exit", PERMISSION: "1"}, "127.0.0.1:0", "local.frozn"),
    ],
)
async def test_failpoints_in_a_process_that_must_not_have_them_are_refused(cluster, variables, listen, expected):
    """T25: without the permission, where others can connect, or under a name that is no point."""
    before = dict(cluster.variables)
    cluster.variables.update(variables)
    try:
        said = await refused(cluster, listen=listen)
    finally:
        cluster.variables.clear()
        cluster.variables.update(before)
    assert said.startswith("ConfigError")
    assert expected in said


async def test_after_all_that_nothing_is_wrong(cluster):
    history = await cluster.judge()
    assert all(each["state"] == "committed" for each in history)
    rows = (await cluster.call("GET", "/v1/participants?fresh=1"))["participants"]
    assert [row["id"] for row in rows if row["state"] == "member"] == ["bank-1", "bank-2"]
