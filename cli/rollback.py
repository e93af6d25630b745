"""deltavc rollback: move a branch back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("branch")
@click.option("--to", required=True, metavar="REF", help="Version to go back to: step:118, a tag, main~3.")
@click.option("--reason", required=True, help="Why; kept in the reflog.")
@pass_repo
def rollback(repo: Repo, out: Output, branch: str, to: str, reason: str) -> None:
    """Move BRANCH back to an earlier version. Nothing is deleted.

    \b
    Example:
      deltavc rollback main --to step:118 --reason "reward collapsed"
    """
    out.moved(branch, repo.rollback(branch, to=to, reason=reason))
