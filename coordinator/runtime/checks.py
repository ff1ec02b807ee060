"""``POST /v1/epochs/{epoch}/check``: what a restore of an epoch would do, before anything is touched.

The leader asks every participant that is connected for the code that it has, and for what reached the world after the epoch;
the epoch itself is read from the store. One that does not answer in time is known by what it registered with, and a note says
so. Nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from coordinator.ledger.records import COMMITTED
from coordinator.runtime.answers import ApiError, json_answer, read_object
from coordinator.runtime.writes import read_renames
from protocol.digests import manifest_key
from protocol.documents import decode_manifest
from protocol.ids import Epoch
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.messages import Inspect, Inspected
from protocol.reading import EpochReader
from protocol.renames import rename_problem, renamed_epoch
from protocol.restore_plan import AgentCode, restore_plan, saved_agents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from coordinator.ledger import ParticipantRecord
    from coordinator.runtime.api import Api
    from coordinator.runtime.service import Service
    from protocol.manifest import Manifest
    from protocol.restore_plan import Outside, SavedAgent

ANSWER_SECONDS_MAX: Final = 10.0
READ_SECONDS_MAX: Final = 60.0
CHECK_SECONDS_MAX: Final = ANSWER_SECONDS_MAX + READ_SECONDS_MAX + 5


class Checks:
    """The handler."""

    def __init__(self, service: Service, api: Api) -> None:
        self._service = service
        self._api = api

    async def check(self, request: web.Request) -> web.Response:
        """The plan as a document: lines per agent, what happened after, `ok` and `problems`."""
        body = await read_object(request, {"allow_unclaimed": bool, "messages": bool, "map": dict})
        renames = read_renames(body.get("map", {}))
        service = self._service
        if not service.leads:
            return await service.forward.pass_on(request, body=body, seconds_max=CHECK_SECONDS_MAX)
        record = self._api.record(request)
        if record.state != COMMITTED:
            raise ApiError(409, "not-committed", f"epoch {record.epoch} is {record.state}: nothing can go back to it")
        live = [each for each in service.ledger.participants() if each.live]
        reading = asyncio.ensure_future(self._read(record.epoch, record.manifest, messages=body.get("messages", True)))
        try:
            answers = await asyncio.gather(*(self._inspect(each, record.epoch) for each in live))
            manifest, saved = await reading
        finally:
            reading.cancel()
        gathered = _Gathered(live, answers)
        problem = rename_problem(
            renames, [agent for member in manifest.members for agent in member.agents], gathered.here
        )
        if problem:
            raise ApiError(409, "bad-map", problem, "`cleancut epoch state N` lists the agents of an epoch")
        manifest, saved = renamed_epoch(manifest, saved, renames)
        plan = restore_plan(
            manifest,
            saved,
            gathered.codes,
            here=gathered.here,
            takes=gathered.takes,
            outputs_after=None if gathered.outputs is None else lambda _: gathered.outputs or (),
            effects_after=None if gathered.effects is None else lambda _: gathered.effects or (),
            notes=gathered.notes,
        )
        return json_answer(plan.document(allow_unclaimed=body.get("allow_unclaimed", False)))

    async def _inspect(self, record: ParticipantRecord, epoch: int) -> Inspected | str:
        """The participant's answer, or why there is none."""
        hub = self._service.driver.hub
        try:
            answer = await hub.asks.ask(
                hub,
                record.session,
                lambda number: Inspect(session=record.session, request=number, epoch=epoch),
                ANSWER_SECONDS_MAX,
            )
        except ApiError as error:
            return error.message
        return answer if isinstance(answer, Inspected) else "it answered something else"

    async def _read(self, epoch: int, digest: str, *, messages: bool) -> tuple[Manifest, list[SavedAgent]]:
        store = self._service.store

        def read() -> tuple[Manifest, list[SavedAgent]]:
            key = manifest_key(Epoch(epoch))
            manifest = decode_manifest(store.get(key, size_max=MANIFEST_BYTES_MAX), expected=digest, name=key)
            return manifest, saved_agents(EpochReader(store, manifest), messages=messages)

        return await self._service.driver.in_thread(read, READ_SECONDS_MAX)


class _Gathered:
    """What all participants said together."""

    def __init__(self, live: Sequence[ParticipantRecord], answers: Sequence[Inspected | str]) -> None:
        self.here: dict[str, str] = {}
        self.takes: set[str] = set()
        self.notes: list[str] = []
        self.outputs: list[Outside] | None = None
        self.effects: list[Outside] | None = None
        self._codes: dict[str, AgentCode] = {}
        self._seen: set[tuple[str, str]] = set()
        for record, answer in zip(live, answers, strict=True):
            self.here.update(dict.fromkeys(record.agents, record.id))
            self.takes.update(record.kinds)
            if isinstance(answer, str):
                self.notes.append(f"{record.id}: {answer}; of its code only what it registered with is known")
                for kind, version in record.agent_versions.items():
                    self._code(AgentCode(kind=kind, state_version=version, migrations=None), record.id)
                continue
            for code in answer.codes:
                self._code(code, record.id)
            self.notes += [f"{record.id}: {note}" for note in answer.notes]
            if answer.outputs_count is not None:
                self.outputs = self._added(self.outputs, answer.outputs)
                self._more(record.id, "outputs", answer.outputs_count, len(answer.outputs))
            if answer.effects_count is not None:
                self.effects = self._added(self.effects, answer.effects)
                self._more(record.id, "effects", answer.effects_count, len(answer.effects))

    @property
    def codes(self) -> list[AgentCode]:
        """One per class."""
        return list(self._codes.values())

    def _code(self, code: AgentCode, participant: str) -> None:
        known = self._codes.get(code.kind)
        if known is None or known.migrations is None:
            self._codes[code.kind] = code
        elif code.migrations is not None and code.state_version != known.state_version:
            # A rolling update: the older of the two is what a state must fit.
            self.notes.append(
                f"{participant} has kind {code.kind} in version {code.state_version}, others in {known.state_version}"
            )
            if code.state_version < known.state_version:
                self._codes[code.kind] = code

    def _added(self, known: list[Outside] | None, found: Sequence[Outside]) -> list[Outside]:
        """Several participants may share a sink or an effect ledger: each thing is listed once."""
        known = [] if known is None else known
        for each in found:
            if (each.kind, each.token) not in self._seen:
                self._seen.add((each.kind, each.token))
                known.append(each)
        return known

    def _more(self, participant: str, what: str, count: int, listed: int) -> None:
        if count > listed:
            self.notes.append(f"{participant} knows of {count} {what} after the epoch; {listed} are listed")


def add_check_routes(app: web.Application, service: Service, api: Api) -> None:
    """`POST /v1/epochs/{epoch}/check`."""
    app.router.add_post("/v1/epochs/{epoch}/check", Checks(service, api).check)
