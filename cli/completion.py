"""deltavc completion: let a shell complete commands, options and refs."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from .options import Settings, pass_output
from .output import Output

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", "for_good", is_flag=True, help="Install it for good, for you alone.")
@pass_output
def completion(settings: Settings, out: Output, shell: str | None, for_good: bool) -> None:
    """Let SHELL (default: yours) complete commands, options, branches and tags.

    Prints a script that SHELL evaluates, for this once. With --install it is written to where fish looks for it; for
    bash and zsh beside other data of yours, with one line in ~/.bashrc or ~/.zshrc that reads it. Doing it again does
    no harm.

    \b
    Example:
      deltavc completion --install
      eval "$(deltavc completion bash)"
      deltavc completion fish | source
    """
    from .completion_install import install
    from .main import main

    shell = shell or _own_shell()
    found = get_completion_class(shell)
    assert found is not None
    source = found(main, {}, "deltavc", "_DELTAVC_COMPLETE").source()
    if for_good:
        out.completion_installed(install(shell, source))
    else:
        out.raw(source)


def _own_shell() -> str:
    """The user's shell. Raises UsageError when it is none of ours."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        told = f"your shell is {name}" if name else "SHELL does not say which shell is yours"
        raise click.UsageError(f"{told}; name one of {', '.join(SHELLS)}")
    return name
