"""D12: taken on 6 hosts with messages in flight, restored on 2, then on 12, and on hosts with other names."""

from __future__ import annotations

import pytest

from participant.testing import Cluster
from protocol.errors import Refused
from tests.integration.test_restore import Account, Got, Pay, total

NAMES = [f"a{number}" for number in range(12)]
HOSTS = [f"p{number + 1}" for number in range(12)]


def spread(hosts: list[str]) -> dict[str, list[str]]:
    """All agents over these hosts; the other ones are there and have none."""
    placed: dict[str, list[str]] = {host: [] for host in HOSTS}
    for number, name in enumerate(NAMES):
        placed[hosts[number % len(hosts)]].append(f"account/{name}")
    return placed


async def busy_cut(cluster: Cluster):
    """An epoch with messages on many channels: sent before the cut of the sender, on their way at the receiver's."""
    for round_ in range(6):
        for index, name in enumerate(NAMES):
            await cluster.send(f"account/{name}", Pay(f"account/{NAMES[(index + 1 + 2 * round_) % 12]}", 1 + round_))
        if round_ == 4:
            number = cluster.conductor.start_epoch("test")
    epoch = await cluster.committed(number)
    await cluster.idle()
    return epoch


def seen(cluster: Cluster) -> dict[str, list[int]]:
    """What each account has got, in order."""
    return {name: list(cluster[f"account/{name}"].seen) for name in NAMES}


async def test_restored_on_two_and_on_twelve_hosts_what_was_taken_on_six():
    groups = [[Account(NAMES[number]), Account(NAMES[number + 6])] for number in range(6)]
    async with Cluster(*groups, *([] for _ in range(6)), messages=[Got]) as cluster:
        epoch = await busy_cut(cluster)
        waiting = len(epoch.in_flight()) + sum(len(epoch.mailbox(f"account/{name}")) for name in NAMES)
        assert waiting > 0
        handled = []
        for hosts in (HOSTS[:2], HOSTS, HOSTS[6:9]):
            await cluster.restore(epoch, placement=spread(hosts))
            await cluster.idle()
            assert total(cluster, *NAMES) == 1_200
            handled.append({name: sorted(numbers) for name, numbers in seen(cluster).items()})
        # The same was left to handle each time: nothing is lost, nothing comes twice.
        assert handled[0] == handled[1] == handled[2]
        again = await cluster.epoch()
        assert again.total(lambda _, fields: fields["balance"], lambda message: getattr(message, "amount", 0)) == 1_200


async def test_agent_without_a_host_is_refused_by_name():
    async with Cluster(Account("a0"), Account("a1"), messages=[Got]) as cluster:
        epoch = await cluster.epoch()
        for participant in cluster.participants.values():
            participant._factories.clear()
        with pytest.raises(Refused, match="account/a1"):
            await cluster.restore(epoch, placement={"p1": ["account/a0", "account/a1"], "p2": []})
