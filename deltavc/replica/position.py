"""Where a replica is and was, where it could be next, and what takes it back while it is on its way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from deltavc.replica.applied import Applied, Span, Staged
from deltavc.replica.swaps import Swap

MAX_HISTORY = 1 << 16
"""Moves that a replica remembers."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the replica is: the version, and the fingerprint of each cell."""

    version: str
    shares: Sequence[int]
    span: Span

    @classmethod
    def at(cls, version: str, shares: Sequence[int]) -> Position:
        """A position that is taken now."""
        return cls(version, shares, Span(version, datetime.now(UTC), time.monotonic()))


class History:
    """The position that a replica is at, and when it was at others. One thread takes positions, any may ask."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._past: deque[Span] = deque(maxlen=MAX_HISTORY)

    def take(self, position: Position) -> None:
        """Be at a position from when it says on. It is, or is not, whatever interrupts this."""
        last = self.position.span
        # Said before it is so: a span that goes on counts as the one that lasts.
        self._past.append(replace(last, until=position.span.since, end=position.span.begin))
        self.position = position

    def spans(self) -> list[Span]:
        """Which version from when to when, oldest first; the last one lasts."""
        spans = {span.begin: span for span in (*self._past, self.position.span)}
        return list(spans.values())


@dataclass(frozen=True, slots=True)
class Ready:
    """A version that is staged and proven. nbytes, seconds: what that took, in all where it went on from another."""

    staged: Staged
    shares: Sequence[int]
    swaps: Sequence[Swap]
    num_lanes: int
    nbytes: int
    seconds: float

    @property
    def version(self) -> str:
        return self.staged.version


@dataclass(slots=True)
class Journal:
    """A swap that has begun: what undoes it, the position that is taken when it is done, and what on_apply was told."""

    swaps: Sequence[Swap]
    target: Position
    told: Applied | None = None
