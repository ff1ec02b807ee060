"""Runs of other people's files: a topology (``.top``) and a script of sends, snapshots and ticks (``.events``).

The format is that of the COS418 assignment: the first line of a topology is the number of servers, then ``ID TOKENS`` a
line, then ``SRC DST`` a line for each one-way channel. A script has ``send SRC DST N``, ``snapshot ID`` and ``tick [N]``.
Here each server is a real process, a tick is real time, and delays are those of the machine: what is in flight at a cut
differs from run to run, but every cut must hold exactly the file's tokens.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import ConfigError, IllegalName, Refused, SnapshotError
from protocol.ids import check_name, cluster_name
from protocol.storage import open_store
from simulations.demo import summary
from simulations.demo.process import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from simulations.demo.cluster import LocalCluster

TICK_SECONDS = 0.01
SERVERS_MAX = 64
START_SECONDS = 30.0
POLICY = {"kind": "manual", "pause_ms": 0, "deadline_ms": 20_000, "max_concurrent": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Servers with their tokens, and one-way channels."""

    servers: dict[str, int]
    channels: tuple[tuple[str, str], ...]

    def targets(self, server: str) -> tuple[str, ...]:
        """Where a server sends to."""
        return tuple(sorted({target for source, target in self.channels if source == server}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line of a script."""

    verb: str
    source: str = ""
    target: str = ""
    number: int = 1


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.split()


def _count(path: Path, line: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ConfigError(str(path), f"line {line}: {text!r} is not a whole number")
    return int(text)


def _server(path: Path, line: int, text: str) -> str:
    try:
        return check_name("server", text.lower())
    except IllegalName as error:
        raise ConfigError(str(path), f"line {line}: {error.problem}") from None


def read_topology(path: Path) -> Topology:
    """A ``.top`` file. Ids are lower-cased: participants' names are.

    Raises:
        ConfigError: With file, line and what is wrong.
    """
    lines = list(_lines(path))
    if not lines:
        raise ConfigError(str(path), "is empty; its first line is the number of servers")
    count = _count(path, lines[0][0], lines[0][1][0])
    if not 1 <= count <= SERVERS_MAX:
        raise ConfigError(str(path), f"names {count} servers; 1 to {SERVERS_MAX} processes can be started")
    if len(lines) < 1 + count:
        raise ConfigError(str(path), f"promises {count} servers and has {len(lines) - 1} more lines")
    servers: dict[str, int] = {}
    for line, words in lines[1 : 1 + count]:
        if len(words) != 2:
            raise ConfigError(str(path), f"line {line}: a server is ID TOKENS")
        name = _server(path, line, words[0])
        if name in servers:
            raise ConfigError(
                str(path), f"line {line}: server {name} stands there twice (upper and lower case are the same)"
            )
        servers[name] = _count(path, line, words[1])
    channels: list[tuple[str, str]] = []
    for line, words in lines[1 + count :]:
        if len(words) != 2:
            raise ConfigError(str(path), f"line {line}: a channel is SRC DST")
        source, target = (_server(path, line, word) for word in words)
        for end in (source, target):
            if end not in servers:
                raise ConfigError(str(path), f"line {line}: no server {end}")
        if source != target and (source, target) not in channels:
            channels.append((source, target))
    return Topology(servers=servers, channels=tuple(channels))


def read_script(path: Path, topology: Topology) -> list[Command]:
    """An ``.events`` file.

    Raises:
        ConfigError: With file, line and what is wrong.
    """
    commands: list[Command] = []
    for line, words in _lines(path):
        match words:
            case ["send", source, target, number]:
                ends = _server(path, line, source), _server(path, line, target)
                if ends not in topology.channels:
                    raise ConfigError(str(path), f"line {line}: the topology has no channel {ends[0]} -> {ends[1]}")
                commands.append(Command(verb="send", source=ends[0], target=ends[1], number=_count(path, line, number)))
            case ["snapshot", server]:
                name = _server(path, line, server)
                if name not in topology.servers:
                    raise ConfigError(str(path), f"line {line}: no server {name}")
                commands.append(Command(verb="snapshot", source=name))
            case ["tick"]:
                commands.append(Command(verb="tick"))
            case ["tick", number]:
                commands.append(Command(verb="tick", number=_count(path, line, number)))
            case _:
                raise ConfigError(str(path), f"line {line}: {' '.join(words)[:60]!r} is not send, snapshot or tick")
    return commands


async def run(
    cluster: LocalCluster, topology: Topology, script: list[Command], *, transport: str, say: Callable[[str], None]
) -> list[summary.EpochSums]:
    """One process per server; obey the script; verify and count every cut.

    A snapshot has begun when the script goes on, and no more: the sends after it race with its markers, and snapshots may
    overlap, as in the original. Where the original lets one server begin, every member is told to.

    Returns:
        One entry per snapshot of the script, in order.

    Raises:
        SnapshotError: An epoch did not commit.
    """
    specs = [
        Spec(
            id=name,
            cluster=cluster.name,
            coordinators=tuple(each.http for each in cluster.coordinators),
            transport=transport,
            store=cluster.store,
            secret_file=cluster.secret_file,
            servers=((name, count),),
            targets=topology.targets(name),
        )
        for name, count in topology.servers.items()
    ]
    await asyncio.gather(*(cluster.start_participant(spec) for spec in specs))
    say(f"{len(specs)} servers are members; {len(topology.channels)} channels")
    numbers: list[int] = []
    for command in script:
        match command.verb:
            case "send":
                answer = await cluster.ask(
                    command.source,
                    {
                        "do": "ingest",
                        "agent": f"server/{command.source}",
                        "send": [f"server/{command.target}", command.number],
                    },
                )
                if "error" in answer:
                    raise SnapshotError(f"{command.source} cannot send: {answer['error']}")
            case "snapshot":
                numbers.append(await _start(cluster, command.source))
            case _:
                await asyncio.sleep(command.number * TICK_SECONDS)
    for number in numbers:
        await _wait_committed(cluster, number)
    store = open_store(cluster.store, cluster_name(cluster.name))
    keys = cluster.keys
    expected = sum(topology.servers.values())
    sums = [summary.sum_tokens(store, number, keys, expected=expected) for number in numbers]
    for each in sums:
        say(f"  epoch {each.epoch}: {each.total} of {each.expected} tokens, {each.on_the_way} of them in messages")
    return sums


async def _start(cluster: LocalCluster, server: str) -> int:
    """Start an epoch; right after the last server has joined, the others may still have to accept the topology."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                document = await cluster.call("POST", "/v1/epochs", {"reason": f"snapshot {server}"})
            except Refused as error:
                if error.code not in {"not-ready", "too-soon", "epoch-open"}:
                    raise
                await asyncio.sleep(TICK_SECONDS)
                continue
            return int(document["epoch"])


async def _wait_committed(cluster: LocalCluster, epoch: int) -> None:
    while True:
        document = await cluster.call("GET", f"/v1/epochs/{epoch}")
        match document["state"]:
            case "committed":
                return
            case "aborted":
                raise SnapshotError(f"epoch {epoch} did not commit: {document.get('abort')}")
            case _:
                await asyncio.sleep(TICK_SECONDS)
