"""A history drawn beside its lines, in ASCII.

    * 7f…  step 5               each column is a line of descent that waits for its next version
    | * 3c…  step 4             a side branch
    | * 9a…  step 3
    |-'                         it forked from the next version of the first column
    * 12…  step 2
    |-.                         the version above is a merge; its second parent comes in the new column
    | * 5d…  step 1

A free column between others stays free, so that lines of descent are straight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What stands beside one version: before its first line, before the others, and lines before and after it."""

    node: str
    rest: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def draw(history: Iterable[tuple[str, Sequence[str]]]) -> list[Row]:
    """Lay out a history: (id, parents), none before one of its children. Parents that are not in it are left out."""
    history = list(history)
    shown = {version for version, _ in history}
    columns: list[str | None] = []
    rows = []
    for version, parents in history:
        before = []
        if version not in columns:
            columns = [*columns, version]
        place = columns.index(version)
        while (other := _last(columns, version)) > place:
            before.append(_join(columns, place, other, "'"))
            columns[other] = None
            columns = _trimmed(columns)
        node = "".join("* " if at == place else "| " if column else "  " for at, column in enumerate(columns))
        wanted = [parent for parent in parents if parent in shown]
        columns[place] = wanted[0] if wanted else None
        after = []
        for parent in wanted[1:]:
            corner = "|"
            if parent not in columns:
                columns.append(parent)
                corner = "."
            left, right = sorted((place, columns.index(parent)))
            after.append(_join(columns, left, right, corner))
        rest = "".join("| " if column else "  " for column in columns[: len(node) // 2])
        rows.append(Row(node, rest, tuple(before), tuple(after)))
        columns = _trimmed(columns)
    return rows


def _last(columns: list[str | None], version: str) -> int:
    return max(place for place, column in enumerate(columns) if column == version)


def _join(columns: list[str | None], place: int, other: int, corner: str) -> str:
    """A line that leads from one column to another further right."""
    text = ""
    for at, column in enumerate(columns):
        if at == other:
            text += f"{corner} "
        elif place <= at < other:
            text += "|-" if at == place or column else "--"
        else:
            text += "| " if column else "  "
    return text.rstrip()


def _trimmed(columns: list[str | None]) -> list[str | None]:
    """Without free columns at the right end; those between others are kept, so that lines stay straight."""
    while columns and columns[-1] is None:
        columns = columns[:-1]
    return columns
