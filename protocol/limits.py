"""Every bound, with the reason for its value. A queue, buffer, retry or loop without an entry here is a bug."""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

FRAME_BYTES_MAX: Final = 4 * MIB
"""One channel frame, header and MAC included. A peer can make us buffer this much before its MAC is checked."""
FRAME_ITEMS_MAX: Final = 65_536
"""Items in one frame: bounds what a small frame can unfold into."""
FRAME_TARGET_BYTES: Final = 256 * KIB
"""A batch is closed at about this size: large enough to amortise header and MAC, small enough to keep latency flat."""
MESSAGE_BYTES_MAX: Final = 1 * MIB
"""One encoded agent message. Larger things belong into a store, with a reference in the message."""
CONTROL_BYTES_MAX: Final = 8 * MIB
"""One control message: a topology of 10,000 members fits."""
NESTING_MAX: Final = 64
"""Levels of nesting in a message or state value: deeper ones raise RecursionError in decoders."""

CHANNEL_WINDOW_BYTES: Final = 8 * MIB
"""Bytes sent and not yet acknowledged on one channel; more waits in the sender."""
CHANNEL_REORDER_BYTES: Final = 8 * MIB
"""Out-of-order frames kept by a receiver; more are dropped and sent again."""
CHANNEL_RESEND_NS: Final = 500_000_000
"""First resend without progress: above any loopback or LAN round trip; doubles up to the maximum."""
CHANNEL_RESEND_NS_MAX: Final = 5_000_000_000
ACK_DELAY_NS: Final = 5_000_000
"""An acknowledgement waits this long for a frame of the other direction to ride on."""
SEND_BUFFER_BYTES: Final = 16 * MIB
"""Frames that wait in one connection's send buffer: above the channel window, so that only a peer that stopped reading
fills it; frames beyond it are dropped and sent again later."""
HANDSHAKES_MAX: Final = 256
"""Connections that have not proved yet who they are, at one participant: each may hold one small message."""
CONTROL_WAITING_MAX: Final = 1_024
"""Control messages that wait to be sent on one connection: heartbeats and reports make a handful a second."""
EVENTS_WAITING_MAX: Final = 1_000
"""Events that wait for one slow iteration over a participant's events; the oldest go first."""
STRANGERS_REMEMBERED_MAX: Final = 1_000
"""Names under which refused frames are logged once each; beyond it they are only counted."""
UPLOAD_RETRY_NS: Final = 5_000_000_000
"""How long a failing store is tried again for one object, at most half of what is left of the epoch's deadline: the reason
of the failure must reach the coordinators before the deadline does."""
UPLOADS_MAX: Final = 2
"""Finished packs of one epoch that wait in memory to become durable."""
RESTORE_DEADLINE_NS: Final = 600_000_000_000
"""A rollback in which somebody has not taken its part after this long has failed, and another one begins: as long as the largest
state takes to be read from a slow store."""
RESTORE_RETRY_NS: Final = 10_000_000_000
"""How long a store that does not answer is asked again before a restore fails; the leader then begins another."""
PARKED_FRAMES_BYTES_MAX: Final = 4 * MIB
"""Frames of an incarnation or session that the sender already knows of and we do not yet; more are dropped and sent again."""
RECORDING_BYTES_MAX: Final = 256 * MIB
"""In-flight bytes that one epoch may record at one participant; past it the epoch aborts and memory stays flat (I33)."""
IN_FLIGHT_BYTES_MAX: Final = 64 * MIB
"""Bytes in mailboxes and outgoing channels past which outside input is refused."""
UNROUTED_MESSAGES_MAX: Final = 10_000
"""Messages to agents that nobody hosts yet; more go to the dead letters."""
UNROUTED_BYTES_MAX: Final = 64 * MIB
"""The same in bytes: ten thousand messages of the largest size would be ten gigabytes."""
DEAD_LETTERS_MAX: Final = 1_000
"""Kept per participant for a look; the count goes on."""
DEAD_LETTERS_BYTES_MAX: Final = 16 * MIB
"""The same in bytes of messages: a thousand of the largest size would be two gigabytes. The newest is always kept."""

CONCURRENT_EPOCHS_MAX: Final = 8
EPOCH_HISTORY_MAX: Final = 1_000
"""Ended epochs whose history stays in the ledger."""
SAVEPOINTS_MAX: Final = 256
"""Names in the ledger. Each keeps its epoch's record in every snapshot of the ledger, and in the store all that it names, for
ever: what is past a few hundred is an archive, and `fork` makes one that needs no cluster to keep it."""
ABORTED_EPOCHS_REMEMBERED_MAX: Final = 1_024
"""Above the low-water mark; older numbers count as ended by the mark alone."""
COMMAND_BYTES_MAX: Final = 24 * KIB
"""One ledger command; pysyncobj misbehaves from 32 KiB on (RAFT_MQTT.md A8)."""
CLIENTS_REMEMBERED_MAX: Final = 1_024
"""Clients in the ledger's table of applied command ids; the longest unused goes first."""
PARTICIPANTS_MAX: Final = 10_000
AGENTS_PER_PARTICIPANT_MAX: Final = 20_000
"""With ids of 100 characters this is 2 MB of the topology that every member is sent."""
ANNOUNCED_MAX: Final = 16
"""Participants whose long list of agents the ledger holds before they are registered; the oldest goes first."""
PARTICIPANTS_ENDED_MAX: Final = 1_000
"""Lost and left participants that the ledger remembers; the oldest sessions go first."""
EPOCH_MEMBER_ROWS_MAX: Final = 20_000
"""Rows of members that the ledger keeps for ended epochs in all: 1,000 epochs of a small cluster, the last 20 of 1,000
participants. Sums and blame stay; the manifest has the rest. Keeps a snapshot of the ledger at a few megabytes."""
LEDGER_RESULTS_REMEMBERED_MAX: Final = 256
"""Results per client: four times what a leader has in flight."""

SEGMENT_TARGET_BYTES: Final = 64 * KIB
"""Keyed state is written in segments of about this many encoded bytes: one background slice's work each."""
CHUNK_BYTES_MAX: Final = 8 * MIB
"""One chunk, uncompressed."""
PACK_TARGET_BYTES: Final = 64 * MIB
"""A pack is closed at about this size; one fsync each."""
DECOMPRESSED_BYTES_MAX: Final = 16 * MIB
"""No chunk unfolds into more, whatever its header says."""
MANIFEST_BYTES_MAX: Final = 256 * MIB
PACK_OBJECT_BYTES_MAX: Final = 1024 * MIB
"""A pack that is read as a whole, to be copied."""
FORK_BYTES_MAX: Final = 64 * KIB
SNAPSHOT_OBJECT_BYTES_MAX: Final = 512 * MIB
CONTENT_BYTES_MAX: Final = 1024 * MIB
"""One field's value, mailbox or channel state, joined in memory to be checked or shown."""

CAPTURE_SLICE_NS: Final = 200_000
"""Background encoding yields to the event loop after this long."""
TURN_SLICE_NS: Final = 2_000_000
"""Turns run back to back for this long before sockets are served again."""

RAFT_FRAME_BYTES_MAX: Final = 2 * MIB
"""One frame between coordinators: a batch of entries is 1 MiB and one command at most, a snapshot piece 256 KiB."""
RAFT_HELLO_BYTES_MAX: Final = 1 * KIB
"""The first frame of a connection, before the peer is known."""
RAFT_SEND_BYTES_MAX: Final = 64 * MIB
"""Unsent bytes to one coordinator; past it its connection is dropped and it catches up later."""
RAFT_UNKNOWN_CONNECTIONS_MAX: Final = 32
"""Connections that have not yet said who they are; more are closed at once."""
RAFT_SNAPSHOT_BYTES_MAX: Final = 512 * MIB
"""A snapshot received from the leader is kept in memory until it verifies."""
RAFT_SUBMITTED_MAX: Final = 10_000
"""Commands submitted and not yet answered; more are refused."""
RAFT_JOURNAL_REWRITE_BYTES_MIN: Final = 16 * MIB
"""Below this size a journal is never rewritten just to get rid of cut-off entries and old terms."""

SECRET_BYTES_MIN: Final = 32
LEASE_NS: Final = 3_000_000_000
"""A participant whose control connection is silent this long is lost."""
RECONNECT_NS: Final = 5_000_000_000
"""What a new leader adds to the first lease of each participant: 1.5 s until it notices that the old one is gone, and 3 s
that it may hang at a coordinator that is stopped."""
HEARTBEAT_NS: Final = 500_000_000
EPOCH_DEADLINE_NS: Final = 60_000_000_000

PROPOSALS_IN_FLIGHT_MAX: Final = 64
"""Ledger commands of one leader on their way: a quarter of the results that the ledger remembers for it."""
PROPOSAL_RETRY_NS: Final = 100_000_000
"""A command that was refused or whose fate is unknown is proposed again after this long: a fraction of an election."""
ROLLBACKS_REMEMBERED_MAX: Final = 100
"""Rollbacks whose history stays in the ledger."""
RENAMES_MAX: Final = 64
"""Agents that one restore gives another name."""
RENAMES_CARRIED_MAX: Final = 1_024
"""The same of a rollback that carries on what earlier ones have renamed."""
DROPPED_MAX: Final = 64
"""Agents that one restore gives up because nobody takes them."""
FENCES_MAX: Final = 16
"""Fence points of a cluster: stores and sinks."""
KINDS_MAX: Final = 256
"""Kinds of agents that one participant can take from others."""
SUSPECT_NS: Final = 1_000_000_000
"""A participant whose control connection has closed and who is not back after this long is lost: it dials again within
0.1 s, and once more where a coordinator does not lead."""
PROBE_PAUSE_NS: Final = 50_000_000
"""Between two looks whether a participant whose connection has closed still listens: a process that dies closes one socket
after the other, and its control connection may be the first."""
ROLLBACK_PAUSE_NS: Final = 500_000_000
"""Before the third rollback of a window; twice as long before each later one: a crash loop must not keep the store busy."""
ROLLBACK_PAUSE_NS_MAX: Final = 30_000_000_000
TOPOLOGY_SETTLE_NS: Final = 50_000_000
"""Joins and leaves within this long go into one topology: a cluster that starts makes few versions, not one each."""
TOPOLOGY_ACCEPT_NS: Final = 10_000_000_000
"""A newcomer that has not accepted its first topology after this long is lost: it holds back every epoch."""
LEASE_CHECKS: Final = 8
"""Times per lease that the leader looks for silent participants: a loss is noticed within 9/8 of a lease."""
STORE_RETRY_NS: Final = 100_000_000
"""First pause before a store is asked again; doubles up to the maximum."""
STORE_RETRY_NS_MAX: Final = 2_000_000_000
FORSAKE_AFTER_NS: Final = 5_000_000_000
"""A sealed epoch whose parts are damaged or gone is forsaken after this long: what a read or a store gets wrong for a moment is
over by then, and nothing else starts meanwhile."""
FORSAKE_REFUSALS_MIN: Final = 3
"""And not before its parts were found so this often, one after the other."""
EFFECTS_MAX: Final = 1_000_000
"""Entries of one effect ledger: half a gigabyte. They go with the epochs that could bring their positions back."""
LEDGERS_CARRIED_MAX: Final = 64
"""Effect ledgers that are remembered of one agent by name: each is a lost disk or a host that it has left. More are one name for all."""
EFFECT_RESULT_BYTES_MAX: Final = 1 * MIB
"""One step's result, or one answer. Larger things belong into a store, with a reference in the result."""
EFFECT_SHOWN_CHARS_MAX: Final = 1_000
"""A step's arguments as people are shown them."""
CONSULT_BYTES_MAX: Final = 2 * MIB
"""One participant's answer to an operator: a page. The longest result of a step fits, a control connection is not held up."""
CONSULT_ROW_BYTES_MAX: Final = 256 * KIB
"""One effect, question or turn in such an answer; longer ones lose their longest parts."""
CONSULT_ROWS_MAX: Final = 1_000
"""Rows of one page."""
WAITING_LISTED_MAX: Final = 20
"""Agents that a heartbeat names as waiting for somebody's decision; the rest is a count."""
QUESTION_BYTES_MAX: Final = 64 * KIB
"""One question: it is part of every cut while it is open."""
STEPS_PER_TURN_MAX: Final = 10_000
"""Steps and questions of one turn: a loop without end ends with an error."""
EFFECTS_LOG_REWRITE_BYTES_MIN: Final = 4 * MIB
"""Below this an effect log is not rewritten just to get rid of what does not count any more."""
INPUT_LOG_BYTES_MAX: Final = 256 * MIB
"""Of one participant's input log. Past half of it only the last few committed epochs' input is kept; past it only the newest
one's, and input is refused."""
LOG_HEADER_BYTES_MAX: Final = 4 * KIB
"""A log segment's header: names and numbers."""
LOG_BATCH_BYTES_MAX: Final = 1024 * MIB
"""One batch of a log: turns of one group commit. What one turn writes is bounded by memory, not by this."""
LOG_RECORD_BYTES_MAX: Final = LOG_BATCH_BYTES_MAX - 16 * MIB
"""One record, or all records of a log that begins anew: they are one batch, with what goes around them."""
LOG_BATCH_TARGET_BYTES: Final = 4 * MIB
"""A batch that waits for the disk takes no more records than this: the write after it can begin sooner."""
LOG_SEGMENT_BYTES: Final = 16 * MIB
"""A log goes on in a new segment from this size on: what an epoch covers can be deleted in pieces of it."""
LOG_SEGMENTS_MAX: Final = 100_000
"""Segments that a log is read back from: 1.5 TB. More is an error, not a loop."""
BOOT_ID_CHARS_MAX: Final = 64
ADDRESS_CHARS_MAX: Final = 512
"""A participant's transport address."""
