"""Everything at once, by seed: coordinators and participants come and go, proposals and the store fail; then quiet.

`World` checks I9 to I11, I21 and P2 while it runs. Here liveness is added (L1 to L3, L9): once the faults have ended,
epochs commit again, all observers agree, and nothing is left open.
"""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from coordinator.events import PinRequested, UnpinRequested
from protocol.limits import RECONNECT_NS
from tests.coordinator_world import EVERY_SECOND, LEASE_S, MS, SECOND, World, cluster, replace_struct

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(20)


def disturb(world: World) -> None:
    """One fault, or the end of one."""
    random = world.random
    alive = [p for p in world.participants.values() if not (p.dead or p.left or p.fenced)]
    match random.choice(["kill", "restart", "leave", "mute", "drop", "fail", "store", "leader", "lead-off", "join"]):
        case "kill" if len(alive) > 1:
            world.kill_participant(random.choice(alive).id)
        case "restart":
            gone = sorted(name for name, p in world.participants.items() if p.dead or p.left or p.fenced)
            if gone:
                world.add(random.choice(gone), boot=f"boot-{world.now}")
        case "leave" if len(alive) > 1:
            from protocol.messages import Leave

            participant = random.choice(alive)
            participant.say(Leave(session=participant.session or 1))
        case "mute":
            participant = random.choice(alive) if alive else None
            if participant is not None:
                participant.silent = not participant.silent
        case "drop" if alive:
            participant = random.choice(alive)
            participant.disconnect("reset")
            world.later(random.randrange(2 * SECOND), participant.connect)
        case "fail" if alive:
            participant = random.choice(alive)
            participant.fails = "" if participant.fails else "no space left on device"
        case "store":
            world.store_fails = "" if world.store_fails else "503: slow down"
        case "leader":
            leader = world.leader
            if leader is not None:
                others = [c for c in world.coordinators if c is not leader and c.up and c.asleep is None]
                world.kill(leader)
                world.run(0.3)
                world.elect(random.choice(others))
                world.run(random.random())
                world.restart(leader)
        case "lead-off":
            world.elect(random.choice(world.coordinators))
        case "join" if len(world.participants) < 6:
            world.add(f"n{len(world.participants)}")


Asked = list[tuple[str, str]]
"""(name, request), in the order in which they were made."""


def name_an_epoch(world: World, random: Random, asked: Asked) -> None:
    """An operator names an epoch, whatever it is, or takes a name back."""
    if world.leader is None or not world.leader.up:
        return
    name = random.choice("xyz")
    epoch = random.randint(1, world.ledger.state.epoch + 1)
    wanted = PinRequested(request="", epoch=epoch, name=name)
    asked.append((name, world.ask(wanted if random.random() < 0.7 else UnpinRequested(request="", name=name))))


def check_names(world: World, asked: Asked) -> None:
    """Names are what their answers have said, in order; where an answer is missing, they are at least of committed epochs."""
    savepoints = world.ledger.state.savepoints
    assert all(world.state_of(record.epoch) == "committed" for record in savepoints.values())
    for name in "xyz":
        answers = [world.answers.get(request, {"code": "none"}) for each, request in asked if each == name]
        if any(each.get("code") in {"none", "unknown-outcome"} for each in answers):
            continue
        done = [each for each in answers if each["ok"]]
        expected = done[-1]["epoch"] if done and "outcome" in done[-1] else None
        assert (savepoints[name].epoch if name in savepoints else None) == expected


def heal(world: World) -> None:
    world.fate_odds = 0.0
    world.store_fails = ""
    for participant in world.participants.values():
        participant.silent = False
        participant.fails = ""
    world.run(LEASE_S + RECONNECT_NS / SECOND + 1)
    for name, participant in sorted(world.participants.items()):
        if participant.dead or participant.left or participant.fenced:
            world.add(name, boot=f"healed-{world.now}")
    world.run(LEASE_S + 15)


def play(seed: int) -> World:
    policy = replace_struct(EVERY_SECOND, max_concurrent=1 + seed % 3, interval_ns=300 * MS)
    world = cluster("a", "b", "c", policy=policy, seed=seed, jitter_ns=30 * MS)
    world.digest_every = 50
    world.fate_odds = world.random.choice([0.0, 0.05, 0.3])
    asked: Asked = []
    operator = Random(seed)  # of its own: what it does changes nothing else of the seed
    for _ in range(15):
        world.run(world.random.random())
        disturb(world)
        name_an_epoch(world, operator, asked)
    heal(world)
    check_names(world, asked)
    return world


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_epochs_go_on_after_any_trouble(seed):
    world = play(seed)
    committed = world.ledger.state.committed_count
    world.run(5)
    assert world.ledger.state.committed_count >= committed + 5
    assert world.replicas_agree()
    members = {m.id: m.session for m in world.ledger.state.topology.members}
    live = {name: p.session for name, p in world.participants.items()}
    assert members == live, "everybody who is there is a member, with the session that it knows"
    for participant in world.participants.values():
        for number, how in participant.ends.items():
            assert world.state_of(number) == how
    open_epochs = world.ledger.open_epochs()
    assert all(r.epoch > world.ledger.state.epoch - 3 for r in open_epochs)
    for record in world.ledger.state.epochs.values():
        if record.state == "aborted":
            assert record.abort.phase
            assert record.abort.cause


@pytest.mark.slow
@pytest.mark.simulation
def test_same_seed_gives_the_same_log_whatever_the_hash_seed():
    code = (
        "from tests.simulation.test_coordinator_swarm import play; from protocol.digests import digest;"
        "w = play(3); print(digest('\\n'.join(w.log).encode()), w.ledger.digest(), len(w.log))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(answers) == 1
