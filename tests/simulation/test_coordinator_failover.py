"""The leader dies, or sleeps, at each step of an epoch (scenarios D6 and D7, invariants I9 to I11, I19 to I21).

`World` checks the invariants while it runs; the tests add that every epoch ends and that history survives.
"""

import pytest

from coordinator.ledger import encode_command, parse_result
from tests.coordinator_world import EVERY_SECOND, MS, SECOND, World, cluster

NAMES = ("a", "b", "c", "d")

STEPS = {
    "trigger logged": lambda w: w.state_of(2) == "started",
    "orders sent": lambda w: ("ordered", "b", 2) in w.happened,
    "k of n reports": lambda w: w.state_of(2) == "started" and 0 < w.epoch(2).reported_count < len(NAMES),
    "all reports": lambda w: w.state_of(2) == "started" and w.epoch(2).complete,
    "assembled": lambda w: ("assembled", 2, "CutAssembled") in w.happened,
    "sealed": lambda w: w.state_of(2) == "sealed",
    "manifest written": lambda w: ("stored", 2) in w.happened,
    "commit logged": lambda w: w.state_of(2) == "committed",
}
"""Steps of the second epoch; the first one is the history that must survive."""


def world_at(step: str, action) -> World:
    """A cluster in its second epoch, with `action(leader)` done at the step."""
    world = cluster(*NAMES)
    world.trigger("first")
    world.run(until=lambda: world.state_of(1) == "committed")
    if step == "k of n reports":  # two come at once and two late
        for name in ("c", "d"):
            world.participants[name].reports = False
    world.trigger("second")
    done = []

    def look():
        if not done and STEPS[step](world):
            done.append(world.now)
            # After the effects of this step, not in their middle: crash points lie between events.
            world.later(0, lambda: action(world, world.coordinators[0]))

    world.stop_when = look
    world.run(until=lambda: bool(done))
    world.run(0)
    for participant in world.participants.values():
        participant.reports = True
    return world


@pytest.mark.parametrize("step", list(STEPS))
def test_leader_killed_at_this_step_and_the_next_one_finishes(step):
    world = world_at(step, lambda w, leader: w.kill(leader))
    killed = world.coordinators[0]
    world.later(300 * MS, lambda: world.elect(world.coordinators[1]))
    start = world.now
    world.run(until=lambda: world.state_of(2) == "committed")
    assert world.now - start < 300 * MS + SECOND, "within election and a second"
    assert [world.epoch(n).reason for n in (1, 2)] == ["first", "second"]
    assert world.epoch(1).state == "committed"
    assert world.epoch(1).members["a"].timings["upload"] == 4000, "timings of earlier epochs survive"
    world.restart(killed)
    world.run(1)
    assert world.replicas_agree()
    for participant in world.participants.values():
        assert participant.ends == {1: "committed", 2: "committed"}, "each leaves snapshot mode"
    request = world.trigger("third")
    world.run(1)
    assert world.answers[request]["epoch"] == 3, "numbers are not used again"
    assert world.state_of(3) == "committed"


@pytest.mark.parametrize("step", list(STEPS))
def test_leader_asleep_at_this_step_wakes_after_the_next_one_went_on(step):
    world = world_at(step, lambda w, leader: w.sleep(leader))
    sleeper = world.coordinators[0]
    world.later(300 * MS, lambda: world.elect(world.coordinators[2]))
    world.run(until=lambda: world.state_of(2) == "committed")
    world.run(until=world.ready)
    world.trigger("while it slept")
    world.run(until=lambda: world.state_of(3) == "committed")
    world.wake(sleeper)
    assert not sleeper.machine.leading
    world.run(2)
    assert world.participants["a"].at is world.leader
    assert [world.state_of(n) for n in (1, 2, 3, 4)] == ["committed", "committed", "committed", "none"]
    assert world.replicas_agree()
    assert all(p.ends == {1: "committed", 2: "committed", 3: "committed"} for p in world.participants.values())


@pytest.mark.parametrize("step", ["all reports", "assembled", "sealed", "manifest written"])
def test_deposed_leader_that_does_not_know_it_proposes_in_vain(step):
    """It runs on beside the new leader; the library passes its commands on to the new one's log."""
    world = world_at(step, lambda w, leader: None)
    old, new = world.coordinators[:2]
    world.leader = None
    world.term += 1
    old_proposals = len(world.happened)
    world.leader = new  # no word to the old one
    new.apply_through(len(world.log))
    from coordinator.events import BecameLeader

    new.feed(BecameLeader(term=world.term))
    # The participants leave the old leader, which goes on with what it has.
    for participant in world.participants.values():
        participant.disconnect("reset")
        participant.connect()
    world.run(5)
    assert world.state_of(2) == "committed"
    assert not old.machine.leading, "it saw another leader's entry"
    assert new.machine.leading
    assert len(world.happened) > old_proposals
    assert world.replicas_agree()


def test_command_of_an_earlier_term_is_refused_whatever_it_is():
    world = cluster("a", "b")
    old = world.coordinators[0]
    text = next(t for t in reversed(world.log) if '"kind":"topology"' in t)
    world.kill(old)
    world.elect(world.coordinators[1])
    world.run(until=world.ready)
    from coordinator.ledger import StartCommand

    late = StartCommand(id=("c1.1", 99), term=1, topology=1, reason="late", deadline_ns=SECOND)
    before = world.ledger.digest()
    result = parse_result(world.ledger.apply(encode_command(late, at=1)))
    assert (result["ok"], result["code"]) == (False, "stale-term")
    assert world.ledger.digest() == before
    # A retried command that was applied in its day gets its answer of that day, and changes nothing.
    assert parse_result(world.ledger.apply(text))["ok"]
    assert world.ledger.digest() == before


@pytest.mark.parametrize("fate", ["refuse", "lose", "silent", "twice"])
@pytest.mark.parametrize("kind", ["start", "reports", "seal", "commit", "abort"])
def test_any_command_refused_lost_unanswered_or_doubled_is_applied_once(kind, fate):
    world = cluster("a", "b")
    world.fates[kind] = fate
    if kind == "abort":
        world.participants["b"].fails = "no space left"
    world.trigger()
    world.run(3)
    assert not world.fates, "the fault fired"
    assert world.state_of(1) == ("aborted" if kind == "abort" else "committed")
    assert world.ledger.state.epoch == 1
    assert world.replicas_agree()


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(15))
def test_epochs_every_second_while_leaders_come_and_go(seed):
    """Swarm: bad luck with proposals, leaders killed, slept and restarted; then quiet, and everything must be whole."""
    world = cluster("a", "b", "c", policy=EVERY_SECOND, seed=seed, jitter_ns=20 * MS)
    random = world.random
    world.fate_odds = random.choice([0.0, 0.05, 0.3])
    for _ in range(8):
        world.run(random.random() * 2)
        leader = world.leader
        assert leader is not None
        others = [c for c in world.coordinators if c is not leader and c.up and c.asleep is None]
        match random.choice(["kill", "sleep", "depose"]):
            case "kill":
                world.kill(leader)
                world.run(0.3)
                world.elect(random.choice(others))
                world.run(random.random())
                world.restart(leader)
            case "sleep":
                world.sleep(leader)
                world.run(0.3)
                world.elect(random.choice(others))
                world.run(random.random() * 4)
                world.wake(leader)
            case "depose":
                world.elect(random.choice(others))
    world.fate_odds = 0.0
    committed = world.ledger.state.committed
    world.run(12)
    assert world.ledger.state.committed >= committed + 5, "epochs go on"
    assert all(not r.open or r.epoch >= world.ledger.state.epoch for r in world.ledger.state.epochs.values())
    assert world.replicas_agree()
    for participant in world.participants.values():
        for number, how in participant.ends.items():
            assert world.state_of(number) == how, "the same end at every observer (I11)"
    assert not any(p.fenced for p in world.participants.values()), "nobody was lost without a reason"
