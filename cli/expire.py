"""deltavc expire: let versions lose their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import keeping
from .options import ask, pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_repo
def expire(repo: Repo, out: Output, dry_run: bool, yes: bool) -> None:
    """Let versions lose their weights that the policy does not keep.

    They stay in the lineage, and say that they have no weights. Where something that is kept was stored as a change of
    something that is not, it is stored anew first. Nothing is deleted yet: `deltavc gc` does that, after the grace.

    \b
    Example:
      deltavc policy --keep-last 50
      deltavc expire --dry-run
      deltavc expire --yes
    """
    if not (dry_run or yes):
        with out.progress("looking at what is kept"):
            preview = repo.expire(dry_run=True)
        if not (preview.num_dropped or preview.num_uncommitted or preview.num_composed):
            out.expired(preview)
            return
        ask(out, keeping.expired(preview), "Let them go?")
    with out.steps() as progress:
        report = repo.expire(dry_run=dry_run, progress=progress)
    out.expired(report)
