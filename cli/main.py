"""The entry point: finds a command, runs it, and turns every way it can end into an exit code.

A command's module is imported when the command is used, and imports what it needs of deltavc when it runs,
so that `deltavc --help` is quick and `deltavc log` never loads torch.
"""

from __future__ import annotations

import difflib
import importlib
import io
import keyword
import os
import sys
from collections.abc import Sequence
from typing import Any

try:
    import click

    import deltavc

    from . import failures, interrupts
    from .options import Settings, repo_options
except KeyboardInterrupt:  # nothing has begun, so there is nothing to tell
    raise SystemExit(130) from None

COMMANDS = (
    "init",
    "commit",
    "checkout",
    "follow",
    "push",
    "import",
    "export",
    "copy",
    "log",
    "show",
    "diff",
    "bisect",
    "branch",
    "tag",
    "rollback",
    "reflog",
    "identify",
    "status",
    "stats",
    "policy",
    "expire",
    "gc",
    "fsck",
    "verify",
    "audit",
    "compact",
    "reindex",
    "db",
    "completion",
)
"""In the order of --help. Each is the name of a command and of the module that holds it."""

EPILOG = """\b
The repository is the one that --repo names, or DELTAVC_REPO, or the file .deltavc/config.toml in this
folder or one above it, which `deltavc init` writes.

\b
A REF is an id or 4 or more of its first digits, a branch, a tag, step:120, best:reward, worst:reward,
branch@step:120, branch@{1} (where it was one move ago), and any of these followed by ~N or ^N.

\b
Exit codes:
  0    done
  1    failed, or nothing was found
  2    the command line or the configuration makes no sense
  10   no repository
  11   conflict: the branch moved meanwhile, the name is taken, or the directory in use; nothing was changed
  20   corruption: stored bytes are damaged or missing, or a check found something else; no weights were handed over
  130  interrupted
"""


class Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = getattr(importlib.import_module(f".{name}", __package__), name)
        assert isinstance(command, click.Command)
        if ctx.resilient_parsing:  # a shell asks what there is
            from .completing import offer_refs

            offer_refs(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a whole sentence for each; click would cut it at the end of the line."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in found if command])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS)
            asked = f"; did you mean {', '.join(near)}?" if near else ""
            raise click.UsageError(f"there is no command {args[0]!r}{asked}", ctx)
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **told: Any) -> Any:
        """Run, say on stderr what went wrong, and exit. Takes what `click.Command.main` takes."""
        args = list(sys.argv[1:] if args is None else args)
        _keep_standard_streams_apart()
        settings = Settings()
        try:
            told |= {"prog_name": "deltavc", "standalone_mode": False, "obj": settings}
            with interrupts.after_loading():
                code = super().main(args, *rest, **told)
        except BaseException as error:
            code = failures.report(error, as_json=settings.json or "--json" in args, verbose=settings.verbose > 0)
        sys.exit(code)


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(deltavc.__version__, "-V", "--version", message="deltavc %(version)s")
@repo_options
def main() -> None:
    """Git for model weights while they train."""


def _keep_standard_streams_apart() -> None:
    """Make text that the terminal cannot show harmless, and let no file take the place of a closed stream."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:  # open() gives the lowest number that is free
            pass
        os.close(lowest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
