"""deltavc reindex: the database anew, from the bucket alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@pass_repo
def reindex(repo: Repo, out: Output) -> None:
    """Fill the database anew from the bucket alone.

    Others may read it and commit meanwhile; they see the old rows, or wait, and then the new ones. If it is interrupted
    the database is as it was. Prints what it holds then.

    \b
    Example:
      deltavc reindex --db sqlite:///new.db
    """
    with out.steps() as progress:
        totals = repo.reindex(progress=progress)
    out.stats(totals)
