"""What a replica tells: what it is staging, what it applied, and which version it was at when."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from deltavc.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Applied:
    """A move that was made.

    version: the id of the version the replica is at now. pause_seconds: how long nobody could read.
    changed_lanes: lanes that were written. timings: seconds within the pause by stage: fence, swap, hook.
    nbytes: bytes of frames that were fetched for it. stage_seconds: how long staging took, beside serving; 0 for a long
    pause. Where staging went on from a version that was staged and not applied, they count what was staged for both.
    """

    version: str
    pause_seconds: float
    changed_lanes: int
    timings: Mapping[str, float]
    nbytes: int = 0
    stage_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """A time at one version. since, until: wall clock, UTC; begin, end: `time.monotonic()`; None while it lasts."""

    version: str
    since: datetime
    begin: float
    until: datetime | None = None
    end: float | None = None


class Staged:
    """A version that is being staged, or has been. The replica goes on serving meanwhile.

    version: its id. Made by `Replica.stage`.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.cancelled = threading.Event()
        self._outcome: Outcome[int] | None = None

    def of(self, outcome: Outcome[int]) -> Staged:
        """Take what gives the bytes fetched."""
        self._outcome = outcome
        return self

    @property
    def done(self) -> bool:
        """Whether staging has ended, well or not."""
        return self._outcome is not None and self._outcome.done()

    @property
    def nbytes(self) -> int:
        """Bytes of frames that were fetched; waits until staging is done. Raises what `wait` raises."""
        return self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the version is staged and proven.

        Returns:
            Bytes of frames that were fetched.

        Raises:
            TimeoutError: not within so many seconds; staging goes on.
            StageCancelled, StagingTooSmall: nothing is staged.
            WrongWeights, CorruptObject, MissingObject, NoPath, StoreError: what staging failed with.
        """
        assert self._outcome is not None
        return self._outcome.result(timeout)

    def cancel(self) -> None:
        """Stop staging as soon as it can be. Live weights are not touched by staging, ended or not."""
        self.cancelled.set()
