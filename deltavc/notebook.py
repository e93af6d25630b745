"""Small HTML tables, as notebooks show the last value of a cell.

    facts("version 6363eeec17af", [("step", 3), ("message", "Third step")])
    table("a -> b", ["tensor", "changed"], [["layer.weight", "6"]], more=4)

What is shown came from a repository, and may have been chosen by somebody: all of it is escaped, and nothing of it
becomes a tag, an attribute, a link or a formula. There is no style sheet and no script, so a table looks as the
notebook's own do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

MAX_ROWS = 60
"""Rows of one table. A model has hundreds of tensors, and a notebook keeps what it shows in its file."""

MAX_TEXT = 300
"""Characters of one cell."""

_NO_MATH = "tex2jax_ignore mathjax_ignore"
"""Classes that MathJax 2 and 3 leave alone: between dollar signs they would read commands that make links."""


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """What is known of one thing: names and values, values that are None or empty left out."""
    rows = (
        f'<tr><th style="text-align:left">{_text(name)}</th><td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in pairs
        if value is not None and value != ""
    )
    return _titled(title, "".join(rows))


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], *, more: int = 0) -> str:
    """Rows under a head: the first column to the left, the others to the right.

    Args:
        rows: of as many cells as `head`. Only MAX_ROWS of them are shown.
        more: how many rows were left out by the caller.
    """
    left_out = more + max(0, len(rows) - MAX_ROWS)
    lines = [_row("th", head), *(_row("td", row) for row in rows[:MAX_ROWS])]
    if left_out:
        lines.append(f'<tr><td colspan="{len(head)}" style="text-align:left">and {left_out:,} more</td></tr>')
    return _titled(title, "".join(lines))


def _titled(title: str, lines: str) -> str:
    return f'<table class="{_NO_MATH}"><caption style="text-align:left">{_text(title)}</caption>{lines}</table>'


def _row(tag: str, cells: Sequence[object]) -> str:
    sides = ("left" if place == 0 else "right" for place in range(len(cells)))
    return (
        "<tr>"
        + "".join(
            f'<{tag} style="text-align:{side}">{_text(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
        )
        + "</tr>"
    )


def _text(value: object) -> str:
    text = str(value).encode(errors="backslashreplace").decode()
    return escape(text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…")
