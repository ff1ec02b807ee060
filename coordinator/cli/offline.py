"""Epochs read from a store alone: no coordinator is asked, nothing is written, nothing of an agent is executed.

The documents are those of the API, so that programs need not care which of the two they asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.cli.exits import Exit, Failure
from coordinator.cli.output import note
from coordinator.cli.savepoints import named, not_in_a_store
from protocol.digests import manifest_key
from protocol.documents import decode_manifest, verify_signature
from protocol.errors import ObjectMissing
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.reading import EpochReader
from protocol.tombstones import is_forsaken
from protocol.verify import committed_epochs, newest_epoch, verify_epoch

if TYPE_CHECKING:
    from protocol.keys import ClusterKeys
    from protocol.ports import ObjectStore


def verify(store: ObjectStore, number: int | str, keys: ClusterKeys | None, *, deep: bool) -> dict[str, Any]:
    """The report of a check.

    Raises:
        Failure: The store has no such epoch.
    """
    epoch = present(store, number)
    report: dict[str, Any] = msgspec.to_builtins(verify_epoch(store, epoch, keys, deep=deep))
    return report


def agents(store: ObjectStore, number: int | str, keys: ClusterKeys | None) -> dict[str, Any]:
    """The agents of an epoch and where they were.

    Raises:
        Failure: The store has no such epoch, or its signature is wrong.
        ObjectCorrupt: It is damaged.
    """
    opened = reader(store, number, keys)
    rows = []
    for agent in opened.agents():
        found = opened.agent_snapshot(agent)
        rows.append({
            "agent": agent,
            "participant": opened.host_of(agent),
            "state_version": found.state_version,
            "running": found.running,
            "dead": found.dead,
            "mailbox_count": found.mailbox_count,
            "timers_count": found.timers_count,
        })  # fmt: skip
    return {"epoch": opened.manifest.epoch, "agents": rows}


def state(store: ObjectStore, number: int | str, agent: str, keys: ClusterKeys | None) -> dict[str, Any]:
    """An agent's state, mailbox and timers.

    Raises:
        Failure: The store has no such epoch, or its signature is wrong.
        UnknownAgent: The epoch does not hold the agent.
        ObjectCorrupt: It is damaged.
    """
    return reader(store, number, keys).document(agent)


def present(store: ObjectStore, number: int | str) -> int:
    """The epoch's number, if its manifest is in the store.

    Raises:
        Failure: It is not, or what was given is a name.
    """
    if named(number):
        raise not_in_a_store(str(number))
    if number == "latest":
        # The newest manifest that is *here*: good enough to look at, never to restore from (that, the ledger says).
        newest = newest_epoch(store)
        if newest is None:
            raise Failure(Exit.NOT_FOUND, f"{store.url} holds no epoch", "is this the right store and cluster?")
        return int(newest)
    epoch = int(number)
    try:
        store.size(manifest_key(epoch))
        there = not is_forsaken(store, epoch)
    except ObjectMissing:
        there = False
    if not there:
        known = committed_epochs(store)
        which = f"it holds {len(known)}, from {known[0]} to {known[-1]}" if known else "it holds none"
        raise Failure(
            Exit.NOT_FOUND, f"epoch {epoch} is not in {store.url}; {which}", "aborted epochs leave no manifest"
        )
    return epoch


def reader(store: ObjectStore, number: int | str, keys: ClusterKeys | None) -> EpochReader:
    """A reader of an epoch whose signature is right, or was not checked for want of a secret.

    Raises:
        Failure: The store has no such epoch, or its signature is wrong.
    """
    epoch = present(store, number)
    if keys is None:
        note("signature not checked: no secret was given (--secret-file)")
    else:
        key = manifest_key(epoch)
        data = store.get(key, size_max=MANIFEST_BYTES_MAX)
        if not verify_signature(data, decode_manifest(data, name=key), keys):
            raise Failure(
                Exit.INCONSISTENT,
                f"the signature of epoch {epoch} does not verify: it was changed, or signed with another secret",
                "is the secret file this cluster's? `cleancut epoch verify` says more",
                code="signature",
            )
    return EpochReader.open(store, epoch)
