"""Whatever turns do: the log replayed over the state that they began with, or over an epoch between, is where they ended."""

from hypothesis import given, settings
from hypothesis import strategies as st

from participant.capture import Capturer
from participant.loading import load_agent
from protocol.ids import AgentId
from protocol.pack import BytesSource, PackReader
from tests.turnlog_world import ALLOWED, World, content, replayed

TEXTS = st.sampled_from(["x", "y", "z", "\N{EURO SIGN}"])
WHAT = "count name append append edit shrink table note key unkey clear keynote look local remote nobody timer fail"
DEEDS = st.tuples(st.sampled_from(WHAT.split()), TEXTS, st.integers(0, 40))
AGENTS = st.sampled_from(["worker/a", "worker/a", "worker/a", "worker/b", "whole/w", "pickled/p"])
STEPS = st.lists(
    st.tuples(
        AGENTS,
        st.lists(DEEDS, min_size=1, max_size=5),
        st.sampled_from(["run", "run", "all", "flush", "leave"]),
        st.integers(0, 9),
    ),
    max_size=25,
)


def play(world: World, steps) -> None:
    for agent, deeds, then, seconds in steps:
        world.arrive(agent, tuple(deeds))
        world.now += seconds * 1_000_000_000
        if then == "run":
            world.run(agent)
        elif then == "all":
            for each in world.hosts:
                world.run(each)
        elif then == "flush":
            world.flush()


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_log_from_the_start_is_the_state_at_the_end(steps):
    world = World()
    play(world, steps)
    world.flush()
    again = World(logged=False)
    found = replayed(world, again)
    for host in (*world.hosts.values(), *again.hosts.values()):
        host.fire_timers(world.now)
    assert content(again) == normalised(content(world), content(again))
    assert found.received == ({"q": world.arrived} if world.arrived else {})
    assert found.sent == ({"r": world.sent} if world.sent else {})
    assert [(number, data) for number, data, _ in found.unacknowledged.get("r", [])] == world.remote
    assert found.turns == sum(host.turns for host in world.hosts.values())


def normalised(live, replayed_content):
    """Timers that are due already may have another place in the mailbox than they had: nobody was told of either."""
    return {
        agent: (
            fields,
            replayed_content[agent][1] if sorted(mailbox) == sorted(replayed_content[agent][1]) else mailbox,
            timers,
            dead,
        )
        for agent, (fields, mailbox, timers, dead) in live.items()
    }


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_the_log_over_an_epoch_is_the_state_at_the_end(before, behind):
    """I17: f(epoch, records behind its position), whatever the log holds of before."""
    world = World()
    play(world, before)
    world.flush()
    position = world.next - 1
    received, sent = world.arrived, world.sent
    packs: dict[str, bytes] = {}
    capturer = Capturer(world.clock)
    frozen = capturer.freeze(1, world.hosts.values(), now=world.now)
    taken_at = world.now
    play(world, behind)
    world.flush()
    for pack in (*frozen.slices(), *frozen.channel_slices(())):
        if pack is not None:
            packs[pack.digest] = pack.data
    again = World(logged=False)

    def read(refs) -> bytes:
        return b"".join(PackReader(BytesSource(packs[ref.pack])).chunk(ref.digest) for ref in refs)

    for snapshot in frozen.agent_snapshots():
        load_agent(again.hosts[AgentId(snapshot.id)], snapshot, read, now=taken_at, allowed=ALLOWED)
    found = replayed(world, again, after=position, received={"q": received}, sent={"r": sent})
    for host in (*world.hosts.values(), *again.hosts.values()):
        host.fire_timers(world.now)
    assert content(again) == normalised(content(world), content(again))
    assert found.received.get("q", 0) == world.arrived
    assert found.sent.get("r", 0) == world.sent
    assert [number for number, _, _ in found.unacknowledged.get("r", [])] == list(range(sent + 1, world.sent + 1))
