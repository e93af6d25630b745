"""Watching: what a run is doing, and what it did."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from deltavc.lookup import Lookup
from deltavc.store.transfers import DEFAULT_MEMORY

if TYPE_CHECKING:
    from deltavc.access import Access
    from deltavc.series import Series
    from deltavc.tail import Tail

SAMPLES = 300
"""Versions that a plot has room for: a few pixels each."""


class Watching(Lookup):
    """The part of a `Repo` that a run is watched by."""

    def tail(self, branch: str = "main", last: int = 10, *, every: float = 2.0) -> Tail:
        """The last moves of a branch, oldest first, and then every further one as it happens. Needs no database.

        Args:
            last: how many moves to begin with.
            every: seconds from one look to the next.

        Raises:
            UnknownRef: there is no such branch.
            ValueError: a negative number of moves, or no time between two looks.
        """
        from deltavc.tail import Tail

        if last < 0:
            raise ValueError(f"last={last}: how many moves to begin with, 0 or more")
        return Tail(self._index, branch, last, every)

    def series(self, ref: str = "main", *, samples: int = SAMPLES) -> Series:
        """Bytes, density, metrics and changed layers over the first-parent history of a ref. Reads no weights.

        Args:
            samples: how many versions at most, 2 or more; of a longer history they are taken evenly, and the first and
                the last are among them.

        Raises:
            UnknownRef, AmbiguousRef; DatabaseNeeded: histories are asked of a database.
            CorruptObject: an index of a pack is damaged.
            ValueError: less than 2 samples.
        """
        from deltavc.series import series

        if samples < 2:
            raise ValueError(f"samples={samples}: how many versions at most, 2 or more")
        access = self._access(DEFAULT_MEMORY)
        return series(access.index, access.objects, ref, self.resolve(ref), samples)

    @abstractmethod
    def _access(self, memory: int) -> Access: ...
