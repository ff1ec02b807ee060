"""I9, I10, I11, I19, I20, I21: one history of epochs, the same for everybody, that only grows.

Fed by every entry that any replica applies and by every manifest that becomes visible. The first replica to apply an entry
writes the history; the others must agree with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from protocol.digests import digest, manifest_key
from protocol.documents import decode_manifest
from protocol.errors import StoreError, UnsupportedVersion
from protocol.tombstones import decode_tombstone
from protocol.topology import Topology
from simulations.oracles.membership import StartedWith
from simulations.oracles.rot import was_spoiled
from simulations.violations import Violation

if TYPE_CHECKING:
    from simulations.cluster import SimulatedCluster
    from simulations.coordinator_node import CoordinatorLife

_MAY_FOLLOW: Final = {
    "": ("started",),
    "started": ("started", "sealed", "aborted"),
    "sealed": ("sealed", "committed"),
    "committed": ("committed",),
    "aborted": ("aborted",),
}
DIGEST_EVERY: Final = 64
"""Entries between two comparisons of the replicas' digests: a dump of the ledger costs more than an entry."""


class EpochHistory:
    """What the log has said."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.applied = 0
        self.term = 0
        """Of the newest leader whose own entry is applied."""
        self.incarnation = 1
        self.states: dict[int, str] = {}
        self.started: dict[int, StartedWith] = {}
        self.started_at: dict[int, int] = {}
        self.ended_at: dict[int, int] = {}
        self.manifests: dict[int, bytes] = {}
        self.sealed: dict[int, str] = {}
        self.committed = 0
        self.recoverable = 0
        """Newest that an incarnation has committed, or has begun from."""
        self.given_up: dict[int, None] = {}
        """Committed epochs behind which a rollback went: nothing of them comes back."""
        self.forsaken: dict[int, None] = {}
        """Sealed ones that ended without a manifest."""
        self.commits = 0
        self.aborts = 0
        self._done: set[tuple[str, int]] = set()
        """Commands that have had their effect; asked, never iterated."""
        self._digests: dict[int, str] = {}
        self._results: dict[int, dict[str, Any]] = {}

    def entry_applied(self, coordinator: CoordinatorLife, command: dict[str, Any], result: dict[str, Any]) -> None:
        """A replica has applied the entry `coordinator.applied`."""
        index = coordinator.applied
        known = self._results.setdefault(index, result)
        if known is not result and known != result:
            raise Violation("I21", f"entry {index} gave {known} at one replica and {result} at {coordinator.name}")
        if index % DIGEST_EVERY == 0:
            found = coordinator.ledger.digest()
            before = self._digests.setdefault(index, found)
            if before != found:
                raise Violation("I21", f"replicas differ after entry {index}")
        if index <= self.applied:
            return
        self.applied = index
        if not result["ok"]:
            return
        term = int(command["term"])
        identity = (str(command["id"][0]), int(command["id"][1]))
        if identity in self._done:
            return  # applied before: the recorded result is given again, and nothing changes
        self._done.add(identity)
        if term < self.term:
            raise Violation("I20", f"entry {index}, {command['kind']} of term {term}, has an effect; {self.term} leads")
        if command["kind"] == "lead":
            self.term = term
        if self._cluster.options.turns:
            self._cluster.ghost.turns.entry_applied(coordinator, command)
        if command["kind"] == "forsake":
            self._forsaken(coordinator, int(command["epoch"]))
        if command["kind"] in {"start", "seal", "commit", "abort"}:
            self._epoch_changed(coordinator, int(command.get("epoch") or result["epoch"]))
        if command["kind"] == "reports":
            for outcome in result["outcomes"]:
                number = int(outcome["epoch"])
                if outcome["outcome"] == "accepted" and self.started[number].incarnation != self.incarnation:
                    raise Violation("I22", f"a report for epoch {number} of an older incarnation is accepted")
        if command["kind"] == "rollback" and result.get("outcome") == "begun":
            ended = self.incarnation
            self._rolled_back(int(command["incarnation"]), int(command["epoch"]), command["cause"])
            self._cluster.placements.rolled_back(coordinator.ledger, command, ended)
        for number in result.get("aborted", ()):  # a member was lost, or a rollback began
            self._epoch_changed(coordinator, int(number))

    def _rolled_back(self, incarnation: int, epoch: int, cause: str) -> None:
        if incarnation != self.incarnation + 1:
            raise Violation("I10", f"incarnation {incarnation} begins after {self.incarnation}")
        self.incarnation = incarnation
        if incarnation > 2 and not self._cluster.ghost.rollbacks.has_begun(incarnation - 1):
            self._cluster.probes.hit("restore.second_failure")
        if self._cluster.options.turns:
            self._cluster.ghost.turns.rolled_back(incarnation, cause)
        newest, self.recoverable = self.recoverable, epoch
        if epoch in self.given_up:
            raise Violation("I31", f"incarnation {incarnation} goes back to epoch {epoch}, which was given up before")
        after = [number for number, state in self.states.items() if number > epoch and state == "committed"]
        passed_over = [number for number in after if number <= newest and number not in self.given_up]
        self.given_up.update(dict.fromkeys(after))
        if epoch == newest or self._cluster.operator.has_named(epoch, cause):
            return
        if self._cluster.options.refuse:
            raise Violation(
                "I31",
                f"incarnation {incarnation} goes back to epoch {epoch}, against the policy; {newest} is committed",
            )
        if epoch > newest or not all(was_spoiled(self._cluster, number) for number in passed_over):
            raise Violation("I31", f"incarnation {incarnation} goes back to epoch {epoch}; {newest} is committed")
        self._cluster.probes.hit("restore.older_epoch")

    def _forsaken(self, coordinator: CoordinatorLife, number: int) -> None:
        """A sealed epoch ends without a manifest: only what the store has agreed to, for good."""
        record = coordinator.ledger.epoch(number)
        if self.states.get(number) != "sealed" or record is None or record.state != "aborted":
            raise Violation("I11", f"epoch {number} is {self.states.get(number)} and forsaken")
        store, key = self._cluster.store, manifest_key(number)
        if key not in store.spoiled.meant:
            there = store.durable(key)
            if number in self.manifests:
                raise Violation("I11", f"epoch {number} is forsaken, and its manifest has been visible")
            if there is None or decode_tombstone(there) is None:
                raise Violation("I12", f"epoch {number} is forsaken, and its manifest can still come")
        why = record.abort
        if why is None or not (why.cause and why.phase):
            raise Violation("P4", f"epoch {number} is forsaken without phase and cause")
        without_cause = why.phase == "manifest" and number not in self._cluster.rotten_reads
        if without_cause and "forsaken" not in why.cause and not _is_of_later_format(store.durable(key)):
            raise Violation("P4", f"epoch {number} is forsaken although all that was read is right: {why.cause}")
        self.states[number] = "aborted"
        self.forsaken[number] = None
        self.aborts += 1
        self.ended_at[number] = self._cluster.world.now
        self._cluster.probes.hit("epoch.forsaken")

    def tombstone_visible(self, number: int) -> None:
        """The key of an epoch's manifest is taken."""
        if self.states.get(number) != "sealed":
            raise Violation("I11", f"the key of epoch {number} is taken; it is {self.states.get(number)}")

    def check_forsaken(self) -> None:
        """At the end: no forsaken epoch has a manifest after all.

        Raises:
            Violation: I11.
        """
        for number in self.forsaken:
            data = self._cluster.store.visible(manifest_key(number))
            if data is not None and digest(data) == self.sealed[number]:
                raise Violation("I11", f"epoch {number} was forsaken and has a manifest")

    def check_replicas(self) -> None:
        """At the end: replicas that have applied the same entries are the same.

        Raises:
            Violation: I21.
        """
        digests: dict[int, str] = {}
        for coordinator in self._cluster.log.lives.values():
            if coordinator.alive:
                found = coordinator.ledger.digest()
                if digests.setdefault(coordinator.applied, found) != found:
                    raise Violation("I21", f"replicas differ after entry {coordinator.applied}")

    def _epoch_changed(self, coordinator: CoordinatorLife, number: int) -> None:
        ledger = coordinator.ledger
        record = ledger.epoch(number)
        if record is None:
            raise Violation("I10", f"epoch {number} is unknown right after an entry about it")
        before = self.states.get(number, "")
        if record.state not in _MAY_FOLLOW[before]:
            raise Violation("I11", f"epoch {number} was {before or 'unknown'} and is {record.state}")
        now = self._cluster.world.now
        if not before:
            if number <= max(self.states, default=0):
                raise Violation("I10", f"epoch {number} starts after {max(self.states)}")
            self._note_start(coordinator, number, now)
        self.states[number] = record.state
        if record.state == "sealed" and before == "started":
            self.sealed[number] = record.manifest
        if record.state == "committed" and before == "sealed":
            self._committed(number, record.manifest, now)
        if record.state == "aborted" and before == "started":
            self.aborts += 1
            self.ended_at[number] = now
            if sum(1 for member in record.members.values() if member.snapshot) * 2 >= len(record.members):
                self._cluster.probes.hit("epoch.aborted_after_half")
            if record.abort is None or not (record.abort.cause and record.abort.phase):
                raise Violation("P4", f"epoch {number} is aborted without phase and cause")
            late = record.abort.cause.startswith("deadline of")
            if record.abort.phase == "assemble" and not late and number not in self._cluster.rotten_reads:
                # All that was read is what was written, so a cut that does not pass is our own doing.
                raise Violation("P1", f"the assembler refuses epoch {number}: {record.abort.cause}")

    def _note_start(self, coordinator: CoordinatorLife, number: int, now: int) -> None:
        topology_record = coordinator.ledger.state.topology
        members = topology_record.members
        topology = Topology(topology_record.version, members)  # type: ignore[arg-type]
        self.started[number] = StartedWith(
            topology=topology_record.version,
            incarnation=coordinator.ledger.state.incarnation,
            sessions={member.id: member.session for member in members},
            agents={member.id: tuple(sorted(member.agents)) for member in members},
            channels=tuple((str(channel.source), str(channel.target)) for channel in topology.channels()),
        )
        self.started_at[number] = now

    def _committed(self, number: int, manifest: str, now: int) -> None:
        if number <= self.committed:
            raise Violation("I10", f"epoch {number} is committed after {self.committed}")
        self.committed = self.recoverable = number
        self.commits += 1
        self.ended_at[number] = now
        if self.sealed.get(number) != manifest:
            raise Violation(
                "I9", f"epoch {number} was sealed with {self.sealed.get(number)}, committed with {manifest}"
            )
        key = manifest_key(number)
        if key not in self._cluster.store.spoiled.meant and not self._cluster.store.is_durable(key):
            raise Violation("I12", f"epoch {number} is committed and its manifest would not survive a power cut")

    def manifest_visible(self, number: int, data: bytes) -> None:
        """A manifest has become visible."""
        if self.manifests.setdefault(number, data) != data:
            raise Violation("I9", f"two manifests of epoch {number}")
        sealed = self.sealed.get(number)
        if sealed is None:
            raise Violation("I9", f"the manifest of epoch {number} is visible and no entry has sealed it")
        if number in self.forsaken:
            raise Violation("I11", f"the manifest of epoch {number} is visible, which was forsaken")
        if sealed != digest(data):
            raise Violation("I9", f"epoch {number} is sealed with {sealed}, its manifest is {digest(data)}")

    def told(self, name: str, number: int, how: str) -> None:
        """A participant was told how an epoch ended."""
        if self.states.get(number) != how:
            raise Violation("I11", f"{name} hears that epoch {number} is {how}; it is {self.states.get(number)}")


def _is_of_later_format(data: bytes | None) -> bool:
    """A flipped bit can have made it one, and what a later build has written is not for this one to judge."""
    try:
        decode_manifest(data or b"")
    except UnsupportedVersion:
        return True
    except StoreError:
        pass  # damaged, or a tombstone
    return False
