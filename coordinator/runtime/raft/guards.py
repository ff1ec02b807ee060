"""Rules around the library's messages that make it keep what it acknowledged.

pysyncobj 0.3.17 as it comes loses committed commands (`simulations/raft` shows it with any of the first dozens of
seeds). These rules stand between it and the network; each names what it mends. Elections, the commit rule and
replication itself stay the library's.

1. *Truncation.* A follower deletes everything behind an append's start, also entries that agree with it, and so forgets
   what it acknowledged. Here an append is first cut down to what is new: entries that the log has already are left out;
   if nothing remains and the log is longer, the rest of the log is kept and only the verified part is acknowledged.
   (Raft, figure 2: "delete the existing entry and all that follow it" only *if an existing entry conflicts*.)
2. *Livelock.* Rejections of pipelined appends overwrite each other's hint, so a follower with a conflicting tail may
   never catch up. The hint is now the end of the committed prefix, which always agrees.
3. *Rewinding.* An acknowledgement that is older than what was sent since moves the leader's pipeline back, so that it
   sends again what rule 1 then has to sort out. It no longer moves it back.
4. *Snapshots* keep the log behind them; see `snapshot_file.py`.
5. *Terms.* Acknowledgements carry no term, so a late one could be counted in a later leadership of the same
   coordinator, after the follower's log changed. They carry one here and count only in it.
6. *Signs of life.* Followers do not answer pieces of a snapshot, so a leader that ships a large one to its only live
   follower deposes itself. They answer here.
7. *Rejoining.* A coordinator that comes back with an empty folder has forgotten votes and entries that others counted.
   Until it has applied what a leader had committed in its own term, it neither votes nor stands for election, and a
   leader forgets what it had acknowledged. (Raft has no such rule: there, a server that lost its disk is another server.)
   Argument: an entry that was committed with its help is in the log of every leader that can be elected without its
   vote, and such a leader's commit index covers it by the time that leader answers the new connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator.runtime.raft import pinned
from protocol.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.runtime.raft.journal import Entry
    from coordinator.runtime.raft.snapshot_file import SnapshotStore

Message: TypeAlias = dict[str, Any]
"""One of the library's messages; `messages.py` has their shapes."""


class Guards:
    """The rules for one coordinator. The transport hands every message through `receive` and `outgoing`.

    Args:
        raft: The library's object.
        store: Its snapshot store; None only around a library that has its own (simulations).
    """

    def __init__(self, raft: Any, store: SnapshotStore | None) -> None:  # noqa: ANN401 - the library is untyped
        self._raft = raft
        self._store = store
        self._verified: int | None = None
        self._answered = False
        self._committed = (0, 0)
        self.counts = {"trimmed": 0, "kept_tail": 0, "rewind_stopped": 0, "stale_ack": 0, "kept_behind_snapshot": 0}

    def receive(self, node: Any, message: Message, deliver: Callable[[Message], None]) -> list[Message]:  # noqa: ANN401
        """Deliver a message to the library, mended.

        Args:
            node: The sender.
            message: As it arrived, of checked shape.
            deliver: The library's own reception.

        Returns:
            Messages to send back besides what the library sent through the transport.

        Raises:
            RemoteProtocolError: The sender breaks the protocol; nothing was delivered.
        """
        match message["type"]:
            case "append_entries":
                return self._append(message, deliver)
            case "request_vote" | "timeout_now" if self._raft.journal.rejoining:
                pass  # Rule 7.
            case "next_node_idx":
                self._acknowledged(node, message, deliver)
            case _:
                deliver(message)
        return []

    def connected(self, node: Any, *, rejoining: bool) -> None:  # noqa: ANN401 - the library is untyped
        """A connection is up, before the library hears of it."""
        if rejoining:
            pinned.forget_match(self._raft, node)

    @property
    def has_caught_up(self) -> bool:
        """Rule 7: whether everything is applied that a leader has said to be committed, in that leader's own term."""
        term, commit = self._committed
        if term != self._raft.raftCurrentTerm or self._raft.raftLastApplied < commit:
            return False
        return self._term_at(commit) == term

    def outgoing(self, message: Message) -> Message:
        """The message as it is to leave."""
        if message["type"] != "next_node_idx":
            return message
        self._answered = True
        message = {**message, "term": self._raft.raftCurrentTerm}
        if message["reset"]:
            settled = max(self._raft.raftCommitIndex, self._raft.raftLastApplied)
            message["next_node_idx"] = min(settled, pinned.log_of(self._raft)[-1][1]) + 1
        elif message["success"] and self._verified is not None:
            message["next_node_idx"] = self._verified + 1
        return message

    def _append(self, message: Message, deliver: Callable[[Message], None]) -> list[Message]:
        if message["term"] < self._raft.raftCurrentTerm:
            deliver(message)
            return []
        self._answered = False
        self._committed = max(self._committed, (message["term"], message["commit_index"]))
        try:
            deliver(self._trim(message) if "prevLogIdx" in message else message)
        finally:
            self._verified = None
        if self._store is not None:
            self._store.check()
            kept = self._store.take_kept_entries()
            for entry in kept:
                pinned.log_of(self._raft).add(*entry)
            self.counts["kept_behind_snapshot"] += bool(kept)
        if self._answered:
            return []
        alive = {"type": "next_node_idx", "next_node_idx": 1, "reset": False, "success": False}
        return [{**alive, "term": self._raft.raftCurrentTerm}]

    def _trim(self, message: Message) -> Message:
        """Rule 1. Afterwards the append begins behind everything that the log and it have in common."""
        index, term = message["prevLogIdx"], message["prevLogTerm"]
        entries: list[Entry] = list(message["entries"])
        for position, entry in enumerate(entries):
            if index is None or entry[1] != index + 1 + position:
                raise RemoteProtocolError(f"append after entry {index} holds entry {entry[1]}")
        if index is None or self._term_at(index) != term:
            return message  # The library answers with a reset, and `outgoing` gives the hint (rule 2).
        common = 0
        for _, entry_index, entry_term in entries:
            if self._term_at(entry_index) != entry_term:
                break
            index, term = entry_index, entry_term
            common += 1
        del entries[:common]
        self.counts["trimmed"] += common > 0
        trimmed = {**message, "prevLogIdx": index, "prevLogTerm": term, "entries": entries}
        last = pinned.log_of(self._raft)[-1]
        if not entries and last[1] > index:
            # The rest of the log may be newer than this append, or a tail that conflicts with the leader's: unknown,
            # so neither delete nor acknowledge nor commit it.
            self._verified = index
            self.counts["kept_tail"] += 1
            trimmed["prevLogIdx"], trimmed["prevLogTerm"] = last[1], last[2]
            trimmed["commit_index"] = min(message["commit_index"], index)
        return trimmed

    def _acknowledged(self, node: Any, message: Message, deliver: Callable[[Message], None]) -> None:  # noqa: ANN401
        if message["term"] != self._raft.raftCurrentTerm:
            self.counts["stale_ack"] += 1  # Rule 5.
            return
        following = pinned.next_index_of(self._raft)
        before = following.get(node)
        deliver(message)
        is_acknowledgement = message["success"] and not message["reset"]
        if is_acknowledgement and before is not None and following.get(node, before) < before:
            following[node] = before  # Rule 3.
            self.counts["rewind_stopped"] += 1

    def _term_at(self, index: int) -> int | None:
        entry = pinned.entry_at(self._raft, index)
        return None if entry is None else entry[2]
