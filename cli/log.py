"""deltavc log: the history of a ref."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from .failures import INTERRUPTED
from .options import pass_repo, seconds
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo

_LIMIT = ("-n", "--limit")


class _Counted(click.Command):
    """A command that takes `-5` for `-n 5`, as git and tail do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = pairwise(["", *args])
        args = [arg if before in _LIMIT else re.sub(r"^-(?=[0-9]+$)", "-n", arg) for before, arg in given]
        return super().parse_args(ctx, args)


@click.command(cls=_Counted)
@click.argument("ref", default="main", metavar="[REF | A..B]")
@click.option(*_LIMIT, type=click.IntRange(min=0), help="How many at most; -5 is short for -n 5.")
@click.option("--oneline", is_flag=True, help="A line for each.")
@click.option("--graph", is_flag=True, help="Draw where branches part and meet.")
@click.option("--all", "every_version", is_flag=True, help="Every version ever committed, rolled-back ones too.")
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of merges.")
@click.option("-f", "--follow", is_flag=True, help="Show the last moves of branch REF, then each further one.")
@click.option(
    "--every",
    "pause",
    callback=seconds,
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How often --follow looks.",
)
@pass_repo
def log(
    repo: Repo,
    out: Output,
    ref: str,
    limit: int | None,
    oneline: bool,
    graph: bool,
    every_version: bool,
    first_parent: bool,
    follow: bool,
    pause: float,
) -> None:
    """Show the history of REF (default: main), newest first.

    A..B shows what B has and A has not. Ids are followed by the branches and tags there.

    --follow shows the last 10 moves of a branch (or as many as -n says), oldest first, and then every version as it is
    committed, and every rollback, until Ctrl-C. It waits for a store or database that is away, and needs no database.

    \b
    Example:
      deltavc log --oneline -n 20
      deltavc log --all --graph --oneline
      deltavc log v1.0..main
      deltavc log --follow --oneline
    """
    if follow:
        if graph or every_version or first_parent:
            raise click.UsageError("--follow shows moves as they come; leave out --graph, --all and --first-parent")
        _follow(repo, out, ref, 10 if limit is None else limit, oneline=oneline, pause=pause)
        return
    versions = repo.history(ref, limit, all=every_version, first_parent=first_parent)
    out.log(versions, repo.names(), oneline=oneline, graph=graph)


def _follow(repo: Repo, out: Output, branch: str, last: int, *, oneline: bool, pause: float) -> None:
    """Print moves until Ctrl-C, which is how this ends and no failure to tell of. The exit code is `tail -f`'s."""
    try:
        for move in repo.tail(branch, last, every=pause):
            out.branch_moved(move, oneline=oneline)
    except KeyboardInterrupt:
        click.get_current_context().exit(INTERRUPTED)
