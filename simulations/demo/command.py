"""``cleancut demo``."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.demo.bank import Result
    from simulations.demo.summary import EpochSums


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(2, 3600), default=15.0, show_default=True, help="How long the agents work."
)
@click.option("--participants", type=click.IntRange(2, 32), default=4, show_default=True, help="Participant processes.")
@click.option(
    "--coordinators",
    "coordinator_count",
    type=click.Choice(["1", "3", "5"]),
    default="3",
    show_default=True,
    help="Coordinators. With one, no leader is killed.",
)
@click.option(
    "--transport",
    type=click.Choice(["websocket", "mqtt"]),
    default="websocket",
    show_default=True,
    help="What carries the messages; mqtt starts a mosquitto of its own.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Where everything is put, and stays. Must be new or empty. Without it: a temporary folder, removed at the end.",
)
@click.option("--keep", is_flag=True, help="Leave the cluster running until Ctrl-C, and say how to look at it.")
@click.option(
    "--topology", type=click.Path(dir_okay=False, path_type=Path), help="Run this .top file instead of the bank."
)
@click.option("--events", type=click.Path(dir_okay=False, path_type=Path), help="The .events script for --topology.")
@click.option(
    "--careless", is_flag=True, help="Let orders be charged without a step, as one must not: the demo then has to fail."
)
@click.option(
    "--durability",
    type=click.Choice(["epoch", "turn"]),
    default="epoch",
    show_default=True,
    help="What a crash costs: everybody goes back to an epoch, or one participant goes on from its log of turns.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document at the end, nothing else on standard output.")
def demo(
    *,
    seconds: float,
    participants: int,
    coordinator_count: str,
    transport: str,
    folder: Path | None,
    keep: bool,
    topology: Path | None,
    events: Path | None,
    careless: bool,
    durability: str,
    as_json: bool,
) -> None:
    """A whole cluster on this machine: agents at work, participants and the leader killed, every cut and charge verified.

    Real processes on loopback. Money moves between accounts, and orders are charged at a bank outside and pass through a
    pipeline whose handlers await, while an epoch commits every second. Two participants are killed with SIGKILL, one of them
    while the bank charges, and started again; so is the leader, in the middle of an epoch. Everything comes back by itself. At
    the end every manifest is verified offline, every cut must hold the same money to the cent, and the bank's own ledger must
    show each charge exactly once.

    With --topology and --events it runs a scripted token-passing network instead, one process per server, and checks
    that every cut holds exactly the file's tokens.
    """
    if (topology is None) != (events is None):
        raise click.UsageError("--topology and --events go together")
    made = folder is None
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="cleancut-demo-"))
    else:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise click.UsageError(f"--dir {folder} is not empty; a demo needs a new folder")
    # Progress goes to standard error in --json, so that standard output holds one document.
    say: Callable[[str], None] = lambda line: click.echo(line, err=as_json)  # noqa: E731
    try:
        code = asyncio.run(
            _whole(
                folder.resolve(),
                seconds,
                participants,
                int(coordinator_count),
                transport,
                topology,
                events,
                say,
                as_json=as_json,
                keep=keep,
                careless=careless,
                durability=durability,
            )
        )
    finally:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


async def _whole(
    folder: Path, seconds: float, participants: int, coordinator_count: int, transport: str, topology: Path | None,
    events: Path | None, say: Callable[[str], None], *, as_json: bool, keep: bool, careless: bool,
    durability: str,
) -> int:  # fmt: skip
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    from simulations.demo import bank, charges, scripted
    from simulations.demo.broker import start_broker
    from simulations.demo.cluster import LocalCluster

    layout = scripted.read_topology(topology) if topology is not None else None
    script = scripted.read_script(events, layout) if events is not None and layout is not None else []
    cluster = LocalCluster(folder, coordinator_count=coordinator_count)
    broker = outside = None
    try:
        say(f"a cluster in {folder}")
        # A scripted run crashes nobody.
        policy = {**scripted.POLICY, "durability": "epoch" if layout is not None else durability}
        await asyncio.to_thread(cluster.prepare, policy)
        setting = "websocket"
        if transport == "mqtt":
            (folder / "broker").mkdir()
            broker, setting = await start_broker(folder / "broker")
        await cluster.start_coordinators()
        if layout is not None:
            sums = await scripted.run(cluster, layout, script, transport=setting, say=say)
            code = _tell_scripted(sums, say, as_json=as_json)
        else:
            result = bank.Result()
            outside = await charges.start_bank(folder)
            await bank.run(
                cluster,
                outside,
                participants=participants,
                transport=setting,
                seconds=seconds,
                say=say,
                result=result,
                careless=careless,
                durability=durability,
            )
            await bank.judge(cluster, outside, result)
            code = _tell_bank(result, say, as_json=as_json)
        if keep:
            _tell_keep(folder, say)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        say("ending: every process that the demo started is stopped")
        code = 0 if keep else 130
    finally:
        await cluster.stop()
        if broker is not None:
            await broker.stop()
        if outside is not None:
            await outside.child.stop()
    return code


def _tell_bank(result: Result, say: Callable[[str], None], *, as_json: bool) -> int:
    import msgspec

    from simulations.demo import bank

    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        right = sum(1 for total in result.totals if total == result.total_expected)
        say("")
        say(f"epochs committed           {result.epochs_committed}")
        say(f"epochs aborted             {result.epochs_aborted}")
        for abort in result.aborted:
            say(f"  epoch {abort['epoch']}: {bank.abort_words(abort)}")
        say(f"messages handled           {result.messages}")
        say(f"in-flight recorded         {result.in_flight_recorded} messages, over all cuts")
        say(f"money in each cut          {result.total_expected / 100:.2f} in {right} of {len(result.totals)} cuts")
        accounted = "; every cut accounts for each one" if result.consistent else ""
        say(f"orders made                {result.orders_made}{accounted}")
        say(f"longest stall by a cut     {result.max_stall_ms:.1f} ms (outside of cuts: {result.idle_stall_ms:.1f} ms)")
        for seconds in result.election_seconds:
            say(f"leader killed, next after  {seconds:.2f} s")
        for each in result.recoveries:
            came_from = f"epoch {each.epoch}" if each.epoch else "its log of turns"
            say(f"{each.participant} killed, work after".ljust(27) + f"{each.seconds.total:.2f} s ({came_from})")
        say(f"rollbacks                  {result.rollbacks}")
        say(
            f"the bank's own ledger      {result.charges} charges, {result.charges_cents / 100:.2f}: "
            f"{result.charges_duplicated} twice, {result.charges_lost} lost"
        )
        for problem in result.problems:
            say(f"WRONG: {problem}")
        say(
            "every manifest verified offline: consistent"
            if result.consistent
            else "NOT CONSISTENT: what is wrong is said above"
        )
    return 0 if result.consistent else 4


def _tell_scripted(sums: list[EpochSums], say: Callable[[str], None], *, as_json: bool) -> int:
    right = all(each.right for each in sums)
    if as_json:
        document = {
            "epochs_committed": len(sums),
            "totals": [each.total for each in sums],
            "total_expected": sums[0].expected if sums else None,
            "in_flight_recorded": sum(each.in_flight for each in sums),
            "consistent": right,
            "problems": [finding for each in sums for finding in each.findings],
        }
        click.echo(json.dumps(document))
    else:
        say(
            f"{len(sums)} snapshots, each with exactly the file's tokens"
            if right
            else "WRONG: tokens are missing or too many"
        )
    return 0 if right else 4


def _tell_keep(folder: Path, say: Callable[[str], None]) -> None:
    say("")
    say("the cluster stays up; in another terminal:")
    say(f"  export CLEANCUT_DIR={folder}")
    for command in (
        "status",
        "epoch list",
        "epoch show latest",
        "epoch why latest",
        "epoch verify latest",
        "epoch state latest account/a1",
    ):
        say(f"  cleancut {command}")
    say("Ctrl-C ends it")
