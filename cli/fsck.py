"""deltavc fsck: is everything there, and what it says it is?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failures import CORRUPT
from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.option("--full", is_flag=True, help="Also read every byte, and prove the weights of every version.")
@click.option("--repair", is_flag=True, help="Do what can be done about what is wrong; says what is lost.")
@click.option("--anew", is_flag=True, help="Rely on no full check of the last week.")
@pass_repo
def fsck(repo: Repo, out: Output, full: bool, repair: bool, anew: bool) -> None:
    """Check that all objects are there and are what they say they are.

    It runs beside writers. With --full every edge is walked once; after Ctrl-C the next --full goes on where this one
    was. The exit code is 20 if something is wrong.

    \b
    Example:
      deltavc fsck --full
    """
    with out.steps() as progress:
        report = repo.fsck(full, repair=repair, anew=anew, progress=progress)
    out.checked(report)
    if not report.ok:
        click.get_current_context().exit(CORRUPT)
