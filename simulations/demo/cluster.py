"""A cluster in a folder: secret, certificates, configuration files, ports; coordinators and participants as processes."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from protocol.errors import Refused, SnapshotError, Unreachable
from protocol.keys import ClusterKeys, read_secret
from simulations.demo import children
from simulations.demo.ports import free_ports

if TYPE_CHECKING:
    from simulations.demo.process import Spec

READY_SECONDS = 60.0
POLL_SECONDS = 0.02


class ClusterFailed(SnapshotError):
    """A process of the cluster did not do what it must; the message shows the end of its log."""


@dataclass
class Coordinator:
    """Where one coordinator listens, and its process."""

    id: str
    http: str
    raft: str
    config: Path
    child: children.Child | None = None


@dataclass
class LocalCluster:
    """Everything in one folder.

    Args:
        folder: Exists and is empty.
        name: Cluster's name.
        coordinator_count: 1, 3 or 5.
        variables: Added to the environment of every process.
    """

    folder: Path
    name: str = "demo"
    coordinator_count: int = 3
    coordinators: list[Coordinator] = field(default_factory=list)
    participants: dict[str, children.Child] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    _session: aiohttp.ClientSession | None = None

    @property
    def store(self) -> str:
        """The object store's folder."""
        return str(self.folder / "store")

    @property
    def secret_file(self) -> str:
        """The cluster's secret."""
        return str(self.folder / "cluster.secret")

    @property
    def keys(self) -> ClusterKeys:
        """Keys derived from the secret."""
        return ClusterKeys.from_secret(read_secret(Path(self.secret_file)))

    def prepare(self, policy: dict[str, Any]) -> None:
        """Write secret, certificates and configuration files."""
        from coordinator.certificates import make_certificates
        from protocol.ids import coordinator_id

        (self.folder / "logs").mkdir()
        Path(self.store).mkdir(mode=0o700)
        secret = Path(self.secret_file)
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32) + "\n", encoding="utf-8")
        names = [coordinator_id(f"c{index + 1}") for index in range(self.coordinator_count)]
        ports = free_ports(2 * len(names))
        for index, name in enumerate(names):
            http, raft = f"127.0.0.1:{ports[2 * index]}", f"127.0.0.1:{ports[2 * index + 1]}"
            self.coordinators.append(Coordinator(name, http, raft, self.folder / f"{name}.toml"))
        if len(names) > 1:
            make_certificates(self.folder / "tls", dict.fromkeys(names, ("127.0.0.1",)))
        for each in self.coordinators:
            each.config.write_text(self._config_text(each, policy), encoding="utf-8")
        (self.folder / "cleancut.json").write_text(
            json.dumps(
                {
                    "cluster": self.name,
                    "coordinators": [each.http for each in self.coordinators],
                    "secret_file": self.secret_file,
                    "store": self.store,
                },
                indent=2,
            ),
            encoding="utf-8",
        )

    def _config_text(self, one: Coordinator, policy: dict[str, Any]) -> str:
        text = [
            f'id = "{one.id}"',
            f'cluster = "{self.name}"',
            f"data_dir = {json.dumps(str(self.folder / one.id))}",
            f"store = {json.dumps(self.store)}",
            f'http = "{one.http}"',
            f'raft = "{one.raft}"',
            f"secret_file = {json.dumps(self.secret_file)}",
        ]
        if len(self.coordinators) > 1:
            tls = self.folder / "tls"
            text += ["[tls]", f"ca = {json.dumps(str(tls / 'ca.pem'))}"]
            text += [
                f"cert = {json.dumps(str(tls / f'{one.id}.pem'))}",
                f"key = {json.dumps(str(tls / f'{one.id}.key'))}",
            ]
            for other in self.coordinators:
                text += [f"[peers.{other.id}]", f'raft = "{other.raft}"', f'http = "{other.http}"']
        text += ["[policy]", *(f"{key} = {json.dumps(value)}" for key, value in policy.items())]
        return "\n".join(text) + "\n"

    async def start_coordinators(self) -> None:
        """Start all and wait until a leader answers."""
        token = self.keys.token("operator")
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, timeout=aiohttp.ClientTimeout(total=10)
        )
        for each in self.coordinators:
            await self.start_coordinator(each)
        await self.wait_leader()

    async def start_coordinator(self, one: Coordinator) -> None:
        """Start (again) one coordinator."""
        one.child = await children.start(
            one.id,
            [sys.executable, "-m", "coordinator.runtime.service", "--config", str(one.config)],
            log=self.folder / "logs" / f"{one.id}.log",
            variables=self.variables,
        )

    async def spawn_participant(self, spec: Spec, *, module: str = "simulations.demo.process") -> children.Child:
        """Start one participant process; its first line says that it is ready (a member)."""
        path = self.folder / f"{spec.id}.json"
        path.write_bytes(msgspec.json.encode(spec))
        child = await children.start(
            spec.id,
            [sys.executable, "-m", module, str(path)],
            log=self.folder / "logs" / f"{spec.id}.log",
            variables=self.variables,
        )
        self.participants[spec.id] = child
        return child

    async def start_participant(self, spec: Spec, *, module: str = "simulations.demo.process") -> None:
        """Start one participant process and wait until it says that it is ready (a member)."""
        child = await self.spawn_participant(spec, module=module)
        try:
            line = await asyncio.wait_for(child.read_line(), READY_SECONDS)
        except TimeoutError:
            line = ""
        if "ready" not in line:
            raise ClusterFailed(
                f"participant {spec.id} did not get ready; the end of {child.log}:\n{child.last_lines()}"
            )

    async def ask(self, participant: str, command: dict[str, Any]) -> dict[str, Any]:
        """One command to a participant process and its answer."""
        child = self.participants[participant]
        await child.write_line(json.dumps(command))
        line = await asyncio.wait_for(child.read_line(), READY_SECONDS)
        if not line:
            raise ClusterFailed(f"participant {participant} has ended; the end of {child.log}:\n{child.last_lines()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One API call to the first coordinator that answers, the one last found good first.

        Raises:
            Unreachable: None does.
            Refused: The API said no; `code` says why.
        """
        assert self._session is not None
        problem = "no coordinator runs"
        for each in self._running():
            try:
                async with self._session.request(method, f"http://{each.http}{path}", json=body) as response:
                    document: dict[str, Any] = await response.json()
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                problem = f"{each.http}: {error}"
                continue
            if response.status in {502, 503, 504}:
                problem = str(document.get("error", document))
                continue
            if response.status >= 400:
                refusal = document.get("error") or {}
                raise Refused(str(refusal.get("code", response.status)), f"{method} {path}: {refusal or document}")
            return document
        raise Unreachable(problem)

    def _running(self) -> list[Coordinator]:
        return [each for each in self.coordinators if each.child is not None and each.child.running]

    async def wait_leader(self, *, other_than: str = "") -> tuple[str, float]:
        """Wait until a coordinator leads and answers a fresh read.

        Returns:
            Its id, and how long that took in seconds.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() - begun < READY_SECONDS:
            for each in self._running():
                leader = await self._leader_according_to(each)
                if leader and leader != other_than:
                    return leader, loop.time() - begun
            await self.work_for(POLL_SECONDS)
        raise ClusterFailed(f"no leader within {READY_SECONDS:.0f} s; the logs are in {self.folder / 'logs'}")

    async def _leader_according_to(self, one: Coordinator) -> str:
        assert self._session is not None
        try:
            async with self._session.get(f"http://{one.http}/v1/status?fresh=1") as response:
                if response.status != 200:
                    return ""
                return str((await response.json()).get("leader") or "")
        except (TimeoutError, aiohttp.ClientError, OSError):
            return ""

    async def work_for(self, seconds: float) -> None:
        """Let the cluster work; it is watched meanwhile.

        Raises:
            ClusterFailed: A process ended by itself.
        """
        endings = [asyncio.create_task(child.wait()) for child in self._watched()]
        try:
            await asyncio.wait(endings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for ending in endings:
                ending.cancel()
        for child in self._watched():
            if not child.running:
                raise ClusterFailed(
                    f"{child.name} ended by itself with {child.returncode}; the end of {child.log}:\n{child.last_lines()}"
                )

    def _watched(self) -> list[children.Child]:
        coordinators = [each.child for each in self.coordinators if each.child is not None]
        return [child for child in [*self.participants.values(), *coordinators] if not child.ended_on_purpose]

    def coordinator(self, name: str) -> Coordinator:
        """One coordinator by id."""
        return next(each for each in self.coordinators if each.id == name)

    async def stop(self) -> None:
        """End every process that this object started, participants first."""
        await asyncio.gather(*(child.stop() for child in self.participants.values()))
        await asyncio.gather(*(each.child.stop() for each in self.coordinators if each.child is not None))
        if self._session is not None:
            await self._session.close()
            self._session = None
