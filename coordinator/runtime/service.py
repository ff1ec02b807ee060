"""The coordinator's process: builds every part, runs until it is told to end, and ends in order.

Order of the start: refuse what cannot work (settings, secret, folder, store, port), then listen, then join the group.
Nothing is announced as ready before the API answers. Order of the end: no new connections, the group is left, the
control connections are closed, the rest is dropped; the process then ends with 0.

``python -m coordinator.runtime.service --config FILE`` runs one coordinator; so does ``cleancut coordinator``.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import logging
import os
import secrets
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from coordinator.config import STORE_FENCE, CoordinatorConfig, is_loopback, load_config
from coordinator.ledger import Ledger
from coordinator.runtime.changes import Changes
from coordinator.runtime.events import EventLog
from coordinator.runtime.history import Historian
from coordinator.runtime.home import DataDir
from coordinator.runtime.listener import raise_open_files
from coordinator.runtime.logs import set_up_logs
from protocol.errors import ConfigError, Refused, SnapshotError, StoreError, Unreachable, UnsupportedVersion
from protocol.failpoints import arm_failpoints, armed
from protocol.keys import ClusterKeys, read_secret, trust

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from coordinator.config import Address
    from coordinator.runtime.access import AccessCounts
    from coordinator.runtime.views import LiveView
    from protocol.forks import Fork
    from protocol.ports import ObjectStore

log = logging.getLogger("cleancut.service")

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
END_SECONDS_MAX: Final = 5.0
"""The orderly end; what is not done then is dropped."""
LEADER_WATCH_SECONDS: Final = 0.1
"""How often a coordinator that does not lead looks who does."""
CATCH_UP_SECONDS: Final = 1.0
"""Longest wait for one barrier after the start; then the next one is tried."""


class Service:
    """One running coordinator. Attributes are set up in `start` and read by the API."""

    access: AccessCounts

    def __init__(self, config: CoordinatorConfig) -> None:
        from coordinator.runtime.driver import Clock

        self.config = config
        self.clock = Clock()
        self.boot_id = secrets.token_hex(8)
        self.keys = ClusterKeys.from_secret(read_secret(config.secret_file))
        self.store: ObjectStore = _open_store(config)
        self.events = EventLog(self.boot_id)
        self.changes = Changes()
        self.ledger = Ledger(config.cluster)
        """What the API and the machine read: follows the group entry by entry, on the service's loop."""
        self._group_ledger = Ledger(config.cluster)
        """What the group applies to, on its own thread. Two equal replicas instead of a lock around one."""
        self._historian = Historian(self.ledger, self.events)
        self._crash: BaseException | None = None
        self._caught_up = False
        self._ended = asyncio.Event()
        self._ending = False

    # --- life ---

    async def start(self) -> Address:
        """Listen and join the group; returns the API's address."""
        from aiohttp import web

        from coordinator.fences import StoreFence
        from coordinator.machine import Leader
        from coordinator.runtime.api import build_app
        from coordinator.runtime.driver import Driver
        from coordinator.runtime.forward import LeaderClient
        from coordinator.runtime.listener import IDLE_SECONDS_MAX, Listener, https_context
        from coordinator.runtime.raft import RaftGroup
        from coordinator.runtime.sink_fences import open_fence

        self.group = RaftGroup(
            raft_config(self.config),
            apply=lambda command: understood(self._group_ledger.apply(command)),
            snapshot=self._group_ledger.dump,
            restore=self._group_ledger.load,
            on_applied=self._applied,
            on_restored=self._restored,
            on_fatal=self.crashed,
        )
        fork = await self._read_fork()
        # The sinks are the original's: a fence of ours would shut it out.
        own_sinks = fork is None or not fork.dry_run
        fences = {name: open_fence(name, place) for name, place in self.config.fences.items() if own_sinks}
        leader = Leader(
            self.ledger,
            coordinator=self.config.id,
            client=f"{self.config.id}.{self.boot_id}",
            policy=self.config.policy,
            lease_ns=self.config.lease_ms * 1_000_000,
            fences=(STORE_FENCE, *fences),
            fork=fork,
        )
        self.driver = Driver(
            leader,
            self.group,
            self.store,
            self.keys,
            clock=self.clock,
            leader_url=lambda: self.leader_url or "",
            crashed=self.crashed,
            fences={STORE_FENCE: StoreFence(self.store, self.config.cluster), **fences},
        )
        self.forward = LeaderClient(self.config.id, lambda: self.leader_url, seconds_max=60.0, tls=_trust(self.config))
        tls = None if self.config.http_tls is None else https_context(self.config.http_tls)
        self._runner = web.AppRunner(
            build_app(self), access_log=None, keepalive_timeout=IDLE_SECONDS_MAX, shutdown_timeout=1.0
        )
        await self._runner.setup()
        self.listener = Listener(self._runner, self.config.http, tls=tls)
        address = await self.listener.start()
        self.group.on_leadership(self.driver.leadership_changed)
        await self.group.start()
        self._watch = asyncio.create_task(self._watch_leader())
        self._catching_up = asyncio.create_task(self._catch_up())
        return address

    async def _read_fork(self) -> Fork | None:
        """What the store says that this cluster is a fork of.

        Raises:
            ConfigError: It says something that cannot be true.
        """
        from protocol.forks import read_fork

        try:
            fork = await asyncio.to_thread(read_fork, self.store, self.keys)
        except StoreError as error:
            raise ConfigError("store", f"{self.config.store} cannot be used: {error}") from error
        if fork is not None and fork.cluster != self.config.cluster:
            raise ConfigError("store", f"its fork.json is of cluster {fork.cluster}, not {self.config.cluster}")
        return fork

    async def run_until_ended(self) -> int:
        """Wait for `end` or a crash, then end in order; returns the exit code."""
        await self._ended.wait()
        self._ending = True
        try:
            async with asyncio.timeout(END_SECONDS_MAX):
                await self._stop()
        except TimeoutError:
            log.warning("the orderly end took longer than %.0f s; the rest is dropped", END_SECONDS_MAX)
        return EXIT_DONE if self._crash is None else EXIT_FAILED

    async def _stop(self) -> None:
        self.listener.stop_listening()
        self._watch.cancel()
        self._catching_up.cancel()
        self.events.close()
        self.driver.hub.end()
        await self.group.stop()
        await self.driver.close()
        await self.forward.close()
        await self._runner.cleanup()

    def end(self) -> None:
        """End in order. Idempotent."""
        self._ended.set()

    def crashed(self, error: BaseException) -> None:
        """A disk that failed, or a bug of ours: say so and end, so that another coordinator takes over."""
        if self._crash is None and not self._ending:
            self._crash = error
            if isinstance(error, StoreError):
                hint = "free space or mend the disk, then start it again: nothing is lost while a quorum is up"
                log.critical("this coordinator ends: %s; %s", error, hint)
            else:
                log.critical("this coordinator ends because of a defect", exc_info=error)
        self._ended.set()

    # --- the group ---

    def _restored(self, text: str) -> None:
        try:
            self.ledger.load(text)
        except SnapshotError as error:
            self.crashed(error)
            return
        self.events.record("ledger-restored", time.time_ns() // 1_000_000, epoch=self.ledger.state.epoch)
        self.changes.changed()

    def _applied(self, command_json: str, result_json: str) -> None:
        from coordinator.ledger import parse_result

        try:
            mine = self.ledger.apply(command_json)
            assert mine == result_json, f"two replicas in one process differ: {mine[:200]!a}, {result_json[:200]!a}"
            result = parse_result(mine)
            command = self._historian.applied(command_json, result, old=not self._caught_up)
        except Exception as error:  # noqa: BLE001 - a driver's edge: a replica that cannot follow must end
            self.crashed(error)
            return
        if command is not None:
            if armed():
                self.driver.pass_applied(command_json)
            self.driver.command_applied(command, result)
        self.changes.changed()

    async def _watch_leader(self) -> None:
        known: str | None = ""
        while True:
            if self.leader_url != known:
                known = self.leader_url
                self.driver.leader_known()
            await asyncio.sleep(LEADER_WATCH_SECONDS)

    async def _catch_up(self) -> None:
        """Pass one barrier after the start.

        Only then does this replica hold all that was committed before: what lies in the journal may lack the newest
        entries, and the first word of a leader that was just elected may do so too.
        """
        while not self._caught_up:
            try:
                await self.group.barrier(CATCH_UP_SECONDS)
                self._caught_up = True
            except (Refused, Unreachable):
                await asyncio.sleep(LEADER_WATCH_SECONDS)
        state = self.ledger.state
        log.info(
            "caught up: epoch %d is the newest, %s leads in term %d", state.epoch, state.leader or "nobody", state.term
        )

    # --- what the API asks ---

    @property
    def caught_up(self) -> bool:
        """Whether the ledger holds all that was committed before this process started; never false again."""
        return self._caught_up

    @property
    def leads(self) -> bool:
        """Whether this coordinator leads and has its own entry in the log."""
        return self.driver.leader.leading

    @property
    def live(self) -> LiveView | None:
        """What only a leader knows; None elsewhere."""
        return self.driver.leader.live(self.clock.now()) if self.leads else None

    @property
    def leader_id(self) -> str | None:
        """Who leads as far as this coordinator knows."""
        if self.leads:
            return self.config.id
        leader = self.group.leader
        return None if leader is None or leader == self.config.id else str(leader)

    @property
    def leader_url(self) -> str | None:
        """Where the leader answers, if it is another one."""
        leader = self.leader_id
        if leader is None or leader == self.config.id or leader not in self.config.peers:
            return None
        return f"{self.scheme}://{self.config.member(leader).http}"

    @property
    def scheme(self) -> str:
        """Of the API of all coordinators."""
        return "http" if self.config.http_tls is None else "https"

    def coordinators(self) -> list[Mapping[str, Any]]:
        """All coordinators as this one sees them; `up` and `applied` are null where it cannot know."""
        status = self.group.status()
        leader = self.leader_id
        peers = status.get("peers", {})
        rows: list[Mapping[str, Any]] = []
        for name in self.config.members:
            me = name == self.config.id
            peer = peers.get(name, {})
            rows.append(
                {
                    "id": name,
                    "address": str(self.config.member(name).http),
                    "up": True if me else peer.get("connected"),
                    "leader": name == leader,
                    "applied": status.get("applied") if me else peer.get("acknowledged"),
                }
            )
        return rows

    def raft_numbers(self) -> dict[str, int]:
        """Numbers of the group's status, flat."""
        return {
            name: int(value)
            for name, value in self.group.status().items()
            if isinstance(value, int) and value >= 0 and name not in {"is_leader", "term"}
        }

    def unready(self) -> list[str]:
        """Why this coordinator cannot do its part; empty: it can."""
        reasons = []
        if self._ending or self._ended.is_set():
            reasons.append("ending")
        if not (self._caught_up and self.group.is_ready):
            reasons.append("the replica has not caught up")
        if self.leader_id is None:
            reasons.append("no leader")
        return reasons

    def probe_store(self) -> None:
        """Write and delete a small object. Blocks.

        Raises:
            StoreError: The store cannot be written.
        """
        key = f"probes/{self.config.id}-{self.boot_id}"
        self.store.put(key, b"can this coordinator write?")
        self.store.delete(key)


def understood(result_json: str) -> str:
    """The result of an entry that this build can apply. In the group's thread.

    Raises:
        UnsupportedVersion: A newer build wrote the entry. This one ends before it, with everything before it applied.
    """
    if '"code":"unsupported-version"' in result_json:  # within a text the quotes would be escaped
        raise UnsupportedVersion(
            "the replicated log holds an entry of a newer build; this one stops before it: install the build that the "
            "other coordinators run, and start again"
        )
    return result_json


def raft_config(config: CoordinatorConfig) -> Any:  # noqa: ANN401 (imported late: start-up time)
    """The group's settings."""
    from coordinator.runtime.raft.config import RaftConfig, TlsFiles, timing_preset

    tls = config.tls
    return RaftConfig(
        id=config.id,
        cluster=config.cluster,
        folder=config.data_dir / "raft",
        peers={name: str(config.member(name).raft) for name in config.members if name != config.id},
        listen=str(config.raft),
        tls=None if tls is None else TlsFiles(ca=tls.ca, certificate=tls.cert, key=tls.key),
        timing=timing_preset(config.timing),
        rejoin=config.rejoin,
    )


def _trust(config: CoordinatorConfig) -> ssl.SSLContext | None:
    """What the other coordinators' HTTPS certificates are checked with; None: what this machine trusts."""
    ca = None if config.http_tls is None else config.http_tls.ca or (config.tls.ca if config.tls is not None else None)
    return None if ca is None else trust("http_tls.ca", ca)


def _open_store(config: CoordinatorConfig) -> ObjectStore:
    from protocol.storage import open_store

    try:
        return open_store(config.store, config.cluster)
    except StoreError as error:
        raise ConfigError("store", f"{config.store} cannot be used: {error}") from error


async def _probe_store(service: Service) -> None:
    """Write to the store once, for so long as an attempt may take.

    Raises:
        ConfigError: It cannot be written, or does not answer.
    """
    from coordinator.runtime.driver import STORE_SECONDS_MAX

    # A thread of its own: one that hangs must not be waited for when the loop ends.
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="store-probe")
    url = service.config.store
    try:
        async with asyncio.timeout(STORE_SECONDS_MAX):
            await asyncio.get_running_loop().run_in_executor(thread, service.probe_store)
    except TimeoutError:
        raise ConfigError("store", f"{url} did not answer within {STORE_SECONDS_MAX:.0f} s") from None
    except StoreError as error:
        raise ConfigError("store", f"{url} cannot be written: {error}") from error
    finally:
        thread.shutdown(wait=False)


async def serve(config: CoordinatorConfig) -> int:
    """Run one coordinator until SIGTERM or SIGINT; returns the exit code.

    Raises:
        SnapshotError: It cannot start; nothing runs any more.
    """
    loop = asyncio.get_running_loop()
    arm_failpoints(os.environ, (config.http.host, config.raft.host) if config.peers else (config.http.host,))
    with DataDir(config.data_dir, cluster=config.cluster, coordinator=config.id):
        service = Service(config)
        await _probe_store(service)
        address = await service.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.end)
        if service.scheme == "http" and not is_loopback(config.http.host):
            log.warning("the API at %s speaks HTTP: tokens can be read on the way unless a proxy adds TLS", address)
        print(f"coordinator {config.id} of {config.cluster} ready at {service.scheme}://{address}", flush=True)  # noqa: T201
        code = await service.run_until_ended()
        log.info("ended")
        return code


def run(config: CoordinatorConfig) -> int:
    """Run one coordinator in this process, with its logs on standard error; returns the exit code."""
    if sys.flags.optimize:
        print("coordinator: python -O removes the checks that keep data safe; run without it", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    set_up_logs(as_json=config.log_json, coordinator=config.id)
    raise_open_files()
    code = _run(config)
    if any(thread.name.startswith("store") for thread in threading.enumerate()):
        # A thread that hangs in a dead store must not keep the process: what is durable is durable already.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(config: CoordinatorConfig) -> int:
    try:
        return asyncio.run(serve(config))
    except ConfigError as error:
        log.error("cannot start: %s", error)  # noqa: TRY400 (a sentence for an operator, no traceback)
        return EXIT_USAGE
    except SnapshotError as error:
        log.error("cannot start: %s", error)  # noqa: TRY400
        return EXIT_FAILED
    except Exception:
        log.critical("this coordinator ends because of a defect", exc_info=True)
        return EXIT_FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m coordinator.runtime.service", description="Run one coordinator.")
    parser.add_argument("--config", help="TOML file; CLEANCUT_* variables are read too")
    parser.add_argument("--log-json", action="store_true", default=None, help="one JSON document per log line")
    given = parser.parse_args(arguments)
    try:
        config = load_config(given.config, env=os.environ, flags={"log_json": given.log_json})
    except ConfigError as error:
        print(f"coordinator: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    return run(config)


if __name__ == "__main__":
    sys.exit(main())
