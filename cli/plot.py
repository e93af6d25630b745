"""A run as a picture: bytes, density and metrics over steps, and how much of each layer changed.

    bytes     ▁▁▁▁█▁▁▁▁█▁▁    one panel above the other, along the same steps
    changed   ▂▂▂▃▃▂▂▂▁▁▁▁
    reward    ▁▂▂▃▄▅▅▆▆▇▇▇
    layers    ░░░▒▒░░░░░░░    a row for each, darker where less changed

matplotlib is imported here and nowhere else, and draws into memory: no window, and no settings of anybody are touched.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .texts import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from deltavc.series import Series

_WIDTH, _PANEL, _ROW = 10.0, 1.5, 0.16
"""Inches: the picture's width, the height of a panel, the height of a layer's row."""

_MOST_ROWS = 60
"""Layers that each get a row of that height; more share the room."""

_LABELS = 40
"""Layers that are named beside their rows."""

_NAME = 40
"""Characters of a name that are shown."""


def picture(series: Series, metrics: Sequence[str], kind: str) -> bytes:
    """Draw a series as a png, pdf or svg file; `metrics` are the names of those that get a panel."""
    samples, layers = series.samples, series.layers
    heights = [_PANEL] * (2 + len(metrics)) + [max(_ROW * min(len(layers), _MOST_ROWS), 2 * _PANEL)]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 1), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    places, what = _places(series)
    _line(panels[0], places, [sample.nbytes for sample in samples], "bytes stored", log=True)
    _line(panels[1], places, [sample.density for sample in samples], "share changed", log=True)
    for panel, name in zip(panels[2:], metrics, strict=False):
        _line(panel, places, [sample.version.metrics.get(name) for sample in samples], name)
    _heat(panels[-1], places, series)
    panels[0].set_title(_title(series), parse_math=False)
    panels[-1].set_xlabel(what)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(panels[:-1])
    written = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
        warnings.simplefilter("ignore")  # signs that the font lacks are drawn as boxes
        figure.savefig(written, format=kind)
    return written.getvalue()


def _places(series: Series) -> tuple[list[float], str]:
    """Where each sample stands along the picture, and what that is: its step, if steps only ever rise."""
    steps = [sample.version.step for sample in series.samples]
    if all(a is not None and b is not None and a < b for a, b in pairwise([*steps, math.inf])):
        return [float(step) for step in steps if step is not None], "step"
    last = max(len(steps) - 1, 1)
    return [place * (series.num_versions - 1) / last for place in range(len(steps))], "versions from the first"


def _title(series: Series) -> str:
    shown, total = len(series.samples), series.num_versions
    of = f"{total:,} versions" if shown == total else f"{shown:,} of {total:,} versions, evenly apart"
    return f"{_named(series.ref)}: {of}"


def _line(
    panel: Axes, places: Sequence[float], values: Sequence[float | None], name: str, *, log: bool = False
) -> None:
    """One value along the run; what is not known, or not finite, is a gap."""
    drawn = [value if value is not None and math.isfinite(value) else math.nan for value in values]
    panel.plot(places, drawn, linewidth=1, marker=".", markersize=3)
    panel.set_ylabel(_named(name), parse_math=False)
    panel.grid(alpha=0.3)
    if log and any(value > 0 for value in drawn):  # without any, there is no scale
        panel.set_yscale("log", nonpositive="mask")


def _heat(panel: Axes, places: Sequence[float], series: Series) -> None:
    """A row for each layer: how much of it changed, in logarithmic colours; grey where that is not known."""
    layers = series.layers
    shares = np.full((len(layers), len(places)), np.nan)
    row = {layer: number for number, layer in enumerate(layers)}
    for column, sample in enumerate(series.samples):
        for layer, value in (sample.layers or {}).items():
            shares[row[layer], column] = value
    panel.set_ylabel("layers", parse_math=False)
    panel.set_facecolor("lightgrey")
    changed = shares[shares > 0]
    if not changed.size:
        panel.set_yticks([])
        return
    colours = LogNorm(vmin=float(changed.min()), vmax=max(float(changed.max()), 2 * float(changed.min())))
    known = np.ma.masked_invalid(np.where(shares == 0, changed.min(), shares))
    edges = _edges(places)
    mesh = panel.pcolormesh(edges, np.arange(len(layers) + 1), known, norm=colours, rasterized=True)
    panel.set_xlim(edges[0], edges[-1])
    panel.invert_yaxis()
    apart = -(-len(layers) // _LABELS)
    names = [_named(layer) for layer in layers[::apart]]
    panel.set_yticks(np.arange(0, len(layers), apart) + 0.5, names, fontsize="x-small", parse_math=False)
    means = any(sample.averaged for sample in series.samples)
    said = "share changed" + (" (some are means over layers)" if means else "")
    panel.figure.colorbar(mesh, ax=panel, label=said, location="bottom", aspect=60)


def _edges(places: Sequence[float]) -> list[float]:
    """Where the columns of values at these places begin and end."""
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    if not middles:
        return [places[0] - 0.5, places[0] + 0.5]
    return [2 * places[0] - middles[0], *middles, 2 * places[-1] - middles[-1]]


def _named(name: str) -> str:
    name = plain(name)
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
