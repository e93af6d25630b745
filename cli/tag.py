"""deltavc tag: list, make and delete tags."""

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
def tag(repo: Repo, out: Output, name: str | None, at: str | None, delete: bool) -> None:
    """List, make or delete tags.

    With NAME, give that name to the version AT (default: main) for good: a tag never moves.

    \b
    Example:
      deltavc tag v1.0 best:reward
    """
    if delete:
        if name is None or at is not None:
            raise click.UsageError("--delete takes one name")
        was = repo.tags().get(name)
        repo.delete_tag(name)
        out.deleted("tag", name, was)
    elif name is None:
        out.refs({name: repo.version(version) for name, version in repo.tags().items()})
    else:
        out.tagged(name, repo.tag(name, at or "main"))
