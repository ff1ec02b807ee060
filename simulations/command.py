"""``cleancut simulate``: run seeded clusters under injected failures, replay and shrink what fails."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from simulations.exits import EPILOG, EXITS, Simulate

if TYPE_CHECKING:
    from simulations.options import Options, Run
    from simulations.run import Outcome

SEED: click.IntRange = click.IntRange(-(2**63), 2**63 - 1)


@click.group(cls=Simulate, epilog=EPILOG)
def simulate() -> None:
    """Run seeded clusters under injected failures; replay and shrink what fails.

    FILE is what `run --save`, `sweep --save` or a failing test of yours (`from simulations import simulate`) has stored.
    """


@simulate.command("run", epilog=EPILOG)
@click.option("--seed", type=SEED, required=True, help="Draws options and faults.")
@click.option("--nodes", type=click.IntRange(2, 16), help="Participants.")
@click.option(
    "--workload",
    type=click.Choice(["bank", "ring", "pipeline", "conversation", "growth", "hot-spot"]),
    help="What the agents do.",
)
@click.option(
    "--topology",
    type=click.Choice(["mesh", "ring", "line", "star", "random", "one-way", "isolated"]),
    help="Who sends to whom.",
)
@click.option("--faults", help='Only these kinds, separated by commas; "none" for none.')
@click.option("--seconds", type=click.FloatRange(1, 3600), help="Virtual length of the phase with faults.")
@click.option("--steps", type=click.IntRange(min=1000), help="Events after which the run counts as stuck.")
@click.option("--mutant", default="", help="Plant this bug (`cleancut simulate mutants` lists them).")
@click.option("--runtimes", is_flag=True, help="The second mode: the asyncio drivers run, too (slower).")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every event to this file.")
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write options and faults to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")
def run_command(
    seed: int,
    nodes: int | None,
    workload: str | None,
    topology: str | None,
    faults: str | None,
    seconds: float | None,
    steps: int | None,
    mutant: str,
    runtimes: bool,  # noqa: FBT001 - click's shape
    trace: Path | None,
    save: Path | None,
    as_json: bool,  # noqa: FBT001 - click's shape
) -> None:
    """Run one seed."""
    from simulations.mutants import MUTANTS
    from simulations.options import Run, check_run, encode_run
    from simulations.replay_files import stored
    from simulations.swarm import draw_faults, draw_options, for_drivers
    from simulations.sweep import drawn

    if nodes is None and workload is None and topology is None:
        options = drawn(seed, mutant, runtimes=runtimes).options  # the world that a sweep has for this seed
    else:
        options = draw_options(seed, workload)
        if runtimes or (mutant in MUTANTS and MUTANTS[mutant].runtimes):
            for_drivers(options)
    changes: dict[str, Any] = {
        "nodes": nodes,
        "topology": topology,
        "faults_ns": None if seconds is None else int(seconds * 1e9),
        "steps_max": steps,
        "mutant": mutant or None,
    }
    for name, chosen in changes.items():
        if chosen is not None:
            setattr(options, name, chosen)
    what = Run(options=options, faults=draw_faults(options, _kinds(faults)))
    try:
        check_run(what)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    given = [
        f"--{name} {chosen}"
        for name, chosen in (("nodes", nodes), ("workload", workload), ("topology", topology))
        if chosen
    ]
    given += [f"--{name} {chosen}" for name, chosen in (("seconds", seconds), ("steps", steps)) if chosen]
    if faults is not None:
        given.append(f"--faults {shlex.quote(faults)}")
    if runtimes:
        given.append("--runtimes")
    if mutant:
        given.append(f"--mutant {mutant}")
    again = " ".join(["cleancut simulate run", f"--seed {seed}", *given])
    if save is not None:
        # Before the run, too: whatever happens to this process, the file is there.
        save.write_bytes(encode_run(what))
    outcome = _carry_out(what, trace=trace, as_json=as_json)
    if save is not None:
        save.write_bytes(encode_run(stored(what, outcome)))
    _end(outcome, again, as_json=as_json)


@simulate.command("replay", epilog=EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every event to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")
def replay_command(file: Path, trace: Path | None, as_json: bool) -> None:  # noqa: FBT001 - click's shape
    """Carry out the run of a FILE: a replay file or a trace.

    If it is of your own agents, its test is started for it, which must still be there.
    """
    from simulations.replay_files import compare, load

    what = load(file)
    outcome = _carry_out(what, trace=trace, as_json=as_json, file=file)
    compare(str(file), what, outcome)
    _end(outcome, f"cleancut simulate replay {shlex.quote(str(file))}", as_json=as_json)


def _kinds(faults: str | None) -> list[str] | None:
    from simulations.faults import KINDS

    if faults is None:
        return None
    kinds = [] if faults == "none" else sorted({name.strip() for name in faults.split(",") if name.strip()})
    for kind in kinds:
        if kind not in KINDS:
            raise click.BadParameter(
                f"there is no kind {kind!r}; there are {', '.join(sorted(KINDS))}", param_hint="--faults"
            )
    return kinds


def _carry_out(what: Run, *, trace: Path | None, as_json: bool, file: Path | None = None) -> Outcome:
    """Tell what it is, and run it."""
    if not as_json:
        click.echo(describe_options(what.options))
        click.echo(f"faults: {len(what.faults)}" + "".join(f"\n  {describe_fault(fault)}" for fault in what.faults))
        if what.user is not None:
            click.echo(f"test: {what.user.test}")
    if what.user is not None and file is not None:
        from simulations.user_command import run_test
        from simulations.user_test import TRACE

        return run_test(file, what, {TRACE: str(trace.absolute()) if trace is not None else os.devnull}).result()
    from simulations.replay_files import begin_trace, end_trace
    from simulations.run import run

    with trace.open("w", encoding="utf-8") if trace is not None else nullcontext() as opened:
        if opened is not None:
            begin_trace(opened, what)
        outcome = run(what, trace_file=opened)
        if opened is not None:
            end_trace(opened, outcome)
    return outcome


def _end(outcome: Outcome, again: str, *, as_json: bool) -> None:
    """Tell what came of it."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(outcome)))
    else:
        click.echo(describe_outcome(outcome))
        if not outcome.ok:
            click.echo("last events:\n" + "\n".join(line[:200] for line in outcome.last))
            click.echo(f"{outcome.kind}: {outcome.text}")
            click.echo(again)
    sys.exit(EXITS[outcome.kind])


def describe_options(options: Options) -> str:
    """All of them in one line."""
    fields = msgspec.to_builtins(options)
    return "options: " + " ".join(f"{name}={value}" for name, value in fields.items() if value != "")


def describe_fault(fault: Any) -> str:  # noqa: ANN401 - a Fault, imported late
    """In one line."""
    details = {name: value for name, value in msgspec.to_builtins(fault).items() if name not in {"kind", "at_ns"}}
    return f"{fault.at_ns / 1e6:10.3f} ms {fault.kind} " + " ".join(
        f"{name}={value}" for name, value in details.items()
    )


def describe_outcome(outcome: Outcome) -> str:
    """The numbers of a run."""
    fired = ", ".join(f"{kind} {count}" for kind, count in outcome.fired.items()) or "none"
    return (
        f"{outcome.events} events in {outcome.virtual_ns / 1e9:.1f} virtual s; epochs: {outcome.commits} committed, "
        f"{outcome.aborts} aborted; {outcome.recorded} messages in flight at cuts\n"
        f"faults that fired: {fired}\ndigest {outcome.digest}"
    )


def _register() -> None:
    """Commands that live in files of their own."""
    from simulations.explain import explain_command
    from simulations.judge_command import mutants_command, shrink_command
    from simulations.sweep_command import sweep_command

    for command in (sweep_command, mutants_command, shrink_command, explain_command):
        simulate.add_command(command)


_register()
