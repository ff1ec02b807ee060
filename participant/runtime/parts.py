"""What a participant is made of, out of its settings: the store, the folder, the effect ledger, the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from participant.agent import Agent
from participant.dry_run import FORKS_FOLDER
from participant.runtime.effect_desk import dry_run_backend, make_backend
from participant.runtime.log_files import LocalFolder
from participant.runtime.threads import in_thread
from protocol.errors import ConfigError, StoreError
from protocol.ids import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from participant.config import ParticipantConfig
    from participant.effects.backend import EffectBackend
    from protocol.forks import Fork
    from protocol.keys import ClusterKeys
    from protocol.ports import ObjectStore, Transport

STORE_SECONDS_MAX: Final = 60.0
"""Opening the store; one that hangs longer counts as failed, and whoever started the participant hears of it."""


def check_agents(agents: Sequence[object], *, allow_cloudpickle: bool) -> None:
    """Before any of them is taken: agents that were refused here can be given again.

    Raises:
        ConfigError: One is no agent, was given twice, or keeps its state with cloudpickle, which is not allowed.
    """
    seen: dict[str, object] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            hint = f"{agent.__qualname__}(name) is one" if isinstance(agent, type) else "subclass Agent"
            raise ConfigError("agents", f"{agent!r} is no agent; {hint}")
        name = getattr(agent, "id", "")
        if name and name in seen:
            raise ConfigError(
                "agents", f"{name} was given twice" if seen[name] is agent else f"two agents have one id, {name}"
            )
        seen[name] = agent
        if agent.serializer == "cloudpickle" and not allow_cloudpickle:
            raise ConfigError(
                "allow_cloudpickle",
                f"agent {name or repr(agent)} keeps its state with cloudpickle; allow it explicitly",
            )


def agent_factories(
    takes: Iterable[type[Agent]] | Mapping[str, Callable[[str], Agent]],
) -> dict[str, Callable[[str], Agent]]:
    """Who makes agents that come from elsewhere: kind -> factory, called with the agent's name.

    Raises:
        ConfigError: Something among them is no agent class.
        IllegalName: Of a kind.
    """
    if isinstance(takes, Mapping):
        return {check_name("agent kind", kind): factory for kind, factory in takes.items()}
    found: dict[str, Callable[[str], Agent]] = {}
    for cls in takes:
        if not _is_agent_class(cls):
            raise ConfigError("takes", f"{cls!r} is no agent class")
        found[cls.kind] = cls
        # Agents of kinds that the class had before keep their ids.
        found.update({old: partial(_made_as, cls, old) for old in cls.__cleancut_kinds__[1:]})
    return found


def _made_as(cls: type[Agent], kind: str, name: str) -> Agent:
    return cls(f"{kind}/{name}")


def _is_agent_class(candidate: object) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Agent)


async def open_store(config: ParticipantConfig, keys: ClusterKeys) -> tuple[ObjectStore, Fork | None]:
    """The store, and what it says that the cluster is a fork of.

    Raises:
        ConfigError: It is another cluster's.
        StoreError: It does not work, or does not answer.
    """
    from protocol.storage import ensure_format
    from protocol.storage import open_store as open_url

    url = config.store if isinstance(config.store, str) else config.store.url
    try:
        async with asyncio.timeout(STORE_SECONDS_MAX):
            if isinstance(config.store, str):
                store = await in_thread(open_url, config.store, config.cluster_name)
            else:
                store = config.store
            await in_thread(ensure_format, store, config.cluster_name)
            return store, await in_thread(_read_fork, store, keys, config.cluster)
    except TimeoutError:
        cause = f"the store did not answer within {STORE_SECONDS_MAX:.0f} s"
        raise StoreError("open", url, cause, errno_name="ETIMEDOUT") from None


def _read_fork(store: ObjectStore, keys: ClusterKeys, cluster: str) -> Fork | None:
    from protocol.forks import read_fork

    fork = read_fork(store, keys)
    if fork is not None and fork.cluster != cluster:
        raise ConfigError("store", f"its fork.json is of cluster {fork.cluster}, not {cluster}")
    return fork


def open_folder(config: ParticipantConfig, fork: Fork | None) -> LocalFolder | None:
    """The participant's own folder on this machine's disk, if it has one. Blocks.

    Raises:
        StoreError: The system's error.
    """
    if config.local is None:
        return None
    root = Path(config.local)
    if fork is not None:
        # The same program with the same settings must not take the original's folder over.
        root = root / FORKS_FOLDER / config.cluster
    return LocalFolder(root, config.participant_id)


def effect_backend(config: ParticipantConfig, folder: LocalFolder | None, fork: Fork | None) -> EffectBackend | None:
    """Where the effect ledger is, if there is a place for one; in a fork that does no effects, one that writes nothing."""
    cluster, participant = config.cluster, config.participant_id
    if fork is not None and fork.dry_run:
        return dry_run_backend(
            config.effects, folder, cluster=cluster, participant=participant, origin=fork.origin_cluster
        )
    return make_backend(config.effects, folder, cluster=cluster, participant=participant)


def make_wire(config: ParticipantConfig, keys: ClusterKeys) -> Transport:
    """The transport that the settings name.

    Raises:
        ConfigError: A certificate cannot be used.
    """
    if config.transport == "memory":
        from participant.runtime.transports.memory import MemoryTransport, hub_of

        return MemoryTransport(config.participant_id, hub_of(config.cluster))
    if config.transport == "websocket":
        from participant.runtime.transports.websocket import WebSocketTransport

        return WebSocketTransport(
            cluster=config.cluster_name,
            participant=config.participant_id,
            keys=keys,
            listen=config.listen,
            advertise=config.advertise,
        )
    from participant.runtime.transports.mqtt import MqttSettings, MqttTransport, client_tls

    tls = None
    if config.transport.startswith("mqtts://"):
        tls = client_tls(ca_file=config.mqtt_ca_file, cert_file=config.mqtt_cert_file, key_file=config.mqtt_key_file)
    settings = MqttSettings.from_url(config.transport, tls=tls)
    return MqttTransport(cluster=config.cluster_name, participant=config.participant_id, settings=settings)
