"""The root of ``cleancut``: which commands there are, how they start, and how all of them end.

Start-up time is a feature: ``cleancut --help`` takes under 0.3 s of CPU. So the table below holds each command's one line
for the list, and its module is imported when it is named; modules in this folder import heavy libraries inside the
functions that use them.

No command prints a traceback. Whatever is raised becomes a line that names the thing, a line that says what to do, and an
exit code (`coordinator.cli.exits`). With ``CLEANCUT_DEBUG=1`` the traceback comes first.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from coordinator.cli.exits import Exit, Failure, as_failure
from coordinator.cli.output import note, print_json
from coordinator.cli.plugins import SUMMARIES, load_plugin, plugin_commands
from coordinator.cli.settings import Given, cluster_options
from protocol.errors import SnapshotError
from protocol.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "agent": ("coordinator.cli.agent:agent", "Single agents: where they are, what they did; move one."),
    "completion": ("coordinator.cli.completion:completion", "Print the completion script of a shell."),
    "coordinator": ("coordinator.cli.serve:coordinator", "Run one coordinator."),
    "doctor": ("coordinator.cli.doctor:doctor", "Check what commonly goes wrong, and say what to do."),
    "effects": ("coordinator.cli.effects:effects", "What agents did outside of the cluster; settle what is in doubt."),
    "epoch": ("coordinator.cli.epoch:epoch", "Look at epochs; start, abort, name and verify them; go back to one."),
    "events": ("coordinator.cli.events:events", "What happens in the cluster, as it happens."),
    "keys": ("coordinator.cli.keys:keys", "Make a cluster's secret, certificates and settings."),
    "participants": ("coordinator.cli.cluster:participants", "The participants and what they are doing."),
    "policy": ("coordinator.cli.policy:policy", "When epochs are started: show it, change it."),
    "questions": ("coordinator.cli.questions:questions", "What agents ask of people; answer it."),
    "status": ("coordinator.cli.cluster:status", "The cluster at a glance."),
    "topology": ("coordinator.cli.cluster:topology", "Members and channels."),
}
"""Name -> where it is, and its line in the list."""

INTERRUPTED: Final = 130
"""Ended by Ctrl-C: 128 + SIGINT, as shells have it."""
MESSAGE_LINES_MAX: Final = 40
PIPE_CLOSED: Final = 141
"""The reader of our output went away: 128 + SIGPIPE."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and lines, and imports one when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted({*COMMANDS, *plugin_commands()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        known = COMMANDS.get(cmd_name)
        if known is not None:
            module, _, attribute = known[0].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        target = plugin_commands().get(cmd_name)
        return None if target is None else load_plugin(cmd_name, target)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without importing anything."""
        rows = []
        for name in self.list_commands(ctx):
            summary = COMMANDS[name][1] if name in COMMANDS else SUMMARIES.get(name, "From another package.")
            rows.append((name, summary))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest name for a misspelt one."""
        name = args[0]
        if name.startswith("-") or name in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        import difflib

        near = difflib.get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.5)
        raise click.UsageError(f"no such command: {name!a}" + (f"; did you mean {near[0]}?" if near else ""), ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="cleancut %(version)s")
@cluster_options
@click.pass_context
def root(
    context: click.Context,
    *,
    coordinators: str | None,
    folder: Path | None,
    secret_file: Path | None,
    token_file: Path | None,
    ca: Path | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Consistent global snapshots of a running cluster of stateful agents, without stopping it.

    `cleancut demo` shows it; `cleancut keys init --help` is where a cluster of your own begins. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 inconsistent or corrupt,
    5 unreachable, 6 refused.
    """
    context.obj = Given(
        coordinators=coordinators,
        folder=folder,
        secret_file=secret_file,
        token_file=token_file,
        ca=ca,
        timeout=timeout,
        as_json=as_json,
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process.

    Args:
        arguments: Without the program's name; None: those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a crash.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = run(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        code = PIPE_CLOSED
    except OSError as error:
        _forget_output()
        code = _tell(as_failure(error), as_json=False)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    as_json = "--json" in arguments
    output = sys.stdout
    try:
        ended: Any = root.main(args=arguments, prog_name="cleancut", standalone_mode=False)
    except Failure as failure:
        _trace()
        return _tell(failure, as_json=as_json)
    except click.UsageError as error:
        return _tell_usage(error, as_json=as_json)
    except click.ClickException as error:
        return _tell(Failure(Exit.FAILED, error.format_message()), as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        note("cleancut: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return PIPE_CLOSED
    except (SnapshotError, OSError) as error:
        _trace()
        return _tell(as_failure(error), as_json=as_json)
    except SystemExit as end:
        # click turns a closed pipe into an exit with 1, and puts a wrapper in place of the output: so we know that it was that.
        if sys.stdout is not output:
            sys.stdout = output
            _forget_output()
            return PIPE_CLOSED
        # Commands of other packages may end themselves.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:  # noqa: BLE001 - the edge: people get a sentence, not a traceback
        _trace()
        message = f"a bug in cleancut: {type(error).__name__}: {error}"
        return _tell(
            Failure(Exit.FAILED, message, "set CLEANCUT_DEBUG=1 for the traceback, and report it"), as_json=as_json
        )
    return ended if isinstance(ended, int) and not isinstance(ended, bool) else Exit.DONE


def _trace() -> None:
    if os.environ.get("CLEANCUT_DEBUG", "") not in {"", "0"}:
        import traceback

        note_lines = traceback.format_exc().splitlines()
        for line in note_lines:
            note(line)


def _tell(failure: Failure, *, as_json: bool) -> int:
    if as_json and not failure.shown:
        print_json(failure.document())
    # One line as a rule; a command of our own may bring the end of a log with it.
    first, *rest = failure.message.splitlines() or [""]
    note(f"cleancut: {first}")
    for line in rest[:MESSAGE_LINES_MAX]:
        note(f"  {line}")
    if failure.hint:
        note(f"  {failure.hint}")
    return int(failure.exit)


def _tell_usage(error: click.UsageError, *, as_json: bool) -> int:
    path = error.ctx.command_path if error.ctx is not None else "cleancut"
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note_help = error.format_message()
        click.echo(note_help, err=True)
        return int(Exit.USAGE)
    message = error.format_message()
    return _tell(Failure(Exit.USAGE, message, f"see `{path} --help`"), as_json=as_json)


def _forget_output() -> None:
    """Keep the interpreter from flushing into a closed pipe, which it would report, at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
