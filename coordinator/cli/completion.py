"""``cleancut completion SHELL``: completion of commands, options and values in a shell."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    r"""Print the completion script of a shell.

    \b
    For bash:
      cleancut completion bash > ~/.local/share/bash-completion/completions/cleancut
    """
    from click.shell_completion import get_completion_class

    from coordinator.cli.root import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "cleancut", "_CLEANCUT_COMPLETE").source())
