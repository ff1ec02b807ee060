"""What the committed epochs of a run hold: read from the store alone, by the documents, never by asking the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from protocol.digests import manifest_key
from protocol.documents import decode_manifest
from protocol.limits import MANIFEST_BYTES_MAX
from protocol.reading import EpochReader
from protocol.tombstones import is_forsaken
from protocol.verify import verify_epoch
from simulations.demo.agents import START_CENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from protocol.keys import ClusterKeys
    from protocol.manifest import Manifest
    from protocol.messages import Envelope
    from protocol.ports import ObjectStore


class EpochSums(msgspec.Struct, kw_only=True):
    """What one cut holds."""

    epoch: int
    consistent: bool
    findings: tuple[str, ...]
    total: int
    expected: int
    on_the_way: int
    """Money or tokens inside messages: in mailboxes and on channels."""
    in_flight: int
    """Messages recorded on channels."""
    orders_made: int = 0
    orders_found: int = 0

    @property
    def right(self) -> bool:
        """Verified, and every sum as it must be."""
        return self.consistent and self.total == self.expected and self.orders_made == self.orders_found


def committed_epochs(store: ObjectStore) -> list[int]:
    """Epochs that have a manifest, ascending."""
    numbers = sorted(int(key.removeprefix("epochs/").removesuffix(".json")) for key in store.list("epochs/"))
    return [number for number in numbers if not is_forsaken(store, number)]


def read_manifest(store: ObjectStore, epoch: int) -> Manifest:
    """One manifest."""
    return decode_manifest(store.get(manifest_key(epoch), size_max=MANIFEST_BYTES_MAX))


def envelopes(reader: EpochReader, manifest: Manifest) -> Iterator[Envelope]:
    """Every message that a cut holds: mailboxes, those for agents nobody hosts, and channel states."""
    for member in manifest.members:
        yield from reader.unrouted(member.participant)
        for agent in member.agents:
            yield from reader.mailbox(agent)
    for row in manifest.channels:
        if row.messages:
            yield from reader.channel(row.source, row.target)


def fields(reader: EpochReader, agent: str) -> dict[str, Any]:
    """An agent's decoded state."""
    return dict(reader.state(agent).fields)


def sum_bank(store: ObjectStore, epoch: int, keys: ClusterKeys, *, accounts: int) -> EpochSums:
    """Verify one epoch of the bank and add it up."""
    report = verify_epoch(store, epoch, keys)
    manifest = read_manifest(store, epoch)
    reader = EpochReader(store, manifest)
    total = made = done = on_the_way = orders = 0
    for agent in (agent for member in manifest.members for agent in member.agents):
        state = fields(reader, agent)
        total += state.get("balance", START_CENTS) if agent.startswith("account/") else 0
        made += state.get("made", 0) if agent.startswith("intake/") else 0
        done += state.get("done", 0) if agent.startswith("intake/") else 0
    for envelope in envelopes(reader, manifest):
        match envelope.type:
            case "Transfer":
                on_the_way += msgspec.msgpack.decode(envelope.body)["cents"]
            case "Order" | "Delivered":
                orders += 1
            case _:
                continue
    return EpochSums(
        epoch=epoch,
        consistent=report.ok,
        findings=tuple(str(finding) for finding in report.findings),
        total=total + on_the_way,
        expected=accounts * START_CENTS,
        on_the_way=on_the_way,
        in_flight=sum(row.messages for row in manifest.channels),
        orders_made=made,
        orders_found=done + orders,
    )


def sum_tokens(store: ObjectStore, epoch: int, keys: ClusterKeys, *, expected: int) -> EpochSums:
    """Verify one epoch of a scripted run and count its tokens."""
    report = verify_epoch(store, epoch, keys)
    manifest = read_manifest(store, epoch)
    reader = EpochReader(store, manifest)
    held = sum(fields(reader, agent).get("tokens", 0) for member in manifest.members for agent in member.agents)
    moving = sum(
        msgspec.msgpack.decode(envelope.body)["amount"]
        for envelope in envelopes(reader, manifest)
        if envelope.type == "Token"
    )
    return EpochSums(
        epoch=epoch,
        consistent=report.ok,
        findings=tuple(str(finding) for finding in report.findings),
        total=held + moving,
        expected=expected,
        on_the_way=moving,
        in_flight=sum(row.messages for row in manifest.channels),
    )


def first_wrong(sums: Iterable[EpochSums]) -> EpochSums | None:
    """The first epoch that is not right."""
    return next((each for each in sums if not each.right), None)
