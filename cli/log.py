"""deltavc log: the history of a ref."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from .options import pass_repo
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
@click.option("--all", "every", is_flag=True, help="Every version ever committed, rolled-back ones too.")
@click.option("--first-parent", is_flag=True, help="Follow only the first parent of merges.")
@pass_repo
def log(
    repo: Repo, out: Output, ref: str, limit: int | None, oneline: bool, graph: bool, every: bool, first_parent: bool
) -> None:
    """Show the history of REF (default: main), newest first.

    A..B shows what B has and A has not. Ids are followed by the branches and tags there.

    \b
    Example:
      deltavc log --oneline -n 20
      deltavc log --all --graph --oneline
      deltavc log v1.0..main
    """
    versions = repo.history(ref, limit, all=every, first_parent=first_parent)
    out.log(versions, repo.names(), oneline=oneline, graph=graph)
