"""deltavc show: everything that is known of a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("ref", default="main")
@click.option("--tensors", is_flag=True, help="List every tensor's name, dtype and shape.")
@pass_repo
def show(repo: Repo, out: Output, ref: str, tensors: bool) -> None:
    """Show all that is known of REF (default: main).

    \b
    Example:
      deltavc show best:reward --tensors
    """
    version = repo.version(ref)
    names = repo.names().get(version.id, [])
    out.show(version, names, repo.edges(version.id), repo.tensors(version.id), tensors=tensors)
