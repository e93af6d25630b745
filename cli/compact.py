"""deltavc compact: every version within a few steps, however long history is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failures import CORRUPT, FAILED
from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count what would be written; sizes are estimated from above.")
@pass_repo
def compact(repo: Repo, out: Output, dry_run: bool) -> None:
    """Write edges that skip many steps, so that any version can be reached with few.

    It also bundles the records of all versions, which a new database is filled from. It runs beside writers; after
    Ctrl-C the next one goes on where this one was. The exit code is 20 if damage was in the way, and 1 if
    something else was: then the next run tries again.

    \b
    Example:
      deltavc compact --dry-run
    """
    with out.steps() as progress:
        done = repo.compact(dry_run=dry_run, progress=progress)
    out.compacted(done)
    if done.failed:
        click.get_current_context().exit(CORRUPT if done.damaged else FAILED)
