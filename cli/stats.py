"""deltavc stats: how much there is, and how it came about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo
    from deltavc.series import Series

_PANELS = 4
"""Metrics that are drawn when none is named."""


@click.command()
@click.option("--plot", "path", metavar="FILE", help="Draw the history of --ref: .png, .pdf or .svg. Needs matplotlib.")
@click.option("--ref", default="main", show_default=True, help="What to draw the history of.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Draw this one. May be repeated.")
@pass_repo
def stats(repo: Repo, out: Output, path: str | None, ref: str, metrics: tuple[str, ...]) -> None:
    """Count versions, branches, tags, snapshots, deltas and bytes; draw how they came about.

    The picture shows, along the steps of a run, what each version stored, the share of the weights that it changed, its
    metrics, and how much of each layer changed. It is made from records: no weights are read. Of a long history at most
    300 versions are drawn, evenly apart.

    \b
    Example:
      deltavc stats --json
      deltavc stats --plot run.png --metric reward --metric loss
    """
    if path is None:
        if metrics or ref != "main":
            raise click.UsageError("--metric and --ref are for --plot")
        out.stats(repo.stats())
        return
    kind = _kind(path)
    from deltavc.store.files import replacing

    from . import plot

    totals = repo.stats()
    with out.progress(f"reading the history of {ref}"):
        series = repo.series(ref)
        drawn = _chosen(series, metrics)
        body = plot.picture(series, drawn, kind)
    with replacing(path) as file:
        file.write(body)
    out.plotted(totals, series, drawn, path)


def _kind(path: str) -> str:
    """The kind of picture that a file of this name is; refused before anything is read."""
    kinds = ("png", "pdf", "svg")
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in kinds:
        raise click.UsageError(f"a picture is a .png, .pdf or .svg file, and {path} is none by its name")
    if not Path(path).absolute().parent.is_dir():
        raise click.UsageError(f"{path} would be in a directory that does not exist")
    return kind


def _chosen(series: Series, metrics: tuple[str, ...]) -> tuple[str, ...]:
    known = series.metrics
    unknown = [name for name in metrics if name not in known]
    if unknown:
        names = ", ".join(known[:20]) or "none"
        raise click.UsageError(f"no version that is drawn has a metric {unknown[0]!r}; there are: {names}")
    return metrics or known[:_PANELS]
