"""``cleancut simulate``: run seeded clusters under injected failures, replay and shrink what fails."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from simulations.options import Options, Run
    from simulations.run import Outcome

EXIT_LIVENESS: Final = 1
EXIT_SAFETY: Final = 4
EXIT_CRASH: Final = 70
"""The simulator, or a machine in it, raised (EX_SOFTWARE)."""
_EXITS: Final = {"": 0, "safety": EXIT_SAFETY, "liveness": EXIT_LIVENESS, "crash": EXIT_CRASH}


@click.group()
def simulate() -> None:
    """Run seeded clusters under injected failures; replay and shrink what fails.

    Exit codes: 0 all is well, 4 a safety invariant is broken, 1 a liveness one, 70 the simulator or a machine raised.
    """


@simulate.command("run")
@click.option("--seed", type=int, required=True, help="Draws options and faults.")
@click.option("--nodes", type=click.IntRange(2, 16), help="Participants.")
@click.option("--workload", type=click.Choice(["bank", "ring", "pipeline"]), help="What the agents do.")
@click.option(
    "--topology", type=click.Choice(["mesh", "ring", "line", "star", "random", "one-way"]), help="Who sends to whom."
)
@click.option("--faults", help='Only these kinds, separated by commas; "none" for none.')
@click.option("--seconds", type=click.FloatRange(1, 3600), help="Virtual length of the phase with faults.")
@click.option("--steps", type=click.IntRange(min=1000), help="Events after which the run counts as stuck.")
@click.option("--mutant", default="", help="Plant this bug.")
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
    trace: Path | None,
    save: Path | None,
    as_json: bool,  # noqa: FBT001 - click's shape
) -> None:
    """Run one seed."""
    from simulations.options import Run, encode_run
    from simulations.swarm import draw_faults, draw_options

    options = draw_options(seed)
    changes: dict[str, Any] = {
        "nodes": nodes,
        "workload": workload,
        "topology": topology,
        "faults_ns": None if seconds is None else int(seconds * 1e9),
        "steps_max": steps,
        "mutant": mutant or None,
    }
    for name, chosen in changes.items():
        if chosen is not None:
            setattr(options, name, chosen)
    what = Run(options=options, faults=draw_faults(options, _kinds(faults)))
    if save is not None:
        save.write_bytes(encode_run(what))
    given = [
        f"--{name} {chosen}"
        for name, chosen in (("nodes", nodes), ("workload", workload), ("topology", topology))
        if chosen
    ]
    given += [f"--{name} {chosen}" for name, chosen in (("seconds", seconds), ("steps", steps)) if chosen]
    if faults is not None:
        given.append(f'--faults "{faults}"')
    if mutant:
        given.append(f"--mutant {mutant}")
    again = " ".join(["cleancut simulate run", f"--seed {seed}", *given])
    _carry_out(what, again, trace=trace, as_json=as_json)


@simulate.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write every event to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document, nothing else.")
def replay_command(file: Path, trace: Path | None, as_json: bool) -> None:  # noqa: FBT001 - click's shape
    """Run the options and faults of a FILE."""
    _carry_out(_load(file), f"cleancut simulate replay {file}", trace=trace, as_json=as_json)


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


def _load(file: Path) -> Run:
    from simulations.options import decode_run

    try:
        return decode_run(file.read_bytes())
    except ValueError as error:
        raise click.BadParameter(f"{file}: {error}") from None


def _carry_out(what: Run, again: str, *, trace: Path | None, as_json: bool) -> None:
    from simulations.explain import DIGEST_LINE, RUN_LINE
    from simulations.run import run

    if not as_json:
        click.echo(describe_options(what.options))
        click.echo(f"faults: {len(what.faults)}" + "".join(f"\n  {describe_fault(fault)}" for fault in what.faults))
    with trace.open("w", encoding="utf-8") if trace is not None else nullcontext() as file:
        if file is not None:
            # `explain` draws a trace by running it again.
            file.write(f"{RUN_LINE}{msgspec.json.encode(what).decode()}\n")
        outcome = run(what, trace_file=file)
        if file is not None:
            file.write(f"{DIGEST_LINE}{outcome.digest}\n")
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(outcome)))
    else:
        click.echo(describe_outcome(outcome))
        if not outcome.ok:
            click.echo("last events:\n" + "\n".join(line[:200] for line in outcome.last))
            click.echo(f"{outcome.kind}: {outcome.text}")
            click.echo(again)
    sys.exit(_EXITS[outcome.kind])


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
