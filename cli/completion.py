"""deltavc completion: a script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .options import Settings, pass_output
from .output import Output


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_output
def completion(settings: Settings, out: Output, shell: str) -> None:
    """Print a completion script for SHELL.

    Evaluate it in the shell's start-up file.

    \b
    Example:
      eval "$(deltavc completion bash)"
      deltavc completion fish | source
    """
    from .main import main

    found = get_completion_class(shell)
    assert found is not None
    out.raw(found(main, {}, "deltavc", "_DELTAVC_COMPLETE").source())
