"""deltavc reflog: how a branch moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("branch", default="main")
@click.option("-n", "--limit", type=click.IntRange(min=0), help="How many at most.")
@pass_repo
def reflog(repo: Repo, out: Output, branch: str, limit: int | None) -> None:
    """Show the moves of BRANCH (default: main).

    Newest first: to which version, when, by whom and why.

    \b
    Example:
      deltavc reflog main -n 10
    """
    out.reflog(branch, repo.reflog(branch, limit))
