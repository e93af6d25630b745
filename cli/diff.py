"""deltavc diff: what differs between two versions, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--all", "all_tensors", is_flag=True, help="List unchanged tensors too.")
@pass_repo
def diff(repo: Repo, out: Output, a: str, b: str, all_tensors: bool) -> None:
    """Compare versions A and B, tensor by tensor.

    Shows how many elements changed, and the largest step in ULPs. An ULP is one step between neighbouring values
    of a dtype, counted across zero.

    \b
    Example:
      deltavc diff main~1 main
    """
    with out.progress(f"comparing {a} and {b}"):
        found = repo.diff(a, b)
    out.diff(found, all_tensors=all_tensors)
