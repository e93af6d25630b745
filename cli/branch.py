"""deltavc branch: list, make and delete branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("name", required=False)
@click.argument("at", required=False)
@click.option("-d", "--delete", is_flag=True, help="Delete it.")
@pass_repo
def branch(repo: Repo, out: Output, name: str | None, at: str | None, delete: bool) -> None:
    """List, make or delete branches.

    With NAME, make it at AT (default: main). Deleting a branch deletes no version:
    they can still be found by id and in the reflog.

    \b
    Example:
      deltavc branch experiment main~3
      deltavc branch -d experiment
    """
    if delete:
        if name is None or at is not None:
            raise click.UsageError("--delete takes one name")
        was = repo.branches().get(name)
        repo.delete_branch(name)
        out.deleted("branch", name, was)
    elif name is None:
        out.refs({name: repo.version(version) for name, version in repo.branches().items()})
    else:
        out.moved(name, repo.branch(name, at or "main"))
