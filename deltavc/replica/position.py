"""Where a replica is, where it could be next, and what takes it back while it is on its way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from deltavc.replica.applied import Applied, Span, Staged
from deltavc.replica.swaps import Swap


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
