"""The API over HTTPS: coordinators pass requests on, the command line and participants check certificates."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pytest

from participant import Agent, Participant, value
from protocol.keys import trust
from tests.cli_cluster import CliCluster
from tests.integration.coordinators import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Counter(Agent, kind="counter"):
    count = value(int, default=0)


async def test_a_cluster_that_speaks_https_only(tmp_path, caplog):
    running = CliCluster(tmp_path / "shop", 3, "--https")
    try:
        for name in ("c1", "c2", "c3"):
            await asyncio.to_thread(running.start, name)
        description = json.loads((running.folder / "cleancut.json").read_text())
        assert all(place.startswith("https://") for place in description["coordinators"])
        settings = {
            "id": "p1",
            "cluster": "shop",
            "coordinators": description["coordinators"],
            "store": str(running.folder / "store"),
            "secret_file": str(running.folder / "cluster.secret"),
        }
        ca = str(running.folder / description["ca"])
        async with Participant(Counter("one"), **settings, ca_file=ca) as participant:
            await participant.wait_member()
            assert (await asyncio.to_thread(running.document, "status"))["leader"]
            await asyncio.to_thread(running.cleancut, "policy", "set", "--pause", "0ms", "--kind", "manual")
            for each in description["coordinators"]:
                # Two of them follow and pass it on.
                made = await asyncio.to_thread(
                    running.cleancut, "epoch", "trigger", "--coordinators", each, "--dir", str(running.folder)
                )
                assert made.returncode == 0, made.stderr
                number = int(made.stdout.split()[1])
                # What was done through one is seen through every other, at once.
                for other in description["coordinators"]:
                    seen = await asyncio.to_thread(
                        running.document, "epoch", "list", "--coordinators", other, "--dir", str(running.folder)
                    )
                    assert [row["state"] for row in seen["epochs"] if row["epoch"] == number] == ["committed"]
        plain = description["coordinators"][0].replace("https://", "http://")
        ended = await asyncio.to_thread(running.cleancut, "status", "--coordinators", plain)
        assert ended.returncode == 5
        assert "is it an https:// address?" in ended.stderr
        ended = await asyncio.to_thread(
            running.cleancut, "status", "--coordinators", ",".join(description["coordinators"]), CLEANCUT_DIR=""
        )
        assert ended.returncode == 5
        assert "is not trusted" in ended.stderr
        assert "--ca" in ended.stderr
        stranger = Participant(Counter("two"), **{**settings, "id": "p2"})
        joining = asyncio.create_task(stranger.__aenter__())
        await until(lambda: "is ca_file the cluster's?" in caplog.text, "the participant says what is wrong")
        await joining
        await stranger.__aexit__(None, None, None)

        def page():
            with urllib.request.urlopen(description["coordinators"][0], context=trust("ca", ca)) as response:
                return response.read()

        assert b"Cleancut" in await asyncio.to_thread(page)
    finally:
        running.close()


def test_an_authority_that_is_none_is_refused_with_its_name(tmp_path):
    from protocol.errors import ConfigError

    with pytest.raises(ConfigError, match=r"--ca: '.*none\.pem' cannot be used: No such file"):
        trust("--ca", tmp_path / "none.pem")
    (tmp_path / "text.pem").write_text("hello")
    with pytest.raises(ConfigError, match="it holds no certificate"):
        trust("--ca", tmp_path / "text.pem")
