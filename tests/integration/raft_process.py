"""A coordinator's Raft in a process of its own, driven by JSON lines: what the tests kill, stop and let go on.

As a program it is the child; `RaftProcess` and `raft_processes` are the parent's side. Only processes started here are
ever signalled, by their own pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.certificates import make_certificates
from coordinator.runtime.raft import RaftConfig, RaftGroup, TlsFiles, timing_preset
from protocol.errors import Refused, SnapshotError, Unreachable
from protocol.ids import ClusterName, CoordinatorId
from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).parents[2]


class Ledger:
    """A list of command ids in the order of their first application; a repeated id has no effect."""

    def __init__(self) -> None:
        self.sequence: list[str] = []
        self._seen: dict[str, int] = {}

    def apply(self, command: str) -> str:
        identity = command.partition(" ")[0]
        if identity == "raise":
            raise RuntimeError("this command raises everywhere")
        if identity not in self._seen:
            self._seen[identity] = len(self.sequence)
            self.sequence.append(identity)
        return str(self._seen[identity])

    def snapshot(self) -> str:
        return json.dumps(self.sequence)

    def restore(self, state: str) -> None:
        self.sequence = json.loads(state)
        self._seen = {identity: place for place, identity in enumerate(self.sequence)}


def free_addresses(count: int) -> list[str]:
    """Addresses on loopback that nobody used a moment ago."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def group_configs(folder: Path, size: int = 3, **settings) -> dict[str, RaftConfig]:
    """Settings and certificates of a group on loopback."""
    names = [CoordinatorId(f"c{number}") for number in range(1, size + 1)]
    addresses = dict(zip(names, free_addresses(size), strict=True))
    make_certificates(folder / "tls", {name: ["127.0.0.1"] for name in names})
    return {
        name: RaftConfig(
            id=name,
            cluster=ClusterName("demo"),
            folder=folder / name,
            listen=addresses[name],
            peers={other: address for other, address in addresses.items() if other != name},
            tls=tls_files(folder / "tls", name) if size > 1 else None,
            **settings,
        )
        for name in names
    }


def tls_files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(ca=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key")


async def eventually(condition: Callable[[], Awaitable[bool]], timeout: float = 20.0) -> None:
    """Wait until an asynchronous condition holds; TimeoutError if it does not in time."""
    async with asyncio.timeout(timeout):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)


class RaftProcess:
    """The parent's side of one child."""

    def __init__(self, config: RaftConfig, preset: str) -> None:
        self.config = config
        self._preset = preset
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict]] = {}
        self._reader: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.config.id

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        config = self.config
        settings = {
            "id": config.id,
            "folder": str(config.folder),
            "listen": config.listen,
            "peers": dict(config.peers),
            "tls": str(config.tls.ca.parent) if config.tls else None,
            "preset": self._preset,
            "compact_entries": config.compact_entries,
            "rejoin": config.rejoin,
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.raft_process",
            json.dumps(settings),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
            preexec_fn=_die_with_parent,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def ask(self, operation: str, **arguments) -> dict:
        """One request and its answer; `ConnectionError` if the child ends before it answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        number = next(self._numbers)
        future: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            if not self.running:
                raise ConnectionError(f"{self.name} does not run")
            line = json.dumps({"number": number, "operation": operation, **arguments})
            self._process.stdin.write(line.encode() + b"\n")
            return await future
        finally:
            self._waiting.pop(number, None)

    async def submit(self, command: str, timeout: float = 2.0) -> str:
        """`RaftGroup.submit`'s outcome: ``ok``, ``refused`` or ``unreachable``."""
        return (await self.ask("submit", command=command, timeout=timeout))["outcome"]

    async def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.running:
            assert self._process is not None
            self._process.kill()
        await self._ended()

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    async def _ended(self) -> None:
        assert self._process is not None
        await self._process.wait()
        if self._reader is not None:
            await self._reader
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            future = self._waiting.get(answer["number"])
            if future is not None and not future.done():
                future.set_result(answer)
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(ConnectionError(f"{self.name} ended"))


class RaftProcesses:
    """A group of children."""

    def __init__(self, members: list[RaftProcess]) -> None:
        self.members = members

    @property
    def running(self) -> list[RaftProcess]:
        return [member for member in self.members if member.running]

    async def wait_leader(self, among: list[RaftProcess] | None = None, timeout: float = 20.0) -> RaftProcess:
        """A child that leads and can commit."""
        async with asyncio.timeout(timeout):
            while True:
                for member in among or self.running:
                    status = await member.ask("status")
                    if status["is_leader"] and (await member.ask("barrier", timeout=1.0))["outcome"] == "ok":
                        return member
                await asyncio.sleep(0.01)

    async def wait_equal(self, timeout: float = 20.0) -> list[str]:
        """The sequence of ids, once all running children have the same."""
        async with asyncio.timeout(timeout):
            while True:
                answers = [await member.ask("sequence") for member in self.running]
                sequences = [answer["sequence"] for answer in answers]
                applied = {(await member.ask("status"))["applied"] for member in self.running}
                if len(applied) == 1 and all(each == sequences[0] for each in sequences):
                    return sequences[0]
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def raft_processes(folder: Path, *, preset: str = "normal", compact_entries: int = 5000):
    """Three children, all started; whatever happens, they are gone afterwards."""
    configs = group_configs(folder, compact_entries=compact_entries)
    group = RaftProcesses([RaftProcess(config, preset) for config in configs.values()])
    try:
        for member in group.members:
            await member.start()
        yield group
    finally:
        for member in group.members:
            if member._process is not None:
                await member.kill()


def _die_with_parent() -> None:
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)


# The child.


async def _child(settings: dict) -> None:
    name = settings["id"]
    config = RaftConfig(
        id=CoordinatorId(name),
        cluster=ClusterName("demo"),
        folder=Path(settings["folder"]),
        listen=settings["listen"],
        peers=settings["peers"],
        tls=tls_files(Path(settings["tls"]), name) if settings["tls"] else None,
        timing=timing_preset(settings["preset"]),
        compact_entries=settings["compact_entries"],
        rejoin=settings["rejoin"],
    )
    ledger, seen = Ledger(), Ledger()

    def applied(command: str, _result: str) -> None:
        seen.apply(command)

    group = RaftGroup(
        config, ledger.apply, ledger.snapshot, ledger.restore, applied, on_restored=seen.restore, on_fatal=_exit
    )
    await group.start()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set()
    while line := await reader.readline():
        task = loop.create_task(_answer(group, seen, json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await group.stop()


async def _answer(group: RaftGroup, seen: Ledger, request: dict) -> None:
    answer: dict = {"number": request["number"]}
    try:
        match request["operation"]:
            case "submit":
                answer["result"] = await group.submit(request["command"], request["timeout"])
            case "barrier":
                await group.barrier(request["timeout"])
            case "status":
                answer |= group.status()
            case "sequence":
                answer["sequence"] = seen.sequence
            case "read":
                await group.barrier(request["timeout"])
                answer["sequence"] = seen.sequence
        answer["outcome"] = "ok"
    except Refused as error:
        answer |= {"outcome": "refused", "code": error.code}
    except Unreachable:
        answer["outcome"] = "unreachable"
    except SnapshotError as error:
        answer |= {"outcome": "failed", "text": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _exit(_error: BaseException) -> None:
    os._exit(3)


if __name__ == "__main__":
    asyncio.run(_child(json.loads(sys.argv[1])))
