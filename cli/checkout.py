"""deltavc checkout: write a version's weights, proven, to a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("ref")
@click.option("-o", "--output", "directory", required=True, metavar="DIR", help="New or empty, unless --overwrite.")
@click.option("--overwrite", is_flag=True, help="Replace the weights in DIR; files of other names stay.")
@pass_repo
def checkout(repo: Repo, out: Output, ref: str, directory: str, overwrite: bool) -> None:
    """Write the weights of REF to DIR, proven bit for bit.

    They are .safetensors files laid out as they were committed, with the version's other files beside them.

    \b
    Example:
      deltavc checkout best:reward -o out
    """
    with out.progress(f"checking out {ref}"):
        state = repo.checkout(ref, path=directory, overwrite=overwrite)
    out.checked_out(state.version, directory, state.timings)
