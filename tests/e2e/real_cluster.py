"""A cluster of real processes whose failpoints a test pulls one by one, and the judgement that ends each test.

Every process is started with all the points that a test will use, each behind a ticket: a file that the test puts there when
the moment has come. Whoever passes the point takes it and acts, once. So one cluster serves a whole row of faults.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from protocol.errors import SnapshotError
from protocol.failpoints import EXIT_CODE, PERMISSION, VARIABLE
from protocol.ids import cluster_name
from protocol.storage import open_store
from simulations.demo import agents, children, summary
from simulations.demo.cluster import Coordinator, LocalCluster
from tests.e2e.process import ME, OddSpec

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Callable

    from protocol.ports import ObjectStore

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 40.0
"""Seconds for what takes two on an idle machine."""
MANUAL = {
    "kind": "manual",
    "interval_ms": 1000,
    "pause_ms": 0,
    "deadline_ms": 15_000,
    "tolerable_failures": 100,
    "recovery": "off",
}
ENDED = ("committed", "aborted")


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll what happens in another process: there is no event to wait for."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:.0f} s: {what}") from None


@dataclass
class RealCluster(LocalCluster):
    """Coordinators, and participants of the demo's bank with odd agents beside them."""

    specs: dict[str, OddSpec] = field(default_factory=dict)
    store_folder: Path | None = None
    takes: bool = False
    """Participants take the agents of those that stay away."""
    alone: list[children.Child] = field(default_factory=list)
    """Participants that nobody waited for."""
    started_alone: int = 0
    conserved_through: int | None = None
    """Last epoch that must hold all the money: the one before a participant was lost with what it had. None: all."""

    @property
    def store(self) -> str:
        """The object store's folder."""
        return str(self.store_folder or self.folder / "store")

    # --- start ---

    def failpoints(self, actions: dict[str, str]) -> None:
        """Set points for processes started from now on: ``{"pack.before_put": "sleep:2000"}``, each behind a ticket."""
        self.variables[PERMISSION] = "1"
        self.variables[VARIABLE] = ";".join(
            f"{point}={action}?{self.folder / 'tickets' / f'{ME}.{point}'}" for point, action in actions.items()
        )

    def ticket(self, point: str, *, of: str = ME) -> Path:
        """Let a point act once, from now on: of one participant, or of the coordinator that passes it first."""
        path = self.folder / "tickets" / f"{of}.{point}"
        path.touch()
        return path

    def fired(self, point: str) -> list[str]:
        """Names of the logs in which a point says that it acted."""
        return [
            path.stem
            for path in sorted((self.folder / "logs").glob("*.log"))
            if f"failpoint {point}: " in path.read_text(encoding="utf-8", errors="replace")
        ]

    async def open(
        self,
        participants: int,
        policy: dict[str, Any],
        odd: dict[str, list[tuple[str, str]]],
        places: dict[str, tuple[str, str]],
    ) -> None:
        """Start everything; participants are called bank-1 and so on."""
        (self.folder / "tickets").mkdir()
        self.variables["PYTHONPATH"] = str(ROOT)
        await asyncio.to_thread(self.prepare, {**MANUAL, **policy})
        await self.start_coordinators()
        accounts = tuple(f"account/a{index + 1}" for index in range(2 * participants))
        for index, hosted in enumerate(agents.place(participants)):
            name = f"bank-{index + 1}"
            listen, advertise = places.get(name, ("127.0.0.1:0", ""))
            self.specs[name] = OddSpec(
                id=name,
                cluster=self.name,
                coordinators=tuple(each.http for each in self.coordinators),
                transport="websocket",
                store=self.store,
                secret_file=self.secret_file,
                agents=tuple(hosted),
                accounts=accounts,
                odd=tuple(odd.get(name, ())),
                listen=listen,
                advertise=advertise,
                local=str(self.folder / "local"),
                takes=self.takes,
                durability=policy.get("durability", "epoch"),
            )
        await asyncio.gather(*(self.join(name) for name in self.specs))

    async def join(self, name: str) -> None:
        """Start (again) a participant and wait until it is a member."""
        await self.start_participant(self.specs[name], module="tests.e2e.process")

    async def start_alone(self, spec: OddSpec) -> children.Child:
        """Start a participant that need not become a member; nobody waits for it."""
        self.started_alone += 1
        path = self.folder / f"alone-{self.started_alone}.json"
        path.write_bytes(msgspec.json.encode(spec))
        child = await children.start(
            path.stem,
            [sys.executable, "-m", "tests.e2e.process", str(path)],
            log=path.with_suffix(".log"),
            variables=self.variables,
        )
        self.alone.append(child)
        return child

    async def stop(self) -> None:
        """End every process that this object started, those that nobody waited for first."""
        await asyncio.gather(*(child.stop() for child in self.alone))
        await super().stop()

    # --- epochs ---

    async def begin(self, reason: str = "test") -> int:
        """Start an epoch as soon as one can be, whoever leads; its number. Not for when the start itself is disturbed."""

        async def started() -> int:
            try:
                return int((await self.call("POST", "/v1/epochs", {"reason": reason}))["epoch"])
            except SnapshotError as error:
                last.append(str(error))
                return 0

        last: list[str] = []
        try:
            return int(await until(started, "an epoch starts"))
        except AssertionError as error:
            raise AssertionError(f"{error}; last: {last[-1:]}") from None

    async def epoch(self, number: int) -> dict[str, Any]:
        """Its record."""
        return await self.call("GET", f"/v1/epochs/{number}?fresh=1")

    async def ended(self, number: int, seconds: float = PATIENCE) -> dict[str, Any]:
        """Its record once it has ended."""

        async def found() -> dict[str, Any] | None:
            try:
                record = await self.epoch(number)
            except SnapshotError:
                return None  # an election
            return record if record["state"] in ENDED else None

        record: dict[str, Any] = await until(found, f"epoch {number} ends", seconds)
        return record

    async def commit_one(self) -> dict[str, Any]:
        """The next epoch works: whatever happened before has left nothing that it trips on."""
        record = await self.ended(await self.begin())
        assert record["state"] == "committed", record
        return record

    async def has_ended_with(self, child: children.Child, code: int = EXIT_CODE) -> None:
        """A process ends by itself, and how."""
        found = await asyncio.wait_for(child.wait(), PATIENCE)
        child.ended_on_purpose = True
        assert found == code, f"{child.name} ended with {found}:\n{child.last_lines()}"

    async def leader(self) -> Coordinator:
        """Who leads now."""
        name, _ = await self.wait_leader()
        return self.coordinator(name)

    async def status_of(self, one: Coordinator, query: str = "") -> tuple[int, dict[str, Any], bool]:
        """A read of one certain coordinator: status, document, whether it answered as the leader."""
        assert self._session is not None
        async with self._session.get(
            f"http://{one.http}/v1/status{query}", timeout=aiohttp.ClientTimeout(total=5)
        ) as response:
            return response.status, await response.json(), response.headers.get("Cleancut-Leader") == "1"

    async def restart(self, one: Coordinator) -> None:
        """Start a coordinator again, and wait until it follows the others."""
        await self.start_coordinator(one)

        async def follows() -> bool:
            try:
                status, document, _ = await self.status_of(one, "?fresh=1")
            except (OSError, aiohttp.ClientError, TimeoutError):
                return False
            return status == 200 and bool(document["leader"])

        await until(follows, f"{one.id} follows")

    async def statistics(self, name: str) -> dict[str, int]:
        """A participant's own counts."""
        return await self.ask(name, {"do": "statistics"})

    async def send(self, agent: str, name: str, **fields: str) -> None:
        """A message from outside, by the first participant."""
        answer = await self.ask(next(iter(self.specs)), {"do": "send", "agent": agent, "message": [name, fields]})
        assert answer == {"ok": True}

    def signal(self, child: children.Child | None, number: signal.Signals) -> None:
        """To one process, by its id."""
        assert child is not None
        child._process.send_signal(number)

    # --- judgement ---

    def open_store(self) -> ObjectStore:
        """The store, as anybody can open it."""
        return open_store(self.store, cluster_name(self.name))

    async def judge(self) -> list[dict[str, Any]]:
        """What must hold at the end of every test; returns the history, oldest first.

        Every number is there once and has one end; an aborted epoch says who, in which phase and why; the store holds
        one manifest for each committed epoch and for no other; each manifest verifies offline to the last byte; every
        cut of one topology holds the same money and every order (a participant that died took its money with it: how it
        comes back is another matter).
        """
        listed = (await self.call("GET", "/v1/epochs?limit=1000&fresh=1"))["epochs"]
        history = sorted(listed, key=lambda each: each["epoch"])
        assert [each["epoch"] for each in history] == list(range(1, len(history) + 1)), "a number is missing or twice"
        for each in history:
            assert each["state"] in ENDED, each
            if each["state"] == "aborted":
                assert each["abort"]["phase"], each
                assert each["abort"]["cause"], each
                assert each["abort"]["participant"] or each["abort"]["phase"] in {"operator", "rollback"}, each
                assert each["manifest"] is None
            why = (await self.call("GET", f"/v1/epochs/{each['epoch']}/why"))["sentences"]
            assert why, each
        committed = [each["epoch"] for each in history if each["state"] == "committed"]
        self.judge_store(committed)
        return history

    def judge_store(self, committed: list[int]) -> None:
        """The part of `judge` that needs the folder alone."""
        store = self.open_store()
        assert summary.committed_epochs(store) == committed
        eras: dict[int, set[tuple[int, int]]] = {}
        for number in committed:
            sums = summary.sum_bank(store, number, self.keys, accounts=2 * len(self.specs))
            assert sums.consistent, (number, sums.findings)
            manifest = summary.read_manifest(store, number)
            eras.setdefault(manifest.topology, set()).add((sums.total, sums.orders_made - sums.orders_found))
            if self.conserved_through is None or number <= self.conserved_through:
                assert (sums.total, sums.orders_found) == (sums.expected, sums.orders_made), sums
        for version, found in eras.items():
            assert len(found) == 1, f"money or orders came and went in topology {version}: {found}"


@asynccontextmanager
async def real_cluster(
    folder: Path,
    *,
    coordinators: int = 1,
    participants: int = 3,
    policy: dict[str, Any] | None = None,
    odd: dict[str, list[tuple[str, str]]] | None = None,
    places: dict[str, tuple[str, str]] | None = None,
    lease_ms: int = 0,
    points: dict[str, str] | None = None,
    variables: dict[str, str] | None = None,
    store: Path | None = None,
    takes: bool = False,
) -> AsyncIterator[RealCluster]:
    """A cluster that works.

    Args:
        folder: Exists and is empty.
        coordinators: How many.
        participants: How many of the bank's.
        policy: On top of `MANUAL`.
        odd: Odd agents by participant.
        places: Where participants listen, and under what address they are reached.
        lease_ms: Of participants; 0: the default.
        points: Failpoints and what they do when their ticket is there.
        variables: For every process.
        store: The store's folder, if not in `folder`.
        takes: Participants take the agents of those that stay away.
    """
    cluster = RealCluster(
        folder, coordinator_count=coordinators, store_folder=store, variables=dict(variables or {}), takes=takes
    )
    if lease_ms:
        cluster.variables["CLEANCUT_LEASE_MS"] = str(lease_ms)
    if points:
        cluster.failpoints(points)
    try:
        await cluster.open(participants, policy or {}, odd or {}, places or {})
        yield cluster
    finally:
        await cluster.stop()


def cleancut_command(*arguments: str) -> list[str]:
    """The command as a user runs it."""
    return [sys.executable, "-m", "coordinator.cli", *arguments]


async def cleancut(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command with ``--json``: exit code, document, standard error."""
    process = await asyncio.create_subprocess_exec(
        *cleancut_command(*arguments, "--json"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out.strip() else {}, err.decode()
