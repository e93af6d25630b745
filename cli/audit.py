"""deltavc audit: everything there is to say about one version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failures import CORRUPT, FAILED
from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("ref", default="main")
@click.option("--full", is_flag=True, help="Also walk to the weights and compute their fingerprints.")
@pass_repo
def audit(repo: Repo, out: Output, ref: str, full: bool) -> None:
    """Tell where REF (default: main) comes from, what happened to it, and what is proven.

    Who committed it, when, from what and through which steps; which branches and tags have it, and every move and
    rollback that concerned it; its files; what is stored; what was verified and how. The exit code is 20 if something
    is not as it should be, and 1 if the weights were given up because the policy does not keep them.

    \b
    Example:
      deltavc audit v1.0 --full
    """
    with out.steps() as progress:
        found = repo.audit(ref, weights=full, progress=progress)
    out.audited(found)
    if not found.ok:
        click.get_current_context().exit(CORRUPT if found.verification.problems else FAILED)
