"""The HTTP API under `/v1`: what is read. Writes are in `writes`, what lies in the store in `stored`.

Reads are answered from this coordinator's own replica. One that has just started and has not caught up with the others
answers 503 ``not-ready``. Later the replica may still be a little behind; ``?fresh=1`` makes a barrier first, so that the
answer holds everything committed before the request. What only the leader knows (who was heard when, who is in which
phase) is asked of the leader, if there is one. Every answer says with `Cleancut-Leader` whether the coordinator that
gave it leads.
"""

from __future__ import annotations

import logging
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from coordinator.blame import why
from coordinator.ledger.records import LOST
from coordinator.runtime import views
from coordinator.runtime.access import AccessCounts, access_middleware
from coordinator.runtime.answers import (
    BODY_BYTES_MAX,
    ApiError,
    errors_middleware,
    json_answer,
    query_flag,
    query_number,
)
from coordinator.runtime.barriers import SharedBarrier
from coordinator.runtime.checks import add_check_routes
from coordinator.runtime.consults import add_consult_routes
from coordinator.runtime.forward import LEADER, was_passed_on
from coordinator.runtime.ingests import add_ingest_routes
from coordinator.runtime.metrics import Exposition
from coordinator.runtime.page import add_page
from coordinator.runtime.stored import add_stored_routes
from coordinator.runtime.writes import add_write_routes, no_savepoint
from protocol.errors import IllegalName
from protocol.ids import savepoint_name
from protocol.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from coordinator.ledger import EpochRecord, Ledger
    from coordinator.runtime.service import Service

log = logging.getLogger("cleancut.api")

EPOCHS_LISTED_MAX: Final = 1_000
FRESH_SECONDS_MAX: Final = 2.0
"""A barrier takes milliseconds; one that takes longer than an election will not pass."""
LIVE_SECONDS_MAX: Final = 1.0
"""A leader that does not answer a read in this time is dead or busy: the answer is then this replica's."""
FREE_BYTES_MIN: Final = 100 << 20
"""Less free space than this on the disk of the journal or the store is worth a warning."""


class Api:
    """Handlers that read."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._barrier = SharedBarrier(lambda: service.group.barrier(FRESH_SECONDS_MAX))

    # --- helpers ---

    def demand_ready(self) -> None:
        """Refuse to answer from a replica that lacks what was committed before this process started.

        Raises:
            ApiError: 503; a client goes to the next coordinator.
        """
        if not self._service.caught_up:
            raise ApiError(
                503,
                "not-ready",
                "this coordinator has just started and has not caught up with the others",
                "ask another coordinator, or again in a moment; without a quorum it cannot catch up",
                headers={"Retry-After": "1"},
            )

    async def fresh(self, request: web.Request) -> None:
        """Demand readiness; with ``?fresh=1`` wait until this replica holds all that was committed before the request."""
        self.demand_ready()
        if query_flag(request, "fresh"):
            await self._barrier.passed()

    async def of_leader(self, request: web.Request) -> web.Response | None:
        """The leader's answer to a read; None: we lead, or no leader answers, so the answer is this replica's."""
        service = self._service
        if service.leads or service.leader_url is None or was_passed_on(request):
            return None
        try:
            answer = await service.forward.pass_on(request, seconds_max=LIVE_SECONDS_MAX)
        except ApiError:
            return None
        return answer if answer.status < 500 else None

    def _waiting(self) -> dict[str, Any] | None:
        """Who waits for somebody's decision; only the leader is told."""
        service = self._service
        if not service.leads:
            return None
        return service.driver.hub.waiting.document(record for record in service.ledger.participants() if record.live)

    def record(self, request: web.Request) -> EpochRecord:
        """The epoch that the path names: a number, ``latest`` for the newest committed one, or a savepoint's name."""
        ledger = self._service.ledger
        text = request.match_info["epoch"]
        if text == "latest":
            found = ledger.newest_committed()
            if found is None:
                raise ApiError(404, "no-epoch", "no epoch has committed yet", "`cleancut epoch trigger` starts one")
            return found
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            return self._named(text)
        number = int(text)
        found = ledger.epoch(number)
        if found is None:
            newest = ledger.state.epoch
            if 0 < number <= newest:
                hint = "its manifest may still be in the store: `cleancut epoch verify --store`"
                raise ApiError(404, "forgotten-epoch", f"the history of epoch {number} is no longer kept", hint)
            raise ApiError(404, "no-epoch", f"there is no epoch {number}; the newest is {newest}")
        return found

    def _named(self, text: str) -> EpochRecord:
        ledger = self._service.ledger
        try:
            name = savepoint_name(text)
        except IllegalName:
            message = f"{text[:40]!a} is neither a number, nor `latest`, nor the name of a savepoint"
            raise ApiError(400, "bad-epoch", message) from None
        known = ledger.savepoint(name)
        found = None if known is None else ledger.epoch(known.epoch)
        if found is None:
            raise no_savepoint(ledger, name)
        return found

    # --- handlers ---

    async def status(self, request: web.Request) -> web.Response:
        """The cluster at a glance."""
        if (answer := await self.of_leader(request)) is not None:
            return answer
        await self.fresh(request)
        service = self._service
        document = views.status(
            service.ledger,
            service.live,
            coordinators=service.coordinators(),
            leader=service.leader_id,
            version=__version__,
            wall=time.time_ns(),
        )
        return json_answer({**document, "waiting": self._waiting()})

    async def incarnations(self, request: web.Request) -> web.Response:
        """Rollbacks, newest first."""
        await self.fresh(request)
        return json_answer(views.incarnations(self._service.ledger))

    async def participants(self, request: web.Request) -> web.Response:
        """All participants that are remembered."""
        if (answer := await self.of_leader(request)) is not None:
            return answer
        await self.fresh(request)
        document = views.participants(self._service.ledger, self._service.live)
        if self._service.leads:
            for row in document["participants"]:
                if row["ended_at"] is None:
                    row.update(self._service.driver.hub.waiting.participant(row["session"]))
        return json_answer(document)

    async def topology(self, request: web.Request) -> web.Response:
        """The current topology."""
        await self.fresh(request)
        return json_answer(views.topology(self._service.ledger))

    async def epochs(self, request: web.Request) -> web.Response:
        """Epochs, newest first; with ``?named=1`` only savepoints."""
        await self.fresh(request)
        named = query_flag(request, "named")
        limit = max(1, query_number(request, "limit", 50, EPOCHS_LISTED_MAX))
        before = query_number(request, "before", 0, 1 << 62)
        if self._service.ledger.open_epochs() and (answer := await self.of_leader(request)) is not None:
            return answer
        return json_answer(
            views.epochs(self._service.ledger, self._service.live, limit=limit, before=before, named=named)
        )

    async def epoch(self, request: web.Request) -> web.Response:
        """One epoch."""
        await self.fresh(request)
        record = self.record(request)
        if record.open and (answer := await self.of_leader(request)) is not None:
            return answer
        names = self._service.ledger.names_of(record.epoch)
        return json_answer(views.epoch_full(record, self._service.live, names))

    async def savepoints(self, request: web.Request) -> web.Response:
        """Epochs that are named and kept."""
        await self.fresh(request)
        return json_answer(views.savepoints(self._service.ledger))

    async def why(self, request: web.Request) -> web.Response:
        """What an epoch waited for, in words."""
        await self.fresh(request)
        record = self.record(request)
        if record.open and (answer := await self.of_leader(request)) is not None:
            return answer
        service = self._service
        # Only the leader knows where those who have not reported are.
        told = service.driver.leader.why(record.epoch, service.clock.now()) if service.leads else None
        return json_answer(told if told is not None else why(record))

    async def policy(self, request: web.Request) -> web.Response:
        """The policy in force."""
        await self.fresh(request)
        return json_answer(self._service.ledger.policy.document())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events."""
        self.demand_ready()
        return await self._service.events.serve(request)

    async def health(self, _: web.Request) -> web.Response:
        """200 if this coordinator can do its part; 503 with the reasons. Needs no token and tells no names."""
        reasons = self._service.unready()
        return json_answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def doctor(self, request: web.Request) -> web.Response:
        """What a person would look at first when something is wrong; also while this coordinator is not ready."""
        checks = [*self._group_checks(), *self._cluster_checks(), *await self._disk_checks()]
        return json_answer({"checks": checks, "ok": all(check["ok"] for check in checks)})

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus' text format."""
        return web.Response(body=self._exposition().text().encode(), headers={"Content-Type": Exposition.CONTENT_TYPE})

    # --- checks ---

    def _group_checks(self) -> list[dict[str, Any]]:
        service = self._service
        found = []
        leader = service.leader_id
        found.append(
            _check(
                "leader",
                leader is not None,
                f"{leader} leads in term {service.ledger.state.term}" if leader else "nobody leads",
                "a quorum of coordinators must run and reach each other on their raft addresses",
            )
        )
        known_down = [each["id"] for each in service.coordinators() if each["up"] is False]
        found.append(
            _check(
                "coordinators",
                not known_down,
                f"not reached from here: {', '.join(known_down)}" if known_down else "all are reached",
                "look at their logs; the cluster works while a quorum is up",
            )
        )
        return found

    def _cluster_checks(self) -> list[dict[str, Any]]:
        ledger = self._service.ledger
        if not self._service.caught_up:
            hint = "see that a quorum of coordinators runs"
            return [_check("replica", ok=False, detail="has not caught up since this coordinator's start", hint=hint)]
        return [
            self._participants_check(),
            _recovery_check(ledger, self._service.live),
            _epochs_check(ledger, self._service.live),
            *_waiting_checks(self._waiting()),
        ]

    def _participants_check(self) -> dict[str, Any]:
        ledger, live = self._service.ledger, self._service.live
        known = ledger.participants()
        members = len(ledger.state.topology.members)
        silent = [each.id for each in known if each.live and live is not None and not live.connected(each.session)]
        lost = [each.id for each in known if each.state == LOST]
        hint = "a participant that stays away loses its session after its lease"
        if silent:
            return _check("participants", ok=False, detail=f"without a connection: {_names(silent)}", hint=hint)
        if members:
            detail = f"{members} members in topology {ledger.state.topology.version}"
            return _check("participants", ok=True, detail=detail, hint="")
        if lost:
            hint = "start them again; their logs say why they ended"
            return _check("participants", ok=False, detail=f"all are gone; lost: {_names(lost)}", hint=hint)
        joining = [each.id for each in known if each.live]
        detail = f"joining: {_names(joining)}" if joining else "none are here now" if known else "no participants yet"
        return _check("participants", ok=True, detail=detail, hint="")

    async def _disk_checks(self) -> list[dict[str, Any]]:
        service = self._service
        found = []
        try:
            await service.driver.in_thread(service.probe_store, 10.0)
            found.append(_check("store", ok=True, detail=f"{service.store.url} can be written", hint=""))
        except Exception as error:  # noqa: BLE001 - whatever the store says is the finding
            hint = "epochs abort until it can be written again; nothing needs a restart"
            found.append(_check("store", ok=False, detail=str(error) or type(error).__name__, hint=hint))
        usage = shutil.disk_usage(service.config.data_dir)
        found.append(
            _check(
                "journal disk",
                usage.free >= FREE_BYTES_MIN,
                f"{usage.free >> 20} MiB free at {service.config.data_dir}",
                "a coordinator whose journal cannot grow stops",
            )
        )
        return found

    def _exposition(self) -> Exposition:
        service = self._service
        ledger, driver = service.ledger, service.driver
        state = ledger.state
        out = Exposition()
        out.gauges("build_info", "Version of this build.", "version", {__version__: 1})
        out.gauge("ready", "1 if this coordinator can do its part.", int(not service.unready()))
        out.gauge("leader", "1 if this coordinator leads.", int(service.leads))
        out.gauge("term", "Newest term in the ledger.", state.term)
        out.gauge("incarnation", "The cluster's generation.", state.incarnation)
        out.gauge("topology_version", "Version of the current topology.", state.topology.version)
        out.gauge("topology_members", "Members of the current topology.", len(state.topology.members))
        out.counter("epochs_committed_total", "Epochs committed, ever.", state.committed_count)
        out.counter("epochs_aborted_total", "Epochs aborted, ever.", state.aborted_count)
        out.gauge("incarnation", "Generation of the cluster; every rollback begins the next one.", state.incarnation)
        out.gauge("recovery_stopped", "1: nothing is rolled back by itself any more.", int(bool(state.stopped)))
        out.gauge("epochs_open", "Epochs that are neither committed nor aborted.", len(ledger.open_epochs()))
        out.gauge("epoch_newest", "Newest epoch started.", state.epoch)
        out.gauge("epoch_committed", "Newest epoch committed.", state.committed)
        out.gauge("savepoints", "Names of epochs that are kept.", len(state.savepoints))
        out.gauge("epoch_failures_in_a_row", "Aborts since the last commit.", state.failures)
        newest = ledger.newest_committed()
        if newest is not None:
            out.gauge("epoch_committed_timestamp_seconds", "When it committed.", newest.ended_at / 1e9)
            out.gauge("epoch_duration_seconds", "How long it took.", newest.took_ns / 1e9)
            out.gauge("epoch_state_bytes", "State in it.", newest.state_bytes)
            out.gauge("epoch_new_bytes", "Bytes written for it.", newest.new_bytes)
            out.gauge("epoch_in_flight", "In-flight messages recorded in it.", newest.in_flight)
        by_state = {"joining": 0, "member": 0, "leaving": 0, "lost": 0, "left": 0}
        for record in ledger.participants():
            by_state[record.state] = by_state.get(record.state, 0) + 1
        out.gauges("participants", "Participants by state.", "state", by_state)
        waiting = self._waiting()
        if waiting is not None:
            out.gauge("agents_waiting", "Agents that wait until somebody settles a step.", waiting["count"])
            out.gauge("questions_open", "Questions that nobody has answered.", waiting["questions"])
        out.gauge("control_connections", "Open control connections.", driver.hub.open_count)
        out.counters("control_connections_total", "Control connections and what ended them.", "what", driver.hub.counts)
        out.counters("requests_refused_total", "Requests refused, by cause.", "cause", service.access.refused)
        out.counters("inputs_total", "Outside input over the API, by outcome.", "what", driver.hub.ingests.counts)
        out.counter("connections_turned_away_total", "Connections over the limit.", service.listener.turned_away)
        out.gauges("machine", "State of the leader's machine.", "what", driver.leader.statistics())
        out.counters("driver_total", "What the leader's driver did.", "what", driver.counts)
        out.gauge("store_threads_busy", "Store operations under way.", driver.store_threads_busy)
        for name, value in sorted(service.raft_numbers().items()):
            out.gauge(f"raft_{name}", "From the raft group.", value)
        return out


def _names(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _recovery_check(ledger: Ledger, live: views.LiveView | None) -> dict[str, Any]:
    document = views.recovery(ledger, live)
    doing, why = document["state"], document["why"]
    detail = f"{doing}: {why}" if why else str(doing)
    hint = (
        "look into the cause, then `cleancut epoch restore latest`"
        if doing in {"stopped", "failed"}
        else "start what is lost"
    )
    return _check("recovery", doing in {"running", "restoring"}, detail, hint)


def _waiting_checks(waiting: dict[str, Any] | None) -> list[dict[str, Any]]:
    if waiting is None:
        return []
    named = [f"{each['agent']} ({each['cause']})" for each in waiting["agents"]]
    detail = f"waiting for one: {_names(named)}" if waiting["count"] else "no agent waits for one"
    return [_check("decisions", not waiting["count"], detail, "`cleancut effects list --in-doubt`")]


def _epochs_check(ledger: Ledger, live: views.LiveView | None) -> dict[str, Any]:
    for each in views.stuck(ledger, live, time.time_ns()):
        hint = (
            "a store that fails has to be mended; whose parts are damaged or gone is given up by itself after some seconds, "
            f"and at once by `cleancut epoch abort {each['epoch']}`"
        )
        detail = f"epoch {each['epoch']} is sealed and cannot be committed: {each['why']}"
        return _check("epochs", ok=False, detail=detail, hint=hint)
    newest, failures = ledger.newest_committed(), ledger.state.failures
    if newest is None:
        last = "no epochs yet" if ledger.state.epoch == 0 else "none has committed yet"
    else:
        last = f"the last commit was {max(0, time.time_ns() - newest.ended_at) // 1_000_000_000} s ago"
    detail = f"{failures} aborted in a row; {last}" if failures else last
    return _check("epochs", failures == 0, detail, "`cleancut epoch why N` says what an epoch waited for")


def _check(name: str, ok: bool, detail: str, hint: str) -> dict[str, Any]:  # noqa: FBT001 (four plain facts)
    return {"name": name, "ok": ok, "detail": detail, "hint": "" if ok else hint}


def build_app(service: Service) -> web.Application:
    """All routes with access, errors and the leader header around them."""

    @web.middleware
    async def say_who_leads(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response = await handler(request)
        if not response.prepared:
            response.headers.setdefault(LEADER, "1" if service.leads else "0")
            response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    hosts = {service.config.http.host, *service.config.hosts}
    hosts |= {service.config.member(name).http.host for name in service.config.members}
    service.access = AccessCounts()
    app = web.Application(
        client_max_size=BODY_BYTES_MAX,
        middlewares=[say_who_leads, errors_middleware(log), access_middleware(service.keys, hosts, service.access)],
    )
    api = Api(service)
    app.router.add_get("/healthz", api.health)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/v1/status", api.status)
    app.router.add_get("/v1/participants", api.participants)
    app.router.add_get("/v1/topology", api.topology)
    app.router.add_get("/v1/incarnations", api.incarnations)
    app.router.add_get("/v1/epochs", api.epochs)
    app.router.add_get("/v1/epochs/{epoch}", api.epoch)
    app.router.add_get("/v1/epochs/{epoch}/why", api.why)
    app.router.add_get("/v1/savepoints", api.savepoints)
    app.router.add_get("/v1/policy", api.policy)
    app.router.add_get("/v1/doctor", api.doctor)
    app.router.add_get("/v1/events", api.events)
    app.router.add_get("/v1/participant", service.driver.hub.serve)
    add_stored_routes(app, service, api)
    add_write_routes(app, service, api)
    add_ingest_routes(app, service)
    add_check_routes(app, service, api)
    add_consult_routes(app, service, api)
    add_page(app)
    return app
