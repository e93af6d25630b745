"""Lengths of time as people write them: 90s, 15m, 24h, 14d."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd])")


def duration(text: str) -> timedelta:
    """Read a length of time. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no length of time; write 90s, 15m, 24h or 14d")
    return timedelta(seconds=float(found[1]) * _UNITS[found[2]])


def in_words(length: timedelta | float) -> str:
    """A length of time, or seconds, in its largest whole unit: 24h, 90s."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    for unit, size in reversed(_UNITS.items()):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.3g}s"
