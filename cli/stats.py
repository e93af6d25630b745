"""deltavc stats: how much there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@pass_repo
def stats(repo: Repo, out: Output) -> None:
    """Count versions, branches, tags, snapshots, deltas and bytes.

    \b
    Example:
      deltavc stats --json
    """
    out.stats(repo.stats())
