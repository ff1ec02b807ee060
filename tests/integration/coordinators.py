"""Real coordinator processes on loopback, and participants that follow a script.

A scripted participant speaks the control protocol over a real WebSocket and writes real local-snapshot objects into the
store; it has no channels' traffic, so each of its cuts is empty and consistent. What it does with each order can be
changed by a test.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from blake3 import blake3

from coordinator.certificates import make_certificates
from protocol.channel import digest_text
from protocol.digests import digest, snapshot_key
from protocol.documents import encode_local_snapshot
from protocol.ids import ClusterName, coordinator_id
from protocol.keys import ClusterKeys, read_secret
from protocol.manifest import AgentSnapshot, IncomingCut, LocalSnapshot, OutgoingCut
from protocol.messages import (
    AbortEpoch,
    EpochCommitted,
    Heartbeat,
    LocalReport,
    Register,
    Registered,
    RegisterRefused,
    StartEpoch,
    ToParticipant,
    TopologyAccepted,
    TopologyChanged,
    decode_to_participant,
    encode_control,
)
from protocol.storage import open_store
from protocol.topology import Topology
from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "shop"
PATIENCE = 20.0


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll a condition of another process: there is no event to wait for."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                result = condition()
                if asyncio.iscoroutine(result):
                    result = await result
                if result:
                    return result
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


class Line:
    """A TCP connection's way from one coordinator to another, which can be cut in silence."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Nothing passes any more; nobody is told."""
        self._open.clear()

    def heal(self) -> None:
        """What was open is reset, new connections pass."""
        self._open.set()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        self.heal()
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening.fileno())
            # What was taken just now has its transport by then; without, its socket would be nobody's.
            loop.call_soon(self._server.close)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._writers.append(far_writer)
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


class Coordinator:
    """One process."""

    def __init__(self, name: str, config: Path, http: str) -> None:
        self.name = name
        self.config = config
        self.http = http
        self.url = f"http://{http}"
        self.process: asyncio.subprocess.Process | None = None
        self.log = config.with_suffix(".log")
        self.ready = ""
        self.variables: dict[str, str] = {}
        """Of the environment, for the next start."""

    async def start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                "-m",
                "coordinator.runtime.service",
                "--config",
                str(self.config),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("CLEANCUT_")}
                | self.variables,
            )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        self.ready = line.decode().strip()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE)

    def text(self) -> str:
        return self.log.read_text()


class Cluster:
    """Coordinators with one secret and one store."""

    def __init__(self, folder: Path, count: int, policy: dict[str, Any], extra: str = "", store: str = "") -> None:
        self.folder = folder
        self.store_url = store or str(folder / "store")
        Path(self.store_url).mkdir(exist_ok=True)
        self.secret_file = folder / "secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(secrets.token_hex(32))
        self.keys = ClusterKeys.from_secret(read_secret(self.secret_file))
        names = [f"c{index + 1}" for index in range(count)]
        ports = free_ports(2 * count + count * count)
        self.lines: dict[tuple[str, str], Line] = {
            (near, far): Line(ports[2 * count + i * count + j], ports[2 * j + 1])
            for i, near in enumerate(names)
            for j, far in enumerate(names)
            if near != far
        }
        if count > 1:
            make_certificates(folder / "tls", {coordinator_id(name): ("127.0.0.1",) for name in names})
        self.coordinators: list[Coordinator] = []
        for index, name in enumerate(names):
            path = folder / f"{name}.toml"
            path.write_text(self._config(names, ports, index, policy, extra))
            self.coordinators.append(Coordinator(name, path, f"127.0.0.1:{ports[2 * index]}"))
        self.session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        await asyncio.gather(*(line.start() for line in self.lines.values()))
        await asyncio.gather(*(each.start() for each in self.coordinators))

    def lines_of(self, one: Coordinator) -> list[Line]:
        """All ways between this coordinator and the others."""
        return [line for pair, line in self.lines.items() if one.name in pair]

    def _config(self, names: list[str], ports: list[int], index: int, policy: dict[str, Any], extra: str) -> str:
        lines = [
            f'id = "{names[index]}"',
            f'cluster = "{CLUSTER}"',
            f'data_dir = "{names[index]}"',
            f"store = {json.dumps(self.store_url)}",
            f'http = "127.0.0.1:{ports[2 * index]}"',
            f'raft = "127.0.0.1:{ports[2 * index + 1]}"',
            'secret_file = "secret"',
            extra,
        ]
        if len(names) > 1:
            lines.append('timing = "slow"')
            lines += [
                "[tls]",
                'ca = "tls/ca.pem"',
                f'cert = "tls/{names[index]}.pem"',
                f'key = "tls/{names[index]}.key"',
            ]
            for other, name in enumerate(names):
                line = self.lines.get((names[index], name))
                lines += [
                    f"[peers.{name}]",
                    f'raft = "127.0.0.1:{line.port if line else ports[2 * other + 1]}"',
                    f'http = "127.0.0.1:{ports[2 * other]}"',
                ]
        lines += ["[policy]", *(f"{key} = {json.dumps(value)}" for key, value in policy.items())]
        return "\n".join(lines) + "\n"

    @property
    def c1(self) -> Coordinator:
        return self.coordinators[0]

    def coordinator(self, name: str) -> Coordinator:
        return next(each for each in self.coordinators if each.name == name)

    async def call(
        self, method: str, path: str, body: Any = None, *, at: Coordinator | None = None, role: str | None = "operator"
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON document and headers."""
        assert self.session is not None
        headers = {"Authorization": f"Bearer {self.keys.token(role)}"} if role else {}
        url = f"{(at or self.c1).url}{path}"
        async with self.session.request(method, url, json=body, headers=headers) as response:
            text = await response.text()
            document = json.loads(text) if response.content_type == "application/json" else text
            return response.status, document, dict(response.headers)

    async def get(self, path: str, at: Coordinator | None = None) -> Any:
        status, document, _ = await self.call("GET", path, at=at)
        assert status == 200, (status, document)
        return document

    async def leader(self, *, other_than: str = "") -> Coordinator:
        async def ask() -> Coordinator | None:
            for each in self.coordinators:
                if not each.running:
                    continue
                try:
                    status, document, headers = await self.call("GET", "/v1/status?fresh=1", at=each)
                except aiohttp.ClientError:
                    continue
                if status == 200 and headers["Cleancut-Leader"] == "1" and document["leader"] != other_than:
                    return each
            return None

        found: Coordinator = await until(ask, "a leader")
        return found

    async def epoch(self, number: int | str, *states: str, at: Coordinator | None = None) -> Any:
        """The record of an epoch once it is in one of these states."""

        async def ask() -> Any:
            try:
                status, document, _ = await self.call("GET", f"/v1/epochs/{number}", at=at)
            except aiohttp.ClientError:
                return None
            return document if status == 200 and document["state"] in states else None

        return await until(ask, f"epoch {number} is {' or '.join(states)}")


@asynccontextmanager
async def cluster(
    folder: Path, count: int = 1, *, extra: str = "", store: str = "", **policy: Any
) -> AsyncIterator[Cluster]:
    """Running coordinators; at the end none runs any more."""
    defaults = {"kind": "manual", "pause_ms": 0, "deadline_ms": 8_000, "recovery": "off"}
    made = Cluster(folder, count, {**defaults, **policy}, extra, store)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        made.session = session
        try:
            await made.start()
            for each in made.coordinators:
                assert each.ready, each.text()
            yield made
        finally:
            for line in made.lines.values():
                line.close()
            for each in made.coordinators:
                if each.running:
                    assert each.process is not None
                    each.process.send_signal(signal.SIGCONT)
                    await each.end(signal.SIGKILL)


class Scripted:
    """One participant.

    Attributes:
        answers: Whether it answers start orders with reports by itself.
    """

    def __init__(self, cluster: Cluster, name: str, agents: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.name = name
        self.agents = agents or (f"buyer/{name}",)
        self.boot_id = secrets.token_hex(16)
        self.session = 0
        self.topology: TopologyChanged | None = None
        self.answers = True
        self.received: list[ToParticipant] = []
        self.orders: list[StartEpoch] = []
        self.committed: list[int] = []
        self.aborted: dict[int, str] = {}
        self.store = open_store(cluster.store_url, ClusterName(CLUSTER))
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        await until(lambda: self.is_member, f"{self.name} is a member")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """End without a goodbye."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    @property
    def is_member(self) -> bool:
        return self.topology is not None and any(each.id == self.name for each in self.topology.members)

    async def send(self, message: Any) -> None:
        assert self._socket is not None
        await self._socket.send_bytes(encode_control(message))

    async def _run(self) -> None:
        """Connect to whoever leads, again and again."""
        urls = [each.url for each in self.cluster.coordinators]
        async with aiohttp.ClientSession() as session:
            while not self._ended:
                url = urls[0]
                urls.append(urls.pop(0))
                with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                    await self._connection(session, url)
                await asyncio.sleep(0.05)

    async def _connection(self, session: aiohttp.ClientSession, url: str) -> None:
        headers = {"Authorization": f"Bearer {self.cluster.keys.token('participant')}"}
        async with session.ws_connect(f"{url}/v1/participant", headers=headers) as socket:
            self._socket = socket
            await self.send(
                Register(
                    cluster=CLUSTER,
                    participant=self.name,
                    boot_id=self.boot_id,
                    agents=self.agents,
                    session=self.session,
                    address="memory:",
                )
            )
            beat = asyncio.create_task(self._beat())
            try:
                async for received in socket:
                    if received.type is aiohttp.WSMsgType.BINARY:
                        await self._take(decode_to_participant(received.data))
            finally:
                beat.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            if self.session:
                await self.send(Heartbeat(session=self.session))

    async def _take(self, message: ToParticipant) -> None:
        self.received.append(message)
        match message:
            case Registered(session=session):
                self.session = session
            case RegisterRefused():
                pass
            case TopologyChanged(version=version):
                self.topology = message
                await self.send(TopologyAccepted(session=self.session, version=version))
            case StartEpoch():
                self.orders.append(message)
                if self.answers:
                    await self.report(message)
            case EpochCommitted(epoch=epoch):
                self.committed.append(epoch)
            case AbortEpoch(epoch=epoch, reason=reason):
                self.aborted[epoch] = reason
            case _:
                pass

    def snapshot(self, order: StartEpoch, **changes: Any) -> LocalSnapshot:
        """An empty, consistent part of an epoch."""
        assert self.topology is not None
        topology = Topology(self.topology.version, self.topology.members)
        nothing = digest_text(blake3())
        fields: dict[str, Any] = {
            "cluster": CLUSTER,
            "participant": self.name,
            "incarnation": order.incarnation,
            "session": self.session,
            "epoch": order.epoch,
            "topology": order.topology,
            "agents": tuple(AgentSnapshot(id=agent) for agent in sorted(self.agents)),
            "outgoing": tuple(
                OutgoingCut(target=each.target, sent=0, digest=nothing) for each in topology.outgoing(self.name)
            ),
            "incoming": tuple(
                IncomingCut(source=each.source, received=0, closed_at=0, digest=nothing, items=0, messages=0)
                for each in topology.incoming(self.name)
            ),
        }
        return LocalSnapshot(**{**fields, **changes})

    async def report(self, order: StartEpoch, **changes: Any) -> None:
        """Write the local snapshot and report it."""
        data = encode_local_snapshot(self.snapshot(order, **changes))
        named = digest(data)
        await asyncio.to_thread(self.store.put, snapshot_key(named), data)
        await self.send(
            LocalReport(
                session=self.session,
                incarnation=order.incarnation,
                epoch=order.epoch,
                snapshot=named,
                state_bytes=10,
                new_bytes=5,
                timings={"record": 1_000, "channels": 2_000, "encode": 3_000, "upload": 4_000},
            )
        )
