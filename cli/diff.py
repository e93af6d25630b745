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
@click.option("--all", "everything", is_flag=True, help="List what is unchanged too.")
@click.option("--by-layer", is_flag=True, help="Sum tensors up by layer, such as model.layers.3.")
@pass_repo
def diff(repo: Repo, out: Output, a: str, b: str, everything: bool, by_layer: bool) -> None:
    """Compare versions A and B, tensor by tensor.

    Shows how many elements changed, and the largest step in ULPs. An ULP is one step between neighbouring values
    of a dtype, counted across zero.

    \b
    Example:
      deltavc diff main~1 main
      deltavc diff step:100 step:200 --by-layer
    """
    with out.progress(f"comparing {a} and {b}"):
        found = repo.diff(a, b)
    if by_layer:
        out.diff_by_layer(found, all_layers=everything)
    else:
        out.diff(found, all_tensors=everything)
