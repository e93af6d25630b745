"""deltavc status: where the repository and its database are, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@pass_repo
def status(repo: Repo, out: Output) -> None:
    """Show the repository, its database, branches and tags.

    A database that is behind catches up by itself; that is what this command reports, and does.

    \b
    Example:
      deltavc status
    """
    behind = repo.behind()
    branches, tags = (
        {name: repo.version(version) for name, version in refs.items()} for refs in (repo.branches(), repo.tags())
    )
    out.status({"repository": repo.url, "id": repo.id, "database": repo.database}, behind, branches, tags)
