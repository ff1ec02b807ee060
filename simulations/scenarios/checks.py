"""What has to be seen in each scenario, beside what all oracles ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.digests import manifest_key
from protocol.documents import decode_manifest
from protocol.reading import EpochReader
from protocol.verify import verify_epoch
from simulations.scenarios.long_call import ASK, CALLER
from simulations.violations import Violation
from simulations.world import MS, SECOND

if TYPE_CHECKING:
    from coordinator.ledger import EpochRecord
    from simulations.cluster import SimulatedCluster
    from simulations.faults import Injector


def records(cluster: SimulatedCluster) -> list[EpochRecord]:
    """All epochs, as the most advanced replica has them."""
    lives = [life for life in cluster.log.lives.values() if life.alive]
    ledger = max(lives, key=lambda life: life.applied).ledger
    return [record for _, record in sorted(ledger.state.epochs.items())]


def demand(holds: bool, text: str) -> None:  # noqa: FBT001 - an assertion's shape
    """Raise a violation unless it holds."""
    if not holds:
        raise Violation("scenario", text)


def in_state(cluster: SimulatedCluster, state: str) -> list[EpochRecord]:
    """Epochs of this state."""
    return [record for record in records(cluster) if record.state == state]


def demand_whole(cluster: SimulatedCluster, epoch: int) -> None:
    """A committed epoch can be restored: all that it names is there and right."""
    report = verify_epoch(cluster.store.objects, epoch, cluster.keys)
    demand(report.ok, f"epoch {epoch} is not whole: {report.findings[:1]}")


def demand_nobody_records(cluster: SimulatedCluster) -> None:
    """No participant is still in an epoch that ended a while ago."""
    ended = cluster.oracles.history.ended_at
    for life in cluster.lives.values():
        if life.alive and life.asleep is None and life.control.line is not None and life.control.line.registered:
            stuck = [
                epoch
                for epoch in life.machine.open_epochs
                if ended.get(epoch, 1 << 62) < cluster.world.now - 4 * SECOND
            ]
            demand(not stuck, f"{life.name} still takes part in epochs {stuck}, which have ended")


# --- one for each scenario --------------------------------------------------------------------------------------------


def silent(cluster: SimulatedCluster, injector: Injector) -> None:
    """D1: aborted at its deadline and no later than half a second behind it, with whom, where and when last heard."""
    demand(injector.fired.get("pause", 0) == 1, "the pause did not happen")
    aborted = in_state(cluster, "aborted")
    demand(bool(aborted), "no epoch was aborted although a participant was silent")
    for record in aborted:
        assert record.abort is not None
        demand("p3" in (record.abort.participant, record.abort.cause), f"blames {record.abort}")
        demand(2 * SECOND <= record.took_ns <= 2500 * MS, f"epoch {record.epoch} took {record.took_ns / 1e9:.2f} s")
        demand(record.epoch not in cluster.oracles.history.manifests, "an aborted epoch has a manifest")
    first, last = aborted[0].epoch, aborted[-1].epoch
    why = aborted[0].abort
    assert why is not None
    demand(why.phase == "record", f"it is in phase {why.phase}, not about to record")
    demand("last heard" in why.cause, f"nobody says when it was last heard: {why.cause}")
    committed = [record.epoch for record in in_state(cluster, "committed")]
    demand(any(epoch > last for epoch in committed), "no epoch commits later")
    before = [epoch for epoch in committed if epoch < first]
    demand(bool(before), "there is no epoch before it")
    demand_whole(cluster, before[-1])
    numbers = [record.epoch for record in records(cluster)]
    demand(len(set(numbers)) == len(numbers), "a number is used twice")


def long_call(cluster: SimulatedCluster, injector: Injector) -> None:
    """D2: epochs commit beside the call, and say that it is running, under which id, and how long they took themselves."""
    demand(not in_state(cluster, "aborted"), "a call that takes long aborts an epoch")
    committed = [record for record in in_state(cluster, "committed") if record.members_count == 3]
    demand(len(committed) >= 8, f"{len(committed)} epochs commit beside a long call")
    identities = set()
    for record in committed:
        demand(
            record.took_ns < SECOND, f"epoch {record.epoch} took {record.took_ns / 1e9:.1f} s: it waits for the call"
        )
        for name, member in record.members.items():
            demand(
                max(member.timings.values(), default=0) < SECOND,
                f"epoch {record.epoch}, {name}: {member.timings} count the call's time",
            )
        manifest = decode_manifest(
            cluster.store.objects.get(manifest_key(record.epoch), size_max=1 << 30), name=str(record.epoch)
        )
        reader = EpochReader(cluster.store.objects, manifest)
        caller = reader.state(CALLER)
        mailbox = reader.mailbox(CALLER)
        if not caller.running:
            continue  # before the question has come
        demand(ASK.encode() in mailbox[0].body, f"epoch {record.epoch}: the first message is {mailbox[0].type}")
        demand(not caller.fields.get("calls", 0), f"epoch {record.epoch} holds a part of a turn that has not ended")
        identities.add(mailbox[0].id)
        demand(len(mailbox) > 1 or record is committed[0], f"epoch {record.epoch}: nothing waits behind the call")
    demand(len(identities) == 1, f"the call has {len(identities)} ids: who restores could not tell that it is the same")


def slow_consumer(cluster: SimulatedCluster, injector: Injector) -> None:
    """D3: a consumer's mailbox is part of its state; no epoch waits until it is empty."""
    waiting = max(len(host.mailbox) for life in cluster.lives.values() for host in life.hosts)
    demand(waiting > 50, f"the mailboxes hold {waiting} messages only: nobody is slow")
    took = [record.took_ns for record in in_state(cluster, "committed")]
    demand(len(took) >= 4, f"{len(took)} epochs commit beside a slow consumer")
    demand(max(took) < SECOND, f"an epoch took {max(took) / 1e9:.2f} s: it waits for the consumer")


def recording_limit(cluster: SimulatedCluster, injector: Injector) -> None:
    """D3 with a limit: the epoch gives way, by name, not the memory."""
    limit = cluster.options.recording_bytes_max
    by_limit = [
        record
        for record in in_state(cluster, "aborted")
        if record.abort is not None and f"passed the limit of {limit}" in record.abort.cause
    ]
    demand(len(by_limit) >= 2, f"{len(by_limit)} epochs abort because of the limit")
    for record in by_limit:
        assert record.abort is not None
        demand(record.abort.participant.startswith("p"), f"nobody is named: {record.abort}")
    demand(cluster.participant_deaths == 0, "somebody has ended because of the limit")
    for life in cluster.lives.values():
        held = life.machine.statistics().get("snapshot_recorded_bytes", 0)
        demand(held <= limit, f"{life.name} still holds {held} recorded bytes")
    demand(cluster.ghost.deliveries > 500, "agents were held up")


def sleeping_leader(cluster: SimulatedCluster, injector: Injector) -> None:
    """D6: while it sleeps another one leads and commits; awake, it has no effect any more and knows that it does not lead."""
    demand(injector.fired.get("pause-coordinator", 0) == 1, "no leader slept")
    demand(cluster.log.term >= 2, "nobody took over")
    history = cluster.oracles.history
    during = [
        epoch
        for epoch, at in history.ended_at.items()
        if history.states[epoch] == "committed" and 5 * SECOND < at < 17 * SECOND
    ]
    demand(len(during) >= 2, f"epochs {during} commit while the leader sleeps")
    demand(len(history.manifests) >= history.commits, "an epoch is committed without a manifest")
    leading = [name for name, life in cluster.log.lives.items() if life.alive and life.machine.leading]
    demand(len(leading) == 1, f"{leading} believe that they lead")
    open_long = [
        record.epoch for record in records(cluster) if record.state == "sealed" and record.took_ns > 5 * SECOND
    ]
    demand(not open_long, f"epochs {open_long} stay sealed")


def leader_dies(cluster: SimulatedCluster, injector: Injector) -> None:
    """D7: every epoch ends, soon after there is a leader again; nobody stays in it; the history is whole."""
    crashes = [kind for kind in injector.fired if kind.startswith("crash-at ")]
    demand(len(crashes) == 1, f"{crashes} fired; one point was armed")
    history = cluster.oracles.history
    ended = [record for record in records(cluster) if record.state in ("committed", "aborted")]
    bound = cluster.options.deadline_ns + 3 * SECOND
    demand(all(record.took_ns <= bound for record in ended), "an epoch outlived its deadline and a change of leader")
    demand(len(history.states) == len(records(cluster)), "history of earlier epochs is lost")
    for record in in_state(cluster, "committed"):
        demand(all(member.timings for member in record.members.values()), f"epoch {record.epoch} has lost its timings")
    demand_nobody_records(cluster)


def comings_and_goings(cluster: SimulatedCluster, injector: Injector) -> None:
    """D14: each epoch has the members of its start; one that finishes is in it, one that dies aborts it, nobody waits long."""
    for kind, times in (("leave", 2), ("crash", 1)):
        demand(injector.fired.get(kind, 0) == times, f"{kind} happened {injector.fired.get(kind, 0)} times")
    sessions = {life.session: life for life in cluster.ghost.lives.values()}
    first = {life.name: life.session for life in reversed(list(sessions.values()))}
    demand(len(sessions) >= 7, f"sessions {sorted(sessions)}: somebody did not come back")
    found = records(cluster)
    left = [record for record in found if record.state == "committed" and _open_at(cluster, record, 2 * SECOND)]
    demand(
        any(record.members.get("p2") is not None and record.members["p2"].session == first["p2"] for record in left),
        "no epoch that was open when p2 left commits with its last state",
    )
    died = [record for record in found if record.state == "aborted" and _open_at(cluster, record, 5 * SECOND)]
    demand(
        any(record.abort is not None and "p3" in f"{record.abort.participant} {record.abort.cause}" for record in died),
        f"no epoch was aborted because p3 died: {[record.abort for record in died]}",
    )
    again = [session for session, life in sessions.items() if life.name == "p3" and session != first["p3"]]
    for record in found:
        inside = record.members.get("p3")
        if inside is not None and inside.session in again:
            demand(record.epoch > died[-1].epoch, f"p3 is back in epoch {record.epoch}, which it was not there for")
    demand(cluster.oracles.history.commits >= 8, "too few epochs commit")


def _open_at(cluster: SimulatedCluster, record: EpochRecord, since: int) -> bool:
    """Whether an epoch was open when a fault that was armed at `since` struck: the first one that started from then on."""
    starts = cluster.oracles.history.started_at
    later = [epoch for epoch, at in starts.items() if at >= since]
    return bool(later) and record.epoch == min(later)


def clock_jumps(cluster: SimulatedCluster, injector: Injector) -> None:
    """D15: numbers grow, durations are right, deadlines do not notice; of two triggers at once at most one makes an epoch."""
    demand(injector.fired.get("clock", 0) == 2, "the clocks did not jump")
    found = records(cluster)
    demand([record.epoch for record in found] == sorted(record.epoch for record in found), "epochs are out of order")
    demand(all(record.took_ns >= 0 and record.elapsed_ns >= 0 for record in found), "a duration is negative")
    demand(all(record.took_ns < 5 * SECOND for record in found), "a duration has an hour in it")
    demand(not any(record.state == "aborted" for record in found), "a clock that jumps aborts an epoch")
    starts = [record.started_at for record in found]
    demand(starts != sorted(starts), "no wall clock went back: nothing was tested")
    asked = injector.fired.get("trigger", 0)
    demand(asked >= 5, "nobody triggered")
    answers = {name: answer for name, answer in cluster.answers.items() if name.startswith("trigger-")}
    demand(len(answers) == 2 * asked, f"{len(answers)} answers to {2 * asked} triggers")
    started = [answer["epoch"] for answer in answers.values() if answer["ok"]]
    demand(len(set(started)) == len(started), f"two triggers share an epoch: {started}")
    demand(bool(started), "no trigger started an epoch")
    for name, answer in answers.items():
        if not answer["ok"]:
            demand(bool(answer.get("code") and answer.get("sentence")), f"{name} is refused without a reason: {answer}")


def rotten_uploads(cluster: SimulatedCluster, injector: Injector) -> None:
    """What rots before it is read aborts its epoch in time; what is committed and rotten is found later (I16)."""
    hits = cluster.probes.hits
    demand(hits.get("store.rotten_snapshot", 0) > 0, "no local snapshot was spoiled")
    gone = hits.get("rot.noticed_by_assembler", 0) == 0
    demand(not gone or cluster.options.disk, "no assembler was given a spoiled one")
    aborted = [record for record in in_state(cluster, "aborted") if record.abort and record.abort.phase == "assemble"]
    demand(bool(aborted), "no epoch was aborted when its cut was read")
    for record in aborted:
        assert record.abort is not None
        demand(record.took_ns <= record.deadline_ns + 500 * MS, f"epoch {record.epoch} outlived its deadline")
        demand("snapshots/" in record.abort.cause, f"the cause names no object: {record.abort.cause}")
    after = [at for epoch, at in cluster.oracles.history.ended_at.items() if epoch > aborted[-1].epoch]
    demand(len(after) >= 3, "later epochs are held up")
    late = [record for record in in_state(cluster, "committed") if record.epoch > aborted[-1].epoch]
    demand(len(late) >= 3, f"{len(late)} epochs commit after the last that was spoiled")


def forsaken(cluster: SimulatedCluster, injector: Injector) -> None:
    """A sealed epoch that cannot be finished ends with a cause, in seconds, and holds up no later one (P4)."""
    history = cluster.oracles.history
    demand(injector.fired.get("store-rot-sealed", 0) == 1, "no part of a sealed epoch was spoiled")
    demand(len(history.forsaken) == 1, f"forsaken: {list(history.forsaken)}")
    (number,) = history.forsaken
    (record,) = [each for each in in_state(cluster, "aborted") if each.epoch == number]
    assert record.abort is not None
    demand("snapshots/" in record.abort.cause or "forsaken" in record.abort.cause, f"no object: {record.abort.cause}")
    later = [each for each in in_state(cluster, "committed") if each.epoch > number]
    demand(len(later) >= 3, f"{len(later)} epochs commit after the one that was given up")


def forsaken_behind_a_sleeper(cluster: SimulatedCluster, injector: Injector) -> None:
    """As `forsaken`, and whoever slept with the manifest in its hands has tried to store it (I9, I11)."""
    forsaken(cluster, injector)
    demand(cluster.probes.hits.get("manifest.refused", 0) >= 1, "nobody put a manifest where the tombstone lies")


def found_stored(cluster: SimulatedCluster, injector: Injector) -> None:
    """An epoch whose manifest is there when it is to be given up commits, whatever became of its parts (P2)."""
    demand(injector.fired.get("store-rot-sealed", 0) == 1, "no part of a sealed epoch was spoiled")
    demand(not cluster.oracles.history.forsaken, f"forsaken: {list(cluster.oracles.history.forsaken)}")
    demand(cluster.probes.hits.get("epoch.found_stored", 0) == 1, "no leader found the manifest of another one")
