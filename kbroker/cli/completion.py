"""``kbroker completion``: prints the script that makes a shell complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

NAME = "kbroker"
VARIABLE = "_KBROKER_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Prints a script for completion in a shell.

    It completes commands, options, files, topics and groups. Topics and groups come from the broker of
    --bootstrap-server or KBROKER_BOOTSTRAP, if it answers within half a second. Where the script goes, for the next
    shell:

    \b
    bash  ~/.local/share/bash-completion/completions/kbroker
    zsh   a file _kbroker in a folder of $fpath
    fish  ~/.config/fish/completions/kbroker.fish

    For this shell alone: eval "$(kbroker completion bash)"
    """
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, NAME, VARIABLE).source())
