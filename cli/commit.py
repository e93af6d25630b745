"""deltavc commit: take in a checkpoint as the next version of a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import json_or_text, pairs, pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


def _metrics(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for name, text in pairs("metric")(ctx, param, given).items():
        try:
            found[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} of metric {name!r} is not a number", ctx, param) from None
    return found


@click.command()
@click.argument("path")
@click.option("-m", "--message", default="", help="What this version is.")
@click.option("--step", type=int, help="Training step.")
@click.option("--metric", multiple=True, callback=_metrics, metavar="NAME=NUMBER", help="May be repeated.")
@click.option("--meta", multiple=True, callback=pairs("meta"), metavar="NAME=JSON", help="Any other fact; or text.")
@click.option("--file", multiple=True, callback=pairs("file"), metavar="NAME=PATH", help="A file to keep with it.")
@click.option("--branch", default="main", show_default=True, help="It moves to the new version.")
@click.option("--author", help="By default user@host.")
@click.option("--codec", help="For every tensor, instead of the one that gives the fewest bytes.")
@click.option("--dtype", help="Cast floating tensors as they are read: bfloat16.")
@click.option("--snapshot/--no-snapshot", default=None, help="Whether to store a snapshot beside the delta.")
@click.option("--orphan", is_flag=True, help="Begin a branch that is not there, or was deleted: without parents.")
@click.option("--partial", is_flag=True, help="Tensors that PATH lacks are unchanged, instead of dropped.")
@pass_repo
def commit(
    repo: Repo,
    out: Output,
    path: str,
    message: str,
    step: int | None,
    metric: dict[str, float],
    meta: dict[str, str],
    file: dict[str, str],
    branch: str,
    author: str | None,
    codec: str | None,
    dtype: str | None,
    snapshot: bool | None,
    orphan: bool,
    partial: bool,
) -> None:
    """Commit the checkpoint at PATH to a branch.

    PATH is a .safetensors file, a directory of them (its other files are kept too), or a .pt file of plain tensors.

    \b
    Example:
      deltavc commit out/step-120 --step 120 --metric reward=0.8 -m "longer context"
    """
    with out.progress(f"committing {path}"):
        version = repo.commit(
            path,
            branch,
            message=message,
            step=step,
            metrics=metric,
            meta={name: json_or_text(text) for name, text in meta.items()},
            files=file,
            author=author,
            codec=codec,
            dtype=dtype,
            parents=() if orphan else None,
            snapshot=snapshot,
            partial=partial,
        )
    out.committed(version)
