"""Sizes and shares in words, the same on the command line and in notebooks."""

from __future__ import annotations


def nbytes(count: int) -> str:
    """A size in bytes for people, in powers of 1000."""
    size, units = float(count), iter(("kB", "MB", "GB", "TB", "PB"))
    unit = "B"
    while size >= 999.5:
        size, unit = size / 1000, next(units)
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}" if size < 99.95 else f"{size:.0f} {unit}"


def share(part: int, whole: int) -> str:
    """A part of a whole as a percentage with two digits that mean something."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.1f} %" if percent >= 10 or not percent else f"{percent:.2g} %"
