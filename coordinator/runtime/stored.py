"""What an epoch holds, read from the store: manifest, verification, agents and their state.

Any coordinator serves these from the store itself; only the epoch's record comes from the replica. All of it runs on the
store's threads, one verification at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from coordinator.ledger.records import COMMITTED
from coordinator.runtime.answers import ApiError, json_answer, read_object
from protocol.digests import manifest_key
from protocol.errors import IllegalName
from protocol.ids import Epoch, agent_id
from protocol.limits import MANIFEST_BYTES_MAX

if TYPE_CHECKING:
    from coordinator.ledger import EpochRecord
    from coordinator.runtime.api import Api
    from coordinator.runtime.service import Service
    from protocol.reading import EpochReader

VERIFY_SECONDS_MAX: Final = 600.0
READ_SECONDS_MAX: Final = 60.0
VERIFY_WAITING_MAX: Final = 4
"""Verifications that may wait for the one that runs."""


class Stored:
    """Handlers that read the store."""

    def __init__(self, service: Service, api: Api) -> None:
        self._service = service
        self._api = api
        self._verifying = asyncio.Lock()
        self._waiting = 0

    def _committed(self, request: web.Request) -> EpochRecord:
        record = self._api.record(request)
        if record.state != COMMITTED:
            raise ApiError(409, "not-committed", f"epoch {record.epoch} is {record.state}: it has no manifest")
        return record

    async def manifest(self, request: web.Request) -> web.Response:
        """The manifest's bytes as they lie in the store."""
        await self._api.fresh(request)
        record = self._committed(request)
        key = manifest_key(Epoch(record.epoch))
        store = self._service.store
        data = await self._service.driver.in_thread(lambda: store.get(key, size_max=MANIFEST_BYTES_MAX))
        return web.Response(
            body=data,
            content_type="application/json",
            headers={"Cleancut-Manifest": record.manifest, "Cache-Control": "no-store"},
        )

    async def verify(self, request: web.Request) -> web.Response:
        """Check an epoch against what lies in the store; 200 also when something is wrong: the report says so."""
        from protocol.verify import verify_epoch

        body = await read_object(request, {"deep": bool})
        await self._api.fresh(request)
        record = self._committed(request)
        if self._waiting >= VERIFY_WAITING_MAX:
            raise ApiError(429, "busy", "too many verifications wait already", headers={"Retry-After": "5"})
        self._waiting += 1
        try:
            async with self._verifying:
                service = self._service
                report = await service.driver.in_thread(
                    lambda: verify_epoch(service.store, Epoch(record.epoch), service.keys, deep=body.get("deep", True)),
                    VERIFY_SECONDS_MAX,
                )
        finally:
            self._waiting -= 1
        document = msgspec.to_builtins(report)
        if report.manifest and report.manifest != record.manifest:
            document["ok"] = False
            document["findings"] = [
                {
                    "kind": "manifest",
                    "key": manifest_key(Epoch(record.epoch)),
                    "participant": "",
                    "channel": "",
                    "expected": record.manifest,
                    "found": report.manifest,
                    "detail": "the stored manifest is not the one that the ledger sealed",
                },
                *document["findings"],
            ]
        return json_answer(document)

    async def agents(self, request: web.Request) -> web.Response:
        """Agents of a committed epoch and where they were."""
        await self._api.fresh(request)
        record = self._committed(request)
        return json_answer(await self._service.driver.in_thread(lambda: self._read_agents(record), READ_SECONDS_MAX))

    def _reader(self, record: EpochRecord) -> EpochReader:
        """Blocks. The manifest must be the very one that the ledger sealed."""
        from protocol.documents import decode_manifest
        from protocol.reading import EpochReader

        store = self._service.store
        key = manifest_key(Epoch(record.epoch))
        data = store.get(key, size_max=MANIFEST_BYTES_MAX)
        return EpochReader(store, decode_manifest(data, expected=record.manifest, name=key))

    def _read_agents(self, record: EpochRecord) -> dict[str, Any]:
        reader = self._reader(record)
        rows = []
        for agent in reader.agents():
            found = reader.agent_snapshot(agent)
            rows.append(
                {
                    "agent": agent,
                    "participant": reader.host_of(agent),
                    "state_version": found.state_version,
                    "running": found.running,
                    "dead": found.dead,
                    "mailbox_count": found.mailbox_count,
                    "timers_count": found.timers_count,
                }
            )
        return {"epoch": record.epoch, "agents": rows}

    async def state(self, request: web.Request) -> web.Response:
        """One agent's state, mailbox and timers in a committed epoch."""
        await self._api.fresh(request)
        record = self._committed(request)
        text = request.query.get("agent", "")
        try:
            agent = agent_id(text)
        except IllegalName as error:
            raise ApiError(400, "bad-agent", str(error), "?agent=kind/name") from None
        read = self._service.driver.in_thread(lambda: self._reader(record).document(agent), READ_SECONDS_MAX)
        return json_answer(await read)


def add_stored_routes(app: web.Application, service: Service, api: Api) -> None:
    """What reads the store."""
    stored = Stored(service, api)
    app.router.add_get("/v1/epochs/{epoch}/manifest", stored.manifest)
    app.router.add_post("/v1/epochs/{epoch}/verify", stored.verify)
    app.router.add_get("/v1/epochs/{epoch}/agents", stored.agents)
    app.router.add_get("/v1/epochs/{epoch}/state", stored.state)
