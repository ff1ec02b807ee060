"""What changes the cluster: start, abort and name epochs, set the policy.

The leader does it; another coordinator passes the request on, once. A trigger that is to wait for the epoch's end waits
at the coordinator that was asked, on its own replica: the leader may die meanwhile, the answer comes all the same.
"""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any, Final

from coordinator.policy import PolicySettings
from coordinator.runtime import views
from coordinator.runtime.answers import ApiError, json_answer, read_object
from protocol.errors import IllegalName
from protocol.ids import agent_id, participant_id, savepoint_name
from protocol.limits import RENAMES_MAX

if TYPE_CHECKING:
    from aiohttp import web

    from coordinator.ledger import Ledger, Result
    from coordinator.runtime.api import Api
    from coordinator.runtime.service import Service

WAIT_SECONDS_MAX: Final = 600.0
"""Longest wait for the end of an epoch."""
WAIT_BEYOND_DEADLINE_SECONDS: Final = 15.0
"""An epoch ends by its deadline; a change of leader and a sealed epoch's last steps come on top."""

NEAREST: Final = 3
"""Names that somebody is told who asks for a savepoint that is not there."""
MOVES_MAX: Final = 64
"""Agents that one request moves: they fit one entry of the log for each participant."""
_STATUS_OF: Final = {
    "unknown": 404,
    "not-leader": 503,
    "unknown-outcome": 503,
    "busy": 429,
    "stale-term": 503,
    "malformed": 400,
    "corrupt": 422,
}
_HINT_OF: Final = {
    "epoch-open": "wait for it, or abort it: `cleancut epoch abort N`",
    "too-soon": "try again then, or shorten it: `cleancut policy set --pause 0ms`",
    "no-members": "start a participant first",
    "not-ready": "try again in a moment",
    "unknown-outcome": "look at the list of epochs before you try again",
    "not-placed": "start a participant that hosts them, or one that takes their kind",
    "bad-map": "`cleancut epoch state N` lists the agents of an epoch",
    "not-committed": "`cleancut epoch list` shows the committed ones",
    "incarnation-changed": "another rollback has just begun: `cleancut status --incarnations`",
    "membership-changed": "participants come or go: try again in a moment",
    "epoch-committed": "try again: it goes to that one",
    "corrupt": "name an older epoch; `cleancut epoch verify N` says what is damaged",
    "sealed": "a sealed epoch commits; it can be aborted only while something keeps it from that",
    "store": "see what the store has: `cleancut doctor`; the epoch goes on by itself when it works again",
    "name-taken": "take another name, or take this one back first: `cleancut epoch unpin NAME`",
    "full": "take names back that nobody needs: `cleancut epoch unpin NAME`",
}
_POLICY_KEYS: Final[dict[str, type]] = {name: type(value) for name, value in PolicySettings().document().items()}


class Writes:
    """Handlers that write."""

    def __init__(self, service: Service, api: Api) -> None:
        self._service = service
        self._api = api

    async def trigger(self, request: web.Request) -> web.Response:
        """Start an epoch: 201 with its record; with ``wait`` after its end, 200."""
        body = await read_object(request, {"reason": str, "wait": bool})
        wait = body.get("wait", False)
        if self._service.leads:
            result = _demand(await self._service.driver.trigger_epoch(body.get("reason") or "manual"))
            number = int(result["epoch"])
        else:
            answer = await self._service.forward.pass_on(request, body={**body, "wait": False})
            if not wait or answer.status != 201:
                return answer
            number = int(_document(answer)["epoch"])
        if wait:
            await self._wait_end(number)
        ledger = self._service.ledger
        record = ledger.epoch(number)
        assert record is not None
        return json_answer(views.epoch_full(record, self._service.live, ledger.names_of(number)), status=201)

    async def _wait_end(self, number: int) -> None:
        ledger = self._service.ledger
        deadline_ns = ledger.policy.deadline_ns
        seconds = min(WAIT_SECONDS_MAX, deadline_ns / 1e9 + WAIT_BEYOND_DEADLINE_SECONDS)

        def ended() -> bool:
            record = ledger.epoch(number)
            return record is not None and not record.open

        if not await self._service.changes.wait_until(ended, seconds):
            raise ApiError(
                504,
                "still-open",
                f"epoch {number} has not ended within {seconds:.0f} s",
                f"`cleancut epoch why {number}`",
            )

    async def abort(self, request: web.Request) -> web.Response:
        """End an epoch that is not sealed, or one that is and cannot be committed."""
        if not self._service.leads:
            return await self._service.forward.pass_on(request)
        body = await read_object(request, {"reason": str})
        record = self._api.record(request)
        _demand(await self._service.driver.abort_epoch(record.epoch, body.get("reason") or "an operator aborted it"))
        after = self._service.ledger.epoch(record.epoch) or record
        return json_answer(views.epoch_full(after, self._service.live))

    async def pin(self, request: web.Request) -> web.Response:
        """Name a committed epoch, so that it is kept: 201, or 200 if it has the name already."""
        if not self._service.leads:
            return await self._service.forward.pass_on(request)
        body = await read_object(request, {"name": str})
        if "name" not in body:
            raise ApiError(400, "bad-value", "a savepoint needs a name", '{"name": "before-the-migration"}')
        name = _savepoint_name(body["name"])
        result = _demand(await self._service.driver.pin_epoch(self._api.record(request).epoch, name))
        ledger = self._service.ledger
        if ledger.savepoint(name) is None:  # taken back by somebody else, in this instant
            raise no_savepoint(ledger, name)
        document = {**views.savepoint(ledger, name), "outcome": result["outcome"]}
        return json_answer(document, status=201 if result["outcome"] == "pinned" else 200)

    async def unpin(self, request: web.Request) -> web.Response:
        """Take a name back; the epoch goes the way of all others."""
        if not self._service.leads:
            return await self._service.forward.pass_on(request)
        name = _savepoint_name(request.match_info["name"])
        result = await self._service.driver.unpin_epoch(name)
        if not result["ok"] and result["code"] == "unknown":
            raise no_savepoint(self._service.ledger, name)
        _demand(result)
        rest = self._service.ledger.names_of(result["epoch"])
        return json_answer({"name": name, "epoch": result["epoch"], "names": list(rest)})

    async def restore(self, request: web.Request) -> web.Response:
        """Take the cluster back to an epoch: 201 with the rollback; with ``wait`` once all agents run again.

        ``moves`` (agent -> participant) are agents that change their host with it; ``map`` (agent of the epoch -> new name) are
        those that come back under another name; with ``allow_unclaimed`` agents that nobody takes are given up.
        """
        body = await read_object(
            request, {"reason": str, "wait": bool, "moves": dict, "map": dict, "allow_unclaimed": bool}
        )
        moves = _moves(body.get("moves", {}))
        renames = read_renames(body.get("map", {}))
        wait = body.get("wait", False)
        name = request.match_info["epoch"]
        if self._service.leads:
            # `latest` is the leader's to say: where an operator went further back, it is not the newest committed one.
            if name == "start" and renames:
                raise ApiError(400, "bad-map", "the start holds no agents that could have other names")
            epoch = None if name == "latest" else 0 if name == "start" else self._api.record(request).epoch
            result = _demand(
                await self._service.driver.restore(
                    epoch,
                    body.get("reason") or "an operator asked for it",
                    moves,
                    renames=tuple(sorted(renames.items())),
                    allow_unclaimed=body.get("allow_unclaimed", False),
                )
            )
            if result.get("outcome") != "begun":
                raise ApiError(409, "recovery-stopped", str(result.get("sentence", "")))
            number = int(result["incarnation"])
        else:
            answer = await self._service.forward.pass_on(request, body={**body, "wait": False})
            if not wait or answer.status != 201:
                return answer
            number = int(_document(answer)["incarnation"])
        if wait:
            await self._wait_begun(number)
        return json_answer(views.rollback(self._service.ledger.state.rollbacks[number]), status=201)

    async def _wait_begun(self, incarnation: int) -> None:
        ledger = self._service.ledger

        def over() -> bool:
            record = ledger.state.rollbacks.get(incarnation)
            return record is not None and not record.running

        if not await self._service.changes.wait_until(over, WAIT_SECONDS_MAX):
            raise ApiError(
                504,
                "still-restoring",
                f"incarnation {incarnation} has not begun within {WAIT_SECONDS_MAX:.0f} s",
                "`cleancut status --incarnations`",
            )

    async def set_policy(self, request: web.Request) -> web.Response:
        """Set the policy; keys that are not given keep their value."""
        if not self._service.leads:
            return await self._service.forward.pass_on(request)
        body = await read_object(request, _POLICY_KEYS)
        policy = PolicySettings.from_document({**self._service.ledger.policy.document(), **body})
        _demand(await self._service.driver.change_policy(policy))
        return json_answer(self._service.ledger.policy.document())


def _moves(document: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Checked (agent, participant) pairs."""
    if len(document) > MOVES_MAX:
        raise ApiError(400, "too-many", f"{len(document)} moves; at most {MOVES_MAX} are taken")
    try:
        return tuple(sorted((str(agent_id(agent)), str(participant_id(name))) for agent, name in document.items()))
    except IllegalName as error:
        raise ApiError(400, "bad-name", str(error)) from None


def read_renames(document: dict[str, Any]) -> dict[str, str]:
    """Checked names: agent of the epoch -> its name from then on."""
    if len(document) > RENAMES_MAX:
        raise ApiError(400, "too-many", f"{len(document)} agents are mapped; at most {RENAMES_MAX} can be")
    try:
        return {str(agent_id(old)): str(agent_id(new)) for old, new in document.items()}
    except IllegalName as error:
        raise ApiError(400, "bad-name", str(error)) from None


def _savepoint_name(text: str) -> str:
    try:
        return savepoint_name(text)
    except IllegalName as error:
        raise ApiError(400, "bad-name", error.problem) from None


def no_savepoint(ledger: Ledger, name: str) -> ApiError:
    """There is none of this name; with the nearest names that there are."""
    names = sorted(ledger.state.savepoints)
    near = difflib.get_close_matches(name, names, n=NEAREST, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif names:
        more = f" and {len(names) - NEAREST} more: `cleancut epoch list --named`" if len(names) > NEAREST else ""
        hint = f"there are {', '.join(names[:NEAREST])}{more}"
    else:
        hint = "there are none yet: `cleancut epoch pin N NAME`"
    return ApiError(404, "no-savepoint", f"there is no savepoint {name}", hint)


def _document(answer: web.Response) -> dict[str, Any]:
    assert isinstance(answer.body, bytes)
    document = json.loads(answer.body)
    assert isinstance(document, dict)
    return document


def _demand(result: Result) -> Result:
    """The result of something that was done; what was refused is an error with the ledger's code and sentence."""
    if result["ok"]:
        return result
    code = str(result["code"])
    raise ApiError(_STATUS_OF.get(code, 409), code, str(result["sentence"]), _HINT_OF.get(code, ""))


def add_write_routes(app: web.Application, service: Service, api: Api) -> None:
    """`POST` and `PUT`."""
    writes = Writes(service, api)
    app.router.add_post("/v1/epochs", writes.trigger)
    app.router.add_post("/v1/epochs/{epoch}/restore", writes.restore)
    app.router.add_post("/v1/epochs/{epoch}/abort", writes.abort)
    app.router.add_post("/v1/epochs/{epoch}/pin", writes.pin)
    app.router.add_delete("/v1/savepoints/{name}", writes.unpin)
    app.router.add_put("/v1/policy", writes.set_policy)
