"""deltavc verify: is a version, or a checkpoint on disk, what it should be?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import CORRUPT, FAILED
from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("what", default="main")
@click.option("--against", metavar="REF", help="WHAT is a checkpoint; compare it with this version.")
@pass_repo
def verify(repo: Repo, out: Output, what: str, against: str | None) -> None:
    """Prove the version WHAT (default: main), or that the checkpoint WHAT is one.

    A version: its id and those of all its ancestors, its objects, its files, and its weights by walking to them. With
    --against: do these files hold exactly that version? The exit code is 20 if something is not as it should be,
    and 1 if the weights were given up because the policy does not keep them.

    \b
    Example:
      deltavc verify best:reward
      deltavc verify out --against best:reward
    """
    from deltavc.errors import UnknownRef

    if against is None:
        try:
            with out.steps() as progress:
                found = repo.verify(what, progress=progress)
        except UnknownRef as error:
            if Path(what).exists():
                error.add_note(f"({what} is in this folder: to compare it with a version, add --against REF)")
            raise
        out.verified(found)
        ok, damaged = found.ok, bool(found.problems)
    else:
        with out.progress(f"reading {what}"):
            match = repo.match(what, against)
        out.matched(what, match)
        ok, damaged = match.ok, True
    if not ok:
        click.get_current_context().exit(CORRUPT if damaged else FAILED)
