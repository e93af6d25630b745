"""What watching a run prints: layers compared, moves of a branch, plots. Pure, as `texts` is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deltavc.amounts import share

from . import texts
from .texts import plain, table

if TYPE_CHECKING:
    from deltavc.diff import Diff, TensorDiff
    from deltavc.layers import LayerDiff
    from deltavc.series import Series
    from deltavc.tail import BranchMove

_DONE = {"rolled_back": "rolled back to", "moved": "moved to", "created": "created at", "deleted": "deleted"}
"""What was done to a branch, by kind of move."""


def moved(move: BranchMove, *, oneline: bool) -> Iterator[str]:
    """One move of a branch: a version as the log shows it, or, where none was committed, what happened, in a line."""
    if move.kind == "committed" and move.version is not None:
        yield from texts.log([move.version], {}, oneline=oneline, graph=False)
        return
    was = f", was at {move.old[: texts.SHORT]}" if move.old else ""
    to = f" {texts.brief(move.version)}" if move.version is not None else ""
    yield f"{plain(move.branch)} {_DONE[move.kind]}{to}{was}  ({plain(move.who)}: {plain(move.why)})"
    if not oneline:
        yield ""


def layers(diff: Diff, found: Sequence[LayerDiff], *, all_layers: bool) -> Iterator[str]:
    """Two versions compared layer by layer: those that differ, those that do not in a line, and a total."""
    shown = [layer for layer in found if all_layers or layer.num_changed]
    rows = [_layer(plain(layer.name), f"{layer.num_changed} of {layer.num_tensors}", layer) for layer in shown]
    differing = sum(layer.num_changed for layer in found)
    rows.append(_layer("total", f"{differing} of {len(diff.tensors)}", diff.total))
    yield from table(["layer", "tensors", "changed", "of", "share", "largest step"], rows, right=(1, 2, 3, 4, 5))
    same = len(found) - len(shown)
    if same:
        yield f"{same} {'layer is' if same == 1 else 'layers are'} unchanged"


def plotted(series: Series, metrics: Sequence[str], path: str) -> Iterator[str]:
    """What a picture shows, and what it leaves out."""
    shown, total = len(series.samples), series.num_versions
    of = f"{total:,}" if shown == total else f"{shown:,} of {total:,}"
    yield f"drew {of} versions of {plain(series.ref)} in {plain(path)}"
    if left := [name for name in series.metrics if name not in metrics]:
        yield f"metrics left out: {', '.join(map(plain, left))}"
    if any(sample.averaged for sample in series.samples):
        yield "some versions store several layers densely: their shares are means over those layers"


def _layer(name: str, tensors: str, found: LayerDiff | TensorDiff) -> list[str]:
    return [
        name,
        tensors,
        f"{found.changed_elements:,}",
        f"{found.num_elements:,}",
        share(found.changed_elements, found.num_elements),
        f"{found.largest_step:,} ulp" if found.largest_step else "",
    ]
