"""deltavc identify: which versions hold exactly these weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failures import FAILED
from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("path")
@pass_repo
def identify(repo: Repo, out: Output, path: str) -> None:
    """Find the versions that hold exactly PATH's weights.

    PATH is a checkpoint as for commit. The exit code is 1 if there is no such version.

    \b
    Example:
      deltavc identify out/model.safetensors
    """
    with out.progress(f"reading {path}"):
        versions = repo.identify(path)
    out.identified(versions)
    if not versions:
        out.note("no version holds exactly these weights")
        out.note(f"hint: `deltavc verify {path} --against REF` tells in which tensors they differ from a version")
        click.get_current_context().exit(FAILED)
