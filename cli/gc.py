"""deltavc gc: delete what nothing needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import keeping
from .options import ask, pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--older-than", metavar="TIME", help="How long nothing has needed it: 24h, 14d. By default the grace.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_repo
def gc(repo: Repo, out: Output, dry_run: bool, older_than: str | None, yes: bool) -> None:
    """Delete packs and files that nothing needs and nobody can be about to need.

    What `deltavc expire` dropped, and what killed writers left, goes when it is older than the policy's grace by the
    store's own clock. It may run beside everything else. At the first sign that something is wrong it deletes nothing.

    \b
    Example:
      deltavc gc --dry-run
      deltavc gc --yes
    """
    from deltavc.durations import duration

    try:
        age = None if older_than is None else duration(older_than)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from error
    if not (dry_run or yes):
        with out.progress("looking for what nothing needs"):
            preview = repo.gc(dry_run=True, older_than=age)
        if not preview.nbytes:
            out.collected(preview)
            return
        ask(out, keeping.collected(preview), "Delete them?")
    with out.steps() as progress:
        report = repo.gc(dry_run=dry_run, older_than=age, progress=progress)
    out.collected(report)
